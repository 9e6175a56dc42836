//! A bounded memory of things that may be forgotten: each key has one place, and whoever comes
//! later takes it.
//!
//! No list to keep in order, nothing to sweep, one short lock. A key that lost its place costs a
//! question to the store, never a wrong answer: places are known by 128 bits under a secret of
//! this process, so nobody can aim at another's.

use std::hash::Hasher;
use std::sync::{Mutex, PoisonError};

use siphasher::sip128::{Hasher128, SipHasher13};
use tollgate_core::{Key, Limit};

use crate::chance;

/// What stands for a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Print {
    high: u64,
    low: u64,
}

/// Makes prints.
pub(crate) struct Printer {
    keys: (u64, u64),
}

impl std::fmt::Debug for Printer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Printer(..)")
    }
}

impl Printer {
    pub(crate) fn new() -> Self {
        Self { keys: (chance::bits(), chance::bits()) }
    }

    /// The print of a counter, under whichever edit of its rule.
    pub(crate) fn print(&self, key: Key<'_>, limit: &Limit) -> Print {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        hasher.write_u8(limit.code());
        hasher.write(key.as_bytes());
        let hash = hasher.finish128();
        Print { high: hash.h1, low: hash.h2 }
    }
}

/// Places for things that may be forgotten.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    shards: Box<[Mutex<Shard<T>>]>,
}

type Shard<T> = Box<[Option<(Print, T)>]>;

/// Enough that two threads seldom meet.
const SHARDS: usize = 64;

impl<T: Copy> Slots<T> {
    /// About so many places, at least one a shard.
    pub(crate) fn new(places: usize) -> Self {
        let each = places.div_ceil(SHARDS).max(1);
        let shard = || Mutex::new(std::iter::repeat_with(|| None).take(each).collect());
        Self { shards: std::iter::repeat_with(shard).take(SHARDS).collect() }
    }

    /// What is known of a counter.
    pub(crate) fn get(&self, print: Print) -> Option<T> {
        self.at(print, |place| place.filter(|(found, _)| *found == print).map(|(_, value)| value))
    }

    /// Remembers this of a counter, in place of whatever is there.
    pub(crate) fn put(&self, print: Print, value: T) {
        self.at(print, |place| *place = Some((print, value)));
    }

    /// Forgets a counter.
    pub(crate) fn forget(&self, print: Print) {
        self.at(print, |place| {
            if place.is_some_and(|(found, _)| found == print) {
                *place = None;
            }
        });
    }

    fn at<R: Default>(&self, print: Print, act: impl FnOnce(&mut Option<(Print, T)>) -> R) -> R {
        let pick = |bits: u64, of: usize| {
            let of = u64::try_from(of).unwrap_or(1).max(1);
            usize::try_from(bits.checked_rem(of).unwrap_or(0)).unwrap_or(0)
        };
        let Some(shard) = self.shards.get(pick(print.low, self.shards.len())) else {
            return R::default();
        };
        // Nothing here can panic halfway, so what a poisoned lock guards is whole.
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let place = pick(print.high, shard.len());
        shard.get_mut(place).map(act).unwrap_or_default()
    }
}
