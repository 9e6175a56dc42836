//! Concurrency, by definition: so many holders whose leases have not ended.

use super::{ExpectedDecision, LimitChange, misfit, retry};
use crate::{Holder, Limit, Op, Retry, Verdict};

/// The holders, each with the end of its lease.
#[derive(Clone, Debug)]
pub struct ConcurrencyOracle {
    count: u64,
    /// The longest lease.
    longest: u64,
    /// When anything was last acquired, renewed or released.
    written: u64,
    held: Vec<(Holder, u64)>,
}

impl ConcurrencyOracle {
    pub(super) fn new(limit: &Limit) -> Self {
        let quota = limit.quota();
        let (count, longest) = (quota.count().get(), super::us(quota.period()));
        Self { count, longest, written: 0, held: Vec::new() }
    }

    pub(super) const fn is_absent(&self) -> bool {
        self.held.is_empty()
    }

    /// When the clock is behind the last write, every lease has as long to run as it had then.
    pub(super) fn observe(&mut self, now: u64) {
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

    fn held_at(&self, at: u64) -> u64 {
        self.held.iter().filter(|(_, until)| *until > at).count() as u64
    }

    fn judge(&self, cost: u64, now: u64) -> Verdict {
        let fits = |at| cost == 0 || self.held_at(at).saturating_add(cost) <= self.count;
        if fits(now) {
            return Verdict::Allow;
        }
        let ends = self.held.iter().map(|(_, until)| *until);
        let first = ends.filter(|until| *until > now && fits(*until)).min();
        first.map_or(Verdict::Deny(Retry::Never), |until| retry((until - now).into()))
    }

    fn write(&mut self, holder: Holder, until: Option<u64>, now: u64) {
        self.held.retain(|(other, end)| *other != holder && *end > now);
        self.held.extend(until.map(|until| (holder, until)));
        self.written = now;
    }

    pub(super) fn charge(&mut self, op: Op, _patience: u64, now: u64) -> ExpectedDecision {
        let holds =
            |who: Holder| self.held.iter().any(|(holder, end)| *holder == who && *end > now);
        let verdict = match op {
            Op::Peek(cost) => self.judge(cost, now),
            Op::Acquire { holder, lease } => {
                let verdict = if holds(holder) { Verdict::Allow } else { self.judge(1, now) };
                if verdict.passes() {
                    self.write(holder, Some(now + super::us(lease).min(self.longest)), now);
                }
                verdict
            }
            Op::Renew { holder, lease } if holds(holder) => {
                self.write(holder, Some(now + super::us(lease).min(self.longest)), now);
                Verdict::Allow
            }
            Op::Renew { .. } => Verdict::Deny(Retry::Never),
            Op::Release { holder } => {
                if holds(holder) {
                    self.write(holder, None, now);
                }
                Verdict::Allow
            }
            op => misfit(op),
        };
        let last = self.held.iter().map(|(_, until)| *until).max().unwrap_or(0);
        let left = i128::from(self.count) - i128::from(self.held_at(now));
        ExpectedDecision::exact(verdict, left, i128::from(last) - i128::from(now))
    }

    /// Permits that are held are facts: no change takes them away.
    pub(super) fn change(&mut self, to: &Limit, _how: LimitChange, _now: u64) {
        self.count = to.quota().count().get();
        self.longest = super::us(to.quota().period());
    }
}
