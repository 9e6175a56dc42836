//! Smooth limiters, by their formulas in real numbers: nothing is truncated here.
//!
//! The implementation truncates each price to whole microseconds, as Guava does, so the two drift
//! apart in the long run by design. This oracle therefore judges single steps, from the
//! implementation's state. Prices are differences of one antiderivative, not sums of trapezoids.
//!
//! The five numbers of a limiter come from its plan; `tests/smooth_guava.rs` checks those.

use super::{ExpectedDecision, LimitChange, MAX_DEBT_US, Oracle, Slack};
use crate::algorithm::State;
use crate::algorithm::smooth::SmoothPlan as Numbers;
use crate::algorithm::{Payment, Plan};
use crate::{Limit, OnChange, Op, Retry, Verdict};

/// The distance from an edge at which truncation may tip a verdict: three truncated terms.
const EDGE_US: f64 = 3.0;

/// Stored permits and when the next one is free, in real numbers.
#[derive(Debug)]
pub(super) struct SmoothOracle {
    numbers: Numbers,
    permits: Option<OraclePermits>,
}

/// Times are relative to `written`, so that a double holds them to a fraction of a microsecond.
#[derive(Clone, Copy, Debug)]
struct OraclePermits {
    stored: f64,
    /// Time from `written` until the next permit is free.
    ahead: f64,
    written: u64,
}

impl SmoothOracle {
    pub(super) fn new(limit: &Limit) -> Self {
        let Plan::Smooth(numbers) = *limit.plan() else { unreachable!("a smooth limit") };
        Self { numbers, permits: None }
    }

    fn seen(&self, now: u64) -> OraclePermits {
        let full = OraclePermits { stored: self.numbers.max_permits, ahead: 0.0, written: now };
        self.permits.unwrap_or(full)
    }

    /// The area under the price curve from 0 to `x` stored permits.
    fn area(&self, x: f64) -> f64 {
        if !self.numbers.warming {
            return 0.0;
        }
        let above = (x - self.numbers.threshold).max(0.0);
        self.numbers.stable * x + self.numbers.slope * above * above / 2.0
    }

    fn price(&self, stored: f64, cost: u64) -> f64 {
        let taken = stored.min(cost as f64);
        let fresh = cost as f64 - taken;
        self.area(stored) - self.area(stored - taken) + fresh * self.numbers.stable
    }

    /// The wait of a caller that arrives `later` from now.
    fn wait(&self, permits: &OraclePermits, cost: u64, later: f64) -> f64 {
        let idle = (later - permits.ahead).max(0.0);
        let stored = (permits.stored + idle / self.numbers.cooldown).min(self.numbers.max_permits);
        let own = match self.numbers.payment {
            Payment::Next => 0.0,
            Payment::Own => self.price(stored, cost),
        };
        (permits.ahead - later).max(0.0) + own
    }

    fn judge_within(&self, cost: u64, patience: u64, now: u64) -> (Verdict, Slack) {
        if cost == 0 {
            return (Verdict::Allow, Slack::Rounding);
        }
        if self.numbers.payment == Payment::Next && cost > self.numbers.max_debt {
            return (Verdict::Deny(Retry::Never), Slack::Rounding);
        }
        let (permits, patience) = (self.seen(now), patience as f64);
        let wait = self.wait(&permits, cost, 0.0);
        let near = |a: f64, b: f64| (a - b).abs() <= EDGE_US;
        let mut slack = if near(wait, patience) || near(wait, 0.0) && wait > 0.0 {
            Slack::Edge
        } else {
            Slack::Rounding
        };
        if wait <= patience {
            let verdict = match wait as u64 {
                0 => Verdict::Allow,
                wait => Verdict::Wait(super::micros(wait.into())),
            };
            return (verdict, slack);
        }
        let refill = (self.numbers.max_permits - permits.stored) * self.numbers.cooldown;
        let (mut refused, mut passing) = (0.0, permits.ahead);
        let at_once = self.wait(&permits, cost, passing);
        let mut best = at_once;
        if at_once > patience && !self.numbers.warming {
            passing += refill;
            best = self.wait(&permits, cost, passing);
        }
        if near(best, patience) || near(at_once, patience) {
            slack = Slack::Edge;
        }
        if best > patience {
            return (Verdict::Deny(Retry::Never), slack);
        }
        while passing - refused > 0.1 {
            let middle = f64::midpoint(refused, passing);
            let fits = self.wait(&permits, cost, middle) <= patience;
            if fits { passing = middle } else { refused = middle }
        }
        (Verdict::Deny(Retry::After(super::micros(passing as i128 + 1))), slack)
    }
}

impl Oracle for SmoothOracle {
    fn is_absent(&self) -> bool {
        self.permits.is_none()
    }

    fn show(&mut self, state: &State) {
        self.permits = match state {
            State::Smooth(permits) => Some(OraclePermits {
                stored: permits.stored,
                ahead: (i128::from(permits.free_at.as_micros())
                    - i128::from(permits.written_at.as_micros())) as f64,
                written: permits.written_at.as_micros(),
            }),
            _ => None,
        };
    }

    /// Stores idle time. A clock behind the last write finds everything as it was then.
    fn observe(&mut self, now: u64) {
        let Some(permits) = self.permits else { return };
        let passed = now.saturating_sub(permits.written) as f64;
        let ahead = permits.ahead - passed;
        let idle = (-ahead).max(0.0);
        let stored = (permits.stored + idle / self.numbers.cooldown).min(self.numbers.max_permits);
        let seen = OraclePermits { stored, ahead: ahead.max(0.0), written: now };
        // Kept one microsecond longer than it has to, which no answer shows.
        let missing = (self.numbers.max_permits - permits.stored) * self.numbers.cooldown;
        self.permits = (idle < missing.ceil() + 1.0).then_some(seen);
    }

    fn judge(&self, cost: u64, patience: u64, now: u64) -> Verdict {
        self.judge_within(cost, patience, now).0
    }

    fn slack(&self, op: Op, patience: u64, now: u64) -> Slack {
        match op {
            Op::Take(cost) | Op::Peek(cost) => self.judge_within(cost, patience, now).1,
            _ => Slack::Rounding,
        }
    }

    fn take(&mut self, cost: u64, now: u64) {
        let permits = self.seen(now);
        let stored = (permits.stored - cost as f64).max(0.0);
        let ahead = permits.ahead + self.price(permits.stored, cost);
        self.permits = Some(OraclePermits { stored, ahead, written: now });
    }

    fn debit(&mut self, cost: u64, at: u64, now: u64) {
        if cost as f64 * self.numbers.stable > now.saturating_sub(at) as f64 {
            let most = self.seen(now).ahead.max(MAX_DEBT_US as f64);
            self.take(cost, now);
            if let Some(permits) = &mut self.permits {
                permits.ahead = permits.ahead.min(most);
            }
        }
    }

    /// Permits that have drained since are worth nothing any more. The rest shortens the debt, and
    /// then is stored.
    fn credit(&mut self, cost: u64, at: u64, now: u64) {
        let Some(permits) = &mut self.permits else { return };
        let drained = now.saturating_sub(at) as f64 / self.numbers.stable;
        let worth = (cost as f64 - drained).max(0.0);
        let repaid = permits.ahead.min(worth * self.numbers.stable);
        permits.ahead -= repaid;
        let rest = worth - repaid / self.numbers.stable;
        permits.stored = (permits.stored + rest).min(self.numbers.max_permits);
    }

    fn expected(&self, verdict: Verdict, now: u64) -> ExpectedDecision {
        let permits = self.seen(now);
        let refill = (self.numbers.max_permits - permits.stored) * self.numbers.cooldown;
        let remaining = if permits.ahead > 0.0 { 0.0 } else { permits.stored };
        let reset = (permits.ahead + refill).ceil() as i128;
        ExpectedDecision::exact(verdict, remaining as i128, reset)
    }

    fn change(&mut self, to: &Limit, how: LimitChange, now: u64) {
        let from = std::mem::replace(self, Self::new(to));
        if from.permits.is_none() || how == LimitChange::Revise(OnChange::Reset) {
            return;
        }
        let mut permits = from.seen(now);
        let (old, new) = (from.numbers.max_permits, self.numbers.max_permits);
        permits.stored = match how {
            LimitChange::Revise(OnChange::Scale) => permits.stored * new / old,
            LimitChange::Revise(_) => new - (old - permits.stored),
            LimitChange::Adopt => permits.stored,
        };
        permits.stored = permits.stored.clamp(0.0, new);
        self.permits = Some(permits);
    }
}
