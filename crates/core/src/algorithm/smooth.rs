//! Smooth limiters: a steady rate with stored permits, by Guava's formulas.
//!
//! The state is the number of stored permits `x` and the moment `F` from which the next permit is
//! free. Idle time after `F` is stored as permits, up to a maximum. A charge of n takes from
//! storage first, and the rest fresh at the stable interval. The price of both moves `F` on.
//!
//! - *Bursty*: stored permits are free; the maximum is the quota's burst.
//! - *Warming up*: stored permits cost **more** than fresh ones, up to the cold factor, because
//!   an idle service is cold. An absent state is cold.
//!
//! By default the *next* caller waits for the price of a charge (see [`Payment`]), so a large
//! charge after idling passes at once and leaves debt. In Guava that debt is unbounded; here one
//! charge takes at most `max_debt` permits.
//!
//! Bounds: after the stored permits are spent, the long-run rate is at most 1/(1/r − 3 µs), for
//! rates up to 10⁴ per second (higher ones are refused): each of up to three terms of a price is
//! truncated to whole microseconds, as Guava does. `F` is at most the last wait plus the price
//! of `max_debt` permits ahead.
//!
//! This module alone computes in floating point. Its twin in Lua must perform the same
//! operations in the same order: both use IEEE doubles, so they agree bit for bit.
#![expect(
    clippy::float_arithmetic,
    clippy::as_conversions,
    reason = "matches Guava's doubles; truncation by `as` saturates and is intended"
)]

use std::num::NonZeroU64;
use std::time::Duration;

use super::{Change, Conversion, FURTHEST_US, MAX_AHEAD_US, Outcome, Step, refuse_own_burst};
use crate::charge::{Op, Terms};
use crate::decision::{Decision, Retry, Verdict};
use crate::limit::{LimitError, LimitErrorKind, OnChange};
use crate::time::micros;
use crate::{Quota, Timestamp};

/// A steady rate with stored permits.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::{Limit, algorithm::Smooth};
///
/// Limit::new(Smooth::bursty(), "2 per 1s".parse()?)?;
/// Limit::new(Smooth::warming_up(Duration::from_secs(4)), "2 per 1s".parse()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Smooth {
    /// The warm-up period; `None` if it is bursty.
    pub warm_up: Option<Duration>,
    /// The number of stable intervals that a permit takes when cold.
    pub cold_factor: u8,
    /// The caller that waits for the price of a charge.
    pub payment: Payment,
    /// The most permits that one charge may take in advance; a default if `None`.
    pub max_debt: Option<NonZeroU64>,
}

/// The caller that waits for the price of a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Payment {
    /// The next caller: this one passes as soon as the last one's debt is over.
    #[default]
    Next,
    /// The caller itself: it passes when its own permits are earned.
    Own,
}

impl Smooth {
    /// The number of bursts that one charge may take in advance, unless [`Smooth::with_max_debt`]
    /// sets another bound.
    pub const DEFAULT_DEBT_BURSTS: u64 = 10;

    /// Stored permits are free; the quota's burst is their maximum.
    pub const fn bursty() -> Self {
        Self { warm_up: None, cold_factor: 3, payment: Payment::Next, max_debt: None }
    }

    /// Warms up over this time, from three times the stable interval.
    ///
    /// A period beyond [`Quota::MAX_PERIOD`] or of zero is refused by [`crate::Limit::new`].
    pub fn warming_up(period: Duration) -> Self {
        Self { warm_up: Some(Duration::from_micros(micros(period))), ..Self::bursty() }
    }

    /// Sets the number of stable intervals that a permit takes when cold, 1 to 100; 3 by default.
    pub const fn with_cold_factor(mut self, factor: u8) -> Self {
        self.cold_factor = factor;
        self
    }

    /// Sets the caller that waits for the price of a charge.
    pub const fn with_payment(mut self, payment: Payment) -> Self {
        self.payment = payment;
        self
    }

    /// Sets the most permits that one charge may take when the next caller pays for it.
    pub const fn with_max_debt(mut self, permits: u64) -> Self {
        self.max_debt = NonZeroU64::new(permits);
        self
    }
}

/// The numbers of a smooth limiter. Times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SmoothPlan {
    /// A permit's time at the stable rate, `s`.
    pub stable: f64,
    /// The most permits stored, `M`.
    pub max_permits: f64,
    /// Stored permits above this cost more than the stable interval, `T`.
    pub threshold: f64,
    /// The extra price of each further stored permit.
    pub slope: f64,
    /// Idle time that stores one permit.
    pub cooldown: f64,
    /// True if stored permits cost something.
    pub warming: bool,
    /// The caller that waits.
    pub payment: Payment,
    /// The most permits one charge may take in advance.
    pub max_debt: u64,
}

/// The stored permits, and the moment from which the next one is free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SmoothState {
    /// Stored permits, `x`.
    pub stored: f64,
    /// The moment from which the next permit is free, `F`.
    pub free_at: Timestamp,
    /// The time of the last write. If now is earlier, the clock has stepped back.
    pub written_at: Timestamp,
}

impl SmoothState {
    /// No stored permits, and the next one free now: the start of Guava's bursty limiter.
    pub const fn empty(now: Timestamp) -> Self {
        Self { stored: 0.0, free_at: now, written_at: now }
    }
}

impl SmoothPlan {
    fn full(&self, now: Timestamp) -> SmoothState {
        SmoothState { stored: self.max_permits, free_at: now, written_at: now }
    }

    /// Stores the idle time since `F` as permits.
    fn resync(&self, state: Option<&SmoothState>, now: Timestamp) -> SmoothState {
        let Some(state) = state else { return self.full(now) };
        let idle = now.micros_since(state.free_at);
        if idle == 0 {
            return SmoothState { written_at: now, ..*state };
        }
        let stored = self.max_permits.min(state.stored + idle as f64 / self.cooldown);
        SmoothState { stored, free_at: now, written_at: now }
    }

    /// The price of `k` of `x` stored permits: the area under the price curve.
    fn stored_price(&self, x: f64, k: f64) -> u64 {
        if !self.warming {
            return 0;
        }
        let above = x - self.threshold;
        let mut rest = k;
        let mut micros = 0;
        if above > 0.0 {
            let taken = above.min(k);
            let sum = self.price_at(above) + self.price_at(above - taken);
            micros = (taken * sum / 2.0) as u64;
            rest -= taken;
        }
        micros.saturating_add((self.stable * rest) as u64)
    }

    fn price_at(&self, above_threshold: f64) -> f64 {
        self.stable + above_threshold * self.slope
    }

    /// The price of `cost` permits now, and the permits stored afterwards.
    fn price(&self, synced: &SmoothState, cost: u64) -> (u64, f64) {
        let n = cost as f64;
        let from_storage = n.min(synced.stored);
        let fresh = n - from_storage;
        let price = self.stored_price(synced.stored, from_storage);
        let price = price.saturating_add((fresh * self.stable) as u64);
        (price, synced.stored - from_storage)
    }

    fn charge(&self, synced: &SmoothState, cost: u64) -> Option<SmoothState> {
        let (price, stored) = self.price(synced, cost);
        let free_at = synced.free_at.checked_plus_micros(price)?;
        Some(SmoothState { stored, free_at, ..*synced })
    }

    fn look(&self, verdict: Verdict, state: Option<&SmoothState>, now: Timestamp) -> Decision {
        let synced = self.resync(state, now);
        let debt = synced.free_at.micros_since(now);
        let remaining = if debt > 0 { 0 } else { synced.stored as u64 };
        let refill = ((self.max_permits - synced.stored) * self.cooldown).ceil() as u64;
        Decision::new(verdict, remaining, debt.saturating_add(refill))
    }

    fn take(
        &self,
        state: Option<&SmoothState>,
        cost: u64,
        terms: Terms,
    ) -> (Verdict, Option<SmoothState>) {
        let Terms { patience_us, now, .. } = terms;
        if self.payment == Payment::Next && cost > self.max_debt {
            return (Verdict::Deny(Retry::Never), None);
        }
        let synced = self.resync(state, now);
        let Some(charged) = self.charge(&synced, cost) else {
            return (Verdict::Deny(Retry::Never), None);
        };
        let grant = match self.payment {
            Payment::Next => synced.free_at,
            Payment::Own => charged.free_at,
        };
        let wait = grant.micros_since(now);
        if wait <= patience_us {
            let verdict = match wait {
                0 => Verdict::Allow,
                wait => Verdict::Wait(Duration::from_micros(wait)),
            };
            return (verdict, Some(charged));
        }
        let retry = match self.payment {
            Payment::Next => Some(wait.saturating_sub(patience_us)),
            Payment::Own => self.retry_own(state, cost, terms),
        };
        let retry = retry.map_or(Retry::Never, |us| Retry::After(Duration::from_micros(us)));
        (Verdict::Deny(retry), None)
    }

    /// The time until the caller's own wait fits its patience; `None` if idling never helps: stored
    /// permits of a warming limiter only get dearer, and those of a bursty one run out at the
    /// maximum.
    fn retry_own(&self, state: Option<&SmoothState>, cost: u64, terms: Terms) -> Option<u64> {
        let Terms { patience_us, now, .. } = terms;
        let synced = self.resync(state, now);
        let wait_at = |later: u64| {
            let then = now.checked_plus_micros(later)?;
            let synced = self.resync(state, then);
            Some(self.charge(&synced, cost)?.free_at.micros_since(then))
        };
        let fits = |later: u64| wait_at(later).is_some_and(|wait| wait <= patience_us);
        // Until the debt is over the wait shrinks by a microsecond each microsecond.
        let debt = synced.free_at.micros_since(now);
        if fits(debt) {
            let wait = wait_at(0)?;
            return Some(wait.saturating_sub(patience_us));
        }
        if self.warming {
            return None;
        }
        // Then it shrinks as permits are stored: bisect, as rounding makes the edge ragged.
        let refill = ((self.max_permits - synced.stored) * self.cooldown).ceil() as u64;
        let (mut refused, mut passes) = (debt, debt.saturating_add(refill).saturating_add(1));
        if !fits(passes) {
            return None;
        }
        while passes.saturating_sub(refused) > 1 {
            let middle = refused.midpoint(passes);
            if fits(middle) { passes = middle } else { refused = middle }
        }
        Some(passes)
    }

    /// Permits that have drained since `at` are worth nothing any more. The rest shortens the debt
    /// first, at the stable price, and then goes back into storage.
    fn credit(&self, state: &SmoothState, cost: u64, at: Timestamp, now: Timestamp) -> SmoothState {
        let synced = self.resync(Some(state), now);
        let drained = now.micros_since(at) as f64 / self.stable;
        let worth = (cost as f64 - drained).max(0.0);
        let debt = synced.free_at.micros_since(now);
        let repaid = debt.min((worth * self.stable) as u64);
        let rest = (worth - repaid as f64 / self.stable).max(0.0);
        let rest = if repaid < debt { 0.0 } else { rest };
        SmoothState {
            stored: self.max_permits.min(synced.stored + rest),
            free_at: synced.free_at.minus_micros(repaid),
            written_at: now,
        }
    }

    fn debit(
        &self,
        state: Option<&SmoothState>,
        cost: u64,
        at: Timestamp,
        now: Timestamp,
    ) -> Option<SmoothState> {
        if cost == 0 || cost as f64 * self.stable <= now.micros_since(at) as f64 {
            return None;
        }
        let synced = self.resync(state, now);
        let (price, stored) = self.price(&synced, cost);
        let latest = now.plus_micros(MAX_AHEAD_US).max(synced.free_at);
        let free_at = synced.free_at.plus_micros(price).min(latest);
        Some(SmoothState { stored, free_at, written_at: now })
    }
}

impl Step for Smooth {
    type Plan = SmoothPlan;
    type State = SmoothState;
    type Edit = SmoothState;

    fn plan(&self, quota: &Quota) -> Result<SmoothPlan, LimitError> {
        let (count, period) = (quota.count().get(), quota.period_us().get());
        if count.saturating_mul(100) > period {
            let reason = format!(
                "smooth limiters truncate to microseconds and are only exact enough up to 10000 \
                 per second, but `{quota}` is faster: use token-bucket"
            );
            return Err(LimitError::new(LimitErrorKind::TooFast, reason));
        }
        let fail = |reason| Err(LimitError::new(LimitErrorKind::Parameter, reason));
        if self.cold_factor == 0 || self.cold_factor > 100 {
            return fail(format!("a cold factor of {}: use 1 to 100", self.cold_factor));
        }
        if self.warm_up.is_some_and(|span| micros(span) == 0 || span > Quota::MAX_PERIOD) {
            return fail("a warm-up of zero or above 365d".to_owned());
        }
        let debt = quota.burst().get().saturating_mul(Self::DEFAULT_DEBT_BURSTS);
        let max_debt = self.max_debt.map_or(debt, NonZeroU64::get);
        let cold = f64::from(self.cold_factor);
        let stable = period as f64 / count as f64;
        if max_debt as f64 * stable * cold > Quota::MAX_REFILL.as_micros() as f64 {
            return fail(format!("a debt of {max_debt} permits would take more than ten years"));
        }
        let common = SmoothPlan {
            stable,
            max_permits: quota.burst().get() as f64,
            threshold: 0.0,
            slope: 0.0,
            cooldown: stable,
            warming: false,
            payment: self.payment,
            max_debt,
        };
        let Some(warm_up) = self.warm_up else { return Ok(common) };
        refuse_own_burst(quota, "a warming-up limiter")?;
        let warm_up = micros(warm_up) as f64;
        let threshold = 0.5 * warm_up / stable;
        let max_permits = threshold + 2.0 * warm_up / (stable + cold * stable);
        let slope = (cold * stable - stable) / (max_permits - threshold);
        let cooldown = warm_up / max_permits;
        Ok(SmoothPlan { max_permits, threshold, slope, cooldown, warming: true, ..common })
    }

    fn settle(_: &SmoothPlan, state: &mut SmoothState, now: Timestamp) -> bool {
        let prior = *state;
        // What lay ahead of the write lies as far ahead of the earlier now.
        let free_at = state.free_at.minus_micros(state.written_at.micros_since(now));
        state.free_at = free_at.min(now.plus_micros(FURTHEST_US));
        state.written_at = state.written_at.min(now);
        *state != prior
    }

    fn decide(
        plan: &SmoothPlan,
        state: Option<&SmoothState>,
        terms: Terms,
    ) -> Outcome<SmoothState> {
        let now = terms.now;
        let (verdict, edit) = match terms.op {
            Op::Take(0) | Op::Peek(0) => (Verdict::Allow, None),
            Op::Take(cost) => plan.take(state, cost, terms),
            Op::Peek(cost) => (plan.take(state, cost, terms).0, None),
            Op::Debit { cost, at } => (Verdict::Allow, plan.debit(state, cost, at, now)),
            Op::Credit { cost, at } => {
                (Verdict::Allow, state.map(|state| plan.credit(state, cost, at, now)))
            }
            Op::Acquire { .. } | Op::Renew { .. } | Op::Release { .. } => {
                (Verdict::Deny(Retry::Never), None)
            }
        };
        (plan.look(verdict, edit.as_ref().or(state), now), edit)
    }

    fn apply(_: &SmoothPlan, _: Option<SmoothState>, edit: SmoothState) -> Option<SmoothState> {
        Some(edit)
    }

    /// `F` stays: the rate under which debt was made sets its price.
    fn convert(state: SmoothState, by: Conversion<'_, SmoothPlan>) -> Option<SmoothState> {
        let Conversion { from, to, change, now } = by;
        let synced = from.resync(Some(&state), now);
        let stored = match change {
            Change::Revise(OnChange::Reset) => return None,
            Change::Revise(OnChange::Keep) => to.max_permits - (from.max_permits - synced.stored),
            Change::Revise(OnChange::Scale) => synced.stored * to.max_permits / from.max_permits,
            Change::Adopt => synced.stored,
        };
        Some(SmoothState { stored: stored.clamp(0.0, to.max_permits), ..synced })
    }

    fn idle_at(plan: &SmoothPlan, state: &SmoothState) -> Option<Timestamp> {
        let refill = ((plan.max_permits - state.stored) * plan.cooldown).ceil() as u64;
        // Rounding may leave the last permit a hair short of the maximum.
        state.free_at.checked_plus_micros(refill.saturating_add(1))
    }
}
