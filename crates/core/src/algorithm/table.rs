//! The table of algorithms: names, stored codes, and the dispatch from a limit to its steps.
//!
//! An algorithm is one entry of `algorithms!`, at the end of this file. The compiler names missing
//! parts.

use std::fmt;

use super::bucket::{Bucket, BucketPlan};
use super::concurrency::{ConcurrencyPlan, Holders, HoldersEdit};
use super::fixed_window::{FixedWindowPlan, Window};
use super::sliding_log::{Log, LogEdit, SlidingLogPlan};
use super::sliding_window::{Panes, PanesEdit, SlidingWindowPlan};
use super::smooth::{SmoothPlan, SmoothState};
use super::{
    Change, Concurrency, Conversion, FixedWindow, LeakyMeter, LeakyQueue, SlidingLog,
    SlidingWindow, Smooth, Step, TokenBucket,
};
use crate::charge::Terms;
use crate::limit::LimitError;
use crate::{Charge, Decision, Limit, Quota, Timestamp};

macro_rules! algorithms {
    ($(
        $(#[$doc:meta])+
        $name:ident = $text:literal, code $code:literal, plan $plan:ty, state $state:ty, edit $edit:ty;
    )+) => {
        /// The algorithm that gives a quota its meaning. A closed set: each member needs an oracle
        /// and a twin.
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

        /// The state of a key.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub enum State {
            /// Full, or cold for a warming limiter.
            #[default]
            Absent,
            $($(#[$doc])+ $name($state),)+
        }

        /// An edit that carries out a decision. Nothing changes until it is applied.
        #[derive(Clone, Debug, PartialEq)]
        #[must_use]
        pub enum Effect {
            /// The state stays as it is.
            None,
            $($(#[$doc])+ $name($edit),)+
        }

        #[cfg_attr(not(feature = "store"), doc(hidden))]
        impl Limit {
            /// Brings `state` up to date for `now`: drops it if it is worth no more than an absent
            /// one, and moves back times that a clock stepping back left ahead. Returns true if it
            /// changed; then write it even if the charge is refused.
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

            /// Returns the decision about `charge` at `now`, and the edit that carries it out.
            ///
            /// The state must be settled at `now`. The charge's own limit is ignored: a charge of
            /// an older revision is judged by the newer limit that it finds.
            #[inline]
            pub fn decide(&self, state: &State, charge: &Charge<'_>, now: Timestamp) -> (Decision, Effect) {
                self.decide_terms(state, charge.terms(now))
            }

            #[inline]
            pub(crate) fn decide_terms(&self, state: &State, terms: Terms) -> (Decision, Effect) {
                match self.plan() {
                    $(Plan::$name(plan) => {
                        let state = match state { State::$name(state) => Some(state), _ => None };
                        let (decision, edit) = $name::decide(plan, state, terms);
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

            /// The first moment from which the state is worth no more than an absent one; `None` if
            /// it lies past the end of time.
            #[inline]
            pub fn idle_at(&self, state: &State) -> Option<Timestamp> {
                match (self.plan(), state) {
                    $((Plan::$name(plan), State::$name(state)) => $name::idle_at(plan, state),)+
                    _ => Some(Timestamp::EPOCH),
                }
            }

            /// The most heap bytes that one key's state can occupy under this limit.
            pub fn heap_bytes(&self) -> usize {
                match self.plan() { $(Plan::$name(plan) => $name::heap_bytes(plan),)+ }
            }

            /// Carries a settled state over from another limit of the same algorithm.
            pub(crate) fn convert(&self, from: &Self, state: State, change: Change, now: Timestamp) -> State {
                match (from.plan(), self.plan(), state) {
                    $((Plan::$name(from), Plan::$name(to), State::$name(state)) => {
                        $name::convert(state, Conversion { from, to, change, now }).map_or(State::Absent, State::$name)
                    })+
                    _ => State::Absent,
                }
            }
        }
    };
}

algorithms! {
    /// Admits at most the quota's count in each window.
    FixedWindow = "fixed-window", code 0,
        plan FixedWindowPlan, state Window, edit Window;
    /// Remembers every charge: never above the count in any window.
    SlidingLog = "sliding-log", code 1,
        plan SlidingLogPlan, state Log, edit LogEdit;
    /// Counts charges by sub-window: constant memory.
    SlidingWindow = "sliding-window", code 2,
        plan SlidingWindowPlan, state Panes, edit PanesEdit;
    /// Permits refill steadily up to the burst.
    TokenBucket = "token-bucket", code 3,
        plan BucketPlan, state Bucket, edit Bucket;
    /// Water leaks steadily from a bucket of the burst's size; overflow waits or is refused.
    LeakyMeter = "leaky-meter", code 4,
        plan BucketPlan, state Bucket, edit Bucket;
    /// Evenly spaced departures, with the burst as the number of places in the queue.
    LeakyQueue = "leaky-queue", code 5,
        plan BucketPlan, state Bucket, edit Bucket;
    /// A steady rate with stored permits, as in Guava's limiters.
    Smooth = "smooth", code 6,
        plan SmoothPlan, state SmoothState, edit SmoothState;
    /// Admits at most the quota's count at once; each permit has a lease of at most the period.
    Concurrency = "concurrency", code 7,
        plan ConcurrencyPlan, state Holders, edit HoldersEdit;
}

impl Algorithm {
    /// Returns each algorithm with its default parameters.
    pub fn defaults() -> [Self; 8] {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Redis keys and states hold these numbers: another value would lose every counter.
    #[test]
    fn stored_codes_never_change() {
        let codes = Algorithm::defaults().map(|algorithm| (algorithm.name(), algorithm.code()));

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
