//! The server's clock, as far as this side knows it.

use std::sync::Mutex;
use std::time::Duration;

use crate::clock::{Instant, micros};
use tollgate_core::lock_mutex;

/// The server's time as it was last seen, carried on by the monotonic clock.
///
/// The last reading wins, also when it lies before the one before it: a server's clock may step
/// back, and another server may have taken its place.
#[derive(Debug, Default)]
pub(crate) struct ServerTime(Mutex<Option<ClockReading>>);

#[derive(Clone, Copy, Debug)]
struct ClockReading {
    micros: u64,
    at: Instant,
}

impl ServerTime {
    /// Stores a reading of `micros` since the epoch, from a reply that arrived at `at`. Zero means
    /// that the script did not read the clock.
    pub(crate) fn learn(&self, micros: u64, at: Instant) {
        if micros == 0 {
            return;
        }
        *lock_mutex(&self.0) = Some(ClockReading { micros, at });
    }

    /// Returns the server's time `ahead` of `now`, or zero without a reading.
    ///
    /// The result is behind the truth by at most the time that the reply took to arrive.
    pub(crate) fn ahead(&self, now: Instant, ahead: Duration) -> u64 {
        let reading = *lock_mutex(&self.0);
        reading.map_or(0, |ClockReading { micros: seen, at }| {
            let elapsed = now.saturating_duration_since(at);
            seen.saturating_add(micros(elapsed.saturating_add(ahead)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn nothing_seen_is_zero() {
        assert_eq!(ServerTime::default().ahead(clock::now(), MS), 0);
    }

    #[test]
    fn the_last_sighting_is_carried_on() {
        let (time, now) = (ServerTime::default(), clock::now());

        time.learn(5_000, now);
        assert_eq!(time.ahead(now + 3 * MS, 40 * MS), 48_000);

        time.learn(1_000, now + 3 * MS);
        assert_eq!(time.ahead(now + 3 * MS, MS), 2_000, "a clock that stepped back is followed");
        assert_eq!(time.ahead(now, MS), 2_000, "a reading of the future has no age yet");
    }

    #[test]
    fn the_end_of_time_saturates() {
        let (time, now) = (ServerTime::default(), clock::now());
        time.learn(u64::MAX - 1, now);
        assert_eq!(time.ahead(now, Duration::MAX), u64::MAX);
    }
}
