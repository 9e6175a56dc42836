//! Leases: the time for which a lock is granted.

use std::time::Duration;

use crate::errors::messages;

/// The time for which a lock is granted unless renewed: whole milliseconds, rounded up.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::lock::{Lease, LeaseError};
///
/// assert_eq!(Lease::new(Duration::from_micros(10_500))?.millis(), 11);
/// assert!(matches!(Lease::new(Duration::ZERO), Err(LeaseError::TooShort { .. })));
/// # Ok::<(), LeaseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(u64);

impl Lease {
    /// The shortest lease. On a busy machine, a shorter one may be over before the answer arrives.
    pub const MIN: Duration = Duration::from_millis(10);

    /// The longest lease. A holder that needs more renews.
    pub const MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    /// Thirty seconds, a usual time to wait for a dead holder.
    pub const DEFAULT: Self = Self(30_000);

    /// A lease of this length.
    ///
    /// # Errors
    ///
    /// When it is shorter than [`Lease::MIN`] or longer than [`Lease::MAX`].
    pub fn new(span: Duration) -> Result<Self, LeaseError> {
        if span < Self::MIN {
            return Err(LeaseError::TooShort { span });
        }
        if span > Self::MAX {
            return Err(LeaseError::TooLong { span });
        }
        let millis = span.as_micros().div_ceil(1_000);
        u64::try_from(millis).map(Self).map_err(|_| LeaseError::TooLong { span })
    }

    /// The length in whole milliseconds.
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// The length as a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The reason why a span cannot be a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseError {
    /// It is below [`Lease::MIN`].
    TooShort {
        /// The span asked for.
        span: Duration,
    },
    /// It is above [`Lease::MAX`].
    TooLong {
        /// The span asked for.
        span: Duration,
    },
}

messages! { LeaseError:
    Self::TooShort { span } =>
        "a lease of {span:?} is below 10 ms: it could end before the grant arrives";
    Self::TooLong { span } =>
        "a lease of {span:?} is above 365 days: take a shorter one and renew it";
}

#[cfg(test)]
mod tests {
    use super::*;

    // C40
    #[test]
    fn only_spans_from_ten_milliseconds_to_a_year_are_leases() {
        let micro = Duration::from_micros(1);

        assert_eq!(Lease::new(Lease::MIN).unwrap().millis(), 10);
        assert_eq!(Lease::new(Lease::MAX).unwrap().duration(), Lease::MAX);
        for span in [Duration::ZERO, Lease::MIN - micro] {
            assert_eq!(Lease::new(span), Err(LeaseError::TooShort { span }));
        }
        for span in [Lease::MAX + micro, Duration::from_millis(1 << 63), Duration::MAX] {
            assert_eq!(Lease::new(span), Err(LeaseError::TooLong { span }));
        }
    }
}
