//! The fixed window, by definition: what was charged in the window that `now` lies in.

use super::{ExpectedDecision, LimitChange, misfit, retry, share};
use crate::algorithm::{Algorithm, Anchor, FixedWindow};
use crate::{Limit, OnChange, Op, Quota, Retry, Verdict};

/// Counts in `[start, start + W)`.
#[derive(Clone, Debug)]
pub struct FixedWindowOracle {
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
        let quota = limit.quota();
        let (count, period) = (quota.count().get(), super::us(quota.period()));
        Self { count, period, anchor: params.anchor, window: None }
    }

    fn start_of(&self, at: u64) -> u64 {
        match self.anchor {
            Anchor::FirstHit => at,
            Anchor::Epoch => at / self.period * self.period,
        }
    }

    pub(super) const fn is_absent(&self) -> bool {
        self.window.is_none()
    }

    pub(super) fn observe(&mut self, now: u64) {
        self.window = self.window.filter(|w| now < w.start + self.period);
        if let Some(window) = &mut self.window {
            window.start = window.start.min(now);
        }
    }

    fn used(&self) -> u64 {
        self.window.map_or(0, |w| w.used)
    }

    fn add(&mut self, cost: u64, start: u64) {
        let start = self.window.map_or(start, |w| w.start);
        let used =
            (u128::from(self.used()) + u128::from(cost)).min(2 * u128::from(Quota::MAX_COUNT));
        let used = u64::try_from(used).expect("capped");
        self.window = Some(OracleWindow { start, used });
    }

    fn judge(&self, cost: u64, now: u64) -> Verdict {
        let fits = |used: u64| u128::from(used) + u128::from(cost) <= u128::from(self.count);
        if cost == 0 || fits(self.used()) {
            Verdict::Allow
        } else if !fits(0) {
            Verdict::Deny(Retry::Never)
        } else {
            self.window.map_or(Verdict::Allow, |w| retry((w.start + self.period - now).into()))
        }
    }

    pub(super) fn charge(&mut self, op: Op, _patience: u64, now: u64) -> ExpectedDecision {
        let mut verdict = Verdict::Allow;
        match op {
            Op::Peek(cost) => verdict = self.judge(cost, now),
            Op::Take(cost) => {
                verdict = self.judge(cost, now);
                if verdict == Verdict::Allow && cost > 0 {
                    self.add(cost, self.start_of(now));
                }
            }
            Op::Debit { cost, at } => {
                let at = at.as_micros().min(now);
                let opens = self.start_of(at);
                let counts = match self.window {
                    Some(window) => at >= window.start,
                    None => now < opens + self.period,
                };
                if counts && cost > 0 {
                    self.add(cost, opens);
                }
            }
            Op::Credit { cost, at } => {
                if let Some(window) = self.window.as_mut().filter(|w| at.as_micros() >= w.start) {
                    window.used -= window.used.min(cost);
                }
                self.window = self.window.filter(|w| w.used > 0);
            }
            op => misfit(op),
        }
        let left = i128::from(self.count) - i128::from(self.used());
        let reset = self.window.map_or(0, |w| w.start + self.period - now);
        ExpectedDecision::exact(verdict, left, reset.into())
    }

    pub(super) fn change(&mut self, to: &Limit, how: LimitChange, now: u64) {
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
