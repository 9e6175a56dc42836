//! Booths: a key that is charged again and again gets one of its own.
//!
//! In the table, a charge touches two cache lines that other processors want as well: the one
//! with the shard's lock and the one with the key's slot. A booth holds a lock, a slot and the
//! limit it counts under in one line, so that threads which share a key hand each other that
//! line only, and threads on different keys nothing.
//!
//! A slot at a booth is *lent*: its place in the table is kept and marked, and the shard neither
//! decides on it nor drops it. A slot is lent and given back under both locks, the booth's and
//! its shard's, so it is always in exactly one of the two. The order of the locks is booths,
//! then shards, each ascending; whoever holds a shard may only *try* a booth.
//!
//! Not here: when a slot is lent or called back (`store.rs`), anything but plain takes.

use std::sync::{Arc, OnceLock};

use tollgate_core::algorithm::bucket::Plain;
use tollgate_core::{Charge, Limit, Timestamp};

use crate::fingerprint::Fingerprint;
use crate::slot::Slot;
use crate::sync::{AtomicU64, Guard, Lock, Ordering};

/// A slot with its limit, and the latest moment it was charged at.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Booth {
    latest: Timestamp,
    slot: Slot,
    limit: Option<Arc<Limit>>,
}

/// All booths of a store, made when the first is needed.
#[derive(Debug)]
pub(crate) struct Booths {
    built: OnceLock<Built>,
    count: usize,
}

#[derive(Debug)]
struct Built {
    /// Half of the fingerprint that each serves. Only a hint: read without the lock, so that a key
    /// without a booth pays for no lock. Apart from the booths, because a line that is read before
    /// it is locked is fetched from another processor twice.
    served: Box<[AtomicU64]>,
    booths: Box<[Line]>,
}

/// One cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Line(Lock<Booth>);

/// A locked booth.
pub(crate) struct Locked<'a> {
    served: &'a AtomicU64,
    booth: Guard<'a, Booth>,
}

impl Booths {
    /// A power of two of them.
    pub(crate) fn new(count: usize) -> Self {
        // Loom does not see how a `OnceLock` orders what it makes, so there they are made at once.
        let built = if cfg!(loom) { Built::new(count).into() } else { OnceLock::new() };
        Self { built, count }
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Which booth a fingerprint has. Its low bits name its shard as well, so that all keys of a
    /// booth are of one shard.
    pub(crate) fn index(&self, fingerprint: Fingerprint) -> usize {
        let mask = u64::try_from(self.count.saturating_sub(1)).unwrap_or(0);
        usize::try_from(fingerprint.low & mask).unwrap_or(0)
    }

    /// The booth of this fingerprint, locked, if that is whom it serves.
    #[inline]
    pub(crate) fn serving(&self, fingerprint: Fingerprint) -> Option<Locked<'_>> {
        let built = self.built.get()?;
        let index = self.index(fingerprint);
        let served = built.served.get(index)?;
        if served.load(Ordering::Relaxed) != fingerprint.low {
            return None;
        }
        let booth = built.booths.get(index)?.0.lock();
        (booth.slot.fingerprint == fingerprint).then_some(Locked { served, booth })
    }

    /// A booth, locked; none if there are none yet.
    pub(crate) fn lock(&self, index: usize) -> Option<Locked<'_>> {
        let built = self.built.get()?;
        let (served, line) = (built.served.get(index)?, built.booths.get(index)?);
        Some(Locked { served, booth: line.0.lock() })
    }

    /// A booth, locked, unless it would have to be waited for.
    pub(crate) fn try_lock(&self, index: usize) -> Option<Locked<'_>> {
        let built = self.built.get_or_init(|| Built::new(self.count));
        let (served, line) = (built.served.get(index)?, built.booths.get(index)?);
        line.0.try_lock().map(|booth| Locked { served, booth })
    }
}

impl Built {
    fn new(count: usize) -> Self {
        Self {
            served: (0..count).map(|_| AtomicU64::new(0)).collect(),
            booths: (0..count).map(|_| Line(Lock::new(Booth::default()))).collect(),
        }
    }
}

impl Locked<'_> {
    /// Settles the race between reading a monotonic clock and taking the lock.
    #[inline]
    pub(crate) fn no_earlier(&mut self, now: Timestamp) -> Timestamp {
        self.booth.latest = self.booth.latest.max(now);
        self.booth.latest
    }

    /// Decides and makes a plain take; `None`, and nothing done, if the charge is not that.
    #[inline]
    pub(crate) fn take_plainly(&mut self, charge: &Charge<'_>, now: Timestamp) -> Option<Plain> {
        let booth = &mut *self.booth;
        let (plain, slot) = booth.slot.take_plainly(booth.limit.as_ref()?, charge, now)?;
        booth.slot = slot;
        Some(plain)
    }

    /// Serves this slot from now on, which was last charged at `latest`.
    pub(crate) fn serve(&mut self, slot: Slot, limit: Arc<Limit>, latest: Timestamp) {
        self.served.store(slot.fingerprint.low, Ordering::Relaxed);
        *self.booth = Booth { latest, slot, limit: Some(limit) };
    }

    /// The slot that is served here and when it was charged last, to be given back.
    pub(crate) fn vacate(&mut self) -> Option<(Slot, Timestamp)> {
        self.booth.limit.take()?;
        self.served.store(0, Ordering::Relaxed);
        Some((std::mem::take(&mut self.booth.slot), self.booth.latest))
    }
}
