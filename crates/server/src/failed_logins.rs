//! Failed logins: wrong tokens, counted for each listener and logged within bounds.
//!
//! At the admin listener an address with too many wrong tokens has to wait. At the other listeners it does
//! not: clients behind one proxy share an address, and an old token of one client must not lock out the
//! others. The two counts are separate, so that a flood at another listener cannot lock out an admin.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::listener::{Listener, PerListener};
use crate::local_limit::LocalLimit;

/// Wrong tokens per address and minute: at the admin listener before it waits, at
/// the others before no more of them are logged.
const MAX_PER_ADDRESS: u64 = 10;

/// Wrong tokens at the others that are logged per minute, for all addresses together.
const MAX_LOGGED: u64 = 100;

/// Addresses that are counted; beyond them all share one count.
const MAX_ADDRESSES: usize = 10_000;

/// Failed logins, counted by listener and by address.
#[derive(Debug)]
pub(crate) struct FailedLogins {
    counts: PerListener<AtomicU64>,
    /// Of one address, at the admin listener.
    admin: LocalLimit,
    /// Of one address, at the others.
    clients: LocalLimit,
    /// Of all addresses, at the others.
    logged: LocalLimit,
}

impl Default for FailedLogins {
    fn default() -> Self {
        let per_minute = |keys, count| LocalLimit::new(keys, count, Duration::from_secs(60));
        Self {
            counts: PerListener::default(),
            admin: per_minute(MAX_ADDRESSES, MAX_PER_ADDRESS),
            clients: per_minute(MAX_ADDRESSES, MAX_PER_ADDRESS),
            logged: per_minute(1, MAX_LOGGED),
        }
    }
}

impl FailedLogins {
    /// Records a wrong or missing token. `request` is the id of the request, if it has one. The token
    /// itself is not a parameter, so that nothing can show it.
    pub(crate) fn record(
        &self,
        listener: Listener,
        peer: Option<SocketAddr>,
        request: Option<&str>,
    ) {
        self.counts[listener].fetch_add(1, Ordering::Relaxed);
        let key = peer.map_or_else(|| "?".to_owned(), |peer| key(peer.ip()));
        let logged = match listener {
            Listener::Admin => self.admin.take(&key),
            _ => self.clients.take(&key) && self.logged.take("all"),
        };
        if logged {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(audit = true, listener = listener.name(), peer, request, "wrong token");
        }
    }

    /// True if an address may still try at the admin listener.
    pub(crate) fn may_try(&self, address: IpAddr) -> bool {
        self.admin.has_room(&key(address))
    }

    /// Count of a listener.
    pub(crate) fn count(&self, listener: Listener) -> u64 {
        self.counts[listener].load(Ordering::Relaxed)
    }
}

fn key(address: IpAddr) -> String {
    address.to_canonical().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> SocketAddr {
        SocketAddr::from((std::net::Ipv4Addr::from_bits(0x0a00_0000 | number), 7))
    }

    #[test]
    fn wrong_tokens_at_other_listeners_lock_no_admin_out_and_are_all_counted() {
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
