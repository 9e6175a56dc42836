//! Randomness: bits, secrets, durations, and unique ids.

use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Draws 64 bits of the randomness that the standard library takes from the operating system.
pub(crate) fn bits() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Draws 16 random bytes.
pub(crate) fn secret() -> [u8; 16] {
    let bits = (u128::from(bits()) << 64) | u128::from(bits());
    bits.to_le_bytes()
}

/// Draws a duration from the range, uniformly. An empty or inverted range yields its start.
pub(crate) fn within(range: &RangeInclusive<Duration>) -> Duration {
    if range.end() <= range.start() {
        return *range.start();
    }
    let width = range.end().saturating_sub(*range.start()).as_micros();
    let width = u64::try_from(width).unwrap_or(u64::MAX).saturating_add(1);
    let offset = bits().checked_rem(width).unwrap_or(0);
    range.start().saturating_add(Duration::from_micros(offset))
}

/// Draws unique ids: the random bits of this process, followed by a counter.
#[derive(Debug)]
pub(crate) struct IdGenerator {
    process: u64,
    next: AtomicU64,
}

impl IdGenerator {
    pub(crate) fn new() -> Self {
        Self { process: bits(), next: AtomicU64::new(1) }
    }

    /// Draws an id that was never drawn before.
    pub(crate) fn draw(&self) -> u128 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (u128::from(self.process) << 64) | u128::from(number)
    }

    /// The bits that all ids of this process share.
    pub(crate) fn process(&self) -> u128 {
        u128::from(self.process) << 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_drawn_from_the_whole_range() {
        let (one, three) = (Duration::from_micros(1), Duration::from_micros(3));
        let drawn: std::collections::BTreeSet<Duration> =
            (0..1_000).map(|_| within(&(one..=three))).collect();
        assert_eq!(drawn.iter().map(Duration::as_micros).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((within(&(one..=one)), within(&(three..=one))), (one, three));
        assert!(within(&(Duration::ZERO..=Duration::MAX)) <= Duration::MAX);
    }
}
