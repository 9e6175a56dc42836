//! Time within this process, for everything that never reaches a store: how long a refusal may be
//! repeated, when a waiter wakes, how old a value is.
//!
//! The clock is monotonic: setting the system's clock changes nothing here. It is tokio's clock, so
//! tests can let hours pass in virtual time.
//!
//! Leases of locks are the exception. They go on in the store while this machine sleeps, so
//! [`BootTime`] measures them: it does not stop during sleep either.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use tokio::time::Instant;
use tollgate_core::{Clock, Timestamp};
use tollgate_embedded::MonotonicClock;

/// The current time.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The moment `later` after `then`. A sum that overflows yields a moment a year away.
pub(crate) fn after(then: Instant, later: Duration) -> Instant {
    then.checked_add(later).or_else(|| then.checked_add(FAR)).unwrap_or(then)
}

/// A year: longer than any period.
const FAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Time since the machine was started, its sleep included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BootTime(u64);

impl BootTime {
    /// The current time.
    pub(crate) fn now() -> Self {
        // Elsewhere the monotonic clock may stand still during sleep; the fence still protects.
        #[cfg(target_os = "linux")]
        let clock = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let clock = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(clock);
        let micros = time.tv_nsec.checked_div(1_000).and_then(|micros| u64::try_from(micros).ok());
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Self(seconds.saturating_mul(1_000_000).saturating_add(micros.unwrap_or(0)))
    }

    pub(crate) const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    pub(crate) const fn micros(self) -> u64 {
        self.0
    }

    pub(crate) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }

    /// The time since an earlier moment; zero if that moment is not earlier.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// A clock for stores that only this process uses. It starts from the wall clock, or from the time
/// of the remote store once that is known, and follows the monotonic clock from there. Clones share
/// their origin.
#[derive(Clone, Debug)]
pub(crate) struct LocalClock {
    origin: Instant,
    origin_us: Arc<AtomicU64>,
}

impl LocalClock {
    pub(crate) fn new() -> Self {
        let wall = MonotonicClock::new().now().as_micros();
        Self { origin: now(), origin_us: Arc::new(AtomicU64::new(wall)) }
    }

    /// Sets the clock to the time that the remote store had at `seen`.
    pub(crate) fn align(&self, store: Timestamp, seen: Instant) {
        let elapsed = micros(seen.saturating_duration_since(self.origin));
        self.origin_us.store(store.as_micros().saturating_sub(elapsed), Ordering::Relaxed);
    }
}

impl Clock for LocalClock {
    const MONOTONIC: bool = true;

    fn now(&self) -> Timestamp {
        let elapsed = micros(now().saturating_duration_since(self.origin));
        Timestamp::from_micros(self.origin_us.load(Ordering::Relaxed).saturating_add(elapsed))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
