//! The token bucket, by definition: a level that rises at the rate up to the burst.
//!
//! The leaky meter is the same bucket, with the level counted from the other end.

use super::{ExpectedDecision, LimitChange, MAX_DEBT_US, Oracle, count_and_period, retry};
use crate::testing::Ratio;
use crate::{Limit, OnChange, Retry, Verdict};

/// A level in exact permits, and the time of its last update.
#[derive(Debug)]
pub(super) struct BucketOracle {
    burst: u64,
    /// Permits per microsecond.
    rate: Ratio,
    level: Option<Level>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// Permits that could be spent; negative while a caller waits or debt is left.
    permits: Ratio,
    /// The time of that level.
    seen: u64,
    /// The reason for a negative level, with the time of the write.
    owed: Option<Debt>,
}

#[derive(Clone, Copy, Debug)]
struct Debt {
    since: u64,
    permits: Ratio,
    /// True for a granted moment in the future, false for mere debt.
    waiting: bool,
}

impl BucketOracle {
    pub(super) fn new(limit: &Limit) -> Self {
        let (count, period) = count_and_period(limit);
        let rate = Ratio::new(count.into(), period.into());
        Self { burst: limit.quota().burst().get(), rate, level: None }
    }

    fn full(&self) -> Ratio {
        Ratio::int(self.burst)
    }

    fn earned(&self, micros: u64) -> Ratio {
        self.rate * Ratio::int(micros)
    }

    /// The microseconds in which this many permits are earned.
    fn takes(&self, permits: Ratio) -> Ratio {
        permits * self.rate.inverse()
    }

    fn level(&self) -> Ratio {
        self.level.map_or(self.full(), |level| level.permits)
    }

    fn waits(&self) -> bool {
        self.level.and_then(|level| level.owed).is_some_and(|owed| owed.waiting)
    }

    fn write(&mut self, permits: Ratio, waiting: bool, now: u64) {
        let owed = (permits < Ratio::ZERO).then_some(Debt { since: now, permits, waiting });
        self.level = Some(Level { permits, seen: now, owed });
    }

    /// The time until `cost` is available, checked on both sides of the edge.
    fn wait(&self, cost: u64) -> u64 {
        let missing = (Ratio::int(cost) - self.level()).max(Ratio::ZERO);
        let wait = u64::try_from(self.takes(missing).ceil()).expect("a burst refills in years");
        let there = |later| self.level() + self.earned(later) >= Ratio::int(cost);
        assert!(there(wait) && (wait == 0 || !there(wait - 1)), "the first moment that passes");
        wait
    }
}

impl Oracle for BucketOracle {
    fn is_absent(&self) -> bool {
        self.level.is_none()
    }

    fn observe(&mut self, now: u64) {
        let Some(mut level) = self.level else { return };
        if now >= level.seen {
            level.permits = level.permits + self.earned(now - level.seen);
        } else {
            let sunk = level.permits - self.earned(level.seen - now);
            level.permits = match &mut level.owed {
                // What was owed at the write is owed still, and no more than that.
                Some(owed) if now < owed.since => {
                    owed.since = now;
                    owed.permits
                }
                Some(_) => sunk,
                None => sunk.max(Ratio::ZERO),
            };
        }
        level.seen = now;
        level.owed = level.owed.filter(|_| level.permits < Ratio::ZERO);
        self.level = (level.permits < self.full()).then_some(level);
    }

    fn judge(&self, cost: u64, patience: u64, _now: u64) -> Verdict {
        if cost == 0 {
            return Verdict::Allow;
        }
        if cost > self.burst {
            return Verdict::Deny(Retry::Never);
        }
        match self.wait(cost) {
            0 => Verdict::Allow,
            wait if wait <= patience => Verdict::Wait(super::micros(wait.into())),
            wait => retry((wait - patience).into()),
        }
    }

    fn take(&mut self, cost: u64, now: u64) {
        self.write(self.level() - Ratio::int(cost), true, now);
    }

    fn debit(&mut self, cost: u64, at: u64, now: u64) {
        let cost = Ratio::int(cost);
        if cost <= self.earned(now.saturating_sub(at)) {
            return;
        }
        let lowest = (-self.earned(MAX_DEBT_US)).min(self.level());
        self.write((self.level() - cost).max(lowest), self.waits(), now);
    }

    fn credit(&mut self, cost: u64, at: u64, now: u64) {
        if self.level.is_none() {
            return;
        }
        let cost = Ratio::int(cost);
        if self.waits() {
            let last_grant = i128::from(now) + self.takes(-self.level()).ceil();
            if i128::from(at) == last_grant {
                self.write((self.level() + cost).min(self.full()), true, now);
            }
            return;
        }
        let worth = (cost - self.earned(now.saturating_sub(at))).max(Ratio::ZERO);
        self.write((self.level() + worth).min(self.full()), false, now);
    }

    fn change(&mut self, to: &Limit, how: LimitChange, now: u64) {
        let from = std::mem::replace(self, Self::new(to));
        let Some(level) = from.level else { return };
        let used = from.full() - level.permits;
        let time = from.takes(used);
        // The time line is kept in steps of 1/permits µs, so what is used is kept in steps of
        // 1/micros permits, rounded down.
        let most = match level.owed {
            None => self.full(),
            Some(_) => self.full() + self.earned(MAX_DEBT_US),
        };
        let one = Ratio::int(1);
        let (permits, micros) = self.rate.terms();
        let used = match how {
            LimitChange::Revise(OnChange::Reset) => return,
            LimitChange::Revise(OnChange::Keep) => used.scaled(one, micros),
            LimitChange::Revise(OnChange::Scale) => {
                let grown = Ratio::new(self.burst.into(), from.burst.into());
                used.scaled(grown, micros)
            }
            LimitChange::Adopt => {
                // The moment of being full again stays, its fraction rounded up, however far
                // ahead that is for the other quota.
                let floor = time.scaled(one, permits).expect("a time that fits");
                let step = if floor == time { 0 } else { 1 };
                let time = floor + Ratio::new(step, permits.into());
                let waiting = level.owed.is_some_and(|owed| owed.waiting);
                return self.write(self.full() - time * self.rate, waiting, now);
            }
        };
        let used = used.unwrap_or(most);
        let used = match level.owed {
            // Grants already given cannot be recalled: later ones stay behind them.
            Some(owed) if owed.waiting => used.max(Ratio::int(time.ceil()) * self.rate),
            _ => used,
        };
        let waiting = level.owed.is_some_and(|owed| owed.waiting);
        self.write(self.full() - used.min(most), waiting, now);
    }

    fn expected(&self, verdict: Verdict, _now: u64) -> ExpectedDecision {
        let reset = self.takes(self.full() - self.level()).ceil();
        ExpectedDecision::exact(verdict, self.level().floor(), reset)
    }
}
