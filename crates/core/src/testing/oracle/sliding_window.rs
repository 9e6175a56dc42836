//! The sliding window, by definition: charges summed over the panes a window touches.

use std::collections::BTreeMap;

use super::{ExpectedDecision, LimitChange, misfit, retry, share};
use crate::algorithm::{Algorithm, Estimate, SlidingWindow};
use crate::{Limit, OnChange, Op, Quota, Retry, Verdict};

/// A plain list of charges; panes are computed from their times whenever asked.
#[derive(Clone, Debug)]
pub struct SlidingWindowOracle {
    count: u64,
    panes: u64,
    width: u64,
    estimate: Estimate,
    charges: Vec<PaneCharge>,
}

#[derive(Clone, Copy, Debug)]
struct PaneCharge {
    at: u64,
    cost: u64,
}

impl SlidingWindowOracle {
    pub(super) fn new(params: SlidingWindow, limit: &Limit) -> Self {
        let quota = limit.quota();
        let panes = u64::from(params.panes);
        Self {
            count: quota.count().get(),
            panes,
            width: super::us(quota.period()) / panes,
            estimate: params.estimate,
            charges: Vec::new(),
        }
    }

    pub(super) const fn is_absent(&self) -> bool {
        self.charges.is_empty()
    }

    /// LimitChange many panes ago `at` was; `None` when its pane has left, or is yet to come.
    fn age(&self, at: u64, now: u64) -> Option<u64> {
        let age = (now / self.width).checked_sub(at / self.width)?;
        (age <= self.panes).then_some(age)
    }

    /// Charges in panes to come count in the present one; when every pane has left, nothing is
    /// remembered. Single panes that left are only forgotten at the next write.
    pub(super) fn observe(&mut self, now: u64) {
        let present = now / self.width;
        if self.charges.iter().any(|entry| entry.at / self.width > present) {
            for entry in &mut self.charges {
                entry.at = if entry.at / self.width > present { now } else { entry.at };
            }
            self.cap(present);
        }
        if !self.charges.iter().any(|entry| self.age(entry.at, now).is_some()) {
            self.charges.clear();
        }
    }

    /// The usage times the width of a pane, in whole numbers.
    fn usage(&self, now: u64) -> u128 {
        let covered = match self.estimate {
            Estimate::Conservative => self.width,
            Estimate::Weighted => self.width - now % self.width,
        };
        let weighed = |entry: &PaneCharge| match self.age(entry.at, now) {
            None => 0,
            Some(age) if age == self.panes => u128::from(entry.cost) * u128::from(covered),
            Some(_) => u128::from(entry.cost) * u128::from(self.width),
        };
        self.charges.iter().map(weighed).sum()
    }

    fn all(&self) -> u128 {
        u128::from(self.count) * u128::from(self.width)
    }

    fn judge(&self, cost: u64, now: u64) -> Verdict {
        if cost == 0 {
            return Verdict::Allow;
        }
        if cost > self.count {
            return Verdict::Deny(Retry::Never);
        }
        let fits = |at| self.usage(at) + u128::from(cost) * u128::from(self.width) <= self.all();
        if fits(now) {
            return Verdict::Allow;
        }
        // With nobody charging the usage only falls: search for the first moment that fits.
        let (mut refused, mut fitting) = (now, now + (self.panes + 1) * self.width);
        assert!(fits(fitting), "every pane leaves");
        while fitting - refused > 1 {
            let middle = refused.midpoint(fitting);
            if fits(middle) { fitting = middle } else { refused = middle }
        }
        retry((fitting - now).into())
    }

    fn forget(&mut self, now: u64) {
        let charges = std::mem::take(&mut self.charges);
        self.charges =
            charges.into_iter().filter(|e| self.age(e.at, now).is_some() && e.cost > 0).collect();
    }

    fn push(&mut self, cost: u64, now: u64) {
        self.forget(now);
        self.charges.push(PaneCharge { at: now, cost });
        self.cap(now / self.width);
        self.forget(now);
    }

    /// One pane holds at most twice the largest count.
    fn cap(&mut self, pane: u64) {
        let mut room = 2 * Quota::MAX_COUNT;
        for entry in self.charges.iter_mut().filter(|e| e.at / self.width == pane) {
            entry.cost = entry.cost.min(room);
            room -= entry.cost;
        }
    }

    fn credit(&mut self, mut cost: u64, now: u64) {
        self.forget(now);
        self.charges.sort_by_key(|entry| entry.at / self.width);
        for entry in &mut self.charges {
            let off = entry.cost.min(cost);
            entry.cost -= off;
            cost -= off;
        }
        self.forget(now);
    }

    pub(super) fn charge(&mut self, op: Op, _patience: u64, now: u64) -> ExpectedDecision {
        let period = self.panes * self.width;
        let recent = |at: crate::Timestamp| now.saturating_sub(at.as_micros()) < period;
        let mut verdict = Verdict::Allow;
        match op {
            Op::Peek(cost) => verdict = self.judge(cost, now),
            Op::Take(cost) => {
                verdict = self.judge(cost, now);
                if verdict == Verdict::Allow && cost > 0 {
                    self.push(cost, now);
                }
            }
            Op::Debit { cost, at } if recent(at) && cost > 0 => {
                self.push(cost.min(Quota::MAX_COUNT), now);
            }
            Op::Credit { cost, at } if recent(at) && cost > 0 => {
                self.credit(cost.min(Quota::MAX_COUNT), now);
            }
            Op::Debit { .. } | Op::Credit { .. } => {}
            op => misfit(op),
        }
        let left = self.all().saturating_sub(self.usage(now)) / u128::from(self.width);
        let newest = self.charges.iter().filter(|e| self.age(e.at, now).is_some());
        let gone = newest.map(|e| (e.at / self.width + self.panes + 1) * self.width).max();
        let left = i128::try_from(left).expect("at most the count");
        ExpectedDecision::exact(verdict, left, gone.map_or(0, |gone| gone - now).into())
    }

    pub(super) fn change(&mut self, to: &Limit, how: LimitChange, now: u64) {
        let Algorithm::SlidingWindow(params) = to.algorithm() else {
            unreachable!("one algorithm")
        };
        self.forget(now);
        let from = std::mem::replace(self, Self::new(params, to));
        let mut panes = BTreeMap::<u64, u64>::new();
        for entry in &from.charges {
            let sum = panes.entry(entry.at / from.width).or_default();
            *sum = sum.saturating_add(entry.cost);
        }
        for (pane, used) in panes {
            let cost = match how {
                LimitChange::Revise(OnChange::Reset) => 0,
                LimitChange::Revise(OnChange::Scale) => share(used, from.count, self.count),
                LimitChange::Revise(OnChange::Keep) | LimitChange::Adopt => used,
            };
            // All of a pane may have been charged at its very end.
            let at = ((pane + 1) * from.width - 1).min(now);
            self.charges.push(PaneCharge { at, cost });
            self.cap(at / self.width);
        }
        self.forget(now);
    }
}
