//! Concurrency, by definition: the holders whose leases have not ended.

use super::{ExpectedDecision, LimitChange, Oracle, count_and_period, retry, us};
use crate::{Holder, Limit, Op, Retry, Verdict};

/// The holders, each with the end of its lease.
#[derive(Debug)]
pub(super) struct ConcurrencyOracle {
    count: u64,
    /// The longest lease.
    longest: u64,
    /// The time of the last acquisition, renewal or release.
    written: u64,
    held: Vec<(Holder, u64)>,
}

impl ConcurrencyOracle {
    pub(super) fn new(limit: &Limit) -> Self {
        let (count, longest) = count_and_period(limit);
        Self { count, longest, written: 0, held: Vec::new() }
    }

    fn held_at(&self, at: u64) -> u64 {
        self.held.iter().filter(|(_, until)| *until > at).count() as u64
    }

    fn write(&mut self, holder: Holder, until: Option<u64>, now: u64) {
        self.held.retain(|(other, end)| *other != holder && *end > now);
        self.held.extend(until.map(|until| (holder, until)));
        self.written = now;
    }
}

impl Oracle for ConcurrencyOracle {
    fn is_absent(&self) -> bool {
        self.held.is_empty()
    }

    /// If the clock is behind the last write, every lease has the remaining time that it had then.
    fn observe(&mut self, now: u64) {
        if self.held_at(now) == 0 {
            self.held.clear();
        }
        if let Some(back) = self.written.checked_sub(now) {
            for (_, until) in &mut self.held {
                *until = until.saturating_sub(back);
            }
            self.written = now;
        }
    }

    fn judge(&self, cost: u64, _patience: u64, now: u64) -> Verdict {
        let fits = |at| cost == 0 || self.held_at(at).saturating_add(cost) <= self.count;
        if fits(now) {
            return Verdict::Allow;
        }
        let ends = self.held.iter().map(|(_, until)| *until);
        let first = ends.filter(|until| *until > now && fits(*until)).min();
        first.map_or(Verdict::Deny(Retry::Never), |until| retry((until - now).into()))
    }

    fn execute(&mut self, op: Op, patience: u64, now: u64) -> Verdict {
        let holds =
            |who: Holder| self.held.iter().any(|(holder, end)| *holder == who && *end > now);
        match op {
            Op::Peek(cost) => self.judge(cost, patience, now),
            Op::Acquire { holder, lease } | Op::Renew { holder, lease } => {
                let verdict = match op {
                    _ if holds(holder) => Verdict::Allow,
                    Op::Acquire { .. } => self.judge(1, patience, now),
                    _ => Verdict::Deny(Retry::Never),
                };
                if verdict.passes() {
                    self.write(holder, Some(now + us(lease).min(self.longest)), now);
                }
                verdict
            }
            Op::Release { holder } => {
                if holds(holder) {
                    self.write(holder, None, now);
                }
                Verdict::Allow
            }
            op => panic!("{op:?} cannot be charged to this algorithm"),
        }
    }

    fn expected(&self, verdict: Verdict, now: u64) -> ExpectedDecision {
        let last = self.held.iter().map(|(_, until)| *until).max().unwrap_or(0);
        let left = i128::from(self.count) - i128::from(self.held_at(now));
        ExpectedDecision::exact(verdict, left, i128::from(last) - i128::from(now))
    }

    /// Held permits are facts: no change takes them away.
    fn change(&mut self, to: &Limit, _how: LimitChange, _now: u64) {
        (self.count, self.longest) = count_and_period(to);
    }
}
