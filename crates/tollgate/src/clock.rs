//! Time in this process, for what never reaches a store: how long a refusal may be repeated, when
//! a waiter wakes, how old something is.
//!
//! Monotonic: setting the system's clock changes nothing here. It is tokio's, so that tests can
//! let hours pass in virtual time.

use std::time::Duration;

pub(crate) use tokio::time::Instant;
use tollgate_core::{Clock, Timestamp};

/// The present.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// `later` after `then`, or a moment so far away that nobody lives to see it.
pub(crate) fn after(then: Instant, later: Duration) -> Instant {
    then.checked_add(later).or_else(|| then.checked_add(FAR)).unwrap_or(then)
}

/// A year: longer than any period.
const FAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Tells the time to stores that are this process's own business.
#[derive(Debug)]
pub(crate) struct LocalClock {
    origin: Instant,
}

/// A local clock begins here, away from the first moment there is.
const BEGINNING_US: u64 = 1_000_000_000_000_000;

impl LocalClock {
    pub(crate) fn new() -> Self {
        Self { origin: now() }
    }
}

impl Clock for LocalClock {
    const MONOTONIC: bool = true;

    fn now(&self) -> Timestamp {
        let elapsed = now().saturating_duration_since(self.origin).as_micros();
        let micros = u64::try_from(elapsed).unwrap_or(u64::MAX);
        Timestamp::from_micros(BEGINNING_US.saturating_add(micros))
    }
}
