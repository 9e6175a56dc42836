//! Token bucket and leaky meter: one bucket, stored as one moment.
//!
//! The state is the *arrival time*: the moment at which the bucket is full of permits (empty of
//! water) again. Its distance from now is the *backlog*. A charge moves it forward by the time that
//! its cost takes. The charge passes while the backlog stays within the time that the whole burst
//! takes. This is the generic cell rate algorithm, in exact rationals.
//!
//! Bound: in any closed interval of length x, at most burst + ⌊rate × x⌋ pass. For charges that
//! wait, counted at their grants, x is one microsecond longer, because each wait is rounded up to
//! one.
//!
//! A charge with patience may be granted a place in the future, and a debit may leave debt. Both
//! put the arrival time further ahead than a full burst. Otherwise only a clock that stepped back
//! can do that, so the state then also records when it was written, see [`AheadReason`]. While places
//! in the future are taken, only the last of them can be credited: moving up those behind it would
//! make two grants closer than the rate allows.
//!
//! `leaky_queue.rs` has the queue, whose grants are spaced one by one.

use std::time::Duration;

use super::{Change, Conversion, MAX_AHEAD_US, Outcome, Step};
use crate::charge::{Op, Terms};
use crate::decision::{Decision, Retry, Verdict};
use crate::limit::{LimitError, OnChange};
use crate::span::{PermitRate, Span, mul_div};
use crate::{Quota, Timestamp};

/// Permits refill steadily up to the burst. A charge passes while enough are available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TokenBucket;

/// Each charge pours its cost into a bucket that leaks at the rate. Within the burst it passes now,
/// within the charge's patience it passes later, and beyond that it is refused.
///
/// The arithmetic is that of [`TokenBucket`], with the level counted from the other end. It is an
/// algorithm of its own because rules and keys name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeakyMeter;

/// The furthest that a bucket, a queue or a smooth limiter can lie ahead under any quota: the
/// longest refill, a period for one more place in a queue, and debt or patience. A state further
/// ahead was not written by Tollgate, and is moved back to here.
pub const FURTHEST_US: u64 = 12 * MAX_AHEAD_US;

/// The numbers of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketPlan {
    /// The largest cost that can ever pass at once.
    pub capacity: u64,
    /// The time that permits take.
    pub rate: PermitRate,
    /// The time that the whole capacity takes.
    pub full: Span,
}

/// The moment at which the bucket is full again, and the reason why that is far ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The arrival time, counted from the epoch.
    pub arrival: Span,
    /// The reason why the arrival time may lie more than a full burst ahead.
    pub ahead: AheadReason,
}

/// The reason why an arrival time lies more than a full burst ahead, and the time of that write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AheadReason {
    /// It does not lie that far ahead; if it seems to, the clock stepped back.
    WithinBurst,
    /// Debits left debt, last written at this moment.
    Debt(Timestamp),
    /// Grants in the future are taken, last written at this moment.
    Waiting(Timestamp),
}

impl BucketPlan {
    fn new(quota: &Quota, capacity: u64) -> Self {
        let rate = quota.rate();
        Self { capacity, rate, full: rate.span(capacity) }
    }

    pub(super) fn backlog(&self, state: Option<&Bucket>, now: Timestamp) -> Span {
        state.map_or(Span::ZERO, |b| self.rate.sub(b.arrival, Span::micros(now.as_micros())))
    }

    /// The bucket with this backlog; `None` if it would lie past the end of time.
    pub(super) fn bucket(
        &self,
        backlog: Span,
        ahead: AheadReason,
        now: Timestamp,
    ) -> Option<Bucket> {
        let whole = now.as_micros().checked_add(backlog.whole)?;
        let ahead = if backlog > self.full { ahead } else { AheadReason::WithinBurst };
        Some(Bucket { arrival: Span { whole, part: backlog.part }, ahead })
    }

    fn look(&self, verdict: Verdict, backlog: Span) -> Decision {
        let remaining = self.rate.permits(self.rate.sub(self.full, backlog));
        Decision::new(verdict, remaining, backlog.ceil())
    }

    /// Moves back an arrival time that a clock stepping back left ahead.
    fn settle(&self, state: &mut Bucket, now: Timestamp) -> bool {
        let prior = *state;
        if let AheadReason::Debt(since) | AheadReason::Waiting(since) = state.ahead {
            let back = Span::micros(since.micros_since(now));
            if back != Span::ZERO {
                state.arrival = self.rate.sub(state.arrival, back);
                state.ahead = state.ahead.at(now);
            }
        }
        let furthest = self.rate.add(Span::micros(now.as_micros()), self.full);
        if state.arrival <= furthest {
            state.ahead = AheadReason::WithinBurst;
        } else if state.ahead == AheadReason::WithinBurst {
            state.arrival = furthest;
        } else {
            let furthest = Span::micros(now.as_micros().saturating_add(FURTHEST_US));
            state.arrival = state.arrival.min(furthest);
        }
        *state != prior
    }

    /// Charges a cost as soon as the caller's patience allows.
    fn take<K: BucketKind>(
        &self,
        backlog: Span,
        cost: u64,
        terms: Terms,
    ) -> (Verdict, Option<Bucket>) {
        if cost > self.capacity {
            return (Verdict::Deny(Retry::Never), None);
        }
        let after = self.rate.add(backlog, self.rate.span(cost));
        let (wait, at_least) = K::wait(self, backlog, after);
        let retry = at_least.max(wait.saturating_sub(terms.patience_us));
        if retry > 0 {
            return (Verdict::Deny(Retry::After(Duration::from_micros(retry))), None);
        }
        let Some(bucket) = self.bucket(after, AheadReason::Waiting(terms.now), terms.now) else {
            // Past the end of time nothing can be recorded, so nothing passes.
            return (Verdict::Deny(Retry::Never), None);
        };
        let verdict = match wait {
            0 => Verdict::Allow,
            wait => Verdict::Wait(Duration::from_micros(wait)),
        };
        (verdict, Some(bucket))
    }

    /// Adds a cost that was already spent, even if it does not fit.
    fn debit(
        &self,
        state: Option<&Bucket>,
        cost: u64,
        at: Timestamp,
        now: Timestamp,
    ) -> Option<Bucket> {
        let backlog = self.backlog(state, now);
        let added = self.rate.span(cost);
        if cost == 0 || added <= Span::micros(now.micros_since(at)) {
            return None;
        }
        let most = self.rate.add(self.full, Span::micros(MAX_AHEAD_US)).max(backlog);
        let debt = self.rate.add(backlog, added).min(most);
        let ahead = match state.map(|b| b.ahead) {
            Some(AheadReason::Waiting(_)) => AheadReason::Waiting(now),
            _ => AheadReason::Debt(now),
        };
        // Near the end of time a debit is cut short rather than lost.
        let room = Span::micros(Timestamp::MAX.micros_since(now));
        self.bucket(debt.min(room), ahead, now)
    }

    /// Carries the backlog over by the policy of the change. Rounds it down, by less than
    /// 1/denominator of a microsecond, so that raising a limit takes no credit away.
    fn convert(state: Bucket, by: Conversion<'_, Self>) -> Option<Bucket> {
        let Conversion { from, to, change, now } = by;
        let units = from.rate.units(from.backlog(Some(&state), now));
        let (num, den) = (to.rate.micros(), from.rate.micros());
        let one = std::num::NonZeroU64::MIN;
        let units = match change {
            Change::Revise(OnChange::Reset) => return None,
            Change::Revise(OnChange::Keep) => mul_div(units, [num.get(), 1], [den, one]),
            Change::Revise(OnChange::Scale) => {
                let capacity = std::num::NonZeroU64::new(from.capacity).unwrap_or(one);
                mul_div(units, [num.get(), to.capacity], [den, capacity])
            }
            Change::Adopt => return Self::adopt(state, by),
        };
        let mut backlog = to.rate.span_of_units(units);
        if let AheadReason::Waiting(_) = state.ahead {
            // Grants already given cannot be recalled, so later ones must stay behind them.
            backlog = backlog.max(Span::micros(from.backlog(Some(&state), now).ceil()));
        }
        let most = match state.ahead {
            AheadReason::WithinBurst => to.full,
            _ => to.rate.add(to.full, Span::micros(MAX_AHEAD_US)),
        };
        to.bucket(backlog.min(most), state.ahead.at(now), now)
    }

    /// Keeps the arrival time, with its fraction rounded up. It may then lie further ahead than the
    /// other quota would put it, and it stays there: if it were cut back, two quotas that take
    /// turns on one key would refill each other.
    pub(super) fn adopt(state: Bucket, by: Conversion<'_, Self>) -> Option<Bucket> {
        let Conversion { from, to, now, .. } = by;
        let backlog = from.backlog(Some(&state), now);
        let (num, den) = (to.rate.denominator(), from.rate.denominator());
        let product = u128::from(backlog.part).saturating_mul(num.get().into());
        let part = to.rate.span_of_units(product.div_ceil(den.get().into()));
        let backlog = to.rate.add(Span::micros(backlog.whole), part);
        let ahead = match state.ahead {
            AheadReason::WithinBurst => AheadReason::Debt(now),
            ahead => ahead.at(now),
        };
        to.bucket(backlog, ahead, now)
    }
}

impl AheadReason {
    pub(super) const fn at(self, now: Timestamp) -> Self {
        match self {
            Self::WithinBurst => Self::WithinBurst,
            Self::Debt(_) => Self::Debt(now),
            Self::Waiting(_) => Self::Waiting(now),
        }
    }
}

/// The result of an immediate take: a take without patience from a bucket within its burst. Small,
/// so that the answer is computed after the lock is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImmediateTake {
    /// It passes now and leaves this backlog.
    Pass(Span),
    /// It is refused at this backlog.
    Refuse(Span),
}

impl BucketPlan {
    /// Takes `cost` without patience from a bucket within its burst, as nearly every charge
    /// does. The result equals that of settling, deciding and applying, in a few instructions; the
    /// arrival time moves if the take passes. `None` for a cost of zero or above the capacity, and
    /// for a backlog above the burst: settle, decide and apply then.
    #[inline]
    pub fn take_immediately(
        &self,
        arrival: &mut Span,
        cost: u64,
        now: Timestamp,
    ) -> Option<ImmediateTake> {
        let backlog = self.rate.sub(*arrival, Span::micros(now.as_micros()));
        if backlog > self.full || cost == 0 || cost > self.capacity {
            return None;
        }
        let after = self.rate.add(backlog, self.rate.span(cost));
        if after > self.full {
            return Some(ImmediateTake::Refuse(backlog));
        }
        let whole = now.as_micros().checked_add(after.whole)?;
        *arrival = Span { whole, part: after.part };
        Some(ImmediateTake::Pass(after))
    }

    /// The decision about an immediate take of `cost`. Needs no lock.
    #[inline]
    pub fn answer(&self, take: ImmediateTake, cost: u64) -> Decision {
        match take {
            ImmediateTake::Pass(after) => self.look(Verdict::Allow, after),
            ImmediateTake::Refuse(backlog) => {
                let after = self.rate.add(backlog, self.rate.span(cost));
                let wait = self.rate.sub(after, self.full).ceil();
                let retry = Retry::After(Duration::from_micros(wait));
                self.look(Verdict::Deny(retry), backlog)
            }
        }
    }

    /// The decision about an immediate take that is not made, because another charge of its request
    /// refuses.
    #[inline]
    pub fn peek(&self, take: ImmediateTake, cost: u64) -> Decision {
        match take {
            ImmediateTake::Pass(after) => {
                let backlog = self.rate.sub(after, self.rate.span(cost));
                self.look(Verdict::Allow, backlog)
            }
            ImmediateTake::Refuse(_) => self.answer(take, cost),
        }
    }
}

/// The steps in which the kinds of bucket differ; unless overridden, those of a meter.
pub(super) trait BucketKind {
    /// The largest cost that can ever pass at once.
    fn capacity(quota: &Quota) -> u64 {
        quota.burst().get()
    }

    /// The wait of a charge with these backlogs before and after it, and the time until it can be
    /// granted at all, in microseconds.
    #[inline]
    fn wait(plan: &BucketPlan, _before: Span, after: Span) -> (u64, u64) {
        (plan.rate.sub(after, plan.full).ceil(), 0)
    }

    /// Gives back the current value of a charge: its cost less the part that has drained since.
    /// While grants in the future are taken, only the last of them can be given back.
    fn credit(
        plan: &BucketPlan,
        state: &Bucket,
        cost: u64,
        at: Timestamp,
        now: Timestamp,
    ) -> Option<Bucket> {
        let backlog = plan.backlog(Some(state), now);
        let charged = plan.rate.span(cost);
        let left = if let AheadReason::Waiting(_) = state.ahead {
            let last_grant = now.plus_micros(plan.rate.sub(backlog, plan.full).ceil());
            if at != last_grant {
                return None;
            }
            plan.rate.sub(backlog, charged)
        } else {
            let drained = Span::micros(now.micros_since(at));
            plan.rate.sub(backlog, plan.rate.sub(charged, drained))
        };
        plan.bucket(left, state.ahead.at(now), now)
    }

    /// Carries a bucket over from one plan to another.
    fn convert(state: Bucket, by: Conversion<'_, BucketPlan>) -> Option<Bucket> {
        BucketPlan::convert(state, by)
    }
}

impl BucketKind for TokenBucket {}
impl BucketKind for LeakyMeter {}

impl<K: BucketKind> Step for K {
    type Plan = BucketPlan;
    type State = Bucket;
    type Edit = Bucket;

    fn plan(&self, quota: &Quota) -> Result<BucketPlan, LimitError> {
        Ok(BucketPlan::new(quota, K::capacity(quota)))
    }

    #[inline]
    fn settle(plan: &BucketPlan, state: &mut Bucket, now: Timestamp) -> bool {
        plan.settle(state, now)
    }

    #[inline]
    fn decide(plan: &BucketPlan, state: Option<&Bucket>, terms: Terms) -> Outcome<Bucket> {
        let now = terms.now;
        let backlog = plan.backlog(state, now);
        let (verdict, edit) = match terms.op {
            Op::Take(0) | Op::Peek(0) => (Verdict::Allow, None),
            Op::Take(cost) => plan.take::<K>(backlog, cost, terms),
            Op::Peek(cost) => (plan.take::<K>(backlog, cost, terms).0, None),
            Op::Debit { cost, at } => (Verdict::Allow, plan.debit(state, cost, at, now)),
            Op::Credit { cost, at } => {
                (Verdict::Allow, state.and_then(|state| K::credit(plan, state, cost, at, now)))
            }
            Op::Acquire { .. } | Op::Renew { .. } | Op::Release { .. } => {
                (Verdict::Deny(Retry::Never), None)
            }
        };
        (plan.look(verdict, plan.backlog(edit.as_ref().or(state), now)), edit)
    }

    #[inline]
    fn apply(_: &BucketPlan, _: Option<Bucket>, edit: Bucket) -> Option<Bucket> {
        Some(edit)
    }

    fn convert(state: Bucket, by: Conversion<'_, BucketPlan>) -> Option<Bucket> {
        K::convert(state, by)
    }

    #[inline]
    fn idle_at(_: &BucketPlan, state: &Bucket) -> Option<Timestamp> {
        let rounding = u64::from(state.arrival.part > 0);
        state.arrival.whole.checked_add(rounding).map(Timestamp::from_micros)
    }
}
