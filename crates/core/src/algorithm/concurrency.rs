//! Concurrency: a number of holders of permits at once, each for a lease.
//!
//! Bound: at most the count holds permits at any moment. The permit of a dead holder returns when
//! its lease ends. The quota's period is the longest lease.
//!
//! A held permit is a fact, not usage: no change of quota takes it away, not even `reset`. After a
//! lowered count, new holders wait until enough have left.

use std::time::Duration;

use super::{Conversion, MAX_AHEAD_US, Outcome, Step, refuse_own_burst};
use crate::charge::{Holder, Op, Terms};
use crate::decision::{Decision, Retry, Verdict};
use crate::limit::{LimitError, LimitErrorKind};
use crate::{Quota, Timestamp};

/// Admits at most the quota's count at once; each permit has a lease of at most the period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Concurrency;

impl Concurrency {
    /// The largest count. Holders are searched one by one.
    pub const MAX_COUNT: u64 = 10_000;
}

/// The numbers of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyPlan {
    /// The most holders at once.
    pub capacity: u64,
    /// The longest lease, also for a charge that an older revision allowed more.
    pub longest_us: u64,
}

/// The held permits, in the order in which their leases end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The time of the last write. If now is earlier, the clock has stepped back.
    written_at: Timestamp,
    held: Vec<HeldPermit>,
}

/// One permit, held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPermit {
    /// The holder.
    pub holder: Holder,
    /// The end of its lease, unless renewed.
    pub until: Timestamp,
}

impl Holders {
    /// Restores stored permits, in the order in which their leases end.
    ///
    /// A store need not check the order, nor that holders are unique. In bytes that Tollgate did
    /// not write, a permit counts until those after it have ended, or until the last has ended at
    /// the latest; a holder listed several times has the first of its permits.
    pub const fn restored(written_at: Timestamp, held: Vec<HeldPermit>) -> Self {
        Self { written_at, held }
    }

    /// The time of the last write.
    pub const fn written_at(&self) -> Timestamp {
        self.written_at
    }

    /// Every stored permit, soonest to end first. Those at the front may have ended.
    pub fn held(&self) -> &[HeldPermit] {
        &self.held
    }

    /// The permits held at `now`, soonest to end first.
    pub fn live(&self, now: Timestamp) -> &[HeldPermit] {
        self.held.get(ended(&self.held, now)..).unwrap_or(&[])
    }
}

/// The number of leases that have ended by this moment. It bisects, as the Lua step does, so both
/// find the same place even if the order is wrong.
fn ended(held: &[HeldPermit], by: Timestamp) -> usize {
    let (mut low, mut high) = (0, held.len());
    while low < high {
        let middle = low.midpoint(high);
        match held.get(middle) {
            Some(hold) if hold.until <= by => low = middle.saturating_add(1),
            _ => high = middle,
        }
    }
    low
}

/// An edit of the holders. Leases that ended are dropped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldersEdit {
    /// The moment of the decision.
    pub now: Timestamp,
    /// The holder of the permit.
    pub holder: Holder,
    /// The end of the lease; `None` gives the permit back.
    pub until: Option<Timestamp>,
}

impl ConcurrencyPlan {
    /// The time until `cost` permits are free, if no holder renews.
    fn free(&self, live: &[HeldPermit], cost: u64, now: Timestamp) -> Verdict {
        let wanted = count(live).saturating_add(cost);
        let Some(too_many) = wanted.checked_sub(self.capacity).filter(|n| *n > 0 && cost > 0)
        else {
            return Verdict::Allow;
        };
        if cost > self.capacity {
            return Verdict::Deny(Retry::Never);
        }
        let last = usize::try_from(too_many.saturating_sub(1)).unwrap_or(usize::MAX);
        let until = live.get(last).map_or(now, |hold| hold.until);
        Verdict::Deny(Retry::After(Duration::from_micros(until.micros_since(now))))
    }
}

fn count(live: &[HeldPermit]) -> u64 {
    u64::try_from(live.len()).unwrap_or(u64::MAX)
}

impl Step for Concurrency {
    type Plan = ConcurrencyPlan;
    type State = Holders;
    type Edit = HoldersEdit;

    fn plan(&self, quota: &Quota) -> Result<ConcurrencyPlan, LimitError> {
        refuse_own_burst(quota, "concurrency")?;
        let capacity = quota.count().get();
        if capacity > Self::MAX_COUNT {
            let reason = format!(
                "concurrency remembers every holder, and {capacity} is above {}",
                Self::MAX_COUNT
            );
            return Err(LimitError::new(LimitErrorKind::CountTooLarge, reason));
        }
        Ok(ConcurrencyPlan { capacity, longest_us: quota.period_us().get() })
    }

    fn settle(_: &ConcurrencyPlan, state: &mut Holders, now: Timestamp) -> bool {
        let back = state.written_at.micros_since(now);
        // A lease under any quota: what was granted under a longer one stays.
        let latest = now.plus_micros(MAX_AHEAD_US);
        let changed = back > 0 || state.held.last().is_some_and(|hold| hold.until > latest);
        if changed {
            for hold in &mut state.held {
                hold.until = hold.until.minus_micros(back).min(latest);
            }
            state.written_at = state.written_at.min(now);
        }
        changed
    }

    fn decide(
        plan: &ConcurrencyPlan,
        state: Option<&Holders>,
        terms: Terms,
    ) -> Outcome<HoldersEdit> {
        let now = terms.now;
        let live = state.map_or(&[][..], |state| state.live(now));
        let mine = |holder: Holder| live.iter().any(|hold| hold.holder == holder);
        let last_but = |holder: Holder| {
            let others = live.iter().rev().find(|hold| hold.holder != holder);
            others.map(|hold| hold.until)
        };
        let look = |verdict, held: u64, last: Option<Timestamp>| {
            let reset = last.map_or(0, |until| until.micros_since(now));
            Decision::new(verdict, plan.capacity.saturating_sub(held), reset)
        };
        let as_it_is =
            |verdict| (look(verdict, count(live), live.last().map(|hold| hold.until)), None);
        let hold = |holder, lease: Duration, held: u64| {
            // Rounded down to the microsecond: a permit must not outlive its holder's lease.
            match now.checked_add(lease.min(Duration::from_micros(plan.longest_us))) {
                Some(until) => {
                    let decision = look(Verdict::Allow, held, last_but(holder).max(Some(until)));
                    (decision, Some(HoldersEdit { now, holder, until: Some(until) }))
                }
                None => as_it_is(Verdict::Deny(Retry::Never)),
            }
        };
        match terms.op {
            Op::Acquire { holder, lease } | Op::Renew { holder, lease } if mine(holder) => {
                hold(holder, lease, count(live))
            }
            Op::Acquire { holder, lease } => match plan.free(live, 1, now) {
                Verdict::Allow => hold(holder, lease, count(live).saturating_add(1)),
                verdict => as_it_is(verdict),
            },
            Op::Release { holder } if mine(holder) => {
                let held = count(live).saturating_sub(1);
                let decision = look(Verdict::Allow, held, last_but(holder));
                (decision, Some(HoldersEdit { now, holder, until: None }))
            }
            Op::Release { .. } => as_it_is(Verdict::Allow),
            Op::Peek(cost) => as_it_is(plan.free(live, cost, now)),
            Op::Renew { .. } | Op::Take(_) | Op::Debit { .. } | Op::Credit { .. } => {
                as_it_is(Verdict::Deny(Retry::Never))
            }
        }
    }

    fn apply(_: &ConcurrencyPlan, state: Option<Holders>, edit: HoldersEdit) -> Option<Holders> {
        let mut state = state.unwrap_or_default();
        state.held.drain(..ended(&state.held, edit.now));
        if let Some(mine) = state.held.iter().position(|hold| hold.holder == edit.holder) {
            state.held.remove(mine);
        }
        if let Some(until) = edit.until {
            let place = ended(&state.held, until);
            state.held.insert(place, HeldPermit { holder: edit.holder, until });
        }
        state.written_at = edit.now;
        (!state.held.is_empty()).then_some(state)
    }

    fn convert(state: Holders, _: Conversion<'_, ConcurrencyPlan>) -> Option<Holders> {
        Some(state)
    }

    fn idle_at(_: &ConcurrencyPlan, state: &Holders) -> Option<Timestamp> {
        Some(state.held.last().map_or(Timestamp::EPOCH, |hold| hold.until))
    }

    fn heap_bytes(plan: &ConcurrencyPlan) -> usize {
        // A vector grows by doubling.
        let most = usize::try_from(plan.capacity.max(4)).unwrap_or(usize::MAX);
        most.saturating_mul(2).saturating_mul(size_of::<HeldPermit>())
    }
}
