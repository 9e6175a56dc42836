//! Quotas: a count per period and a burst, such as `100 per 1m burst 20`.
//!
//! Every [`Quota`] is valid: its bounds are checked when it is built, and an error names the value
//! and a valid form. The algorithm gives a quota its meaning (a window, a bucket, a set of
//! holders), see [`crate::Limit`].
//!
//! A count of zero is not a quota. To refuse everything, use a block; to limit nothing, use no
//! rule.

mod parse;

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::errors::messages;
use crate::span::PermitRate;
use crate::time::micros;

pub use parse::ParseQuotaError;

/// A count per period, and the number of permits that may be spent at once.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::Quota;
///
/// let quota = Quota::new(100, Duration::from_secs(60))?.with_burst(20)?;
///
/// assert_eq!(quota, "100 per 1m burst 20".parse()?);
/// assert_eq!(quota.to_string(), "100 per 1m burst 20");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    count: NonZeroU64,
    period_us: NonZeroU64,
    burst: NonZeroU64,
}

impl Quota {
    /// The largest count and burst. Sums of a few of them stay exact in the doubles of a Redis
    /// script.
    pub const MAX_COUNT: u64 = 1_000_000_000_000_000;

    /// The longest period.
    pub const MAX_PERIOD: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    /// The longest time in which a burst may refill. Moments that far ahead still fit exactly into
    /// the doubles of a Redis script.
    pub const MAX_REFILL: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

    /// The highest rate: 10⁹ permits a second.
    pub const MAX_PER_MICROSECOND: u64 = 1_000;

    /// A quota of `count` per `period`, with the whole count as its burst.
    ///
    /// # Errors
    ///
    /// When the count is zero or above [`Quota::MAX_COUNT`]; when the period is zero, not a
    /// whole number of microseconds or above [`Quota::MAX_PERIOD`]; when the rate is above 10⁹
    /// per second.
    pub fn new(count: u64, period: Duration) -> Result<Self, QuotaError> {
        let nonzero = NonZeroU64::new(count).ok_or(QuotaError::ZeroCount)?;
        if count > Self::MAX_COUNT {
            return Err(QuotaError::CountTooLarge { count });
        }
        if !period.subsec_nanos().is_multiple_of(1_000) {
            return Err(QuotaError::PeriodNotWhole { period });
        }
        if period > Self::MAX_PERIOD {
            return Err(QuotaError::PeriodTooLong { period });
        }
        let period_us = NonZeroU64::new(micros(period)).ok_or(QuotaError::ZeroPeriod)?;
        if count > period_us.get().saturating_mul(Self::MAX_PER_MICROSECOND) {
            return Err(QuotaError::TooFast { count, period });
        }
        Ok(Self { count: nonzero, period_us, burst: nonzero })
    }

    /// Returns the rate with a burst of its own: the permits that may be spent at once.
    ///
    /// # Errors
    ///
    /// When the burst is zero or above [`Quota::MAX_COUNT`], or would take longer than
    /// [`Quota::MAX_REFILL`] to refill at this rate.
    pub fn with_burst(self, burst: u64) -> Result<Self, QuotaError> {
        let nonzero = NonZeroU64::new(burst).ok_or(QuotaError::ZeroBurst)?;
        if burst > Self::MAX_COUNT {
            return Err(QuotaError::BurstTooLarge { burst });
        }
        let refill = u128::from(self.rate().span(burst).whole);
        if refill > Self::MAX_REFILL.as_micros() {
            return Err(QuotaError::RefillTooLong { burst, quota: self });
        }
        Ok(Self { burst: nonzero, ..self })
    }

    /// Permits per period.
    pub const fn count(&self) -> NonZeroU64 {
        self.count
    }

    /// The time in which [`Quota::count`] permits are granted.
    pub const fn period(&self) -> Duration {
        Duration::from_micros(self.period_us.get())
    }

    /// The permits that may be spent at once.
    pub const fn burst(&self) -> NonZeroU64 {
        self.burst
    }

    /// True if the burst differs from the count, and so must be written.
    pub fn has_own_burst(&self) -> bool {
        self.burst != self.count
    }

    /// The exact time that a permit takes.
    #[cfg_attr(not(feature = "store"), doc(hidden))]
    pub fn rate(&self) -> PermitRate {
        PermitRate::new(self.count, self.period_us)
    }

    /// The period alone, in the printed form of the quota.
    pub(crate) fn period_text(&self) -> String {
        Period(self.period()).to_string()
    }

    pub(crate) const fn period_us(&self) -> NonZeroU64 {
        self.period_us
    }
}

/// Prints the quota in the form that parses to the same quota.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {}", self.count, Period(self.period()))?;
        if self.has_own_burst() {
            write!(f, " burst {}", self.burst)?;
        }
        Ok(())
    }
}

/// A duration in the largest unit that divides it.
struct Period(Duration);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        for (unit, size) in parse::UNITS {
            let size = u128::from(*size);
            if micros >= size && micros.is_multiple_of(size) {
                return write!(f, "{}{unit}", micros.checked_div(size).unwrap_or(micros));
            }
        }
        write!(f, "{:?}", self.0)
    }
}

/// The reason why a quota cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// The count is zero. That is a block, not a quota.
    ZeroCount,
    /// The count is above [`Quota::MAX_COUNT`].
    CountTooLarge {
        /// The count asked for.
        count: u64,
    },
    /// The period is zero.
    ZeroPeriod,
    /// The period has a fraction of a microsecond.
    PeriodNotWhole {
        /// The period asked for.
        period: Duration,
    },
    /// The period is above [`Quota::MAX_PERIOD`].
    PeriodTooLong {
        /// The period asked for.
        period: Duration,
    },
    /// The rate is above 10⁹ per second.
    TooFast {
        /// The count asked for.
        count: u64,
        /// The period asked for.
        period: Duration,
    },
    /// The burst is zero, so nothing could ever pass.
    ZeroBurst,
    /// The burst is above [`Quota::MAX_COUNT`].
    BurstTooLarge {
        /// The burst asked for.
        burst: u64,
    },
    /// The burst would take longer than [`Quota::MAX_REFILL`] to refill.
    RefillTooLong {
        /// The burst asked for.
        burst: u64,
        /// The rate it would refill at.
        quota: Quota,
    },
}

messages! { QuotaError:
    Self::ZeroCount =>
        "a count of 0 is not a quota: block the subject to refuse everything, or drop the limit to \
         refuse nothing";
    Self::CountTooLarge { count } =>
        "the count {count} is above {}: count in larger units", Quota::MAX_COUNT;
    Self::ZeroPeriod => "the period is zero: the shortest is 1us";
    Self::PeriodNotWhole { period } => "the period {period:?} is not a whole number of microseconds";
    Self::PeriodTooLong { period } => "the period {} is above 365d", Period(*period);
    Self::TooFast { count, period } => "{count} per {} is above 1000000000 per 1s", Period(*period);
    Self::ZeroBurst => "a burst of 0 would refuse everything: use at least 1";
    Self::BurstTooLarge { burst } =>
        "the burst {burst} is above {}: count in larger units", Quota::MAX_COUNT;
    Self::RefillTooLong { burst, quota } =>
        "a burst of {burst} at {} per {} would take more than ten years to refill",
        quota.count, Period(quota.period());
}
