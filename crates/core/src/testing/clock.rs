//! A clock that stands still until a test moves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::micros;
use crate::{Clock, Timestamp};

/// A clock that is set by hand. Clones share the time.
///
/// It can be stepped back, so it is not monotonic. Steps saturate at both ends of time.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::{Clock, testing::ManualClock};
///
/// let clock = ManualClock::default();
/// let before = clock.now();
/// clock.clone().advance(Duration::from_secs(1));
/// assert_eq!(clock.now().since(before), Duration::from_secs(1));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that stands at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.as_micros())))
    }

    /// Sets the clock to `now`, forward or back.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }

    /// Moves the clock forward. It stops at the end of time.
    pub fn advance(&self, by: Duration) {
        self.step(|now| now.saturating_add(micros(by)));
    }

    /// Moves the clock back, like a correction of a wall clock. It stops at the epoch.
    pub fn step_back(&self, by: Duration) {
        self.step(|now| now.saturating_sub(micros(by)));
    }

    fn step(&self, to: impl Fn(u64) -> u64) {
        self.0.update(Ordering::SeqCst, Ordering::SeqCst, to);
    }
}

/// Starts in November 2023, far from either end of time.
impl Default for ManualClock {
    fn default() -> Self {
        Self::at(Timestamp::from_micros(1_700_000_000_000_000))
    }
}

impl Clock for ManualClock {
    const MONOTONIC: bool = false;

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}
