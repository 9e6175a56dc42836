//! The promise of each algorithm, computed slowly and exactly.
//!
//! Each algorithm has one oracle, written from its specification and not from its code: here a
//! bucket is a level and not an arrival time, and a window is a list of charges and not a row of
//! counts. Delays are *searched* for, or checked by asking the admission rule at both sides of the
//! edge.
//!
//! An oracle counts one key under one limit; a [`Ledger`] adds changes of the limit. Smooth
//! limiters truncate as Guava does, so their oracle judges each step from the implementation's
//! state ([`Ledger::shown`]), within three microseconds.
//!
//! Oracles do not cover the ends of time, and panic outside of their range. A charge that can no
//! longer be recorded is refused; `tests/edges.rs` covers that.

mod bucket;
mod concurrency;
mod fixed_window;
mod leaky_queue;
mod ledger;
mod sliding_log;
mod sliding_window;
mod smooth;

use std::time::Duration;

use crate::algorithm::{Algorithm, State};
use crate::{Decision, Limit, OnChange, Op, Retry, Verdict};

use bucket::BucketOracle;
use concurrency::ConcurrencyOracle;
use fixed_window::FixedWindowOracle;
use leaky_queue::LeakyQueueOracle;
pub use ledger::Ledger;
use sliding_log::SlidingLogOracle;
use sliding_window::SlidingWindowOracle;
use smooth::SmoothOracle;

/// The bound of debt: the longest period.
const MAX_DEBT_US: u64 = 365 * 24 * 60 * 60 * 1_000_000;

/// A change of a limit under live usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitChange {
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
    /// Time until the full capacity is back, rounded up.
    pub reset_after: Duration,
    /// The tolerance; none unless the algorithm truncates.
    pub slack: Slack,
}

/// The tolerance of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slack {
    /// No tolerance.
    None,
    /// 3 µs for durations, and one permit for the remaining count.
    Rounding,
    /// As above, and also the other verdict, because an edge is that close.
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

    /// True if `decision` is the expected one.
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

/// The promise of one algorithm for one key under one limit. Moments and spans are microseconds.
trait Oracle: std::fmt::Debug {
    /// Brings the state up to date for `now`.
    fn observe(&mut self, now: u64);

    /// True when there is no state. Only meaningful after [`Oracle::observe`].
    fn is_absent(&self) -> bool;

    /// The verdict on a take.
    fn judge(&self, cost: u64, patience: u64, now: u64) -> Verdict;

    /// The decision with this verdict, in the current state.
    fn expected(&self, verdict: Verdict, now: u64) -> ExpectedDecision;

    /// Carries the usage over to another limit of the same algorithm.
    fn change(&mut self, to: &Limit, how: LimitChange, now: u64);

    /// The tolerance for the answer to this operation.
    fn slack(&self, _op: Op, _patience: u64, _now: u64) -> Slack {
        Slack::None
    }

    /// Shows the implementation's state to an oracle that judges step by step.
    fn show(&mut self, _state: &State) {}

    /// Makes a take that passes.
    fn take(&mut self, cost: u64, _now: u64) {
        unreachable!("{self:?} cannot be charged {cost}");
    }

    /// Spends a cost that was used at `at`, even if it is not available.
    fn debit(&mut self, cost: u64, _at: u64, _now: u64) {
        unreachable!("{self:?} cannot be charged {cost}");
    }

    /// Gives back the current value of a charge that was made at `at`.
    fn credit(&mut self, cost: u64, _at: u64, _now: u64) {
        unreachable!("{self:?} cannot be credited {cost}");
    }

    /// Carries out an operation, unless refused.
    fn execute(&mut self, op: Op, patience: u64, now: u64) -> Verdict {
        match op {
            Op::Peek(cost) => return self.judge(cost, patience, now),
            Op::Take(cost) => {
                let verdict = self.judge(cost, patience, now);
                if verdict.passes() && cost > 0 {
                    self.take(cost, now);
                }
                return verdict;
            }
            Op::Debit { cost: 0, .. } => {}
            Op::Debit { cost, at } => self.debit(cost, at.as_micros(), now),
            Op::Credit { cost, at } => self.credit(cost, at.as_micros(), now),
            op => panic!("{op:?} cannot be charged to this algorithm"),
        }
        Verdict::Allow
    }

    /// The decision that `op` must get at `now`; carried out unless refused.
    fn charge(&mut self, op: Op, patience: u64, now: u64) -> ExpectedDecision {
        let slack = self.slack(op, patience, now);
        let verdict = self.execute(op, patience, now);
        ExpectedDecision { slack, ..self.expected(verdict, now) }
    }
}

/// The oracle of a key without charges.
fn oracle(limit: &Limit) -> Box<dyn Oracle> {
    // Exhaustive on purpose: an algorithm without an oracle shall not compile.
    match limit.algorithm() {
        Algorithm::FixedWindow(params) => Box::new(FixedWindowOracle::new(params, limit)),
        Algorithm::SlidingLog(_) => Box::new(SlidingLogOracle::new(limit)),
        Algorithm::SlidingWindow(params) => Box::new(SlidingWindowOracle::new(params, limit)),
        Algorithm::TokenBucket(_) | Algorithm::LeakyMeter(_) => Box::new(BucketOracle::new(limit)),
        Algorithm::LeakyQueue(_) => Box::new(LeakyQueueOracle::new(limit)),
        Algorithm::Smooth(_) => Box::new(SmoothOracle::new(limit)),
        Algorithm::Concurrency(_) => Box::new(ConcurrencyOracle::new(limit)),
    }
}

/// One charge of a window or a log.
#[derive(Clone, Copy, Debug)]
struct PastCharge {
    at: u64,
    cost: u64,
}

/// Takes `cost` off these charges, the first ones first.
fn take_off(charges: &mut [PastCharge], mut cost: u64) {
    for charge in charges {
        let off = charge.cost.min(cost);
        charge.cost -= off;
        cost -= off;
    }
}

/// The count of a limit, and its period.
fn count_and_period(limit: &Limit) -> (u64, u64) {
    (limit.quota().count().get(), us(limit.quota().period()))
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

/// The share `used × to / from`, rounded down; absurd debt stays absurd.
fn share(used: u64, from: u64, to: u64) -> u64 {
    let scaled = u128::from(used) * u128::from(to) / u128::from(from);
    u64::try_from(scaled.min(2 * u128::from(crate::Quota::MAX_COUNT))).expect("capped")
}
