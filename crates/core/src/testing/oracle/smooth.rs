//! Smooth limiters, by their formulas in real numbers: nothing is truncated here.
//!
//! The implementation truncates each price to whole microseconds, as Guava does, so the two
//! drift apart in the long run by design. This oracle therefore judges single steps, from the
//! state it is shown. Prices are differences of one antiderivative, not sums of trapezoids.
//!
//! The five numbers of a limiter come from its plan; `tests/smooth_guava.rs` checks those.

use super::{ExpectedDecision, LimitChange, MAX_DEBT_US, Slack, misfit};
use crate::algorithm::State;
use crate::algorithm::smooth::SmoothPlan as Numbers;
use crate::algorithm::{Payment, Plan};
use crate::{Limit, OnChange, Op, Retry, Verdict};

/// LimitChange close to an edge truncation may tip a verdict: three truncated terms.
const EDGE_US: f64 = 3.0;

/// Stored permits and when the next one is free, in real numbers.
#[derive(Clone, Debug)]
pub struct SmoothOracle {
    numbers: Numbers,
    tickets: Option<OraclePermits>,
}

/// Times are relative to `written`, so that a double holds them to a fraction of a microsecond.
#[derive(Clone, Copy, Debug)]
struct OraclePermits {
    stored: f64,
    /// LimitChange long after `written` the next permit is free.
    ahead: f64,
    written: u64,
}

impl SmoothOracle {
    pub(super) fn new(limit: &Limit) -> Self {
        let Plan::Smooth(numbers) = *limit.plan() else { unreachable!("a smooth limit") };
        Self { numbers, tickets: None }
    }

    pub(super) const fn is_absent(&self) -> bool {
        self.tickets.is_none()
    }

    pub(super) fn show(&mut self, state: &State) {
        self.tickets = match state {
            State::Smooth(tickets) => Some(OraclePermits {
                stored: tickets.stored,
                ahead: (i128::from(tickets.free_at.as_micros())
                    - i128::from(tickets.written_at.as_micros())) as f64,
                written: tickets.written_at.as_micros(),
            }),
            _ => None,
        };
    }

    /// Stores idle time; a clock behind the last write finds everything as it was then.
    pub(super) fn observe(&mut self, now: u64) {
        let Some(tickets) = self.tickets else { return };
        let passed = now.saturating_sub(tickets.written) as f64;
        let ahead = tickets.ahead - passed;
        let idle = (-ahead).max(0.0);
        let stored = (tickets.stored + idle / self.numbers.cooldown).min(self.numbers.max_permits);
        let seen = OraclePermits { stored, ahead: ahead.max(0.0), written: now };
        // Kept one microsecond longer than it has to, which no answer shows.
        let missing = (self.numbers.max_permits - tickets.stored) * self.numbers.cooldown;
        self.tickets = (idle < missing.ceil() + 1.0).then_some(seen);
    }

    fn seen(&self, now: u64) -> OraclePermits {
        let full = OraclePermits { stored: self.numbers.max_permits, ahead: 0.0, written: now };
        self.tickets.unwrap_or(full)
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

    /// LimitChange long a caller arriving `later` from now would wait.
    fn wait(&self, tickets: &OraclePermits, cost: u64, later: f64) -> f64 {
        let idle = (later - tickets.ahead).max(0.0);
        let stored = (tickets.stored + idle / self.numbers.cooldown).min(self.numbers.max_permits);
        let own = match self.numbers.payment {
            Payment::Next => 0.0,
            Payment::Own => self.price(stored, cost),
        };
        (tickets.ahead - later).max(0.0) + own
    }

    fn judge(&self, cost: u64, patience: u64, now: u64) -> (Verdict, Slack) {
        if cost == 0 {
            return (Verdict::Allow, Slack::Rounding);
        }
        if self.numbers.payment == Payment::Next && cost > self.numbers.max_debt {
            return (Verdict::Deny(Retry::Never), Slack::Rounding);
        }
        let (tickets, patience) = (self.seen(now), patience as f64);
        let wait = self.wait(&tickets, cost, 0.0);
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
        let refill = (self.numbers.max_permits - tickets.stored) * self.numbers.cooldown;
        let (mut refused, mut passing) = (0.0, tickets.ahead);
        let at_once = self.wait(&tickets, cost, passing);
        let mut best = at_once;
        if at_once > patience && !self.numbers.warming {
            passing += refill;
            best = self.wait(&tickets, cost, passing);
        }
        if near(best, patience) || near(at_once, patience) {
            slack = Slack::Edge;
        }
        if best > patience {
            return (Verdict::Deny(Retry::Never), slack);
        }
        while passing - refused > 0.1 {
            let middle = f64::midpoint(refused, passing);
            let fits = self.wait(&tickets, cost, middle) <= patience;
            if fits { passing = middle } else { refused = middle }
        }
        (Verdict::Deny(Retry::After(super::micros(passing as i128 + 1))), slack)
    }

    pub(super) fn charge(&mut self, op: Op, patience: u64, now: u64) -> ExpectedDecision {
        let (verdict, slack) = match op {
            Op::Peek(cost) => self.judge(cost, patience, now),
            Op::Take(cost) => {
                let judged = self.judge(cost, patience, now);
                if judged.0.passes() && cost > 0 {
                    self.spend(cost, now);
                }
                judged
            }
            Op::Debit { cost, at } => {
                let gone = now.saturating_sub(at.as_micros()) as f64;
                if cost as f64 * self.numbers.stable > gone {
                    let most = self.seen(now).ahead.max(MAX_DEBT_US as f64);
                    self.spend(cost, now);
                    if let Some(tickets) = &mut self.tickets {
                        tickets.ahead = tickets.ahead.min(most);
                    }
                }
                (Verdict::Allow, Slack::Rounding)
            }
            Op::Credit { cost, at } => {
                self.credit(cost, at.as_micros(), now);
                (Verdict::Allow, Slack::Rounding)
            }
            op => misfit(op),
        };
        let tickets = self.seen(now);
        let refill = (self.numbers.max_permits - tickets.stored) * self.numbers.cooldown;
        let remaining = if tickets.ahead > 0.0 { 0.0 } else { tickets.stored };
        let reset = (tickets.ahead + refill).ceil() as i128;
        ExpectedDecision { slack, ..ExpectedDecision::exact(verdict, remaining as i128, reset) }
    }

    fn spend(&mut self, cost: u64, now: u64) {
        let tickets = self.seen(now);
        let stored = (tickets.stored - cost as f64).max(0.0);
        let ahead = tickets.ahead + self.price(tickets.stored, cost);
        self.tickets = Some(OraclePermits { stored, ahead, written: now });
    }

    /// Time has given back what has drained since; the rest shortens the debt, then is stored.
    fn credit(&mut self, cost: u64, at: u64, now: u64) {
        let Some(tickets) = &mut self.tickets else { return };
        let drained = now.saturating_sub(at) as f64 / self.numbers.stable;
        let worth = (cost as f64 - drained).max(0.0);
        let repaid = tickets.ahead.min(worth * self.numbers.stable);
        tickets.ahead -= repaid;
        let rest = worth - repaid / self.numbers.stable;
        tickets.stored = (tickets.stored + rest).min(self.numbers.max_permits);
    }

    pub(super) fn change(&mut self, to: &Limit, how: LimitChange, now: u64) {
        let from = std::mem::replace(self, Self::new(to));
        if from.tickets.is_none() || how == LimitChange::Revise(OnChange::Reset) {
            return;
        }
        let mut tickets = from.seen(now);
        let (old, new) = (from.numbers.max_permits, self.numbers.max_permits);
        tickets.stored = match how {
            LimitChange::Revise(OnChange::Scale) => tickets.stored * new / old,
            LimitChange::Revise(_) => new - (old - tickets.stored),
            LimitChange::Adopt => tickets.stored,
        };
        tickets.stored = tickets.stored.clamp(0.0, new);
        self.tickets = Some(tickets);
    }
}
