//! Overflow: counters shared by the keys for which there was no room.
//!
//! Each limit has one, for all such keys. Their number is bounded: a limit beyond it refuses.

use std::collections::HashMap;

use tollgate_core::{
    Basis, Charge, Counter, Decision, Limit, OnFull, Op, Retry, State, Timestamp, Verdict,
};

/// The most limits that share counters at once. A rule set has fewer, and clients that bring their
/// own quotas must not add more.
const MAX_LIMITS: usize = 1024;

/// Shared counters by limit.
#[derive(Debug, Default)]
pub(crate) struct Overflow {
    counters: HashMap<Limit, State>,
    /// The latest moment of a decision. Shards agree on the time only roughly, and an apparent step
    /// back of the clock would end leases early.
    latest: Timestamp,
}

impl Overflow {
    /// Settles the race between reading a monotonic clock and taking the lock.
    pub(crate) fn no_earlier(&mut self, now: Timestamp) -> Timestamp {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Answers a charge whose key has no room. `until_room` is the time after which asking again
    /// may help.
    pub(crate) fn charge(
        &mut self,
        charge: &Charge<'_>,
        until_room: Retry,
        now: Timestamp,
    ) -> Decision {
        match self.target(charge, until_room, now) {
            OverflowTarget::Counter(mut counter) => {
                let mut decision = counter.charge(charge, now);
                decision.basis = Basis::Overflow;
                self.put(charge.limit(), counter);
                decision
            }
            OverflowTarget::Fixed(verdict) => Decision::overflow(verdict),
        }
    }

    /// Takes out the counter of a charge whose key has no room. [`Overflow::put`] brings it back.
    pub(crate) fn target(
        &mut self,
        charge: &Charge<'_>,
        until_room: Retry,
        now: Timestamp,
    ) -> OverflowTarget {
        match charge.limit().on_full() {
            // What already happened cannot be refused.
            OnFull::Refuse if matches!(charge.op(), Op::Debit { .. }) => {
                OverflowTarget::Fixed(Verdict::Allow)
            }
            OnFull::Admit => OverflowTarget::Fixed(Verdict::Allow),
            OnFull::Refuse => OverflowTarget::Fixed(Verdict::Deny(until_room)),
            OnFull::Share => {
                let full = |counters: &HashMap<Limit, State>| {
                    counters.len() >= MAX_LIMITS && !counters.contains_key(charge.limit())
                };
                if full(&self.counters) {
                    self.drop_idle(now);
                }
                if full(&self.counters) {
                    return OverflowTarget::Fixed(Verdict::Deny(until_room));
                }
                let state = self.counters.get_mut(charge.limit()).map(std::mem::take);
                OverflowTarget::Counter(Counter::new(state.unwrap_or_default(), charge.limit()))
            }
        }
    }

    pub(crate) fn put(&mut self, limit: &Limit, counter: Counter) {
        match counter.into_state() {
            State::Absent => self.counters.remove(limit),
            state => self.counters.insert(*limit, state),
        };
    }

    /// True if a permit under this limit may be held here.
    pub(crate) fn may_hold(&self, limit: &Limit) -> bool {
        self.counters.contains_key(limit)
    }

    fn drop_idle(&mut self, now: Timestamp) {
        self.counters.retain(|limit, state| limit.idle_at(state).is_none_or(|idle| idle > now));
    }
}

/// The counter of a charge whose key has no room.
pub(crate) enum OverflowTarget {
    /// The counter of its limit.
    Counter(Counter),
    /// No counter, but a fixed verdict.
    Fixed(Verdict),
}
