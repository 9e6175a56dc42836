//! The clock of this process.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tollgate_core::{Clock, Timestamp};

/// The wall clock at the creation of the store, followed by the monotonic clock.
///
/// Setting the system's clock moves no limit: a step of an hour neither refills a counter nor
/// blocks a caller. Windows aligned to the epoch may therefore drift from the wall clock by the
/// size of such steps.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Instant,
    origin_us: u64,
}

impl MonotonicClock {
    /// A clock that starts from the current wall-clock time.
    #[expect(clippy::disallowed_methods, reason = "the embedded store's clock reads it here")]
    pub fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin_us = u64::try_from(since_epoch.as_micros()).unwrap_or(0);
        Self { origin: Instant::now(), origin_us }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    const MONOTONIC: bool = true;

    #[inline]
    #[expect(clippy::disallowed_methods, reason = "the embedded store's clock reads it here")]
    fn now(&self) -> Timestamp {
        let elapsed = self.origin.elapsed();
        let micros = elapsed
            .as_secs()
            .saturating_mul(1_000_000)
            .saturating_add(u64::from(elapsed.subsec_micros()));
        Timestamp::from_micros(self.origin_us.saturating_add(micros))
    }
}
