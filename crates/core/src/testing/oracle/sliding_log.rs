//! The sliding log, by definition: the sum of the costs charged in `(now − W, now]`.

use super::{ExpectedDecision, LimitChange, misfit, retry, share};
use crate::{Limit, OnChange, Op, Retry, Verdict};

/// The most debt a log records.
const MAX_DEBT: u64 = 1 << 40;

/// The most entries that are scaled.
const MAX_SCALED: u64 = 256;

/// A plain list of charges.
#[derive(Clone, Debug)]
pub struct SlidingLogOracle {
    count: u64,
    period: u64,
    charges: Vec<LoggedCharge>,
}

#[derive(Clone, Copy, Debug)]
struct LoggedCharge {
    at: u64,
    cost: u64,
}

impl SlidingLogOracle {
    pub(super) fn new(limit: &Limit) -> Self {
        let quota = limit.quota();
        let (count, period) = (quota.count().get(), super::us(quota.period()));
        Self { count, period, charges: Vec::new() }
    }

    pub(super) const fn is_absent(&self) -> bool {
        self.charges.is_empty()
    }

    fn is_live(&self, entry: &LoggedCharge, now: u64) -> bool {
        now < entry.at + self.period
    }

    /// A charge ahead of the clock counts as made just now; a log whose every charge has left
    /// is forgotten. Single charges that left are only forgotten at the next write, so that a
    /// clock stepping back brings them back.
    pub(super) fn observe(&mut self, now: u64) {
        if !self.charges.iter().any(|entry| self.is_live(entry, now)) {
            self.charges.clear();
        }
        for entry in &mut self.charges {
            entry.at = entry.at.min(now);
        }
        self.merge();
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

    fn judge(&self, cost: u64, now: u64) -> Verdict {
        let fits = |at: u64| {
            cost == 0 || u128::from(self.used(at)) + u128::from(cost) <= u128::from(self.count)
        };
        if fits(now) {
            return Verdict::Allow;
        }
        if cost > self.count {
            return Verdict::Deny(Retry::Never);
        }
        // Room appears only when a charge leaves, so these are all the moments to try. The
        // later, the more have left: bisect.
        let live: Vec<&LoggedCharge> =
            self.charges.iter().filter(|e| self.is_live(e, now)).collect();
        let first = live.partition_point(|entry| !fits(entry.at + self.period));
        retry((live[first].at + self.period - now).into())
    }

    fn push(&mut self, cost: u64, now: u64) {
        self.forget(now, self.period);
        self.charges.push(LoggedCharge { at: now, cost: cost.min(MAX_DEBT) });
        let mut over = self.used(now).saturating_sub(MAX_DEBT);
        for entry in &mut self.charges {
            let off = entry.cost.min(over);
            entry.cost -= off;
            over -= off;
        }
        self.charges.retain(|entry| entry.cost > 0);
        self.merge();
        if self.charges.len() as u64 > self.count {
            // Only debits lead here: the newest entry stands for one more charge.
            let last = self.charges.pop().expect("just pushed");
            let newest = self.charges.last_mut().expect("a count is at least one");
            *newest = LoggedCharge { at: now, cost: newest.cost + last.cost };
        }
    }

    /// Too many charges become 256, of as nearly equal numbers as can be, each at the latest moment
    /// of those it stands for.
    fn coarsen(&mut self) {
        let n = self.charges.len() as u64;
        if n <= MAX_SCALED {
            return;
        }
        let mut groups = vec![LoggedCharge { at: 0, cost: 0 }; MAX_SCALED as usize];
        for (i, charge) in (1..).zip(&self.charges) {
            // The first group whose end, a multiple of n / 256 rounded down, is not before it.
            let group = (1..=MAX_SCALED).find(|end| end * n / MAX_SCALED >= i);
            let group = &mut groups[group.expect("the last ends with the last") as usize - 1];
            *group = LoggedCharge { at: charge.at, cost: group.cost + charge.cost };
        }
        self.charges = groups;
    }

    fn forget(&mut self, now: u64, period: u64) {
        self.charges.retain(|entry| now < entry.at + period);
    }

    pub(super) fn charge(&mut self, op: Op, _patience: u64, now: u64) -> ExpectedDecision {
        let recent = |at: crate::Timestamp| now.saturating_sub(at.as_micros()) < self.period;
        let mut verdict = Verdict::Allow;
        match op {
            Op::Peek(cost) => verdict = self.judge(cost, now),
            Op::Take(cost) => {
                verdict = self.judge(cost, now);
                if verdict == Verdict::Allow && cost > 0 {
                    self.push(cost, now);
                }
            }
            Op::Debit { cost, at } if recent(at) && cost > 0 => self.push(cost, now),
            Op::Credit { mut cost, at } if recent(at) && cost > 0 && self.used(now) > 0 => {
                self.forget(now, self.period);
                for entry in &mut self.charges {
                    let off = entry.cost.min(cost);
                    entry.cost -= off;
                    cost -= off;
                }
                self.charges.retain(|entry| entry.cost > 0);
            }
            Op::Debit { .. } | Op::Credit { .. } => {}
            op => misfit(op),
        }
        let used = self.used(now);
        let newest = self.charges.iter().rev().find(|e| self.is_live(e, now) && e.cost > 0);
        let reset = newest.map_or(0, |entry| entry.at + self.period - now);
        ExpectedDecision::exact(verdict, i128::from(self.count) - i128::from(used), reset.into())
    }

    pub(super) fn change(&mut self, to: &Limit, how: LimitChange, now: u64) {
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
