//! What this process let through while the store did not answer, and owes it.
//!
//! A counter that was answered for locally has a debt here, perhaps of nothing, until the store
//! answers for it again. Before it does, it is told what passed meanwhile, in *parts*: each a request
//! of its own that takes from a counter nobody else knows, named by the part, and debits the other,
//! all or none. A part keeps its name and its cost until it is known to have been told, so one whose
//! settling timed out, or is still under way, is sent again and counts once; what passes after it was
//! sent is another part.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Limit, Op};

use super::lossy_map::CounterHash;
use super::plan::OwnedCounter;
use crate::clock::{self, Instant};

/// How many counters may be owed to at a time. Beyond, what passes is not remembered, and counted.
pub(crate) const MOST: usize = 65_536;

/// How many parts of a debt may be under way. Beyond, what passes waits for them.
const PARTS: usize = 8;

/// What is owed to one counter.
#[derive(Clone, Debug)]
pub(crate) struct Debt {
    counter: OwnedCounter,
    /// The limit that this process answers by meanwhile.
    share: Limit,
    /// What no part has yet.
    cost: Cost,
    /// When something last passed.
    last: Instant,
    parts: SmallVec<[Part; 1]>,
}

/// A part of a debt, which counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: u128,
    pub(crate) cost: Cost,
    pub(crate) last: Instant,
    /// How often it was handed out to be sent, and is not known not to have arrived.
    sent: u32,
}

/// What is to be told of a debt.
#[derive(Clone, Debug)]
pub(crate) struct Settlement {
    hash: CounterHash,
    pub(crate) counter: OwnedCounter,
    pub(crate) parts: SmallVec<[Part; 1]>,
}

/// All debts.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    by_counter: Mutex<HashMap<CounterHash, Debt>>,
    /// So that the way of every request need not lock.
    count: AtomicUsize,
}

/// Whether a counter has been answered for in this outage before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    First,
    Again,
    /// It has not, and is only asked about: nothing will be owed.
    Asked,
    /// There is no room to remember it.
    Unknown,
}

impl Debts {
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Notes that a counter is answered for locally.
    pub(crate) fn meet(
        &self,
        hash: CounterHash,
        charge: &Charge<'_>,
        partition: Option<&[u8]>,
        share: &Limit,
        now: Instant,
    ) -> Met {
        let mut debts = self.lock();
        if let Some(debt) = debts.get_mut(&hash) {
            // The rule may have been edited since.
            debt.share = *share;
            debt.counter.limit = *charge.limit();
            return Met::Again;
        }
        if matches!(charge.op(), Op::Peek(_)) {
            return Met::Asked;
        }
        if debts.len() >= MOST {
            return Met::Unknown;
        }
        let counter = OwnedCounter::of(charge, partition);
        let debt = Debt { counter, share: *share, cost: 0, last: now, parts: SmallVec::new() };
        debts.insert(hash, debt);
        self.count.store(debts.len(), Ordering::Release);
        Met::First
    }

    /// Adds what passed. The most that still counts is what the share holds at once.
    pub(crate) fn add(&self, hash: CounterHash, cost: Cost, now: Instant) -> bool {
        let mut debts = self.lock();
        let Some(debt) = debts.get_mut(&hash) else { return false };
        debt.cost = debt.cost.saturating_add(cost).min(debt.share.quota().burst().get());
        debt.last = now;
        true
    }

    /// What is to be told of a counter: what was sent before and is not known to have been told, and
    /// what passed since, as far as it still counts. `used` says how much of the share is used.
    pub(crate) fn settlement(
        &self,
        hash: CounterHash,
        used: impl FnOnce(&OwnedCounter, &Limit) -> u64,
        name: impl FnOnce() -> u128,
    ) -> Option<Settlement> {
        let mut debts = self.lock();
        let debt = debts.get_mut(&hash)?;
        // What has left the counter is worth nothing to the store either.
        let (now, counts) = (clock::now(), counts_for(&debt.share));
        debt.parts.retain(|part| now.saturating_duration_since(part.last) < counts);
        if debt.cost > 0 && debt.parts.len() < PARTS {
            let cost = debt.cost.min(used(&debt.counter, &debt.share));
            debt.cost = 0;
            if cost > 0 {
                debt.parts.push(Part { name: name(), cost, last: debt.last, sent: 0 });
            }
        }
        // Who asked for it may leave without saying what came of it.
        debt.parts.iter_mut().for_each(|part| part.sent = part.sent.saturating_add(1));
        Some(Settlement { hash, counter: debt.counter.clone(), parts: debt.parts.clone() })
    }

    /// Some of them.
    pub(crate) fn some(&self, most: usize) -> Vec<CounterHash> {
        self.lock().keys().take(most).copied().collect()
    }

    /// Forgets what the store was told, and the debt if nothing is left of it.
    pub(crate) fn settled(&self, settled: &Settlement) {
        let mut debts = self.lock();
        let Some(debt) = debts.get_mut(&settled.hash) else { return };
        debt.parts.retain(|part| !settled.parts.iter().any(|told| told.name == part.name));
        if debt.cost == 0 && debt.parts.is_empty() {
            debts.remove(&settled.hash);
            self.count.store(debts.len(), Ordering::Release);
        }
    }

    /// Takes back what was certainly not told: by the next time, less of it may still count. A part
    /// that somebody else sent as well, or sent before without a reply, keeps its name and its cost.
    pub(crate) fn unsent(&self, settlement: &Settlement) {
        let mut debts = self.lock();
        let Some(debt) = debts.get_mut(&settlement.hash) else { return };
        let Debt { parts, cost, .. } = debt;
        parts.retain_mut(|part| {
            if settlement.parts.iter().any(|unsent| unsent.name == part.name) {
                part.sent = part.sent.saturating_sub(1);
            }
            if part.sent == 0 {
                *cost = cost.saturating_add(part.cost);
            }
            part.sent > 0
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CounterHash, Debt>> {
        // Every edit above is whole before anything could panic.
        self.by_counter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The longest that a charge counts under a limit: its window, or the time in which it is full again.
fn counts_for(limit: &Limit) -> Duration {
    let quota = limit.quota();
    let bursts = quota.burst().get().div_ceil(quota.count().get());
    quota.period().saturating_mul(u32::try_from(bursts).unwrap_or(u32::MAX))
}
