//! One clock for all contenders: quanta, which governor uses by default.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate_core::{Clock, Timestamp};

/// Quanta's monotonic clock.
#[derive(Clone, Debug)]
pub struct Quanta {
    clock: quanta::Clock,
    origin: u64,
}

/// Where the clock of every contender starts: some moment after the epoch.
const START_US: u64 = 1_700_000_000_000_000;

impl Default for Quanta {
    fn default() -> Self {
        Self::new()
    }
}

impl Quanta {
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        Self { clock, origin }
    }

    fn nanos(&self) -> u64 {
        self.clock.delta_as_nanos(self.origin, self.clock.raw())
    }

    /// For throttlecrab, which takes the time as an argument.
    pub fn system_time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(START_US) + Duration::from_nanos(self.nanos())
    }
}

impl Clock for Quanta {
    const MONOTONIC: bool = true;

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(START_US + self.nanos() / 1_000)
    }
}
