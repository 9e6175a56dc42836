//! The leaky queue, by definition: departures one after the other, `1 / rate` apart.

use super::{ExpectedDecision, LimitChange, MAX_DEBT_US, Oracle, count_and_period, retry};
use crate::testing::Ratio;
use crate::{Limit, OnChange, Retry, Verdict};

/// The moment at which the next departure is free, in exact microseconds.
#[derive(Debug)]
pub(super) struct LeakyQueueOracle {
    places: u64,
    /// Microseconds per permit.
    interval: Ratio,
    line: Option<Departures>,
}

#[derive(Clone, Copy, Debug)]
struct Departures {
    next: Ratio,
    /// The write that put `next` further ahead than the places allow: debt, or a smaller queue.
    over: Option<u64>,
}

impl LeakyQueueOracle {
    pub(super) fn new(limit: &Limit) -> Self {
        let (count, period) = count_and_period(limit);
        // The departing charge takes a place beside those that wait.
        let places = limit.quota().burst().get() + 1;
        Self { places, interval: Ratio::new(period.into(), count.into()), line: None }
    }

    fn takes(&self, cost: u64) -> Ratio {
        self.interval * Ratio::int(cost)
    }

    fn full(&self) -> Ratio {
        self.takes(self.places)
    }

    fn next(&self, now: u64) -> Ratio {
        self.line.map_or(Ratio::int(now), |line| line.next.max(Ratio::int(now)))
    }

    fn write(&mut self, next: Ratio, now: u64) {
        let over = (next - Ratio::int(now) > self.full()).then_some(now);
        self.line = Some(Departures { next, over });
    }
}

impl Oracle for LeakyQueueOracle {
    fn is_absent(&self) -> bool {
        self.line.is_none()
    }

    fn observe(&mut self, now: u64) {
        let Some(mut line) = self.line.filter(|line| line.next > Ratio::int(now)) else {
            self.line = None;
            return;
        };
        if let Some(since) = line.over.filter(|since| *since > now) {
            line.next = line.next - Ratio::int(since - now);
            line.over = Some(now);
        }
        let furthest = Ratio::int(now) + self.full();
        if line.next <= furthest {
            line.over = None;
        } else if line.over.is_none() {
            line.next = furthest;
        }
        self.line = Some(line);
    }

    fn judge(&self, cost: u64, patience: u64, now: u64) -> Verdict {
        if cost == 0 {
            return Verdict::Allow;
        }
        if cost > self.places {
            return Verdict::Deny(Retry::Never);
        }
        let wait = |at: u64| self.next(at).ceil() - i128::from(at);
        let passes = |at: u64| {
            let after = self.next(at) + self.takes(cost) - Ratio::int(at);
            after <= self.full() && wait(at) <= i128::from(patience)
        };
        if passes(now) {
            return match wait(now) {
                0 => Verdict::Allow,
                wait => Verdict::Wait(super::micros(wait)),
            };
        }
        // Without other callers the wait only gets shorter: search for the first that passes.
        let last = u64::try_from(self.next(now).ceil()).expect("a departure in this era");
        let (mut refused, mut passing) = (now, last);
        assert!(passes(passing), "an empty line takes any cost within the places");
        while passing - refused > 1 {
            let middle = refused.midpoint(passing);
            if passes(middle) { passing = middle } else { refused = middle }
        }
        retry((passing - now).into())
    }

    fn take(&mut self, cost: u64, now: u64) {
        self.write(self.next(now) + self.takes(cost), now);
    }

    fn debit(&mut self, cost: u64, at: u64, now: u64) {
        if self.takes(cost) > Ratio::int(now.saturating_sub(at)) {
            let most = Ratio::int(now) + self.full() + Ratio::int(MAX_DEBT_US);
            let most = most.max(self.next(now));
            self.write((self.next(now) + self.takes(cost)).min(most), now);
        }
    }

    /// Only the last departure can be given back.
    fn credit(&mut self, cost: u64, at: u64, now: u64) {
        let Some(line) = self.line else { return };
        let departure = line.next - self.takes(cost);
        if cost > 0 && departure.ceil() == i128::from(at) {
            self.write(departure.max(Ratio::int(now)), now);
        }
    }

    fn expected(&self, verdict: Verdict, now: u64) -> ExpectedDecision {
        let ahead = self.next(now) - Ratio::int(now);
        let free = (self.full() - ahead) * self.interval.inverse();
        ExpectedDecision::exact(verdict, free.floor(), ahead.ceil())
    }

    /// Granted departures cannot be recalled. So every change except a reset keeps the time line,
    /// moved on to the next step of the new rate.
    fn change(&mut self, to: &Limit, how: LimitChange, now: u64) {
        let from = std::mem::replace(self, Self::new(to));
        if from.line.is_none() || how == LimitChange::Revise(OnChange::Reset) {
            return;
        }
        let ahead = from.next(now) - Ratio::int(now);
        let whole = Ratio::int(ahead.floor());
        let (_, permits) = self.interval.terms();
        let exact = (ahead - whole).floor_to(permits) == ahead - whole;
        let step = if exact { Ratio::ZERO } else { Ratio::new(1, permits.into()) };
        let ahead = whole + (ahead - whole).floor_to(permits) + step;
        let most = self.full() + Ratio::int(MAX_DEBT_US);
        self.write(Ratio::int(now) + ahead.min(most), now);
    }
}
