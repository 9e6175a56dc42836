//! Fixed window: a count, and the start of its window.
//!
//! Bound: at most the count in each window, and so at most twice the count in any interval of one
//! period: all of it just before a boundary, and all of it just after. Every fixed window allows
//! that double burst; a sliding log or a bucket does not.
//!
//! A clock that steps back may add one count for each step: the count of an ended window is
//! forgotten, and the step makes room for an interval that covers three windows.
//!
//! A refused charge is not counted and opens no window. Debits may push the count above the limit;
//! the end of the window forgives them, too.

use std::time::Duration;

use super::{Change, Conversion, Outcome, Step, refuse_own_burst};
use crate::charge::{Op, Terms};
use crate::decision::{Decision, Retry, Verdict};
use crate::limit::{LimitError, OnChange};
use crate::span::mul_div;
use crate::{Quota, Timestamp};

/// Counts up to the limit in each window, then refuses until it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    /// The start of windows.
    pub anchor: Anchor,
}

/// The start of windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Anchor {
    /// The first charge that passes, as with `INCR` and `EXPIRE`.
    #[default]
    FirstHit,
    /// Multiples of the period since the Unix epoch, as in Envoy's service.
    Epoch,
}

/// The numbers of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindowPlan {
    /// The most permits of a window.
    pub capacity: u64,
    /// The length of a window.
    pub window_us: u64,
    /// The start of windows.
    pub anchor: Anchor,
}

/// The current window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The start of the window.
    pub start: Timestamp,
    /// Permits charged in it.
    pub used: u64,
}

impl FixedWindowPlan {
    fn begin(&self, now: Timestamp) -> Timestamp {
        match self.anchor {
            Anchor::FirstHit => now,
            Anchor::Epoch => {
                let into = now.as_micros().checked_rem(self.window_us).unwrap_or(0);
                now.minus_micros(into)
            }
        }
    }

    fn is_live(&self, window: &Window, now: Timestamp) -> bool {
        now.micros_since(window.start) < self.window_us
    }

    fn look(&self, verdict: Verdict, window: Option<&Window>, now: Timestamp) -> Decision {
        let (used, reset) = window.map_or((0, 0), |w| (w.used, self.left(w, now)));
        Decision::new(verdict, self.capacity.saturating_sub(used), reset)
    }

    fn left(&self, window: &Window, now: Timestamp) -> u64 {
        self.window_us.saturating_sub(now.micros_since(window.start))
    }

    fn add(&self, window: Option<&Window>, cost: u64, start: Timestamp) -> Window {
        let used = window.map_or(0, |w| w.used).saturating_add(cost).min(MAX_USED);
        Window { start: window.map_or(start, |w| w.start), used }
    }

    fn verdict(&self, window: Option<&Window>, cost: u64, now: Timestamp) -> Verdict {
        let used = window.map_or(0, |w| w.used);
        if cost == 0 || used.checked_add(cost).is_some_and(|sum| sum <= self.capacity) {
            return Verdict::Allow;
        }
        match window {
            Some(window) if cost <= self.capacity => {
                Verdict::Deny(Retry::After(Duration::from_micros(self.left(window, now))))
            }
            _ => Verdict::Deny(Retry::Never),
        }
    }

    /// Counts a cost that was spent at `at`, unless its window is over.
    fn debit(
        &self,
        window: Option<&Window>,
        cost: u64,
        at: Timestamp,
        now: Timestamp,
    ) -> Option<Window> {
        let at = at.min(now);
        let start = self.begin(at);
        let counts = match window {
            Some(window) => at >= window.start,
            None => self.is_live(&Window { start, used: 0 }, now),
        };
        (counts && cost > 0).then(|| self.add(window, cost, start))
    }
}

impl Step for FixedWindow {
    type Plan = FixedWindowPlan;
    type State = Window;
    type Edit = Window;

    fn plan(&self, quota: &Quota) -> Result<FixedWindowPlan, LimitError> {
        refuse_own_burst(quota, "fixed-window")?;
        Ok(FixedWindowPlan {
            capacity: quota.count().get(),
            window_us: quota.period_us().get(),
            anchor: self.anchor,
        })
    }

    fn settle(_: &FixedWindowPlan, window: &mut Window, now: Timestamp) -> bool {
        // A window ahead of the clock began just now, aligned or not: moved to an aligned start
        // it would end, and be refilled, each time the clock trembles at a boundary.
        let ahead = window.start > now;
        if ahead {
            window.start = now;
        }
        ahead
    }

    #[inline]
    fn decide(plan: &FixedWindowPlan, window: Option<&Window>, terms: Terms) -> Outcome<Window> {
        let now = terms.now;
        let edit = match terms.op {
            Op::Take(cost) | Op::Peek(cost) => {
                let verdict = plan.verdict(window, cost, now);
                if !verdict.passes() || cost == 0 || matches!(terms.op, Op::Peek(_)) {
                    return (plan.look(verdict, window, now), None);
                }
                Some(plan.add(window, cost, plan.begin(now)))
            }
            Op::Debit { cost, at } => plan.debit(window, cost, at, now),
            Op::Credit { cost, at } => window
                .filter(|w| at >= w.start)
                .map(|w| Window { start: w.start, used: w.used.saturating_sub(cost) }),
            Op::Acquire { .. } | Op::Renew { .. } | Op::Release { .. } => {
                return (plan.look(Verdict::Deny(Retry::Never), window, now), None);
            }
        };
        let after = edit.as_ref().or(window).filter(|w| w.used > 0);
        (plan.look(Verdict::Allow, after, now), edit)
    }

    #[inline]
    fn apply(_: &FixedWindowPlan, _: Option<Window>, edit: Window) -> Option<Window> {
        (edit.used > 0).then_some(edit)
    }

    fn convert(window: Window, by: Conversion<'_, FixedWindowPlan>) -> Option<Window> {
        let Conversion { from, to, change, now } = by;
        let used = match change {
            Change::Revise(OnChange::Reset) => return None,
            Change::Revise(OnChange::Keep) | Change::Adopt => window.used,
            Change::Revise(OnChange::Scale) => scale(window.used, from.capacity, to.capacity),
        };
        let start = match to.anchor {
            Anchor::FirstHit => window.start,
            Anchor::Epoch => to.begin(now),
        };
        let window = Window { start, used };
        (used > 0 && to.is_live(&window, now)).then_some(window)
    }

    #[inline]
    fn idle_at(plan: &FixedWindowPlan, window: &Window) -> Option<Timestamp> {
        window.start.checked_plus_micros(plan.window_us)
    }
}

/// The most that debits can add to one window, or to one pane of a sliding window. A sum of two of
/// these is still exact everywhere.
pub const MAX_USED: u64 = Quota::MAX_COUNT * 2;

/// `used × to / from`, rounded down so that raising a limit takes no credit away.
pub(super) fn scale(used: u64, from: u64, to: u64) -> u64 {
    let one = std::num::NonZeroU64::MIN;
    let from = std::num::NonZeroU64::new(from).unwrap_or(one);
    let scaled = u64::try_from(mul_div(u128::from(used), [to, 1], [from, one]));
    scaled.unwrap_or(u64::MAX).min(MAX_USED)
}
