//! The sliding window, by definition: charges summed over the panes a window touches.

use std::collections::BTreeMap;

use super::{
    ExpectedDecision, LimitChange, Oracle, PastCharge, count_and_period, retry, share, take_off,
};
use crate::algorithm::{Algorithm, Estimate, SlidingWindow};
use crate::{Limit, OnChange, Quota, Retry, Verdict};

/// A plain list of charges. Panes are computed from their times each time.
#[derive(Debug)]
pub(super) struct SlidingWindowOracle {
    count: u64,
    panes: u64,
    width: u64,
    estimate: Estimate,
    charges: Vec<PastCharge>,
}

impl SlidingWindowOracle {
    pub(super) fn new(params: SlidingWindow, limit: &Limit) -> Self {
        let (count, period) = count_and_period(limit);
        let panes = u64::from(params.panes);
        let (width, estimate) = (period / panes, params.estimate);
        Self { count, panes, width, estimate, charges: Vec::new() }
    }

    /// The age in panes of a charge at `at`; `None` if its pane has left or has not begun.
    fn age(&self, at: u64, now: u64) -> Option<u64> {
        let age = (now / self.width).checked_sub(at / self.width)?;
        (age <= self.panes).then_some(age)
    }

    /// The usage times the width of a pane, in whole numbers.
    fn usage(&self, now: u64) -> u128 {
        let covered = match self.estimate {
            Estimate::Conservative => self.width,
            Estimate::Weighted => self.width - now % self.width,
        };
        let weighed = |entry: &PastCharge| match self.age(entry.at, now) {
            None => 0,
            Some(age) if age == self.panes => u128::from(entry.cost) * u128::from(covered),
            Some(_) => u128::from(entry.cost) * u128::from(self.width),
        };
        self.charges.iter().map(weighed).sum()
    }

    fn all(&self) -> u128 {
        u128::from(self.count) * u128::from(self.width)
    }

    fn forget(&mut self, now: u64) {
        let charges = std::mem::take(&mut self.charges);
        self.charges =
            charges.into_iter().filter(|e| self.age(e.at, now).is_some() && e.cost > 0).collect();
    }

    fn push(&mut self, cost: u64, now: u64) {
        self.forget(now);
        self.charges.push(PastCharge { at: now, cost });
        self.cap(now / self.width);
        self.forget(now);
    }

    /// Caps a pane at twice the largest count.
    fn cap(&mut self, pane: u64) {
        let mut room = 2 * Quota::MAX_COUNT;
        for entry in self.charges.iter_mut().filter(|e| e.at / self.width == pane) {
            entry.cost = entry.cost.min(room);
            room -= entry.cost;
        }
    }

    fn is_recent(&self, at: u64, now: u64) -> bool {
        now.saturating_sub(at) < self.panes * self.width
    }
}

impl Oracle for SlidingWindowOracle {
    fn is_absent(&self) -> bool {
        self.charges.is_empty()
    }

    /// Charges in future panes count in the current one. When every pane has left, nothing is
    /// remembered. Single panes that left are only forgotten at the next write.
    fn observe(&mut self, now: u64) {
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

    fn judge(&self, cost: u64, _patience: u64, now: u64) -> Verdict {
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
        // Without other charges the usage only falls: search for the first moment that fits.
        let (mut refused, mut fitting) = (now, now + (self.panes + 1) * self.width);
        assert!(fits(fitting), "every pane leaves");
        while fitting - refused > 1 {
            let middle = refused.midpoint(fitting);
            if fits(middle) { fitting = middle } else { refused = middle }
        }
        retry((fitting - now).into())
    }

    fn take(&mut self, cost: u64, now: u64) {
        self.push(cost, now);
    }

    fn debit(&mut self, cost: u64, at: u64, now: u64) {
        if self.is_recent(at, now) {
            self.push(cost.min(Quota::MAX_COUNT), now);
        }
    }

    fn credit(&mut self, cost: u64, at: u64, now: u64) {
        if self.is_recent(at, now) && cost > 0 {
            self.forget(now);
            self.charges.sort_by_key(|entry| entry.at / self.width);
            take_off(&mut self.charges, cost.min(Quota::MAX_COUNT));
            self.forget(now);
        }
    }

    fn expected(&self, verdict: Verdict, now: u64) -> ExpectedDecision {
        let left = self.all().saturating_sub(self.usage(now)) / u128::from(self.width);
        let live = self.charges.iter().filter(|e| self.age(e.at, now).is_some());
        let gone = live.map(|e| (e.at / self.width + self.panes + 1) * self.width).max();
        let left = i128::try_from(left).expect("at most the count");
        ExpectedDecision::exact(verdict, left, gone.map_or(0, |gone| gone - now).into())
    }

    fn change(&mut self, to: &Limit, how: LimitChange, now: u64) {
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
            self.charges.push(PastCharge { at, cost });
            self.cap(at / self.width);
        }
        self.forget(now);
    }
}
