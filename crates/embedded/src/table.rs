//! The table: open addressing over fingerprints, one 32-byte slot for each key.
//!
//! It probes linearly from the home index of a key. Removal shifts followers back, so there are no tombstones.
//! Capacities are not powers of two: the table grows by a twelfth when it is 85 % full, so even
//! just after growing a key costs at most about 41 bytes.
//!
//! Slots are grouped into *segments* of 64, each with a lower bound of the moments at which its
//! keys become idle. With it an idle key is found, or known not to exist, without looking at every
//! slot. A bound may be too early (charges move a key's moment later and do not touch it), never
//! too late.
//!
//! `slot.rs` gives a slot its meaning. Locks and limits are elsewhere.

use crate::fingerprint::Fingerprint;
use crate::slot::Slot;

/// The number of slots in a segment.
const SEGMENT: usize = 64;

/// A bound that no moment reaches, not even the last: the key never becomes idle.
pub(crate) const NEVER: u64 = u64::MAX;

fn is_due(bound: u64, now: u64) -> bool {
    bound <= now && bound != NEVER
}

/// Slots by fingerprint.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Table {
    slots: Vec<AlignedSlot>,
    bounds: Vec<u64>,
    len: usize,
    max_len: usize,
    /// A lower bound of all bounds, so that a full table refuses keys without a search.
    earliest: u64,
}

/// A slot that never lies across two cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct AlignedSlot(Slot);

/// The room for more keys below the greatest load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeSpace {
    /// There is room.
    Available,
    /// There is room after growing.
    AfterGrowth,
    /// The table holds its largest number of keys.
    Full,
}

impl Table {
    pub(crate) const fn new(max_len: usize) -> Self {
        Self { slots: Vec::new(), bounds: Vec::new(), len: 0, max_len, earliest: NEVER }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn bytes(&self) -> usize {
        let slots = self.slots.capacity().saturating_mul(size_of::<AlignedSlot>());
        slots.saturating_add(self.bounds.capacity().saturating_mul(size_of::<u64>()))
    }

    /// Returns the index of this fingerprint's slot.
    #[inline]
    pub(crate) fn find(&self, fingerprint: Fingerprint) -> Option<usize> {
        let mut index = self.home(fingerprint);
        // The load leaves slots empty, so the search ends.
        loop {
            let AlignedSlot(slot) = self.slots.get(index)?;
            if slot.fingerprint == fingerprint {
                return Some(index);
            }
            if slot.fingerprint == Fingerprint::NONE {
                return None;
            }
            index = self.after(index);
        }
    }

    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Slot {
        self.slots.get(index).map_or(Slot::EMPTY, |aligned| aligned.0)
    }

    /// Replaces the slot at an index with one of the same fingerprint.
    #[inline]
    pub(crate) fn set(&mut self, index: usize, slot: Slot) {
        if let Some(old) = self.slots.get_mut(index) {
            *old = AlignedSlot(slot);
        }
    }

    /// Records that the key at `index` may become idle as early as `moment`.
    pub(crate) fn lower_bound(&mut self, index: usize, moment: u64) {
        if let Some(bound) = self.bounds.get_mut(index / SEGMENT) {
            *bound = moment.min(*bound);
        }
        self.earliest = self.earliest.min(moment);
    }

    /// The room for `more` keys besides those that are here.
    pub(crate) fn free_space(&self, more: usize) -> FreeSpace {
        let wanted = self.len.saturating_add(more);
        if wanted > self.max_len {
            FreeSpace::Full
        } else if wanted > max_load(self.slots.len()) {
            FreeSpace::AfterGrowth
        } else {
            FreeSpace::Available
        }
    }

    /// True if growing costs less than searching for idle keys first.
    pub(crate) const fn is_small(&self) -> bool {
        self.len < self.max_len / 8
    }

    /// Adds a slot whose fingerprint is not here. The room must be [`FreeSpace::Available`].
    pub(crate) fn insert(&mut self, slot: Slot, idle_moment: u64) {
        let mut index = self.home(slot.fingerprint);
        while self.slot(index).fingerprint != Fingerprint::NONE {
            index = self.after(index);
        }
        self.set(index, slot);
        self.lower_bound(index, idle_moment);
        self.len = self.len.saturating_add(1);
    }

    /// Empties the slot at an index and closes the gap behind it.
    pub(crate) fn remove(&mut self, index: usize) {
        let mut gap = index;
        let mut next = self.after(gap);
        loop {
            let slot = self.slot(next);
            if slot.fingerprint == Fingerprint::NONE || next == index {
                break;
            }
            // A follower may move into the gap unless its home lies behind it.
            let home = self.home(slot.fingerprint);
            if self.distance(home, next) >= self.distance(gap, next) {
                self.set(gap, slot);
                let bound = self.bounds.get(next / SEGMENT).copied().unwrap_or(0);
                self.lower_bound(gap, bound);
                gap = next;
            }
            next = self.after(next);
        }
        self.set(gap, Slot::EMPTY);
        self.len = self.len.saturating_sub(1);
    }

    /// Grows by a twelfth, up to the size for the largest number of keys.
    pub(crate) fn grow(&mut self) {
        let now = self.slots.len();
        let most = slots_for(self.max_len);
        let more = now.div_ceil(12).max(SEGMENT / 4);
        let target = now.saturating_add(more).min(most);
        let old = std::mem::replace(&mut self.slots, Vec::with_capacity(target));
        let old_bounds = std::mem::take(&mut self.bounds);
        self.slots.resize(target, AlignedSlot(Slot::EMPTY));
        self.bounds = vec![NEVER; target.div_ceil(SEGMENT)];
        self.len = 0;
        for (index, AlignedSlot(slot)) in old.into_iter().enumerate() {
            if slot.fingerprint != Fingerprint::NONE {
                let bound = old_bounds.get(index / SEGMENT).copied().unwrap_or(0);
                self.insert(slot, bound);
            }
        }
    }

    /// The earliest moment at which a key may become idle.
    pub(crate) const fn earliest_idle(&self) -> u64 {
        self.earliest
    }

    /// A segment that may hold an idle key at `now`, the nearest from the fingerprint's home on.
    ///
    /// The search begins at the home, because room is needed there. If it freed slots elsewhere,
    /// for example in the order of the table, runs of thousands of slots would grow in the parts
    /// that it has not reached yet.
    pub(crate) fn segment_with_idle_key(
        &mut self,
        now: u64,
        fingerprint: Fingerprint,
    ) -> Option<usize> {
        if !is_due(self.earliest, now) {
            return None;
        }
        let home = self.home(fingerprint) / SEGMENT;
        let (before, after) = self.bounds.split_at_checked(home)?;
        let due = |bound: &u64| is_due(*bound, now);
        let found = after.iter().position(due).map(|i| home.wrapping_add(i));
        let found = found.or_else(|| before.iter().position(due));
        if found.is_none() {
            self.earliest = self.bounds.iter().copied().min().unwrap_or(NEVER);
        }
        found
    }

    /// Removes the idle keys of a segment and tightens its bound. `idle_moment` returns the moment
    /// at which a slot's key becomes idle; `drop` is called with each removed slot.
    pub(crate) fn sweep(
        &mut self,
        segment: usize,
        now: u64,
        mut idle_moment: impl FnMut(&Slot) -> u64,
        mut drop: impl FnMut(&Slot),
    ) {
        let from = segment.saturating_mul(SEGMENT);
        let to = from.saturating_add(SEGMENT).min(self.slots.len());
        let mut index = from;
        while index < to {
            let slot = self.slot(index);
            if slot.fingerprint != Fingerprint::NONE && is_due(idle_moment(&slot), now) {
                drop(&slot);
                // The gap is filled from behind: look at the same index again.
                self.remove(index);
            } else {
                index = index.saturating_add(1);
            }
        }
        let rest = self.slots[from..to].iter().map(|AlignedSlot(slot)| slot);
        let live = rest.filter(|slot| slot.fingerprint != Fingerprint::NONE);
        let bound = live.map(idle_moment).min().unwrap_or(NEVER);
        if let Some(old) = self.bounds.get_mut(segment) {
            *old = bound;
        }
    }

    pub(crate) const fn segments(&self) -> usize {
        self.bounds.len()
    }

    pub(crate) fn is_due(&self, segment: usize, now: u64) -> bool {
        self.bounds.get(segment).is_some_and(|bound| is_due(*bound, now))
    }

    /// The preferred index of the fingerprint: its share of the table, at the first slot of a cache
    /// line.
    #[inline]
    fn home(&self, fingerprint: Fingerprint) -> usize {
        let slots = u128::try_from(self.slots.len()).unwrap_or(0);
        let product = u128::from(fingerprint.high).wrapping_mul(slots);
        usize::try_from(product >> 64).unwrap_or(0) & !1
    }

    const fn after(&self, index: usize) -> usize {
        let next = index.wrapping_add(1);
        if next >= self.slots.len() { 0 } else { next }
    }

    const fn distance(&self, from: usize, to: usize) -> usize {
        let around = if to < from { self.slots.len() } else { 0 };
        to.wrapping_add(around).wrapping_sub(from)
    }
}

/// The most keys for this many slots: 85 %, with at least one slot empty to end a search.
const fn max_load(slots: usize) -> usize {
    slots.saturating_mul(85) / 100
}

fn slots_for(keys: usize) -> usize {
    keys.saturating_mul(100).div_ceil(85).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tollgate_core::testing::Rng;

    use super::*;
    use crate::slot::LimitId;

    fn slot(fingerprint: Fingerprint, idle: u64) -> Slot {
        Slot::new(fingerprint, LimitId(0), idle, 0)
    }

    /// Few distinct locations, so that runs of neighbours grow long and wrap around the end.
    fn fingerprint(rng: &mut Rng) -> Fingerprint {
        Fingerprint { high: rng.below(64) << 58, low: rng.within(1, 40) }
    }

    #[test]
    fn agrees_with_a_map_through_inserts_removals_growth_and_sweeps() {
        let mut rng = Rng::new(7);
        for _ in 0..20 {
            let mut table = Table::new(500);
            let mut map: HashMap<(u64, u64), u64> = HashMap::new();
            for now in 0..20_000_u64 {
                let print = fingerprint(&mut rng);
                let name = (print.high, print.low);
                match (rng.below(10), table.find(print)) {
                    (0, _) => {
                        if let Some(segment) = table.segment_with_idle_key(now, print) {
                            table.sweep(
                                segment,
                                now,
                                |slot| slot.word,
                                |slot| {
                                    let name = (slot.fingerprint.high, slot.fingerprint.low);
                                    assert!(map.remove(&name).is_some_and(|idle| idle <= now));
                                },
                            );
                        } else {
                            assert!(map.values().all(|idle| *idle > now), "an idle key was missed");
                        }
                    }
                    (1..4, Some(index)) => {
                        table.remove(index);
                        map.remove(&name);
                    }
                    (_, Some(index)) => {
                        let later = table.slot(index).word + rng.below(50);
                        table.set(index, slot(print, later));
                        map.insert(name, later);
                    }
                    (_, None) => {
                        while table.free_space(1) == FreeSpace::AfterGrowth {
                            table.grow();
                        }
                        if table.free_space(1) == FreeSpace::Available {
                            let idle = now + rng.below(3_000);
                            table.insert(slot(print, idle), idle);
                            map.insert(name, idle);
                        }
                    }
                }
                assert_eq!(table.len(), map.len());
                assert_eq!(
                    table.find(print).map(|index| table.slot(index).word),
                    map.get(&name).copied()
                );
            }
            for (name, idle) in &map {
                let index = table.find(Fingerprint { high: name.0, low: name.1 });
                assert_eq!(index.map(|index| table.slot(index).word), Some(*idle));
            }
        }
    }

    #[test]
    fn a_key_costs_less_than_48_bytes_even_just_after_growth() {
        let mut table = Table::new(1_000_000);
        let mut worst = 0;
        let mut rng = Rng::new(1);
        for keys in 1..=40_000 {
            while table.free_space(1) == FreeSpace::AfterGrowth {
                table.grow();
            }
            let print = Fingerprint { high: rng.any(), low: rng.any() | 1 };
            table.insert(slot(print, 0), 0);
            if keys > 1_000 {
                worst = worst.max(table.bytes() * 10 / keys);
            }
        }

        assert!(worst <= 480, "{worst} tenths of a byte");
    }
}
