//! The store: shards behind locks.
//!
//! A charge locks the hot slot of its key if there is one, else the shard of its key. A request
//! with several charges locks all its shards, in ascending order, so two requests cannot deadlock.
//! Hot slots come first in that order, the overflow counters last. Nothing else locks, sleeps, or
//! runs in the background.

use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use tollgate_core::state::ImmediateTake;
use tollgate_core::{
    Answer, Charge, Clock, Decision, Key, Op, Request, Retry, Store, StoreError, Timestamp, Verdict,
};

use crate::MonotonicClock;
use crate::builder::{EmbeddedStoreBuilder, Sizes};
use crate::fingerprint::{Fingerprint, Secret};
use crate::hot_slot::{HotSlots, LockedHotSlot};
use crate::locks::LockTable;
use crate::multi_charge::MultiCharge;
use crate::overflow::Overflow;
use crate::shard::{ChargeOutcome, Shard};
use crate::sync::{Guard, Lock};
use crate::values::Values;

/// Keeps counters in this process: bounded, exact, without a thread of its own.
///
/// ```
/// use tollgate_embedded::{EmbeddedStore, core::{Charge, Key, Limit, algorithm::TokenBucket}};
///
/// let store = EmbeddedStore::new();
/// let limit = Limit::new(TokenBucket, "1 per 1h burst 2".parse()?)?;
/// let charge = Charge::take(Key::new("user:42")?, &limit, 1)?;
///
/// assert_eq!(store.charge_one(&charge).remaining, 1);
/// assert_eq!(store.charge_one(&charge).remaining, 0);
/// assert!(!store.charge_one(&charge).passes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EmbeddedStore<C = MonotonicClock> {
    pub(crate) clock: C,
    secret: Secret,
    /// The shards: a power of two of them, so that a mask selects one.
    shards: Box<[CacheAligned]>,
    mask: u64,
    hot_slots: HotSlots,
    overflow: Lock<Overflow>,
    values: Values,
    pub(crate) locks: Arc<Mutex<LockTable>>,
}

/// A shard on cache lines of its own, so that neighbours do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct CacheAligned(Lock<Shard>);

/// Sizes and totals of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmbeddedStats {
    /// The keys with a counter.
    pub keys: usize,
    /// The charges that found no room and were answered by `on-full`.
    pub overflowed: u64,
    /// The idle keys that were dropped to make room.
    pub reclaimed: u64,
    /// Distinct limits in use, counted per shard.
    pub limits: usize,
    /// The bytes of the tables. Spilled states come on top.
    pub table_bytes: usize,
}

impl EmbeddedStore {
    /// A store for up to a million keys, on the process's monotonic clock.
    pub fn new() -> Self {
        EmbeddedStoreBuilder::default().build()
    }

    /// Builds a store of another size.
    pub fn builder() -> EmbeddedStoreBuilder {
        EmbeddedStoreBuilder::default()
    }
}

impl Default for EmbeddedStore {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> EmbeddedStore<C> {
    pub(crate) fn with_sizes(sizes: Sizes, clock: C) -> Self {
        let shard =
            || CacheAligned(Lock::new(Shard::new(sizes.keys_per_shard, sizes.heap_per_shard)));
        Self {
            clock,
            secret: Secret::random(),
            shards: (0..sizes.shards).map(|_| shard()).collect(),
            mask: u64::try_from(sizes.shards.saturating_sub(1)).unwrap_or(0),
            hot_slots: HotSlots::new(sizes.hot_slots),
            overflow: Lock::new(Overflow::default()),
            values: Values::default(),
            locks: Arc::default(),
        }
    }

    /// Decides and makes one charge.
    #[inline]
    pub fn charge_one(&self, charge: &Charge<'_>) -> Decision {
        self.decide_one(charge).0
    }

    /// Decides and makes one charge, and returns the moment of the decision.
    #[inline]
    fn decide_one(&self, charge: &Charge<'_>) -> (Decision, Timestamp) {
        let fingerprint = self.fingerprint(charge);
        // A monotonic clock is read before the lock, while another thread may hold it.
        let early = self.now_before_locks();
        if let Some((take, now)) = self.charge_hot_slot(fingerprint, charge, early) {
            return (answer_immediately(take, charge), now);
        }
        let mut shard = self.lock(self.index(fingerprint));
        let now = self.moment_in(&mut shard, early);
        match shard.charge(fingerprint, charge, now) {
            ChargeOutcome::Immediate(take) => {
                drop(shard);
                (answer_immediately(take, charge), now)
            }
            ChargeOutcome::Repeated(take) => {
                self.promote(&mut shard, fingerprint);
                drop(shard);
                (answer_immediately(take, charge), now)
            }
            outcome => self.finish_charge(outcome, shard, fingerprint, charge, now),
        }
    }

    /// Finishes a charge that the shard did not answer as an immediate take from a known bucket.
    #[inline(never)]
    fn finish_charge<'s>(
        &'s self,
        mut outcome: ChargeOutcome,
        mut shard: Guard<'s, Shard>,
        fingerprint: Fingerprint,
        charge: &Charge<'_>,
        mut now: Timestamp,
    ) -> (Decision, Timestamp) {
        let short_of_room =
            matches!(outcome, ChargeOutcome::Full) && shard.promoted_may_free_room(1);
        if short_of_room || matches!(outcome, ChargeOutcome::Promoted) {
            drop(shard);
            if short_of_room {
                self.demote_all(self.index(fingerprint));
            }
            shard = self.demote(fingerprint);
            now = self.moment_in(&mut shard, C::MONOTONIC.then_some(now));
            outcome = shard.charge(fingerprint, charge, now);
        }
        let decision = match outcome {
            ChargeOutcome::Immediate(take) | ChargeOutcome::Repeated(take) => {
                answer_immediately(take, charge)
            }
            ChargeOutcome::Decided(decision) => decision,
            ChargeOutcome::Absent(decision) => match charge.op() {
                Op::Renew { .. } | Op::Release { .. } => {
                    self.charge_overflow_holder(charge, now, decision)
                }
                _ => decision,
            },
            // It cannot be promoted: it was demoted above, and the shard is locked since.
            ChargeOutcome::Full | ChargeOutcome::Promoted => {
                shard.stats.overflowed = shard.stats.overflowed.saturating_add(1);
                let until_room = shard.until_room(now);
                drop(shard);
                let mut overflow = self.overflow.lock();
                now = if C::MONOTONIC { overflow.no_earlier(now) } else { now };
                overflow.charge(charge, until_room, now)
            }
        };
        (decision, now)
    }

    /// Makes an immediate take in the key's hot slot, if it has one.
    #[inline]
    fn charge_hot_slot(
        &self,
        fingerprint: Fingerprint,
        charge: &Charge<'_>,
        early: Option<Timestamp>,
    ) -> Option<(ImmediateTake, Timestamp)> {
        let mut hot_slot = self.hot_slots.lock_holding(fingerprint)?;
        let now = match early {
            Some(early) => hot_slot.no_earlier(early),
            None => self.clock.now(),
        };
        Some((hot_slot.take_immediately(charge, now)?, now))
    }

    /// Promotes the slot charged last, unless another thread holds its hot slot.
    #[inline(never)]
    fn promote(&self, shard: &mut Shard, fingerprint: Fingerprint) {
        if let Some(mut hot_slot) = self.hot_slots.try_lock(self.hot_slots.index(fingerprint)) {
            hot_slot.demote_into(shard);
            if let Some((slot, limit)) = shard.promote() {
                hot_slot.install(slot, limit, shard.latest);
            }
        }
    }

    /// Locks the shard of a key, with the key's slot back in it.
    #[inline(never)]
    fn demote(&self, fingerprint: Fingerprint) -> Guard<'_, Shard> {
        let hot_slot = self.hot_slots.lock(self.hot_slots.index(fingerprint));
        let mut shard = self.lock(self.index(fingerprint));
        if let Some(mut hot_slot) = hot_slot {
            hot_slot.demote_into(&mut shard);
        }
        shard
    }

    /// Locks the hot slots of these keys in ascending order, each with one of its keys.
    pub(crate) fn lock_hot_slots(
        &self,
        prints: &[Fingerprint],
    ) -> SmallVec<[(Fingerprint, LockedHotSlot<'_>); 4]> {
        let mut prints: SmallVec<[Fingerprint; 4]> = SmallVec::from_slice(prints);
        prints.sort_unstable_by_key(|print| self.hot_slots.index(*print));
        prints.dedup_by_key(|print| self.hot_slots.index(*print));
        prints
            .into_iter()
            .filter_map(|print| Some((print, self.hot_slots.lock(self.hot_slots.index(print))?)))
            .collect()
    }

    /// Demotes every promoted slot of a shard, so that the shard finds those that are idle.
    #[inline(never)]
    pub(crate) fn demote_all(&self, shard: usize) {
        for index in (shard..self.hot_slots.count).step_by(self.shards.len()) {
            if let Some(mut hot_slot) = self.hot_slots.lock(index) {
                hot_slot.demote_into(&mut self.lock(shard));
            }
        }
    }

    /// Decides a request and makes its charges, all or none.
    pub fn charge_request(&self, request: &Request<'_>) -> Answer {
        let (verdict, at) = (Verdict::Allow, Timestamp::EPOCH);
        let mut answer = Answer { verdict, at, refused_by: None, decisions: SmallVec::new() };
        self.charge_into(request, &mut answer);
        answer
    }

    /// Writes the answer in place, because it is too large to be moved for every request.
    fn charge_into(&self, request: &Request<'_>, answer: &mut Answer) {
        answer.decisions.clear();
        match request.charges() {
            [charge] => {
                let (decision, at) = self.decide_one(charge);
                (answer.verdict, answer.at) = (decision.verdict, at);
                answer.refused_by = (!decision.passes()).then_some(0);
                answer.decisions.push(decision);
            }
            _ => MultiCharge::new(self, request).charge(request, answer),
        }
    }

    /// Returns sizes and totals. It locks every shard in turn, so do not call it for every request.
    #[expect(clippy::arithmetic_side_effects, reason = "counts of what is in memory, or has been")]
    pub fn stats(&self) -> EmbeddedStats {
        let mut sum = EmbeddedStats::default();
        for CacheAligned(shard) in &self.shards {
            let shard = shard.lock();
            sum.keys += shard.table.len();
            sum.overflowed += shard.stats.overflowed;
            sum.reclaimed += shard.stats.reclaimed;
            sum.limits += shard.limits.len();
            sum.table_bytes += shard.table.bytes();
        }
        sum
    }

    /// Renews or releases a permit of a key without a counter, which the shared counter may hold.
    fn charge_overflow_holder(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
        absent: Decision,
    ) -> Decision {
        let mut overflow = self.overflow.lock();
        if !overflow.may_hold(charge.limit()) {
            return absent;
        }
        let now = if C::MONOTONIC { overflow.no_earlier(now) } else { now };
        overflow.charge(charge, Retry::Never, now)
    }

    #[inline]
    pub(crate) fn fingerprint(&self, charge: &Charge<'_>) -> Fingerprint {
        self.secret.fingerprint(charge)
    }

    #[inline]
    pub(crate) fn index(&self, fingerprint: Fingerprint) -> usize {
        usize::try_from(fingerprint.low & self.mask).unwrap_or(0)
    }

    #[inline]
    pub(crate) fn lock(&self, index: usize) -> Guard<'_, Shard> {
        // The mask keeps every index below the number of shards.
        self.shards[index].0.lock()
    }

    pub(crate) fn lock_overflow(&self) -> Guard<'_, Overflow> {
        self.overflow.lock()
    }

    /// The time before the locks are taken; `None` if the clock does not allow reading it early.
    #[inline]
    pub(crate) fn now_before_locks(&self) -> Option<Timestamp> {
        C::MONOTONIC.then(|| self.clock.now())
    }

    /// The moment of a decision in one locked shard.
    #[inline]
    fn moment_in(&self, shard: &mut Shard, early: Option<Timestamp>) -> Timestamp {
        match early {
            Some(early) => shard.no_earlier(early),
            None => self.clock.now(),
        }
    }
}

/// Answers an immediate take. The counter's limit counts like the charge's, so either gives the
/// answer.
#[inline]
fn answer_immediately(take: ImmediateTake, charge: &Charge<'_>) -> Decision {
    match (charge.limit().bucket_plan(), charge.immediate_cost()) {
        (Some(plan), Some(cost)) => plan.answer(take, cost),
        _ => Decision::overflow(Verdict::Deny(Retry::Never)),
    }
}

impl<C: Clock> Store for EmbeddedStore<C> {
    const REMOTE: bool = false;

    async fn charge(&self, batch: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        Ok(batch.iter().map(|request| self.charge_request(request)).collect())
    }

    async fn decide(&self, request: &Request<'_>) -> Result<Answer, StoreError> {
        Ok(self.charge_request(request))
    }

    fn decide_at_once(&self, request: &Request<'_>, answer: &mut Answer) -> bool {
        self.charge_into(request, answer);
        true
    }

    async fn read(&self, name: Key<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.values.read(name))
    }

    async fn compare_and_set(
        &self,
        name: Key<'_>,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.values.compare_and_set(name, expected, new)
    }
}
