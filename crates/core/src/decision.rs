//! Verdicts, decisions and answers.
//!
//! A refusal is an answer, not an error. Waits and retries are rounded **up** to the
//! microsecond: a caller that comes back exactly then, alone on the key, passes.

use std::time::Duration;

use smallvec::SmallVec;

use crate::Timestamp;

/// The verdict on a charge. Ordered from best to worst, so that the worst of several is their
/// maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Pass now. The charge is made.
    Allow,
    /// Pass after so long. The charge is made; the place is the caller's.
    Wait(Duration),
    /// Do not pass. Nothing is charged.
    Deny(Retry),
}

impl Verdict {
    /// True when the charge is made, now or with a place in the future.
    pub const fn passes(&self) -> bool {
        !matches!(self, Self::Deny(_))
    }
}

/// When asking again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Retry {
    /// Not before so long from now; exactly then, if nobody else charges the key meanwhile.
    After(Duration),
    /// However long one waits: the cost is above the capacity, or what was asked about is gone.
    Never,
}

/// The counter a decision rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Basis {
    /// The key's own counter.
    #[default]
    Counted,
    /// The store had no room for the key: answered by the limit's `on-full`.
    Overflow,
}

/// The answer to one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// Permits that could still be spent at once, after this charge if it was made. Rounded down. Of a
    /// smooth limiter, the permits it has stored: more may pass, and be paid for by the next.
    pub remaining: u64,
    /// Time until the full capacity is back, if nobody charges the key. Rounded up.
    pub reset_after: Duration,
    /// The counter the answer rests on.
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

    /// True when the charge is made, now or with a place in the future.
    pub const fn passes(&self) -> bool {
        self.verdict.passes()
    }
}

/// The answer to a request: one verdict over all its charges.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Answer {
    /// The worst verdict among the charges. On a refusal nothing at all was charged.
    pub verdict: Verdict,
    /// When it was decided, by the store's clock: what a later credit says it was charged at.
    pub at: Timestamp,
    /// The position in the request of the charge that refuses: the one with the longest retry.
    pub refused_by: Option<usize>,
    /// One decision for each charge, in the order of the request. In a refused request, charges that
    /// would have passed are shown as they stand, uncharged.
    pub decisions: SmallVec<[Decision; 4]>,
}

impl Answer {
    /// True when the request was charged, now or with a place in the future.
    pub const fn passes(&self) -> bool {
        self.verdict.passes()
    }
}
