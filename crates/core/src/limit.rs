//! A limit: a quota, its algorithm, and its policies.
//!
//! A [`Limit`] is built once, when a rule is loaded, and charged many times. It computes its
//! numbers (its *plan*) when it is built. Two limits are equal if their declarations are.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::algorithm::{Algorithm, Plan, bucket};
use crate::errors::messages;
use crate::{Quota, QuotaError};

/// The edit of a rule that a limit comes from. A higher one replaces a lower one.
///
/// Revision 0 means unversioned: a different quota at the same revision keeps the recorded times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// Treatment of recorded usage when a higher revision brings another quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnChange {
    /// Used permits stay used: 90 of 100 becomes 90 of 500.
    #[default]
    Keep,
    /// The used share stays: 90 of 100 becomes 450 of 500. A log of more than 256 entries is then
    /// reduced to 256, so its usage leaves a little later.
    Scale,
    /// The counter starts anew.
    Reset,
}

/// The answer for a new key when a bounded store has no room for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFull {
    /// All such keys under equal limits share one counter.
    #[default]
    Share,
    /// Let it pass, uncounted.
    Admit,
    /// Do not let it pass.
    Refuse,
}

/// A quota, its algorithm, and its policies.
///
/// ```
/// use tollgate_core::{Limit, LimitErrorKind, algorithm::{FixedWindow, SlidingLog}};
///
/// let limit = Limit::new(FixedWindow::default(), "5 per 10s".parse()?)?;
/// assert_eq!(limit.to_string(), "5 per 10s (fixed-window)");
///
/// let huge = Limit::new(SlidingLog, "1_000_000 per 1h".parse()?);
/// assert_eq!(huge.map_err(|e| e.kind()), Err(LimitErrorKind::CountTooLarge));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    algorithm: Algorithm,
    quota: Quota,
    revision: Revision,
    on_change: OnChange,
    on_full: OnFull,
    code: u8,
    plan: Plan,
}

impl Limit {
    /// Gives `quota` the meaning of `algorithm`.
    ///
    /// # Errors
    ///
    /// When the algorithm cannot represent the quota exactly, with the reason and the way out.
    pub fn new(algorithm: impl Into<Algorithm>, quota: Quota) -> Result<Self, LimitError> {
        let algorithm = algorithm.into();
        Ok(Self {
            algorithm,
            quota,
            revision: Revision::default(),
            on_change: OnChange::default(),
            on_full: OnFull::default(),
            code: algorithm.code(),
            plan: algorithm.plan(&quota)?,
        })
    }

    /// Returns the limit with the revision of its rule.
    pub const fn with_revision(mut self, revision: Revision) -> Self {
        self.revision = revision;
        self
    }

    /// Returns the limit with this policy for older state.
    pub const fn with_on_change(mut self, on_change: OnChange) -> Self {
        self.on_change = on_change;
        self
    }

    /// Returns the limit with this answer for a full store.
    pub const fn with_on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }

    /// Returns `times` ÷ `parts` of this limit, rounded up and never zero: the share of one
    /// process, or a guard at a multiple. Everything except the quota stays.
    ///
    /// ```
    /// use tollgate_core::{Limit, algorithm::TokenBucket};
    ///
    /// let limit = Limit::new(TokenBucket, "10 per 1s burst 3".parse()?)?;
    /// assert_eq!(limit.scaled(1, 4)?.quota().to_string(), "3 per 1s burst 1");
    /// assert_eq!(limit.scaled(12, 10)?.quota().to_string(), "12 per 1s burst 4");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the algorithm cannot represent that much, or that little.
    pub fn scaled(&self, times: u64, parts: u64) -> Result<Self, LimitError> {
        let part = |whole: u64| {
            let product = u128::from(whole).saturating_mul(u128::from(times));
            u64::try_from(product.div_ceil(u128::from(parts.max(1)))).unwrap_or(u64::MAX).max(1)
        };
        let too_large =
            |error: QuotaError| LimitError::new(LimitErrorKind::CountTooLarge, error.to_string());
        let quota = self.quota;
        let mut scaled =
            Quota::new(part(quota.count().get()), quota.period()).map_err(too_large)?;
        if quota.has_own_burst() {
            scaled = scaled.with_burst(part(quota.burst().get())).map_err(too_large)?;
        }
        let plan = self.algorithm.plan(&scaled)?;
        Ok(Self { quota: scaled, plan, ..*self })
    }

    /// The algorithm that gives the quota its meaning.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The count per period, and the burst.
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// The revision of its rule.
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// Treatment of recorded usage when the quota changes.
    pub const fn on_change(&self) -> OnChange {
        self.on_change
    }

    /// The answer when a store is full.
    pub const fn on_full(&self) -> OnFull {
        self.on_full
    }
}

/// For stores.
#[cfg_attr(not(feature = "store"), doc(hidden))]
impl Limit {
    /// The numbers computed from algorithm and quota.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The algorithm's [`Algorithm::code`], computed once.
    #[inline]
    pub const fn code(&self) -> u8 {
        self.code
    }

    /// The numbers of a token bucket or leaky meter, if this is one.
    #[inline]
    pub const fn bucket_plan(&self) -> Option<&bucket::BucketPlan> {
        match &self.plan {
            Plan::TokenBucket(plan) | Plan::LeakyMeter(plan) => Some(plan),
            _ => None,
        }
    }

    /// Treatment of state that was counted under an older limit. An edit that left quota and
    /// algorithm unchanged resets nothing.
    pub fn change_from(&self, older: &Self) -> OnChange {
        if self.quota == older.quota && self.algorithm == older.algorithm {
            OnChange::Keep
        } else {
            self.on_change
        }
    }

    /// True if this limit can judge state that was counted under `other` as it is: same revision,
    /// quota and algorithm.
    #[inline]
    pub fn counts_like(&self, other: &Self) -> bool {
        self.revision == other.revision
            && self.quota == other.quota
            && self.code == other.code
            // Buckets, by far the most frequent, have no parameters to compare.
            && (self.bucket_plan().is_some() || self.algorithm == other.algorithm)
    }
}

impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        self.counts_like(other)
            && self.on_change == other.on_change
            && self.on_full == other.on_full
    }
}

impl Eq for Limit {}

impl Hash for Limit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.algorithm.hash(state);
        self.quota.hash(state);
        self.revision.hash(state);
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.quota, self.algorithm)
    }
}

/// The reason why an algorithm cannot represent a quota. [`LimitError::kind`] distinguishes the
/// cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    kind: LimitErrorKind,
    reason: String,
}

impl LimitError {
    pub(crate) fn new(kind: LimitErrorKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }

    /// The kind of the failure.
    pub const fn kind(&self) -> LimitErrorKind {
        self.kind
    }
}

/// The part of a limit that an algorithm cannot represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitErrorKind {
    /// The algorithm has no burst of its own.
    Burst,
    /// The algorithm remembers every charge or holder, and there would be too many of them.
    CountTooLarge,
    /// The rate is higher than the algorithm is exact for.
    TooFast,
    /// A parameter of the algorithm is out of range, or does not fit the quota's period.
    Parameter,
}

messages! { LimitError: Self { reason, .. } => "{reason}"; }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, SlidingLog};

    #[test]
    fn parts_are_rounded_up_and_never_nothing() {
        let window = Limit::new(FixedWindow::default(), "2 per 1m".parse().unwrap()).unwrap();
        let window = window.with_revision(Revision(7)).with_on_change(OnChange::Reset);

        let least = window.scaled(1, 1_000).unwrap();

        assert_eq!(least.quota().to_string(), "1 per 1m");
        assert_eq!((least.revision(), least.on_change()), (Revision(7), OnChange::Reset));
        let log = Limit::new(SlidingLog, "60_000 per 1h".parse().unwrap()).unwrap();
        assert_eq!(log.scaled(2, 1).unwrap_err().kind(), LimitErrorKind::CountTooLarge);
    }
}
