//! Jitter: so that clients that were refused together do not all come back together.

use std::time::Duration;

use crate::chance;

/// The most that is added: a day, beyond which a client is turned away rather than spread out.
const MOST: Duration = Duration::from_secs(24 * 60 * 60);

/// How far the times that clients are told are spread out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Jitter(Duration);

impl Jitter {
    pub(super) fn up_to(most: Duration) -> Self {
        Self(most.min(MOST))
    }

    /// What to add to the times of one response: from nothing to the most, all alike likely.
    pub(super) fn draw(self) -> Duration {
        if self.0.is_zero() {
            return Duration::ZERO;
        }
        self.at(chance::bits())
    }

    /// The part of the most that this is of all that can be drawn.
    fn at(self, bits: u64) -> Duration {
        // A day is below 2^47 ns, so the product is below 2^111.
        let spread = u128::from(bits).saturating_mul(self.0.as_nanos().saturating_add(1)) >> 64;
        Duration::from_nanos(u64::try_from(spread).unwrap_or(u64::MAX)).min(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_are_nothing_and_the_most_and_never_more_than_a_day() {
        let ten = Jitter::up_to(Duration::from_secs(10));
        assert_eq!(ten.at(0), Duration::ZERO);
        assert_eq!(ten.at(u64::MAX / 2), Duration::from_secs(5));
        assert_eq!(ten.at(u64::MAX), Duration::from_secs(10));
        assert_eq!(Jitter::up_to(Duration::MAX).at(u64::MAX), MOST);
        assert_eq!(Jitter::default().draw(), Duration::ZERO);
    }
}
