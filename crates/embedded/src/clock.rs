//! The clock of this process.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tollgate_core::{Clock, Timestamp};

/// The wall clock as it was when the store was made, and the monotonic clock since.
///
/// Setting the system's clock moves no limit: a step of an hour neither refills nor blocks
/// anybody. Windows aligned to the epoch may therefore drift from the wall clock by as much as
/// it was set.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Instant,
    origin_us: u64,
}

impl MonotonicClock {
    /// A clock that starts from the present wall-clock time.
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
