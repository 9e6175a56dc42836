//! Random delays for clients that were refused together, so that they do not come back together.

use std::time::Duration;

use crate::random;

/// The most jitter: a day. A longer time would turn clients away rather than spread them out.
const MAX_JITTER: Duration = Duration::from_secs(24 * 60 * 60);

/// A random delay added to the times in a response, so that clients that were refused together do
/// not come back together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Jitter(Duration);

impl Jitter {
    pub(super) fn up_to(most: Duration) -> Self {
        Self(most.min(MAX_JITTER))
    }

    /// The delay of one response: uniform between zero and the most.
    pub(super) fn draw(self) -> Duration {
        if self.0.is_zero() {
            return Duration::ZERO;
        }
        self.at(random::bits())
    }

    /// The delay that these random bits stand for.
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
        assert_eq!(Jitter::up_to(Duration::MAX).at(u64::MAX), MAX_JITTER);
        assert_eq!(Jitter::default().draw(), Duration::ZERO);
    }
}
