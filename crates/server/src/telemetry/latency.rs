//! Latency histograms with fixed buckets.
//!
//! A request adds to one bucket and to one sum, without a lock. Buckets are kept apart, and summed up
//! when they are read, as Prometheus wants them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in microseconds: from a decision in this process to a client's
/// timeout. One more bucket has no bound.
pub const BOUNDS_US: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
    10_000_000,
];

/// The same as Prometheus writes them, in seconds.
pub const BOUNDS: [&str; 15] = [
    "0.00005", "0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05",
    "0.1", "0.25", "1", "10", "+Inf",
];

/// A histogram of durations, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LatencyHistogram {
    buckets: [AtomicU64; 15],
    nanos: AtomicU64,
}

/// Counts of a histogram: how many durations were within each bound, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencySnapshot {
    /// By bound, the last of which has none: all of them.
    pub at_most: [u64; 15],
    /// The sum.
    pub nanos: u64,
}

impl LatencyHistogram {
    /// Adds `count` requests that took this long each.
    #[inline]
    pub fn add(&self, took: Duration, count: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Rounded up, so that nothing is in a bucket whose bound it is above.
        let micros = nanos.div_ceil(1_000);
        let place = BOUNDS_US.partition_point(|bound| *bound < micros);
        if let Some(bucket) = self.buckets.get(place) {
            bucket.fetch_add(count, Ordering::Relaxed);
        }
        self.nanos.fetch_add(nanos.saturating_mul(count), Ordering::Relaxed);
    }

    /// Reads the counts.
    pub fn read(&self) -> LatencySnapshot {
        let mut sum = 0_u64;
        let at_most = self.buckets.each_ref().map(|bucket| {
            sum = sum.wrapping_add(bucket.load(Ordering::Relaxed));
            sum
        });
        LatencySnapshot { at_most, nanos: self.nanos.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let latency = LatencyHistogram::default();
        latency.add(Duration::from_micros(50), 1);
        latency.add(Duration::from_nanos(50_001), 2);
        latency.add(Duration::from_secs(11), 1);

        let seen = latency.read();

        assert_eq!(seen.at_most, [1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4]);
        assert_eq!(seen.nanos, 50_000 + 2 * 50_001 + 11_000_000_000);
    }

    #[test]
    fn the_bounds_are_written_as_they_are() {
        for (micros, text) in BOUNDS_US.iter().zip(BOUNDS) {
            let (whole, part) = text.split_once('.').unwrap_or((text, ""));
            let micros_of = format!("{whole}{part:0<6}").parse::<u64>().unwrap();
            assert_eq!(micros_of, *micros, "{text}");
        }
    }
}
