//! The store: shards behind locks.
//!
//! A charge locks the one shard its key belongs to; a request with several locks all it touches,
//! in ascending order, so that two requests cannot wait for each other. The overflow counters
//! come last in that order. Nothing else locks, sleeps, or runs in the background.

use smallvec::SmallVec;
use tollgate_core::{
    Answer, Charge, Clock, Decision, Op, Request, Retry, Store, StoreError, Timestamp, Verdict,
};

use crate::MonotonicClock;
use crate::builder::{Builder, Sizes};
use crate::fingerprint::{Fingerprint, Secret};
use crate::overflow::Overflow;
use crate::several::Several;
use crate::shard::{Outcome, Shard};
use crate::sync::{Guard, Lock};

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
    clock: C,
    secret: Secret,
    /// A power of two of them, so that the mask picks one.
    shards: Box<[Locked]>,
    mask: u64,
    overflow: Lock<Overflow>,
}

/// A shard on cache lines of its own, so that neighbours do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Locked(Lock<Shard>);

/// What a store says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that have a counter.
    pub keys: usize,
    /// Charges that found no room and were answered by `on-full`.
    pub overflowed: u64,
    /// Idle keys dropped to make room.
    pub reclaimed: u64,
    /// Distinct limits in use, counted per shard.
    pub limits: usize,
    /// Bytes of the tables; spilled states come on top.
    pub table_bytes: usize,
}

impl EmbeddedStore {
    /// A store for up to a million keys, on the process's monotonic clock.
    pub fn new() -> Self {
        Builder::default().build()
    }

    /// A store of another size.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Default for EmbeddedStore {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> EmbeddedStore<C> {
    pub(crate) fn with_sizes(sizes: Sizes, clock: C) -> Self {
        let shard = || Locked(Lock::new(Shard::new(sizes.keys_per_shard, sizes.heap_per_shard)));
        Self {
            clock,
            secret: Secret::random(),
            shards: (0..sizes.shards).map(|_| shard()).collect(),
            mask: u64::try_from(sizes.shards.saturating_sub(1)).unwrap_or(0),
            overflow: Lock::new(Overflow::default()),
        }
    }

    /// Decides and makes one charge.
    #[inline]
    pub fn charge_one(&self, charge: &Charge<'_>) -> Decision {
        let fingerprint = self.fingerprint(charge);
        // A monotonic clock is read before the lock, in parallel with whoever holds it.
        let early = self.early();
        let mut shard = self.lock(self.index(fingerprint));
        let now = match early {
            Some(early) => shard.no_earlier(early),
            None => self.clock.now(),
        };
        match shard.charge(fingerprint, charge, now) {
            Outcome::Plain(plain) => {
                drop(shard);
                // The counter's limit counts like the charge's, so either gives the answer.
                match (charge.limit().bucket_plan(), charge.plain_cost()) {
                    (Some(plan), Some(cost)) => plan.answer_plainly(plain, cost),
                    _ => Decision::overflow(Verdict::Deny(Retry::Never)),
                }
            }
            Outcome::Decided(decision) => decision,
            Outcome::Absent(decision) => match charge.op() {
                Op::Renew { .. } | Op::Release { .. } => self.held_elsewhere(charge, now, decision),
                _ => decision,
            },
            Outcome::Full => {
                shard.tally.overflowed = shard.tally.overflowed.saturating_add(1);
                let until_room = shard.until_room(now);
                drop(shard);
                let mut overflow = self.overflow.lock();
                let now = if C::MONOTONIC { overflow.no_earlier(now) } else { now };
                overflow.charge(charge, until_room, now)
            }
        }
    }

    /// Decides a request and makes its charges, all or none.
    pub fn charge_request(&self, request: &Request<'_>) -> Answer {
        match request.charges() {
            [charge] => {
                let decision = self.charge_one(charge);
                let refused_by = (!decision.passes()).then_some(0);
                let decisions = SmallVec::from_slice(&[decision]);
                Answer { verdict: decision.verdict, refused_by, decisions }
            }
            _ => Several::new(self, request).charge(request),
        }
    }

    /// What the store says of itself. Locks every shard in turn, so not for the hot path.
    pub fn stats(&self) -> Stats {
        self.shards.iter().fold(Stats::default(), |sum, shard| {
            let shard = shard.0.lock();
            Stats {
                keys: sum.keys.saturating_add(shard.len()),
                overflowed: sum.overflowed.saturating_add(shard.tally.overflowed),
                reclaimed: sum.reclaimed.saturating_add(shard.tally.reclaimed),
                limits: sum.limits.saturating_add(shard.limits()),
                table_bytes: sum.table_bytes.saturating_add(shard.table_bytes()),
            }
        })
    }

    /// Whether a permit whose key has no counter is held in a shared one.
    fn held_elsewhere(&self, charge: &Charge<'_>, now: Timestamp, absent: Decision) -> Decision {
        let mut overflow = self.overflow.lock();
        if !overflow.may_hold(charge) {
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

    /// A reading from before the locks, if the clock allows that.
    #[inline]
    pub(crate) fn early(&self) -> Option<Timestamp> {
        C::MONOTONIC.then(|| self.clock.now())
    }

    /// The moment of a decision on locked shards: never before the last one made there, unless
    /// the clock itself may step back.
    #[inline]
    pub(crate) fn moment<'g>(
        &self,
        early: Option<Timestamp>,
        shards: impl IntoIterator<Item = &'g mut Shard>,
    ) -> Timestamp {
        let Some(early) = early else { return self.clock.now() };
        let mut shards: SmallVec<[&mut Shard; 4]> = shards.into_iter().collect();
        let now = shards.iter().fold(early, |now, shard| now.max(shard.latest()));
        for shard in &mut shards {
            shard.set_latest(now);
        }
        now
    }
}

impl<C: Clock> Store for EmbeddedStore<C> {
    async fn charge(&self, batch: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        Ok(batch.iter().map(|request| self.charge_request(request)).collect())
    }
}
