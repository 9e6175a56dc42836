//! The sliding log, by definition: the sum of the costs charged in `(now − W, now]`.

use super::{
    ExpectedDecision, LimitChange, Oracle, PastCharge, count_and_period, retry, share, take_off,
};
use crate::{Limit, OnChange, Retry, Verdict};

/// The most debt a log records.
const MAX_DEBT: u64 = 1 << 40;

/// The most entries that are scaled.
const MAX_SCALED: u64 = 256;

/// A plain list of charges.
#[derive(Debug)]
pub(super) struct SlidingLogOracle {
    count: u64,
    period: u64,
    charges: Vec<PastCharge>,
}

impl SlidingLogOracle {
    pub(super) fn new(limit: &Limit) -> Self {
        let (count, period) = count_and_period(limit);
        Self { count, period, charges: Vec::new() }
    }

    fn is_live(&self, entry: &PastCharge, now: u64) -> bool {
        now < entry.at + self.period
    }

    /// Charges of one instant are one entry.
    fn merge(&mut self) {
        self.charges.dedup_by(|later, earlier| {
            let same = later.at == earlier.at;
            if same {
                earlier.cost += later.cost;
            }
            same
        });
    }

    fn used(&self, now: u64) -> u64 {
        self.charges.iter().filter(|e| self.is_live(e, now)).map(|e| e.cost).sum()
    }

    fn push(&mut self, cost: u64, now: u64) {
        self.forget(now, self.period);
        self.charges.push(PastCharge { at: now, cost: cost.min(MAX_DEBT) });
        let over = self.used(now).saturating_sub(MAX_DEBT);
        take_off(&mut self.charges, over);
        self.charges.retain(|entry| entry.cost > 0);
        self.merge();
        if self.charges.len() as u64 > self.count {
            // Only debits lead here: the newest entry stands for one more charge.
            let last = self.charges.pop().expect("just pushed");
            let newest = self.charges.last_mut().expect("a count is at least one");
            *newest = PastCharge { at: now, cost: newest.cost + last.cost };
        }
    }

    /// Reduces too many charges to 256, of as nearly equal numbers as possible, each at the latest
    /// moment of those that it replaces.
    fn coarsen(&mut self) {
        let n = self.charges.len() as u64;
        if n <= MAX_SCALED {
            return;
        }
        let mut groups = vec![PastCharge { at: 0, cost: 0 }; MAX_SCALED as usize];
        for (i, charge) in (1..).zip(&self.charges) {
            // The first group whose end, a multiple of n / 256 rounded down, is not before it.
            let group = (1..=MAX_SCALED).find(|end| end * n / MAX_SCALED >= i);
            let group = &mut groups[group.expect("the last ends with the last") as usize - 1];
            *group = PastCharge { at: charge.at, cost: group.cost + charge.cost };
        }
        self.charges = groups;
    }

    fn forget(&mut self, now: u64, period: u64) {
        self.charges.retain(|entry| now < entry.at + period);
    }

    fn is_recent(&self, at: u64, now: u64) -> bool {
        now.saturating_sub(at) < self.period
    }
}

impl Oracle for SlidingLogOracle {
    fn is_absent(&self) -> bool {
        self.charges.is_empty()
    }

    /// A charge ahead of the clock counts as made just now. A log is forgotten when all its charges
    /// have left. Single charges that left are only forgotten at the next write, so a clock that
    /// steps back brings them back.
    fn observe(&mut self, now: u64) {
        if !self.charges.iter().any(|entry| self.is_live(entry, now)) {
            self.charges.clear();
        }
        for entry in &mut self.charges {
            entry.at = entry.at.min(now);
        }
        self.merge();
    }

    fn judge(&self, cost: u64, _patience: u64, now: u64) -> Verdict {
        let fits = |at: u64| cost == 0 || self.used(at).saturating_add(cost) <= self.count;
        if fits(now) {
            return Verdict::Allow;
        }
        if cost > self.count {
            return Verdict::Deny(Retry::Never);
        }
        // Room appears only when a charge leaves, so these are all the moments to try. The
        // later, the more have left: bisect.
        let live: Vec<&PastCharge> = self.charges.iter().filter(|e| self.is_live(e, now)).collect();
        let first = live.partition_point(|entry| !fits(entry.at + self.period));
        retry((live[first].at + self.period - now).into())
    }

    fn take(&mut self, cost: u64, now: u64) {
        self.push(cost, now);
    }

    fn debit(&mut self, cost: u64, at: u64, now: u64) {
        if self.is_recent(at, now) {
            self.push(cost, now);
        }
    }

    fn credit(&mut self, cost: u64, at: u64, now: u64) {
        if self.is_recent(at, now) && cost > 0 && self.used(now) > 0 {
            self.forget(now, self.period);
            take_off(&mut self.charges, cost);
            self.charges.retain(|entry| entry.cost > 0);
        }
    }

    fn expected(&self, verdict: Verdict, now: u64) -> ExpectedDecision {
        let used = self.used(now);
        let newest = self.charges.iter().rev().find(|e| self.is_live(e, now) && e.cost > 0);
        let reset = newest.map_or(0, |entry| entry.at + self.period - now);
        ExpectedDecision::exact(verdict, i128::from(self.count) - i128::from(used), reset.into())
    }

    fn change(&mut self, to: &Limit, how: LimitChange, now: u64) {
        let from = std::mem::replace(self, Self::new(to));
        self.charges = from.charges;
        self.forget(now, from.period.min(self.period));
        match how {
            LimitChange::Revise(OnChange::Reset) => self.charges.clear(),
            LimitChange::Revise(OnChange::Scale) => {
                self.coarsen();
                let (mut before, mut after) = (0, 0);
                for entry in &mut self.charges {
                    before += entry.cost;
                    let scaled = share(before, from.count, self.count);
                    entry.cost = scaled - after;
                    after = scaled;
                }
                self.charges.retain(|entry| entry.cost > 0);
            }
            LimitChange::Revise(OnChange::Keep) | LimitChange::Adopt => {}
        }
        while self.charges.len() as u64 > self.count {
            // The oldest two become one, at the later moment.
            let oldest = self.charges.remove(0);
            self.charges[0].cost += oldest.cost;
        }
    }
}
