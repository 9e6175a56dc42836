//! A counter: a state, and the limit it was counted under.
//!
//! If a rule changes at run time, nodes have different revisions of it for a while. A higher
//! revision converts the counter once; a lower one is judged by the newer limit that it finds. So
//! two versions that alternate during a roll-out cannot refill each other.

use crate::algorithm::bucket::AheadReason;
use crate::algorithm::{Change, Effect, State};
use crate::{Charge, Decision, Limit, Timestamp};

/// The state of a key, with the limit that it was counted under.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    state: State,
    under: Limit,
}

impl Counter {
    /// A counter without charges.
    pub const fn absent(limit: &Limit) -> Self {
        Self { state: State::Absent, under: *limit }
    }

    /// A counter with this state, counted under this limit.
    pub const fn new(state: State, under: &Limit) -> Self {
        Self { state, under: *under }
    }

    /// The state.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The state, without the limit.
    pub fn into_state(self) -> State {
        self.state
    }

    /// The limit that judges: after [`Counter::settle`], the charge's or a newer one.
    pub const fn under(&self) -> &Limit {
        &self.under
    }

    /// Brings the counter up to date for `now` and for a charge under `limit`. Returns true if the
    /// state changed; then write it even if the charge is refused.
    pub fn settle(&mut self, limit: &Limit, now: Timestamp) -> bool {
        let mut changed = self.under.settle(&mut self.state, now);
        if matches!(self.state, State::Absent) {
            self.under = *limit;
            return changed;
        }
        if !self.under.counts_like(limit) && limit.revision() >= self.under.revision() {
            let change = if limit.revision() > self.under.revision() {
                Change::Revise(limit.change_from(&self.under))
            } else {
                Change::Adopt
            };
            self.state = limit.convert(&self.under, std::mem::take(&mut self.state), change, now);
            self.under = *limit;
            changed = true;
        }
        changed
    }

    /// Returns the decision about `charge`, and the edit that carries it out. The counter must be
    /// settled for that charge.
    pub fn decide(&self, charge: &Charge<'_>, now: Timestamp) -> (Decision, Effect) {
        self.under.decide(&self.state, charge, now)
    }

    /// Applies an edit that [`Counter::decide`] made.
    pub fn apply(&mut self, effect: Effect) {
        self.under.apply(&mut self.state, effect);
    }

    /// Settles, decides, and applies unless refused.
    ///
    /// ```
    /// use tollgate_core::{Charge, Counter, Key, Limit, Timestamp, Verdict, algorithm::TokenBucket};
    ///
    /// let limit = Limit::new(TokenBucket, "1 per 1s burst 10".parse()?)?;
    /// let mut counter = Counter::absent(&limit);
    /// let charge = Charge::take(Key::new("k")?, &limit, 10)?;
    ///
    /// assert_eq!(counter.charge(&charge, Timestamp::EPOCH).verdict, Verdict::Allow);
    /// assert!(!counter.charge(&charge, Timestamp::EPOCH).passes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn charge(&mut self, charge: &Charge<'_>, now: Timestamp) -> Decision {
        if let Some(decision) = self.charge_immediately(charge, now) {
            return decision;
        }
        self.charge_settled(charge, now)
    }

    /// Makes an immediate take from a bucket under an unchanged limit, as nearly every charge is
    /// one.
    #[inline]
    fn charge_immediately(&mut self, charge: &Charge<'_>, now: Timestamp) -> Option<Decision> {
        let cost = charge.immediate_cost()?;
        let plan = self.under.bucket_plan()?;
        let (State::TokenBucket(bucket) | State::LeakyMeter(bucket)) = &mut self.state else {
            return None;
        };
        if bucket.ahead != AheadReason::WithinBurst || !self.under.counts_like(charge.limit()) {
            return None;
        }
        let take = plan.take_immediately(&mut bucket.arrival, cost, now)?;
        Some(plan.answer(take, cost))
    }

    fn charge_settled(&mut self, charge: &Charge<'_>, now: Timestamp) -> Decision {
        self.settle(charge.limit(), now);
        let (decision, effect) = self.decide(charge, now);
        if decision.passes() {
            self.apply(effect);
        }
        decision
    }
}
