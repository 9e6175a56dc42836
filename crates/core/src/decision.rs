//! Verdicts, decisions and answers.
//!
//! A refusal is an answer, not an error. Waits and retries are rounded **up** to the microsecond: a
//! caller that comes back exactly then, and is alone on the key, passes.

use std::time::Duration;

use smallvec::SmallVec;

use crate::Timestamp;

/// The verdict on a charge. Verdicts are ordered from best to worst, so the worst of several is
/// their maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Pass now. The charge is made.
    Allow,
    /// Pass after this time. The charge is made, and the place belongs to the caller.
    Wait(Duration),
    /// Do not pass. Nothing is charged.
    Deny(Retry),
}

impl Verdict {
    /// True if the charge is made, now or with a place in the future.
    pub const fn passes(&self) -> bool {
        !matches!(self, Self::Deny(_))
    }
}

/// The time after which asking again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Retry {
    /// After this time, and not before; exactly then, if no one else charges the key meanwhile.
    After(Duration),
    /// Never: the cost is above the capacity, or the permit in question is gone.
    Never,
}

/// The counter behind a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Basis {
    /// The key's own counter.
    #[default]
    Counted,
    /// The limit's `on-full`, because the store had no room for the key.
    Overflow,
}

/// The answer to one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// The permits that could still be spent at once, after this charge if it was made. Rounded
    /// down. For a smooth limiter, the permits that it has stored: more may pass, and the next
    /// caller pays for them.
    pub remaining: u64,
    /// The time until the full capacity is back, if no one charges the key. Rounded up.
    pub reset_after: Duration,
    /// The counter behind the decision.
    pub basis: Basis,
}

impl Decision {
    pub(crate) const fn new(verdict: Verdict, remaining: u64, reset_us: u64) -> Self {
        let reset_after = Duration::from_micros(reset_us);
        Self { verdict, remaining, reset_after, basis: Basis::Counted }
    }

    /// The answer of a store that has no counter for the key.
    pub const fn overflow(verdict: Verdict) -> Self {
        Self { verdict, remaining: 0, reset_after: Duration::ZERO, basis: Basis::Overflow }
    }

    /// True if the charge is made, now or with a place in the future.
    pub const fn passes(&self) -> bool {
        self.verdict.passes()
    }
}

/// The answer to a request: one verdict over all its charges.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Answer {
    /// The worst verdict among the charges. A refused request charges nothing at all.
    pub verdict: Verdict,
    /// The time of the decision, by the store's clock. Pass it to a later credit.
    pub at: Timestamp,
    /// The index in the request of the charge that refuses; of several, the one with the longest
    /// retry.
    pub refused_by: Option<usize>,
    /// One decision for each charge, in the order of the request. In a refused request, charges
    /// that would have passed show their current state, uncharged.
    pub decisions: SmallVec<[Decision; 4]>,
}

impl Answer {
    /// True if the request was charged, now or with a place in the future.
    pub const fn passes(&self) -> bool {
        self.verdict.passes()
    }
}
