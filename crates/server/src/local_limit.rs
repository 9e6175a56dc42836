//! A limit of this process, on a small store of its own: for log lines and events, and for logins.

use std::time::Duration;

use tollgate::store::{Charge, Key, Op};
use tollgate::{EmbeddedStore, Limit, Quota, TokenBucket};

/// A limit for each of a bounded number of keys.
#[derive(Debug)]
pub(crate) struct LocalLimit {
    store: EmbeddedStore,
    limit: Option<Limit>,
}

impl LocalLimit {
    /// Allows `count` per `period` for each key. Above `max_keys`, all further keys share one count.
    pub(crate) fn new(max_keys: usize, count: u64, period: Duration) -> Self {
        let quota = Quota::new(count, period).ok();
        let limit = quota.and_then(|quota| Limit::new(TokenBucket, quota).ok());
        Self { store: EmbeddedStore::builder().max_keys(max_keys).build(), limit }
    }

    /// Charges one, and tells whether that passes.
    pub(crate) fn take(&self, key: &str) -> bool {
        self.charge(key, Op::Take(1))
    }

    /// True if one more would pass.
    pub(crate) fn has_room(&self, key: &str) -> bool {
        self.charge(key, Op::Peek(1))
    }

    fn charge(&self, key: &str, op: Op) -> bool {
        let (Some(limit), Ok(key)) = (&self.limit, Key::new(key)) else { return false };
        Charge::new(key, limit, op).is_ok_and(|charge| self.store.charge_one(&charge).passes())
    }
}
