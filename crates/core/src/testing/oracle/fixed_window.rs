//! The fixed window, by definition: the charges in the window that contains `now`.

use super::{ExpectedDecision, LimitChange, Oracle, count_and_period, retry, share};
use crate::algorithm::{Algorithm, Anchor, FixedWindow};
use crate::{Limit, OnChange, Quota, Retry, Verdict};

/// Counts in `[start, start + W)`.
#[derive(Debug)]
pub(super) struct FixedWindowOracle {
    count: u64,
    period: u64,
    anchor: Anchor,
    window: Option<OracleWindow>,
}

#[derive(Clone, Copy, Debug)]
struct OracleWindow {
    start: u64,
    used: u64,
}

impl FixedWindowOracle {
    pub(super) fn new(params: FixedWindow, limit: &Limit) -> Self {
        let (count, period) = count_and_period(limit);
        Self { count, period, anchor: params.anchor, window: None }
    }

    fn start_of(&self, at: u64) -> u64 {
        match self.anchor {
            Anchor::FirstHit => at,
            Anchor::Epoch => at / self.period * self.period,
        }
    }

    fn used(&self) -> u64 {
        self.window.map_or(0, |w| w.used)
    }

    fn add(&mut self, cost: u64, start: u64) {
        let start = self.window.map_or(start, |w| w.start);
        let used = self.used().saturating_add(cost).min(2 * Quota::MAX_COUNT);
        self.window = Some(OracleWindow { start, used });
    }
}

impl Oracle for FixedWindowOracle {
    fn is_absent(&self) -> bool {
        self.window.is_none()
    }

    fn observe(&mut self, now: u64) {
        self.window = self.window.filter(|w| now < w.start + self.period);
        if let Some(window) = &mut self.window {
            window.start = window.start.min(now);
        }
    }

    fn judge(&self, cost: u64, _patience: u64, now: u64) -> Verdict {
        let fits = |used: u64| used.saturating_add(cost) <= self.count;
        if cost == 0 || fits(self.used()) {
            Verdict::Allow
        } else if !fits(0) {
            Verdict::Deny(Retry::Never)
        } else {
            self.window.map_or(Verdict::Allow, |w| retry((w.start + self.period - now).into()))
        }
    }

    fn take(&mut self, cost: u64, now: u64) {
        self.add(cost, self.start_of(now));
    }

    fn debit(&mut self, cost: u64, at: u64, now: u64) {
        let at = at.min(now);
        let opens = self.start_of(at);
        let counts = match self.window {
            Some(window) => at >= window.start,
            None => now < opens + self.period,
        };
        if counts {
            self.add(cost, opens);
        }
    }

    fn credit(&mut self, cost: u64, at: u64, _now: u64) {
        if let Some(window) = self.window.as_mut().filter(|w| at >= w.start) {
            window.used -= window.used.min(cost);
        }
        self.window = self.window.filter(|w| w.used > 0);
    }

    fn expected(&self, verdict: Verdict, now: u64) -> ExpectedDecision {
        let left = i128::from(self.count) - i128::from(self.used());
        let reset = self.window.map_or(0, |w| w.start + self.period - now);
        ExpectedDecision::exact(verdict, left, reset.into())
    }

    fn change(&mut self, to: &Limit, how: LimitChange, now: u64) {
        let Algorithm::FixedWindow(params) = to.algorithm() else { unreachable!("one algorithm") };
        let from = std::mem::replace(self, Self::new(params, to));
        let Some(window) = from.window else { return };
        let used = match how {
            LimitChange::Revise(OnChange::Reset) => 0,
            LimitChange::Revise(OnChange::Scale) => share(window.used, from.count, self.count),
            LimitChange::Revise(OnChange::Keep) | LimitChange::Adopt => window.used,
        };
        // A first-hit window keeps its beginning; an aligned one is the one `now` lies in.
        let start = match self.anchor {
            Anchor::FirstHit => window.start,
            Anchor::Epoch => self.start_of(now),
        };
        self.window =
            (used > 0 && now < start + self.period).then_some(OracleWindow { start, used });
    }
}
