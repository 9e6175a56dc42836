//! Wrong tokens: counted for each listener, and told in the log, within bounds.
//!
//! At the admin listener an address that says too many waits. At the others nobody does: clients behind
//! one proxy have one address, and an old token of one of them must not shut out the others. So the two
//! are counted apart, too, or whoever floods another could keep an admin out.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::EmbeddedStore;
use tollgate::TokenBucket;
use tollgate::store::{Charge, Key, Op};
use tollgate::{Limit, Quota};

use crate::listener::{Listener, PerListener};

/// Wrong tokens per address and minute: at the admin listener before it waits, at
/// the others before no more of them are logged.
const MAX_PER_ADDRESS: u64 = 10;

/// Wrong tokens at the others that are logged per minute, for all addresses together.
const MAX_LOGGED: u64 = 100;

/// Addresses that are counted; beyond them all share one count.
const MAX_ADDRESSES: usize = 10_000;

/// The key of all addresses together, which is none of them.
const EVERYBODY: &str = "everybody";

/// Failed logins, counted by listener and by address.
#[derive(Debug)]
pub(crate) struct FailedLogins {
    counts: PerListener<AtomicU64>,
    admin: EmbeddedStore,
    clients: EmbeddedStore,
    /// Of one address.
    each: Option<Limit>,
    /// Of all addresses at the others.
    all: Option<Limit>,
}

impl Default for FailedLogins {
    fn default() -> Self {
        let store = || EmbeddedStore::builder().max_keys(MAX_ADDRESSES).build();
        let limit = |count: u64| {
            let quota = Quota::new(count, Duration::from_secs(60)).ok()?;
            Limit::new(TokenBucket, quota).ok()
        };
        Self {
            counts: PerListener::default(),
            admin: store(),
            clients: store(),
            each: limit(MAX_PER_ADDRESS),
            all: limit(MAX_LOGGED),
        }
    }
}

impl FailedLogins {
    /// Notes a wrong token, or none where one is needed. `request` is what the request is called, if
    /// it has a name. The token itself is not asked for, so that nothing can show it.
    pub(crate) fn record(
        &self,
        listener: Listener,
        peer: Option<SocketAddr>,
        request: Option<&str>,
    ) {
        self.counts[listener].fetch_add(1, Ordering::Relaxed);
        let address = peer.map(|peer| peer.ip());
        let logged = if listener == Listener::Admin {
            self.each(&self.admin, address, Op::Take(1))
        } else {
            self.each(&self.clients, address, Op::Take(1))
                && charge(&self.clients, self.all.as_ref(), EVERYBODY, Op::Take(1))
        };
        if logged {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(audit = true, listener = listener.name(), peer, request, "wrong token");
        }
    }

    /// Tells whether an address may still try at the admin listener.
    pub(crate) fn may_try(&self, address: IpAddr) -> bool {
        self.each(&self.admin, Some(address), Op::Peek(1))
    }

    /// Count of a listener.
    pub(crate) fn count(&self, listener: Listener) -> u64 {
        self.counts[listener].load(Ordering::Relaxed)
    }

    fn each(&self, store: &EmbeddedStore, address: Option<IpAddr>, op: Op) -> bool {
        let address =
            address.map_or_else(|| "?".to_owned(), |address| address.to_canonical().to_string());
        charge(store, self.each.as_ref(), &address, op)
    }
}

/// Charges a limit, and tells whether it passes.
fn charge(store: &EmbeddedStore, limit: Option<&Limit>, key: &str, op: Op) -> bool {
    let (Some(limit), Ok(key)) = (limit, Key::new(key)) else { return false };
    Charge::new(key, limit, op).is_ok_and(|charge| store.charge_one(&charge).passes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> SocketAddr {
        SocketAddr::from((std::net::Ipv4Addr::from_bits(0x0a00_0000 | number), 7))
    }

    #[test]
    fn guesses_at_a_door_keep_no_admin_out_and_are_all_counted() {
        let failed_logins = FailedLogins::default();
        for number in 0..20_000 {
            failed_logins.record(Listener::Http, Some(peer(number)), None);
        }
        assert_eq!(failed_logins.count(Listener::Http), 20_000);
        assert!(failed_logins.may_try(peer(1).ip()));

        for _ in 0..MAX_PER_ADDRESS {
            failed_logins.record(Listener::Admin, Some(peer(1)), None);
        }
        assert!(!failed_logins.may_try(peer(1).ip()));
        assert!(failed_logins.may_try(peer(2).ip()), "another address");
        assert_eq!(failed_logins.count(Listener::Admin), MAX_PER_ADDRESS);
    }
}
