//! Random numbers for jitter and ids. None of them guards a secret.

use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Returns 64 bits that no other process draws: the standard library seeds each `RandomState` from the
/// operating system and hashes with SipHash.
pub(crate) fn bits() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Draws a duration evenly from the range. An inverted range yields its start.
pub(crate) fn within(range: &RangeInclusive<Duration>) -> Duration {
    let width = range.end().saturating_sub(*range.start());
    let micros = crate::clock::micros(width).saturating_add(1);
    let offset = bits().checked_rem(micros).unwrap_or(0);
    range.start().saturating_add(Duration::from_micros(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_stays_within_its_range() {
        let range = Duration::from_micros(50)..=Duration::from_micros(53);

        let drawn: std::collections::BTreeSet<_> = (0..1_000).map(|_| within(&range)).collect();

        let all: std::collections::BTreeSet<_> = (50..=53).map(Duration::from_micros).collect();
        assert_eq!(drawn, all, "both ends included, and nothing else");
    }

    #[test]
    fn an_inverted_range_is_its_start() {
        let start = Duration::from_millis(9);
        assert_eq!(within(&(start..=Duration::ZERO)), start);
    }
}
