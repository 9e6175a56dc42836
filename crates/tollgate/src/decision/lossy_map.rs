//! A bounded map that may forget: a counter has one place, and a later one may take it.
//!
//! There is no order to maintain and nothing to sweep; each access takes one short lock. A counter that
//! lost its place costs a question to the store, never a wrong answer. Counters are identified by 128
//! bits under a secret of this process, so a client cannot choose keys that collide.

use std::hash::Hasher;
use std::sync::Mutex;

use siphasher::sip128::{Hasher128, SipHasher13};
use tollgate_core::{Key, Limit, lock_mutex};

use crate::random;

/// A keyed 128-bit hash that stands for a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CounterHash {
    high: u64,
    low: u64,
}

/// Hashes counters under a secret of this process.
pub(crate) struct CounterHasher {
    keys: (u64, u64),
}

impl std::fmt::Debug for CounterHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CounterHasher(..)")
    }
}

impl CounterHasher {
    pub(crate) fn new() -> Self {
        Self { keys: (random::bits(), random::bits()) }
    }

    /// The hash of a counter, the same for every edit of its rule.
    pub(crate) fn hash(&self, key: Key<'_>, limit: &Limit) -> CounterHash {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        hasher.write_u8(limit.code());
        hasher.write(key.as_bytes());
        let bits = hasher.finish128();
        CounterHash { high: bits.h1, low: bits.h2 }
    }
}

/// A map from counters to values that may be forgotten.
#[derive(Debug)]
pub(crate) struct LossyMap<T> {
    shards: Box<[Mutex<Shard<T>>]>,
}

type Shard<T> = Box<[Option<(CounterHash, T)>]>;

/// Enough that two threads seldom wait for one shard.
const SHARDS: usize = 64;

impl<T: Copy> LossyMap<T> {
    /// A map with about this many places, at least one in each shard.
    pub(crate) fn new(places: usize) -> Self {
        let each = places.div_ceil(SHARDS).max(1);
        let shard = || Mutex::new(std::iter::repeat_with(|| None).take(each).collect());
        Self { shards: std::iter::repeat_with(shard).take(SHARDS).collect() }
    }

    /// The value of a counter.
    pub(crate) fn get(&self, hash: CounterHash) -> Option<T> {
        self.at(hash, |place| place.filter(|(found, _)| *found == hash).map(|(_, value)| value))
    }

    /// Remembers the value of a counter, in place of the value that is there.
    pub(crate) fn put(&self, hash: CounterHash, value: T) {
        self.at(hash, |place| *place = Some((hash, value)));
    }

    /// Forgets a counter.
    pub(crate) fn forget(&self, hash: CounterHash) {
        self.at(hash, |place| {
            if place.is_some_and(|(found, _)| found == hash) {
                *place = None;
            }
        });
    }

    fn at<R: Default>(
        &self,
        hash: CounterHash,
        act: impl FnOnce(&mut Option<(CounterHash, T)>) -> R,
    ) -> R {
        let pick = |bits: u64, of: usize| {
            let of = u64::try_from(of).unwrap_or(1).max(1);
            usize::try_from(bits.checked_rem(of).unwrap_or(0)).unwrap_or(0)
        };
        let Some(shard) = self.shards.get(pick(hash.low, self.shards.len())) else {
            return R::default();
        };
        let mut shard = lock_mutex(shard);
        let place = pick(hash.high, shard.len());
        shard.get_mut(place).map(act).unwrap_or_default()
    }
}
