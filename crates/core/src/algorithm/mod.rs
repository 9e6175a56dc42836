//! The algorithms: pure functions from a state, a charge and a moment to a decision and an edit.
//!
//! One module each. A module knows its parameters, the numbers it computes from a quota once
//! (its *plan*), its state, and the steps over them; it reads no clock and takes no lock.
//!
//! To add one: write its file with an `impl Step`, add its line to the table at the end of this
//! file, and its oracle to `testing/oracle`. The compiler names whatever is still missing. Each
//! member will also need its twin in Lua once states live in Redis.
//!
//! What all share:
//!
//! - *Absent means full* (cold, for a warming limiter). A state that is full again is dropped by
//!   [`Limit::settle`], so that dropping an idle key changes no later decision.
//! - *A clock that steps back* grants nothing. A recorded time further ahead than the algorithm
//!   could have put it is moved back to the furthest it could be, so that nobody is refused for
//!   longer than a full refill. That repair is written even when the charge is refused.

pub mod bucket;
pub mod concurrency;
pub mod fixed_window;
pub mod leaky_queue;
pub mod sliding_log;
pub mod sliding_window;
pub mod smooth;

use std::fmt;

use self::bucket::{Bucket, BucketPlan};
use self::concurrency::{ConcurrencyPlan, Holders, HoldersEdit};
use self::fixed_window::{FixedWindowPlan, Window};
use self::sliding_log::{Log, LogEdit, SlidingLogPlan};
use self::sliding_window::{Panes, PanesEdit, SlidingWindowPlan};
use self::smooth::{SmoothPlan, SmoothState};
use crate::charge::Terms;
use crate::limit::{LimitError, OnChange};
use crate::{Charge, Decision, Limit, Quota, Timestamp};

pub use bucket::{LeakyMeter, TokenBucket};
pub use concurrency::Concurrency;
pub use fixed_window::{Anchor, FixedWindow};
pub use leaky_queue::LeakyQueue;
pub use sliding_log::SlidingLog;
pub use sliding_window::{Estimate, SlidingWindow};
pub use smooth::{Payment, Smooth};

/// The longest that debt or patience may reach beyond an exhausted counter: a mistaken debit
/// must not silence a key for longer than the longest period there is.
pub(crate) const MAX_AHEAD_US: u64 = 365 * 24 * 60 * 60 * 1_000_000;

/// The furthest that a bucket, a queue or a smooth limiter can come to lie ahead under any quota: the
/// longest refill, a period for one more place in a queue, and debt or patience. What lies further
/// ahead was written by somebody else, and is moved back to here.
pub const FURTHEST_US: u64 = 12 * MAX_AHEAD_US;

/// How recorded usage is carried over to another quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A higher revision: as its limit declares.
    Revise(OnChange),
    /// Another quota at the same revision: recorded times stay as they are.
    Adopt,
}

/// What each algorithm provides. The states it is given are settled: live at `now`, and not
/// further ahead than they could be.
pub(crate) trait Step {
    /// Numbers computed once from parameters and quota.
    type Plan;
    /// What is remembered of a key.
    type State;
    /// How a state changes.
    type Edit;

    /// Computes the numbers, or says why the quota cannot be represented.
    fn plan(&self, quota: &Quota) -> Result<Self::Plan, LimitError>;

    /// Repairs what a clock that stepped back left ahead; true when something changed.
    fn settle(plan: &Self::Plan, state: &mut Self::State, now: Timestamp) -> bool;

    /// What would happen, and the edit that makes it so.
    fn decide(
        plan: &Self::Plan,
        state: Option<&Self::State>,
        terms: Terms,
        now: Timestamp,
    ) -> (Decision, Option<Self::Edit>);

    /// Makes it so.
    fn apply(
        plan: &Self::Plan,
        state: Option<Self::State>,
        edit: Self::Edit,
    ) -> Option<Self::State>;

    /// Carries a settled state over to another quota.
    fn convert(
        state: Self::State,
        from: &Self::Plan,
        to: &Self::Plan,
        change: Change,
        now: Timestamp,
    ) -> Option<Self::State>;

    /// The first moment from which the state is worth no more than an absent one; `None` past
    /// the end of time.
    fn idle_at(plan: &Self::Plan, state: &Self::State) -> Option<Timestamp>;

    /// The most heap bytes a state can come to occupy.
    fn heap_bytes(_plan: &Self::Plan) -> usize {
        0
    }
}

macro_rules! algorithms {
    ($(
        $(#[$doc:meta])+
        $name:ident = $text:literal, code $code:literal, plan $plan:ty, state $state:ty, edit $edit:ty;
    )+) => {
        /// What a quota means. A closed set: each member needs an oracle and a twin.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $($(#[$doc])+ $name($name),)+
        }

        $(impl From<$name> for Algorithm {
            fn from(params: $name) -> Self {
                Self::$name(params)
            }
        })+

        impl Algorithm {
            /// The name in rules and keys.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $text,)+ }
            }

            /// The number of the algorithm in stored keys, states and reservation tokens.
            ///
            /// Counters of one key under different algorithms are different counters. Codes are
            /// stored, so a code never changes and is never used again.
            pub const fn code(&self) -> u8 {
                match self { $(Self::$name(_) => $code,)+ }
            }

            pub(crate) fn plan(&self, quota: &Quota) -> Result<Plan, LimitError> {
                match self { $(Self::$name(params) => params.plan(quota).map(Plan::$name),)+ }
            }
        }

        /// The numbers an algorithm computes from a quota, once.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Plan {
            $($(#[$doc])+ $name($plan),)+
        }

        /// What is remembered of a key.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub enum State {
            /// Nothing: full, or cold for a warming limiter.
            #[default]
            Absent,
            $($(#[$doc])+ $name($state),)+
        }

        /// An edit that makes a decision so. Nothing is edited unless it is applied.
        #[derive(Clone, Debug, PartialEq)]
        #[must_use]
        pub enum Effect {
            /// The state stays as it is.
            None,
            $($(#[$doc])+ $name($edit),)+
        }

        impl Limit {
            /// Makes `state` true for `now`: drops it when it is worth no more than an absent
            /// one, and moves back what a clock that stepped back left ahead. Returns whether
            /// it changed, and so must be written even if the charge is refused.
            pub fn settle(&self, state: &mut State, now: Timestamp) -> bool {
                if matches!(state, State::Absent) {
                    return false;
                }
                if self.idle_at(state).is_some_and(|idle| idle <= now) {
                    *state = State::Absent;
                    return true;
                }
                match (self.plan(), state) {
                    $((Plan::$name(plan), State::$name(state)) => {
                        $name::settle(plan, state, now)
                    })+
                    // Another algorithm's state: never under this key, and worth nothing here.
                    (_, state) => { *state = State::Absent; true }
                }
            }

            /// What `charge` would be answered at `now`, and the edit that makes it so.
            ///
            /// The state must be settled at `now`. The charge's own limit is not consulted:
            /// a charge of an older revision is judged by the newer limit it finds.
            #[inline]
            pub fn decide(&self, state: &State, charge: &Charge<'_>, now: Timestamp) -> (Decision, Effect) {
                self.decide_terms(state, charge.terms(), now)
            }

            #[inline]
            pub(crate) fn decide_terms(&self, state: &State, terms: Terms, now: Timestamp) -> (Decision, Effect) {
                match self.plan() {
                    $(Plan::$name(plan) => {
                        let state = match state { State::$name(state) => Some(state), _ => None };
                        let (decision, edit) = $name::decide(plan, state, terms, now);
                        (decision, edit.map_or(Effect::None, Effect::$name))
                    })+
                }
            }

            /// Applies an edit that [`Limit::decide`] made for this state at this moment.
            #[inline]
            pub fn apply(&self, state: &mut State, effect: Effect) {
                match (self.plan(), effect) {
                    $((Plan::$name(plan), Effect::$name(edit)) => {
                        let prior = match std::mem::take(state) { State::$name(prior) => Some(prior), _ => None };
                        *state = $name::apply(plan, prior, edit).map_or(State::Absent, State::$name);
                    })+
                    _ => {}
                }
            }

            /// The first moment from which the state is worth no more than an absent one;
            /// `None` when that lies past the end of time.
            #[inline]
            pub fn idle_at(&self, state: &State) -> Option<Timestamp> {
                match (self.plan(), state) {
                    $((Plan::$name(plan), State::$name(state)) => $name::idle_at(plan, state),)+
                    _ => Some(Timestamp::EPOCH),
                }
            }

            /// The most heap bytes one key's state can come to occupy under this limit.
            pub fn heap_bytes(&self) -> usize {
                match self.plan() { $(Plan::$name(plan) => $name::heap_bytes(plan),)+ }
            }

            /// Carries a settled state over from another limit of the same algorithm.
            pub(crate) fn convert(&self, from: &Self, state: State, change: Change, now: Timestamp) -> State {
                match (from.plan(), self.plan(), state) {
                    $((Plan::$name(from), Plan::$name(to), State::$name(state)) => {
                        $name::convert(state, from, to, change, now).map_or(State::Absent, State::$name)
                    })+
                    _ => State::Absent,
                }
            }
        }
    };
}

algorithms! {
    /// Up to the count in each window, then nothing until the next.
    FixedWindow = "fixed-window", code 0,
        plan FixedWindowPlan, state Window, edit Window;
    /// Every charge remembered: never above the count in any window.
    SlidingLog = "sliding-log", code 1,
        plan SlidingLogPlan, state Log, edit LogEdit;
    /// Charges counted by sub-window: constant memory.
    SlidingWindow = "sliding-window", code 2,
        plan SlidingWindowPlan, state Panes, edit PanesEdit;
    /// Permits refill steadily up to the burst.
    TokenBucket = "token-bucket", code 3,
        plan BucketPlan, state Bucket, edit Bucket;
    /// Water leaks steadily from a bucket of the burst's size; overflow waits or is refused.
    LeakyMeter = "leaky-meter", code 4,
        plan BucketPlan, state Bucket, edit Bucket;
    /// Departures spaced evenly, with the burst as the number of places in the queue.
    LeakyQueue = "leaky-queue", code 5,
        plan BucketPlan, state Bucket, edit Bucket;
    /// A steady rate with stored permits, as Guava's limiters.
    Smooth = "smooth", code 6,
        plan SmoothPlan, state SmoothState, edit SmoothState;
    /// At most the count at once, each for a lease of at most the period.
    Concurrency = "concurrency", code 7,
        plan ConcurrencyPlan, state Holders, edit HoldersEdit;
}

impl Algorithm {
    /// Each algorithm as it is unless somebody says more: what its name alone stands for.
    pub fn usual() -> [Self; 8] {
        [
            FixedWindow::default().into(),
            SlidingLog.into(),
            SlidingWindow::conservative().into(),
            TokenBucket.into(),
            LeakyMeter.into(),
            LeakyQueue.into(),
            Smooth::bursty().into(),
            Concurrency.into(),
        ]
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Refuses a burst where it would mean nothing, rather than ignore it.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Redis keys and states hold these numbers: another value would lose every counter.
    #[test]
    fn stored_codes_never_change() {
        let codes = Algorithm::usual().map(|algorithm| (algorithm.name(), algorithm.code()));

        assert_eq!(
            codes,
            [
                ("fixed-window", 0),
                ("sliding-log", 1),
                ("sliding-window", 2),
                ("token-bucket", 3),
                ("leaky-meter", 4),
                ("leaky-queue", 5),
                ("smooth", 6),
                ("concurrency", 7),
            ]
        );
    }
}
