//! One limiter without keys.

use tollgate_core::{
    Charge, ChargeError, Clock, Counter, Decision, Key, Limit, Op, Retry, Verdict,
};

use crate::MonotonicClock;
use crate::sync::Lock;

/// The key of every charge; a single counter has no other.
const KEY: &[u8] = b"single";

/// One counter under one limit, for a single resource in this process.
///
/// ```
/// use tollgate_embedded::{Single, core::{Limit, algorithm::TokenBucket}};
///
/// let limit = Limit::new(TokenBucket, "1 per 1h burst 2".parse()?)?;
/// let single = Single::new(limit)?;
///
/// assert!(single.take(2).passes());
/// assert!(!single.take(1).passes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Single<C = MonotonicClock> {
    limit: Limit,
    clock: C,
    counter: Lock<Counter>,
}

impl Single {
    /// A full counter under this limit.
    ///
    /// # Errors
    ///
    /// When the limit counts holders: those need a key and a store.
    pub fn new(limit: Limit) -> Result<Self, ChargeError> {
        Self::with_clock(limit, MonotonicClock::new())
    }
}

impl<C: Clock> Single<C> {
    /// A full counter on this clock.
    ///
    /// # Errors
    ///
    /// As [`Single::new`].
    pub fn with_clock(limit: Limit, clock: C) -> Result<Self, ChargeError> {
        if let Ok(key) = Key::new(KEY) {
            Charge::new(key, &limit, Op::Take(1))?;
        }
        Ok(Self { limit, clock, counter: Lock::new(Counter::absent(&limit)) })
    }

    /// Takes `cost` permits if they are available.
    pub fn take(&self, cost: u64) -> Decision {
        let charge = Key::new(KEY).ok().and_then(|key| Charge::take(key, &self.limit, cost).ok());
        let Some(charge) = charge else {
            // The constructor has made this very charge.
            return Decision::overflow(Verdict::Deny(Retry::Never));
        };
        let mut counter = self.counter.lock();
        // Read inside the lock, so that decisions are made in the order of their moments.
        let now = self.clock.now();
        counter.charge(&charge, now)
    }
}
