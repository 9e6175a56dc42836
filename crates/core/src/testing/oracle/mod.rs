//! The promise of each algorithm, computed slowly and exactly.
//!
//! One oracle per algorithm, written from its specification and not from its code: a bucket is
//! a level here and not an arrival time, a window is a list of charges and not a row of counts.
//! Delays are *searched* for, or checked by asking the admission rule at both sides of the edge.
//!
//! An [`Oracle`] counts one key under one limit; a [`Ledger`] adds what happens when limits
//! change under way. Smooth limiters truncate as Guava does, so their oracle judges each step
//! from the state it is shown ([`Oracle::shown`]), and within three microseconds.
//!
//! Not here: the ends of time. Where a charge cannot be recorded any more it is refused, which
//! `tests/edges.rs` covers; an oracle panics when it leaves its range.

mod bucket;
mod concurrency;
mod fixed_window;
mod leaky_queue;
mod ledger;
mod sliding_log;
mod sliding_window;
mod smooth;

use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::algorithm::State;
use crate::{Decision, Limit, OnChange, Op, Retry, Timestamp, Verdict};

pub use bucket::BucketOracle;
pub use concurrency::ConcurrencyOracle;
pub use fixed_window::FixedWindowOracle;
pub use leaky_queue::LeakyQueueOracle;
pub use ledger::Ledger;
pub use sliding_log::SlidingLogOracle;
pub use sliding_window::SlidingWindowOracle;
pub use smooth::SmoothOracle;

/// Debt ends here: the longest period there is.
const MAX_DEBT_US: u64 = 365 * 24 * 60 * 60 * 1_000_000;

/// LimitChange a limit changes under live usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitChange {
    /// A higher revision, by its declared policy.
    Revise(OnChange),
    /// Another quota at the same revision: recorded times stay.
    Adopt,
}

/// The decision that the specification demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedDecision {
    /// The verdict, with its exact delay.
    pub verdict: Verdict,
    /// Permits left, rounded down.
    pub remaining: u64,
    /// LimitChange long until the full capacity is back, rounded up.
    pub reset_after: Duration,
    /// LimitChange far an answer may be off; exact unless the algorithm truncates.
    pub slack: Slack,
}

/// LimitChange far an answer may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slack {
    /// Not at all.
    None,
    /// Durations by 3 µs and what is left by one permit.
    Rounding,
    /// As above, and the verdict lies so close to an edge that its neighbour is right as well.
    Edge,
}

impl ExpectedDecision {
    /// An exact answer.
    fn exact(verdict: Verdict, remaining: i128, reset_us: i128) -> Self {
        Self {
            verdict,
            remaining: u64::try_from(remaining.max(0)).expect("what is left fits"),
            reset_after: micros(reset_us.max(0)),
            slack: Slack::None,
        }
    }

    /// True when `decision` is the one demanded.
    pub fn agrees(&self, decision: &Decision) -> bool {
        if self.slack == Slack::None {
            return self.verdict == decision.verdict
                && self.remaining == decision.remaining
                && self.reset_after == decision.reset_after;
        }
        let near = |a: Duration, b: Duration| a.abs_diff(b) <= Duration::from_micros(3);
        let verdict = match (self.verdict, decision.verdict) {
            (Verdict::Allow, Verdict::Allow) => true,
            (Verdict::Wait(a), Verdict::Wait(b)) => near(a, b),
            (Verdict::Deny(Retry::After(a)), Verdict::Deny(Retry::After(b))) => near(a, b),
            (Verdict::Deny(Retry::Never), Verdict::Deny(Retry::Never)) => true,
            _ => false,
        };
        if !verdict && self.slack == Slack::Edge {
            return true;
        }
        verdict
            && self.remaining.abs_diff(decision.remaining) <= 1
            && near(self.reset_after, decision.reset_after)
    }
}

/// The oracle of one key under one limit.
#[derive(Clone, Debug)]
pub enum Oracle {
    /// See [`FixedWindowOracle`].
    FixedWindow(FixedWindowOracle),
    /// See [`SlidingLogOracle`].
    SlidingLog(SlidingLogOracle),
    /// See [`SlidingWindowOracle`].
    SlidingWindow(SlidingWindowOracle),
    /// See [`BucketOracle`]: token bucket and leaky meter.
    Bucket(BucketOracle),
    /// See [`LeakyQueueOracle`].
    LeakyQueue(LeakyQueueOracle),
    /// See [`SmoothOracle`].
    Smooth(SmoothOracle),
    /// See [`ConcurrencyOracle`].
    Concurrency(ConcurrencyOracle),
}

macro_rules! each {
    ($oracle:expr, $inner:ident => $then:expr) => {
        match $oracle {
            Oracle::FixedWindow($inner) => $then,
            Oracle::SlidingLog($inner) => $then,
            Oracle::SlidingWindow($inner) => $then,
            Oracle::Bucket($inner) => $then,
            Oracle::LeakyQueue($inner) => $then,
            Oracle::Smooth($inner) => $then,
            Oracle::Concurrency($inner) => $then,
        }
    };
}

impl Oracle {
    /// A key that nothing was charged to yet.
    pub fn new(limit: &Limit) -> Self {
        // Exhaustive on purpose: an algorithm without an oracle shall not compile.
        match limit.algorithm() {
            Algorithm::FixedWindow(params) => {
                Self::FixedWindow(FixedWindowOracle::new(params, limit))
            }
            Algorithm::SlidingLog(_) => Self::SlidingLog(SlidingLogOracle::new(limit)),
            Algorithm::SlidingWindow(params) => {
                Self::SlidingWindow(SlidingWindowOracle::new(params, limit))
            }
            Algorithm::TokenBucket(_) | Algorithm::LeakyMeter(_) => {
                Self::Bucket(BucketOracle::new(limit))
            }
            Algorithm::LeakyQueue(_) => Self::LeakyQueue(LeakyQueueOracle::new(limit)),
            Algorithm::Smooth(_) => Self::Smooth(SmoothOracle::new(limit)),
            Algorithm::Concurrency(_) => Self::Concurrency(ConcurrencyOracle::new(limit)),
        }
    }

    /// Makes what is remembered true for `now`.
    pub fn observe(&mut self, now: Timestamp) {
        each!(self, inner => inner.observe(now.as_micros()));
    }

    /// True when there is no state. Only meaningful after [`Oracle::observe`].
    pub fn is_absent(&self) -> bool {
        each!(self, inner => inner.is_absent())
    }

    /// The decision that `op` must get at `now`; carried out unless refused.
    pub fn charge(&mut self, op: Op, patience: Duration, now: Timestamp) -> ExpectedDecision {
        self.observe(now);
        self.charge_observed(op, patience, now)
    }

    fn charge_observed(&mut self, op: Op, patience: Duration, now: Timestamp) -> ExpectedDecision {
        let patience = us(patience);
        each!(self, inner => inner.charge(op, patience, now.as_micros()))
    }

    /// Carries what is remembered over to another limit of the same algorithm.
    pub fn change(&mut self, to: &Limit, how: LimitChange, now: Timestamp) {
        self.observe(now);
        each!(self, inner => inner.change(to, how, now.as_micros()));
    }

    /// Shows the implementation's state to an oracle that judges step by step.
    pub fn shown(&mut self, state: &State) {
        if let Self::Smooth(smooth) = self {
            smooth.show(state);
        }
    }
}

fn us(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).expect("a span of at most a few years")
}

fn micros(us: i128) -> Duration {
    Duration::from_micros(u64::try_from(us).expect("a span that fits"))
}

/// The refusal until `us` from now.
fn retry(us: i128) -> Verdict {
    assert!(us > 0, "a refusal must end later than now");
    Verdict::Deny(Retry::After(micros(us)))
}

/// `used × to / from`, rounded down; absurd debt stays absurd.
fn share(used: u64, from: u64, to: u64) -> u64 {
    let scaled = u128::from(used) * u128::from(to) / u128::from(from);
    u64::try_from(scaled.min(2 * u128::from(crate::Quota::MAX_COUNT))).expect("capped")
}

/// Panics on an operation that does not fit the algorithm; no such charge can be built.
fn misfit(op: Op) -> ! {
    panic!("{op:?} cannot be charged to this algorithm")
}
