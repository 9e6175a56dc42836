//! One shard of the store: a table, the states that spilled from it, and the limits of its keys.
//!
//! One lock protects a shard; the code here does not lock. Room is searched in this order: a free
//! slot, the slot of an idle key (dropping it loses nothing), growth. Otherwise the shard is full.
//! A key that still counts is never dropped.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::state::ImmediateTake;
use tollgate_core::{Charge, Counter, Decision, Effect, Limit, Retry, Span, State, Timestamp};

use crate::fingerprint::Fingerprint;
use crate::limit_interner::LimitInterner;
use crate::slot::{LimitId, Slot};
use crate::spill::Spill;
use crate::table::{FreeSpace, NEVER, Table};

/// Counters by fingerprint, bounded.
///
/// The order of the fields matters: the fields that every charge reads share the first cache line
/// with the lock, so a shard that two threads compete for moves between them in one piece.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Shard {
    /// The latest moment of a decision.
    pub(crate) latest: Timestamp,
    /// The index of the slot that was charged last, if that was the last charge of all.
    last_index: usize,
    pub(crate) table: Table,
    /// Number of promoted slots.
    promoted: usize,
    pub(crate) limits: LimitInterner,
    spill: Spill,
    /// The most bytes that spilled states can occupy if all grow to their limit.
    heap_promised: usize,
    max_heap: usize,
    /// Keys for which a request in progress has found room, and the bytes that they can occupy.
    reserved: usize,
    reserved_heap: usize,
    pub(crate) stats: ShardStats,
}

/// Totals of a shard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShardStats {
    /// Charges answered by `on-full`.
    pub(crate) overflowed: u64,
    /// Idle keys dropped to make room.
    pub(crate) reclaimed: u64,
}

/// The write of an immediate take that was planned.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotWrite {
    /// Replaces the slot at this index.
    Set(usize, Slot),
    /// Inserts a slot with these twelve bytes.
    Insert(u64, u32),
}

/// The outcome of one charge in a shard.
pub(crate) enum ChargeOutcome {
    /// An immediate take from a bucket under the charge's own limit.
    Immediate(ImmediateTake),
    /// An immediate take, on the same key as the charge before it.
    Repeated(ImmediateTake),
    /// Nothing happened: the slot is promoted and must be demoted first.
    Promoted,
    /// Decided.
    Decided(Decision),
    /// The key has no counter, and there is no room for one.
    Full,
    /// The key has no counter, and the charge does not create one.
    Absent(Decision),
}

impl Shard {
    pub(crate) fn new(max_keys: usize, max_heap: usize) -> Self {
        Self {
            table: Table::new(max_keys),
            limits: LimitInterner::default(),
            spill: Spill::default(),
            heap_promised: 0,
            max_heap,
            reserved: 0,
            latest: Timestamp::EPOCH,
            promoted: 0,
            last_index: usize::MAX,
            reserved_heap: 0,
            stats: ShardStats::default(),
        }
    }

    /// Settles the race between reading a monotonic clock and taking the lock.
    #[inline]
    pub(crate) fn no_earlier(&mut self, now: Timestamp) -> Timestamp {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Decides and makes a single charge.
    #[inline]
    pub(crate) fn charge(
        &mut self,
        fingerprint: Fingerprint,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> ChargeOutcome {
        let Some(index) = self.table.find(fingerprint) else {
            return self.charge_absent(fingerprint, charge, now);
        };
        let slot = self.table.slot(index);
        if let Some((take, new)) = self.take_immediately(slot, charge, now) {
            if let ImmediateTake::Pass(_) = take {
                self.table.set(index, new);
            }
            if self.last_index == index {
                return ChargeOutcome::Repeated(take);
            }
            self.last_index = index;
            return ChargeOutcome::Immediate(take);
        }
        if slot.is_promoted() {
            return ChargeOutcome::Promoted;
        }
        self.charge_any(index, charge, now)
    }

    #[inline]
    fn take_immediately(
        &self,
        slot: Slot,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Option<(ImmediateTake, Slot)> {
        slot.take_immediately(self.limits.limit(slot.limit())?, charge, now)
    }

    /// Plans an immediate take for a request that makes all its takes or none. Returns the result
    /// and the write. A key without a slot counts as full. `None` for any other charge.
    #[inline]
    pub(crate) fn plan_immediately(
        &self,
        fingerprint: Fingerprint,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Option<(ImmediateTake, SlotWrite)> {
        if let Some(index) = self.table.find(fingerprint) {
            let (take, slot) = self.take_immediately(self.table.slot(index), charge, now)?;
            return Some((take, SlotWrite::Set(index, slot)));
        }
        let (cost, plan) = (charge.immediate_cost()?, charge.limit().bucket_plan()?);
        let mut arrival = Span::ZERO;
        let take = plan.take_immediately(&mut arrival, cost, now)?;
        let part = u32::try_from(arrival.part).ok()?;
        Some((take, SlotWrite::Insert(arrival.whole, part)))
    }

    /// Executes a write of [`Shard::plan_immediately`]. Between the two, only other such writes may
    /// happen, and there must be room for every insert.
    #[inline]
    pub(crate) fn write(&mut self, fingerprint: Fingerprint, limit: &Limit, plan: SlotWrite) {
        match plan {
            SlotWrite::Set(index, slot) => self.table.set(index, slot),
            SlotWrite::Insert(word, small) => {
                let id = self.limits.acquire(limit);
                self.table.insert(Slot::new(fingerprint, id, word, small), word);
            }
        }
    }

    pub(crate) fn has(&self, fingerprint: Fingerprint) -> bool {
        self.table.find(fingerprint).is_some()
    }

    /// Promotes the slot charged last. Returns the slot and its limit.
    pub(crate) fn promote(&mut self) -> Option<(Slot, Arc<Limit>)> {
        let index = self.last_index;
        let slot = self.table.slot(index);
        let limit = Arc::clone(self.limits.shared(slot.limit())?);
        self.table.set(index, slot.promoted());
        self.promoted = self.promoted.saturating_add(1);
        Some((slot, limit))
    }

    /// Takes back a promoted slot that was last charged at `latest`.
    pub(crate) fn demote(&mut self, slot: Slot, latest: Timestamp) {
        if let Some(index) = self.table.find(slot.fingerprint) {
            self.table.set(index, slot);
            // A promoted slot is left out of its segment's bound.
            self.table.lower_bound(index, slot.word);
            self.promoted = self.promoted.saturating_sub(1);
        }
        self.latest = self.latest.max(latest);
    }

    /// True if any slot is promoted.
    pub(crate) const fn any_promoted(&self) -> bool {
        self.promoted > 0
    }

    pub(crate) fn has_promoted(&self, fingerprint: Fingerprint) -> bool {
        self.table.find(fingerprint).is_some_and(|index| self.table.slot(index).is_promoted())
    }

    /// True if `keys` new keys may find no room although promoted keys are idle.
    pub(crate) fn promoted_may_free_room(&self, keys: usize) -> bool {
        self.promoted > 0 && self.table.free_space(keys) == FreeSpace::Full
    }

    /// Makes any operation on a key that has a counter.
    #[inline(never)]
    fn charge_any(&mut self, index: usize, charge: &Charge<'_>, now: Timestamp) -> ChargeOutcome {
        self.last_index = usize::MAX;
        let slot = self.table.slot(index);
        let id = slot.limit();
        let Some(under) = self.limits.limit(id) else { return ChargeOutcome::Full };
        if let Some(mut state) = slot.state(under).filter(|_| under.counts_like(charge.limit())) {
            let repaired = under.settle(&mut state, now);
            let (decision, effect) = under.decide(&state, charge, now);
            if decision.passes() {
                under.apply(&mut state, effect);
            } else if !repaired {
                return ChargeOutcome::Decided(decision);
            }
            if let Some(new) = Slot::inline(slot.fingerprint, id, &state) {
                self.table.set(index, new);
                if new.word <= slot.word {
                    self.table.lower_bound(index, new.word);
                }
            } else {
                self.put_at(index, Counter::new(state, charge.limit()));
            }
            return ChargeOutcome::Decided(decision);
        }
        let Some(mut counter) = self.take_at(index) else { return ChargeOutcome::Full };
        let decision = counter.charge(charge, now);
        self.put_at(index, counter);
        ChargeOutcome::Decided(decision)
    }

    #[inline(never)]
    fn charge_absent(
        &mut self,
        fingerprint: Fingerprint,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> ChargeOutcome {
        self.last_index = usize::MAX;
        let limit = charge.limit();
        let mut arrival = Span::ZERO;
        if let (Some(cost), Some(plan)) = (charge.immediate_cost(), limit.bucket_plan())
            && let Some(take @ ImmediateTake::Pass(_)) =
                plan.take_immediately(&mut arrival, cost, now)
            && let Ok(part) = u32::try_from(arrival.part)
            && self.make_room(fingerprint, limit, now)
        {
            self.end_reservations();
            self.write(fingerprint, limit, SlotWrite::Insert(arrival.whole, part));
            return ChargeOutcome::Immediate(take);
        }
        let mut state = State::Absent;
        let (decision, effect) = limit.decide(&state, charge, now);
        if !decision.passes() || effect == Effect::None {
            return ChargeOutcome::Absent(decision);
        }
        if !self.make_room(fingerprint, limit, now) {
            return ChargeOutcome::Full;
        }
        self.end_reservations();
        limit.apply(&mut state, effect);
        self.insert(fingerprint, Counter::new(state, limit));
        ChargeOutcome::Decided(decision)
    }

    /// Makes room for one more key under this limit, besides those reserved; false if there is
    /// none.
    pub(crate) fn make_room(
        &mut self,
        fingerprint: Fingerprint,
        limit: &Limit,
        now: Timestamp,
    ) -> bool {
        let heap = heap_of(limit);
        let wanted = self.reserved_heap.saturating_add(heap);
        while heap > 0 && self.heap_promised.saturating_add(wanted) > self.max_heap {
            if !self.reclaim_one(fingerprint, now) {
                return false;
            }
        }
        let found = self.make_slot(fingerprint, now);
        if found {
            self.reserved_heap = wanted;
        }
        found
    }

    fn make_slot(&mut self, fingerprint: Fingerprint, now: Timestamp) -> bool {
        let wanted = self.reserved.saturating_add(1);
        let mut swept = false;
        loop {
            match self.table.free_space(wanted) {
                FreeSpace::Available => {
                    self.reserved = wanted;
                    return true;
                }
                // Each full sweep is paid for by the keys that came since the last one: it
                // either frees an eighth of the table or lets it grow by a twelfth.
                FreeSpace::AfterGrowth if !swept && !self.table.is_small() => {
                    let before = self.table.len();
                    self.reclaim_all(now);
                    let freed = before.saturating_sub(self.table.len());
                    if freed < before / 8 {
                        self.table.grow();
                    }
                    swept = true;
                }
                FreeSpace::AfterGrowth => self.table.grow(),
                FreeSpace::Full => {
                    if !self.reclaim_one(fingerprint, now) {
                        return false;
                    }
                }
            }
        }
    }

    /// Drops the reservations of a finished request.
    pub(crate) const fn end_reservations(&mut self) {
        self.reserved = 0;
        self.reserved_heap = 0;
    }

    /// The earliest retry at which a key may be idle and make room.
    pub(crate) fn until_room(&self, now: Timestamp) -> Retry {
        match self.table.earliest_idle() {
            NEVER => Retry::Never,
            earliest => {
                let after = Timestamp::from_micros(earliest).since(now);
                Retry::After(after.max(Duration::from_micros(1)))
            }
        }
    }

    /// Takes out the counter of this fingerprint. [`Shard::put`] brings it back.
    pub(crate) fn take(&mut self, fingerprint: Fingerprint) -> Option<Counter> {
        let index = self.table.find(fingerprint)?;
        self.take_at(index)
    }

    /// Brings a counter back, or adds a new one for which room was made.
    pub(crate) fn put(&mut self, fingerprint: Fingerprint, counter: Counter) {
        match self.table.find(fingerprint) {
            Some(index) => self.put_at(index, counter),
            None if matches!(counter.state(), State::Absent) => {}
            None => self.insert(fingerprint, counter),
        }
    }

    fn take_at(&mut self, index: usize) -> Option<Counter> {
        let slot = self.table.slot(index);
        self.table.set(index, slot.held());
        let under = self.limits.limit(slot.limit())?;
        let state = match slot.spill() {
            Some(spill_index) => self.spill.take(spill_index),
            None => slot.state(under).unwrap_or_default(),
        };
        Some(Counter::new(state, under))
    }

    fn put_at(&mut self, index: usize, counter: Counter) {
        let old = self.table.slot(index);
        if matches!(counter.state(), State::Absent) {
            self.forget(&old);
            self.table.remove(index);
            return;
        }
        let id = match self.limits.limit(old.limit()) {
            Some(under) if under == counter.under() => old.limit(),
            _ => {
                self.promise(counter.under());
                let id = self.limits.acquire(counter.under());
                self.release_limit(old.limit());
                id
            }
        };
        let idle = idle_moment(counter.under(), counter.state());
        let new = Slot::inline(old.fingerprint, id, counter.state());
        let new = match (new, old.spill()) {
            (Some(slot), spilled) => {
                spilled.into_iter().for_each(|spill_index| self.spill.remove(spill_index));
                slot
            }
            (None, Some(spill_index)) => {
                self.spill.put(spill_index, counter.into_state());
                Slot::spilled(old.fingerprint, id, spill_index)
            }
            (None, None) => {
                Slot::spilled(old.fingerprint, id, self.spill.insert(counter.into_state()))
            }
        };
        self.table.set(index, new);
        self.table.lower_bound(index, idle);
    }

    fn insert(&mut self, fingerprint: Fingerprint, counter: Counter) {
        self.promise(counter.under());
        let id = self.limits.acquire(counter.under());
        let idle = idle_moment(counter.under(), counter.state());
        let slot = Slot::inline(fingerprint, id, counter.state()).unwrap_or_else(|| {
            Slot::spilled(fingerprint, id, self.spill.insert(counter.into_state()))
        });
        self.table.insert(slot, idle);
    }

    fn promise(&mut self, limit: &Limit) {
        self.heap_promised = self.heap_promised.saturating_add(heap_of(limit));
    }

    fn release_limit(&mut self, id: LimitId) {
        let heap = self.limits.limit(id).map_or(0, heap_of);
        self.heap_promised = self.heap_promised.saturating_sub(heap);
        self.limits.release(id);
    }

    /// Frees the parts of a slot outside of the table, before the slot is removed.
    fn forget(&mut self, slot: &Slot) {
        if let Some(spill_index) = slot.spill() {
            self.spill.remove(spill_index);
        }
        self.release_limit(slot.limit());
    }

    /// Drops idle keys, the nearest to a fingerprint's home first, until one is gone; false if
    /// there is none.
    fn reclaim_one(&mut self, fingerprint: Fingerprint, now: Timestamp) -> bool {
        let before = self.table.len();
        while self.table.len() == before {
            let Some(segment) = self.table.segment_with_idle_key(now.as_micros(), fingerprint)
            else {
                return false;
            };
            self.sweep(segment, now);
        }
        true
    }

    fn reclaim_all(&mut self, now: Timestamp) {
        for segment in 0..self.table.segments() {
            if self.table.is_due(segment, now.as_micros()) {
                self.sweep(segment, now);
            }
        }
    }

    fn sweep(&mut self, segment: usize, now: Timestamp) {
        let mut gone = smallvec::SmallVec::<[Slot; 64]>::new();
        let (limits, spill) = (&self.limits, &self.spill);
        let idle = |slot: &Slot| {
            limits.limit(slot.limit()).map_or(0, |under| match slot.spill() {
                // A state held by a request in progress, or promoted, is not idle.
                _ if slot.is_away() => NEVER,
                Some(spill_index) => idle_moment(under, spill.state(spill_index)),
                None => idle_moment(under, &slot.state(under).unwrap_or_default()),
            })
        };
        self.table.sweep(segment, now.as_micros(), idle, |slot| gone.push(*slot));
        for slot in &gone {
            self.forget(slot);
        }
        let reclaimed = u64::try_from(gone.len()).unwrap_or(u64::MAX);
        self.stats.reclaimed = self.stats.reclaimed.saturating_add(reclaimed);
    }
}

/// The moment at which a state becomes idle, in the form of the table; past the end of time for
/// never.
fn idle_moment(under: &Limit, state: &State) -> u64 {
    under.idle_at(state).map_or(NEVER, Timestamp::as_micros)
}

/// The heap bytes that a key under this limit can occupy besides its slot.
fn heap_of(limit: &Limit) -> usize {
    match limit.heap_bytes() {
        0 => 0,
        bytes => bytes.saturating_add(size_of::<State>()),
    }
}
