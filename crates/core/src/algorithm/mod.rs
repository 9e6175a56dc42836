//! The algorithms: pure functions from a state, a charge and a moment to a decision and an edit.
//!
//! Each has one module. A module contains its parameters, the numbers that it computes from a quota
//! once (its *plan*), its state, and the steps over them. It reads no clock and takes no lock.
//!
//! To add one: write its file with an `impl Step`, add its line to the table at the end of
//! `table.rs`, and its oracle to `testing/oracle`. The compiler names the parts that are still missing.
//! Each member also needs its twin in Lua.
//!
//! All of them follow these rules:
//!
//! - *Absent means full* (cold, for a warming limiter). `Limit::settle` drops a state that is full
//!   again, so dropping an idle key changes no later decision.
//! - *A clock that steps back* grants nothing. A recorded time further ahead than the algorithm
//!   could have put it is moved back to the furthest possible, so no caller is refused for longer
//!   than a full refill. That repair is written even if the charge is refused.

pub(crate) mod bucket;
pub(crate) mod concurrency;
pub(crate) mod fixed_window;
mod leaky_queue;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod smooth;
pub(crate) mod table;

use crate::charge::Terms;
use crate::limit::{LimitError, OnChange};
use crate::{Decision, Quota, Timestamp};

pub(crate) use bucket::FURTHEST_US;
pub use bucket::{LeakyMeter, TokenBucket};
pub use concurrency::Concurrency;
pub use fixed_window::{Anchor, FixedWindow};
pub use leaky_queue::LeakyQueue;
pub use sliding_log::SlidingLog;
pub use sliding_window::{Estimate, SlidingWindow};
pub use smooth::{Payment, Smooth};
pub use table::Algorithm;
pub(crate) use table::{Effect, Plan, State};

/// The furthest that debt or patience may reach beyond an exhausted counter. A mistaken debit must
/// not block a key for longer than the longest period.
pub(crate) const MAX_AHEAD_US: u64 = 365 * 24 * 60 * 60 * 1_000_000;

/// The policy for carrying recorded usage over to another quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A higher revision: the policy of its limit applies.
    Revise(OnChange),
    /// Another quota at the same revision: recorded times stay as they are.
    Adopt,
}

/// A change from one plan to another under live state.
#[derive(Clone, Copy)]
pub(crate) struct Conversion<'p, P> {
    pub(crate) from: &'p P,
    pub(crate) to: &'p P,
    pub(crate) change: Change,
    pub(crate) now: Timestamp,
}

/// A decision, and the edit that carries it out.
pub(crate) type Outcome<E> = (Decision, Option<E>);

/// The steps of an algorithm. Their states are settled: live at `now`, and not further ahead than
/// they could be.
pub(crate) trait Step {
    /// Numbers computed once from parameters and quota.
    type Plan;
    /// The state of a key.
    type State;
    /// A change of a state.
    type Edit;

    /// Computes the numbers, or returns the reason why the algorithm cannot represent the quota.
    fn plan(&self, quota: &Quota) -> Result<Self::Plan, LimitError>;

    /// Moves back times that a clock stepping back left ahead. Returns true if the state changed.
    fn settle(plan: &Self::Plan, state: &mut Self::State, now: Timestamp) -> bool;

    /// Decides a charge.
    fn decide(plan: &Self::Plan, state: Option<&Self::State>, terms: Terms) -> Outcome<Self::Edit>;

    /// Applies an edit.
    fn apply(
        plan: &Self::Plan,
        state: Option<Self::State>,
        edit: Self::Edit,
    ) -> Option<Self::State>;

    /// Carries a settled state over to another quota.
    fn convert(state: Self::State, by: Conversion<'_, Self::Plan>) -> Option<Self::State>;

    /// The first moment from which the state is worth no more than an absent one; `None` past
    /// the end of time.
    fn idle_at(plan: &Self::Plan, state: &Self::State) -> Option<Timestamp>;

    /// The most heap bytes that a state can occupy.
    fn heap_bytes(_plan: &Self::Plan) -> usize {
        0
    }
}

/// Refuses a burst for algorithms that would ignore it.
pub(crate) fn refuse_own_burst(quota: &Quota, algorithm: &str) -> Result<(), LimitError> {
    if quota.has_own_burst() {
        let kind = crate::limit::LimitErrorKind::Burst;
        let reason = format!(
            "{algorithm} has no burst of its own, but `{quota}` names one: drop it, or use \
             token-bucket"
        );
        return Err(LimitError::new(kind, reason));
    }
    Ok(())
}
