//! Sliding window: charges counted by sub-window (*pane*) instead of one by one.
//!
//! The period is cut into n panes aligned to the epoch. At any moment the window touches n + 1 of
//! them, the oldest only in part. The [`Estimate`] is the weight of that one:
//!
//! - *Conservative* counts it in full. Bound: never more than the count in any window
//!   (t − W, t]. The price: a source is sure to pass only up to count / (W + W/n).
//! - *Weighted* counts the share of it that the window still covers, as if its charges had been
//!   spread evenly. Bound: below twice the count in any window, and the estimate itself never
//!   above the count. An adversary comes close to that.
//!
//! Memory is constant: n + 1 counts a key.

use std::time::Duration;

use super::fixed_window::{MAX_USED, scale};
use super::{Change, Conversion, Outcome, Step, refuse_own_burst};
use crate::charge::{Op, Terms};
use crate::decision::{Decision, Retry, Verdict};
use crate::limit::{LimitError, LimitErrorKind, OnChange};
use crate::{Quota, Timestamp};

/// Counts by sub-window: constant memory, and by default never above the count in any window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    /// The number of panes in the period, 1 to [`SlidingWindow::MAX_PANES`].
    pub panes: u8,
    /// The weight of the oldest pane.
    pub estimate: Estimate,
}

/// The weight of the oldest pane, of which the window covers only a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Estimate {
    /// The full count: never more than the count in any window.
    #[default]
    Conservative,
    /// The covered share: below twice the count in any window.
    Weighted,
}

impl SlidingWindow {
    /// The most panes: more would cost memory without changing much.
    pub const MAX_PANES: u8 = 64;

    /// Ten panes, the oldest counted in full.
    pub const fn conservative() -> Self {
        Self { panes: 10, estimate: Estimate::Conservative }
    }

    /// The usual sliding counter: this period and a share of the last.
    pub const fn weighted() -> Self {
        Self { panes: 1, estimate: Estimate::Weighted }
    }
}

impl Default for SlidingWindow {
    fn default() -> Self {
        Self::conservative()
    }
}

/// Products of a count and a time must stay exact in a Redis script's doubles.
const MAX_PRODUCT: u128 = 1 << 53;

/// The numbers of a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindowPlan {
    /// The most permits of a window.
    pub capacity: u64,
    /// The length of a pane.
    pub pane_us: u64,
    /// Panes per window.
    pub panes: u8,
    /// The weight of the oldest pane.
    pub estimate: Estimate,
}

/// Counts per pane, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panes {
    /// The number of the newest pane, counted from the epoch.
    pub newest: u64,
    /// The charges in the newest pane and in those before it: n + 1 counts, each at most
    /// [`MAX_USED`].
    pub counts: Box<[u64]>,
}

/// An edit of the panes. They move on to `pane` first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanesEdit {
    /// The pane of the decision.
    pub pane: u64,
    /// Permits that join it.
    pub add: u64,
    /// Permits that come off the oldest live panes.
    pub credit: u64,
}

impl SlidingWindowPlan {
    fn pane(&self, at: Timestamp) -> u64 {
        at.as_micros().checked_div(self.pane_us).unwrap_or(0)
    }

    fn window_us(&self) -> u64 {
        self.pane_us.saturating_mul(u64::from(self.panes))
    }

    /// Microseconds from the start of its pane to a moment.
    fn offset(&self, at: Timestamp) -> u64 {
        at.as_micros().checked_rem(self.pane_us).unwrap_or(0)
    }

    /// The weight of the oldest pane, times the length of a pane.
    fn weight(&self, count: u64, into: u64) -> u128 {
        let covered = match self.estimate {
            Estimate::Conservative => self.pane_us,
            Estimate::Weighted => self.pane_us.saturating_sub(into),
        };
        u128::from(count).saturating_mul(u128::from(covered))
    }

    /// Permits left, rounded down.
    fn remaining(&self, view: &PaneView<'_>) -> u64 {
        let pane = u128::from(self.pane_us);
        let all = u128::from(self.capacity).saturating_mul(pane);
        let free = all.saturating_sub(view.used(self));
        u64::try_from(free.checked_div(pane).unwrap_or(0)).unwrap_or(u64::MAX)
    }

    fn look(&self, verdict: Verdict, view: &PaneView<'_>) -> Decision {
        Decision::new(verdict, self.remaining(view), view.reset(self))
    }
}

/// The panes at a moment: the number of panes since the newest, and the offset of the moment in the
/// current one.
struct PaneView<'a> {
    counts: &'a [u64],
    passed: u64,
    into: u64,
    /// A charge about to join the current pane.
    add: u64,
    /// A credit about to come off the oldest.
    credit: u64,
}

impl<'a> PaneView<'a> {
    fn new(plan: &SlidingWindowPlan, panes: Option<&'a Panes>, now: Timestamp) -> Self {
        let (counts, newest) = panes.map_or((&[][..], 0), |p| (&*p.counts, p.newest));
        let passed = plan.pane(now).saturating_sub(newest);
        Self { counts, passed, into: plan.offset(now), add: 0, credit: 0 }
    }

    /// Live panes, oldest first: age in panes (0 is the current one) and count.
    fn live(&self, plan: &SlidingWindowPlan) -> impl Iterator<Item = (u64, u64)> {
        let mut credit = self.credit;
        let panes = u64::from(plan.panes);
        let passed = self.passed;
        let aged = self.counts.iter().copied().enumerate().rev();
        let joining = (self.add > 0).then_some((0, self.add));
        aged.map(move |(age, count)| (passed.saturating_add(to_u64(age)), count))
            .filter(move |(age, count)| *age <= panes && *count > 0)
            .map(move |(age, count)| {
                let off = count.min(credit);
                credit = credit.saturating_sub(off);
                (age, count.saturating_sub(off))
            })
            .filter(|(_, count)| *count > 0)
            .chain(joining)
    }

    /// The estimate, times the length of a pane.
    fn used(&self, plan: &SlidingWindowPlan) -> u128 {
        self.live(plan).fold(0_u128, |sum, (age, count)| {
            let into = if age == u64::from(plan.panes) { self.into } else { 0 };
            sum.saturating_add(plan.weight(count, into))
        })
    }

    /// The time until a pane of this age no longer counts.
    fn leaves_after(&self, plan: &SlidingWindowPlan, age: u64) -> u64 {
        let panes = u64::from(plan.panes).saturating_add(1).saturating_sub(age);
        panes.saturating_mul(plan.pane_us).saturating_sub(self.into)
    }

    fn reset(&self, plan: &SlidingWindowPlan) -> u64 {
        self.live(plan).last().map_or(0, |(age, _)| self.leaves_after(plan, age))
    }

    fn verdict(&self, plan: &SlidingWindowPlan, cost: u64) -> Verdict {
        if cost == 0 {
            return Verdict::Allow;
        }
        let Some(room) = plan.capacity.checked_sub(cost) else {
            return Verdict::Deny(Retry::Never);
        };
        let pane = u128::from(plan.pane_us);
        if self.used(plan) <= u128::from(room).saturating_mul(pane) {
            return Verdict::Allow;
        }
        Verdict::Deny(Retry::After(Duration::from_micros(self.retry(plan, room))))
    }

    /// The time until the estimate is down to `room`. Panes leave one after the other: the oldest
    /// at once at its end (conservative), or steadily until then (weighted).
    fn retry(&self, plan: &SlidingWindowPlan, room: u64) -> u64 {
        let mut newer: u64 = self.live(plan).fold(0, |sum, (_, count)| sum.saturating_add(count));
        for (age, count) in self.live(plan) {
            newer = newer.saturating_sub(count);
            let gone = self.leaves_after(plan, age);
            let Some(share) = room.checked_sub(newer) else { continue };
            if plan.estimate == Estimate::Conservative {
                return gone;
            }
            // The smallest wait after which count × covered ≤ share × pane.
            let product = u128::from(share).saturating_mul(u128::from(plan.pane_us));
            let covered = product.checked_div(u128::from(count)).unwrap_or(0);
            return gone.saturating_sub(u64::try_from(covered).unwrap_or(u64::MAX));
        }
        0
    }
}

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

impl Step for SlidingWindow {
    type Plan = SlidingWindowPlan;
    type State = Panes;
    type Edit = PanesEdit;

    fn plan(&self, quota: &Quota) -> Result<SlidingWindowPlan, LimitError> {
        refuse_own_burst(quota, "sliding-window")?;
        let fail = |reason| Err(LimitError::new(LimitErrorKind::Parameter, reason));
        if self.panes == 0 || self.panes > Self::MAX_PANES {
            return fail(format!("{} panes: use 1 to {}", self.panes, Self::MAX_PANES));
        }
        let period = quota.period_us().get();
        let panes = u64::from(self.panes);
        if !period.is_multiple_of(panes) {
            return fail(format!("{period} µs cannot be cut into {panes} equal panes"));
        }
        let pane_us = period.checked_div(panes).unwrap_or(period);
        let capacity = quota.count().get();
        let product = u128::from(capacity).saturating_mul(u128::from(pane_us));
        if self.estimate == Estimate::Weighted && product >= MAX_PRODUCT {
            return fail(format!(
                "a weighted window of `{quota}` cannot be computed exactly: use the \
                 conservative estimate, more panes, or count in larger units"
            ));
        }
        Ok(SlidingWindowPlan { capacity, pane_us, panes: self.panes, estimate: self.estimate })
    }

    fn settle(plan: &SlidingWindowPlan, panes: &mut Panes, now: Timestamp) -> bool {
        let present = plan.pane(now);
        let Some(ahead) = panes.newest.checked_sub(present).filter(|ahead| *ahead > 0) else {
            return false;
        };
        // All that lies ahead counts as charged in the present pane.
        let ahead = usize::try_from(ahead).unwrap_or(usize::MAX).min(panes.counts.len());
        let moved = panes.counts.iter().take(ahead).fold(0_u64, |sum, n| sum.saturating_add(*n));
        panes.counts.rotate_left(ahead);
        let kept = panes.counts.len().saturating_sub(ahead);
        panes.counts.iter_mut().skip(kept).for_each(|count| *count = 0);
        if let Some(first) = panes.counts.first_mut() {
            *first = first.saturating_add(moved).min(MAX_USED);
        }
        panes.newest = present;
        true
    }

    fn decide(plan: &SlidingWindowPlan, panes: Option<&Panes>, terms: Terms) -> Outcome<PanesEdit> {
        let now = terms.now;
        let mut view = PaneView::new(plan, panes, now);
        let in_window = |at: Timestamp| now.micros_since(at) < plan.window_us();
        match terms.op {
            Op::Take(cost) | Op::Peek(cost) => {
                let verdict = view.verdict(plan, cost);
                let peek = matches!(terms.op, Op::Peek(_)) || cost == 0;
                if !verdict.passes() || peek {
                    return (plan.look(verdict, &view), None);
                }
                view.add = cost;
            }
            Op::Debit { cost, at } if in_window(at) => view.add = cost.min(Quota::MAX_COUNT),
            // No charge was counted as more, whatever its caller thinks.
            Op::Credit { cost, at } if in_window(at) => view.credit = cost.min(Quota::MAX_COUNT),
            Op::Debit { .. } | Op::Credit { .. } => {}
            Op::Acquire { .. } | Op::Renew { .. } | Op::Release { .. } => {
                return (plan.look(Verdict::Deny(Retry::Never), &view), None);
            }
        }
        let edit = PanesEdit { pane: plan.pane(now), add: view.add, credit: view.credit };
        let edits = edit.add > 0 || (edit.credit > 0 && panes.is_some());
        (plan.look(Verdict::Allow, &view), edits.then_some(edit))
    }

    fn apply(plan: &SlidingWindowPlan, panes: Option<Panes>, edit: PanesEdit) -> Option<Panes> {
        let len = usize::from(plan.panes).saturating_add(1);
        let mut panes = panes.unwrap_or_else(|| Panes {
            newest: edit.pane,
            counts: vec![0; len].into_boxed_slice(),
        });
        let passed = edit.pane.saturating_sub(panes.newest);
        let passed = usize::try_from(passed).unwrap_or(usize::MAX).min(panes.counts.len());
        panes.counts.rotate_right(passed);
        panes.counts.iter_mut().take(passed).for_each(|count| *count = 0);
        panes.newest = edit.pane;
        let mut credit = edit.credit;
        for count in panes.counts.iter_mut().rev() {
            let off = credit.min(*count);
            *count = count.saturating_sub(off);
            credit = credit.saturating_sub(off);
        }
        if let Some(present) = panes.counts.first_mut() {
            *present = present.saturating_add(edit.add).min(MAX_USED);
        }
        panes.counts.iter().any(|count| *count > 0).then_some(panes)
    }

    fn convert(panes: Panes, by: Conversion<'_, SlidingWindowPlan>) -> Option<Panes> {
        let Conversion { from, to, change, now } = by;
        let scaled = |count: u64| match change {
            Change::Revise(OnChange::Scale) => scale(count, from.capacity, to.capacity),
            _ => count,
        };
        if change == Change::Revise(OnChange::Reset) {
            return None;
        }
        let present = to.pane(now);
        let len = usize::from(to.panes).saturating_add(1);
        let mut counts = vec![0_u64; len].into_boxed_slice();
        let view = PaneView::new(from, Some(&panes), now);
        for (age, count) in view.live(from) {
            // Charges of a pane may all have come at its end.
            let ends_ago = age
                .saturating_mul(from.pane_us)
                .saturating_sub(from.pane_us.saturating_sub(view.into).saturating_sub(1));
            let age = present.saturating_sub(to.pane(now.minus_micros(ends_ago)));
            let slot = usize::try_from(age).ok().and_then(|age| counts.get_mut(age));
            if let Some(slot) = slot {
                *slot = slot.saturating_add(scaled(count)).min(MAX_USED);
            }
        }
        let used = counts.iter().any(|count| *count > 0);
        used.then_some(Panes { newest: present, counts })
    }

    fn idle_at(plan: &SlidingWindowPlan, panes: &Panes) -> Option<Timestamp> {
        let Some(age) = panes.counts.iter().position(|count| *count > 0) else {
            return Some(Timestamp::EPOCH);
        };
        let last = panes.newest.saturating_sub(to_u64(age));
        let gone = last.checked_add(u64::from(plan.panes))?.checked_add(1)?;
        gone.checked_mul(plan.pane_us).map(Timestamp::from_micros)
    }

    fn heap_bytes(plan: &SlidingWindowPlan) -> usize {
        usize::from(plan.panes).saturating_add(1).saturating_mul(size_of::<u64>())
    }
}
