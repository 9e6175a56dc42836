//! The hot slot: a cache line of its own, with a lock, for a key that is charged again and again.
//!
//! In the table, a charge touches two cache lines that other processors also use: that of the
//! shard's lock and that of the key's slot. A hot slot holds a lock, a slot and its limit in one
//! line. Threads that share a key then exchange that line only, and threads on different keys
//! exchange nothing.
//!
//! A key in a hot slot is *promoted*: its slot in the table stays and is marked, and the shard
//! neither decides on it nor drops it. Promotion and demotion hold both locks, the hot
//! slot's and the shard's, so a key's state is always in exactly one of the two. Locks are taken in the
//! order hot slots, then shards, each ascending; a thread that holds a shard may only *try* a hot
//! slot.
//!
//! A hot slot handles immediate takes only. `store.rs` decides when to promote and demote.

use std::sync::{Arc, OnceLock};

use tollgate_core::state::ImmediateTake;
use tollgate_core::{Charge, Limit, Timestamp};

use crate::fingerprint::Fingerprint;
use crate::shard::Shard;
use crate::slot::Slot;
use crate::sync::{AtomicU64, Guard, Lock, Ordering};

/// A slot with its limit, and the latest time at which it was charged.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct HotSlot {
    latest: Timestamp,
    slot: Slot,
    limit: Option<Arc<Limit>>,
}

/// All hot slots of a store, allocated when the first one is needed.
#[derive(Debug)]
pub(crate) struct HotSlots {
    built: OnceLock<HotSlotTable>,
    pub(crate) count: usize,
}

#[derive(Debug)]
struct HotSlotTable {
    /// Half of the fingerprint in each hot slot. It is only a hint: it is read without the lock, so
    /// that a key without a hot slot pays for no lock. It is stored apart from the slots, because a
    /// line that is read before it is locked is fetched from another processor twice.
    hints: Box<[AtomicU64]>,
    hot_slots: Box<[CacheLine]>,
}

/// One cache line.
#[derive(Debug)]
#[repr(align(64))]
struct CacheLine(Lock<HotSlot>);

/// A hot slot under its lock.
pub(crate) struct LockedHotSlot<'a> {
    hint: &'a AtomicU64,
    hot_slot: Guard<'a, HotSlot>,
}

impl HotSlots {
    /// Creates `count` hot slots, a power of two.
    pub(crate) fn new(count: usize) -> Self {
        // Loom does not see how a `OnceLock` orders its initialisation, so loom builds them at once.
        let built = if cfg!(loom) { HotSlotTable::new(count).into() } else { OnceLock::new() };
        Self { built, count }
    }

    /// The index of a fingerprint's hot slot. Its low bits choose the shard as well, so all keys of
    /// a hot slot belong to one shard.
    pub(crate) fn index(&self, fingerprint: Fingerprint) -> usize {
        let mask = u64::try_from(self.count.saturating_sub(1)).unwrap_or(0);
        usize::try_from(fingerprint.low & mask).unwrap_or(0)
    }

    /// Locks the hot slot of this fingerprint if it holds this key.
    #[inline]
    pub(crate) fn lock_holding(&self, fingerprint: Fingerprint) -> Option<LockedHotSlot<'_>> {
        let built = self.built.get()?;
        let index = self.index(fingerprint);
        let hint = built.hints.get(index)?;
        if hint.load(Ordering::Relaxed) != fingerprint.low {
            return None;
        }
        let hot_slot = built.hot_slots.get(index)?.0.lock();
        (hot_slot.slot.fingerprint == fingerprint).then_some(LockedHotSlot { hint, hot_slot })
    }

    /// Locks a hot slot; `None` before any was built.
    pub(crate) fn lock(&self, index: usize) -> Option<LockedHotSlot<'_>> {
        let (hint, hot_slot) = self.built.get()?.at(index)?;
        Some(LockedHotSlot { hint, hot_slot: hot_slot.lock() })
    }

    /// Locks a hot slot, unless another thread holds it.
    pub(crate) fn try_lock(&self, index: usize) -> Option<LockedHotSlot<'_>> {
        let (hint, hot_slot) =
            self.built.get_or_init(|| HotSlotTable::new(self.count)).at(index)?;
        hot_slot.try_lock().map(|hot_slot| LockedHotSlot { hint, hot_slot })
    }
}

impl HotSlotTable {
    fn new(count: usize) -> Self {
        Self {
            hints: (0..count).map(|_| AtomicU64::new(0)).collect(),
            hot_slots: (0..count).map(|_| CacheLine(Lock::new(HotSlot::default()))).collect(),
        }
    }

    fn at(&self, index: usize) -> Option<(&AtomicU64, &Lock<HotSlot>)> {
        Some((self.hints.get(index)?, &self.hot_slots.get(index)?.0))
    }
}

impl LockedHotSlot<'_> {
    /// Settles the race between reading a monotonic clock and taking the lock.
    #[inline]
    pub(crate) fn no_earlier(&mut self, now: Timestamp) -> Timestamp {
        self.hot_slot.latest = self.hot_slot.latest.max(now);
        self.hot_slot.latest
    }

    /// Makes an immediate take. `None`, with nothing done, for any other charge.
    #[inline]
    pub(crate) fn take_immediately(
        &mut self,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Option<ImmediateTake> {
        let hot_slot = &mut *self.hot_slot;
        let (take, slot) = hot_slot.slot.take_immediately(hot_slot.limit.as_ref()?, charge, now)?;
        hot_slot.slot = slot;
        Some(take)
    }

    /// Takes over this slot, which was last charged at `latest`.
    pub(crate) fn install(&mut self, slot: Slot, limit: Arc<Limit>, latest: Timestamp) {
        self.hint.store(slot.fingerprint.low, Ordering::Relaxed);
        *self.hot_slot = HotSlot { latest, slot, limit: Some(limit) };
    }

    /// Returns the slot to its shard, if there is one.
    pub(crate) fn demote_into(&mut self, shard: &mut Shard) {
        if self.hot_slot.limit.take().is_some() {
            self.hint.store(0, Ordering::Relaxed);
            shard.demote(std::mem::take(&mut self.hot_slot.slot), self.hot_slot.latest);
        }
    }
}
