//! Debts: the charges that this process admitted while the store did not answer.
//!
//! A counter that the outage fallback answered for has a debt here, possibly of 0, until the store
//! answers for that counter again. Before that, the store is sent the debt in *parts*. Each part is one
//! request, all or none: it takes from a once-marker with the part's name, and debits the counter. A
//! part keeps its name and its cost until the store has confirmed it. A part whose settlement timed
//! out, or is still under way, is therefore sent again and counts once. Charges after a part was sent
//! go into another part.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Limit, Op, lock_mutex};

use super::lossy_map::CounterHash;
use super::plan::OwnedCounter;
use crate::clock::{self, Instant};

/// The most counters with debts. Charges of further counters are not remembered, and a statistic
/// counts them.
pub(crate) const MAX_DEBTS: usize = 65_536;

/// The most parts of one debt. Further charges wait until a part is settled.
const MAX_PARTS: usize = 8;

/// The debt of one counter.
#[derive(Clone, Debug)]
pub(crate) struct Debt {
    counter: OwnedCounter,
    /// This process's share of the limit.
    share: Limit,
    /// The cost that is in no part yet.
    cost: Cost,
    /// The time of the last charge.
    last: Instant,
    parts: SmallVec<[DebtPart; 1]>,
}

/// A part of a debt. It counts once, however often it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DebtPart {
    pub(crate) name: u128,
    pub(crate) cost: Cost,
    pub(crate) last: Instant,
    /// The number of attempts to send it that may have arrived.
    sent: u32,
}

/// The parts of a debt that are sent to the store.
#[derive(Clone, Debug)]
pub(crate) struct Settlement {
    hash: CounterHash,
    pub(crate) counter: OwnedCounter,
    pub(crate) parts: SmallVec<[DebtPart; 1]>,
}

/// The debts of this process.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    by_counter: Mutex<HashMap<CounterHash, Debt>>,
    /// The number of debts, which every request reads without the lock.
    count: AtomicUsize,
}

/// True if a counter that the outage fallback answers for has a debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebtTracking {
    /// The request opened it.
    New,
    /// An earlier request opened it.
    Existing,
    /// No debt, and none can arise: the charge is a peek.
    NotNeeded,
    /// [`MAX_DEBTS`] counters have debts already.
    Untracked,
}

impl Debts {
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Records that the outage fallback answers for a counter.
    pub(crate) fn track(
        &self,
        hash: CounterHash,
        charge: &Charge<'_>,
        partition: Option<&[u8]>,
        share: &Limit,
        now: Instant,
    ) -> DebtTracking {
        let mut debts = self.lock();
        if let Some(debt) = debts.get_mut(&hash) {
            // The rule may have been edited meanwhile.
            debt.share = *share;
            debt.counter.limit = *charge.limit();
            return DebtTracking::Existing;
        }
        if matches!(charge.op(), Op::Peek(_)) {
            return DebtTracking::NotNeeded;
        }
        if debts.len() >= MAX_DEBTS {
            return DebtTracking::Untracked;
        }
        let counter = OwnedCounter::of(charge, partition);
        let debt = Debt { counter, share: *share, cost: 0, last: now, parts: SmallVec::new() };
        debts.insert(hash, debt);
        self.count.store(debts.len(), Ordering::Release);
        DebtTracking::New
    }

    /// Adds the cost of a charge that passed; false if the counter has no debt. A debt is at most the
    /// burst of the share: older charges no longer count.
    pub(crate) fn add(&self, hash: CounterHash, cost: Cost, now: Instant) -> bool {
        let mut debts = self.lock();
        let Some(debt) = debts.get_mut(&hash) else { return false };
        debt.cost = debt.cost.saturating_add(cost).min(debt.share.quota().burst().get());
        debt.last = now;
        true
    }

    /// The parts of a counter's debt to send now: those that were sent before and not confirmed, and a
    /// new one for the charges since, as far as they still count. `used` returns how much of the share
    /// is used.
    pub(crate) fn settlement(
        &self,
        hash: CounterHash,
        used: impl FnOnce(&OwnedCounter, &Limit) -> u64,
        name: impl FnOnce() -> u128,
    ) -> Option<Settlement> {
        let mut debts = self.lock();
        let debt = debts.get_mut(&hash)?;
        // Charges that no longer count here do not count in the store either.
        let (now, counts) = (clock::now(), counts_for(&debt.share));
        debt.parts.retain(|part| now.saturating_duration_since(part.last) < counts);
        if debt.cost > 0 && debt.parts.len() < MAX_PARTS {
            let cost = debt.cost.min(used(&debt.counter, &debt.share));
            debt.cost = 0;
            if cost > 0 {
                debt.parts.push(DebtPart { name: name(), cost, last: debt.last, sent: 0 });
            }
        }
        // The caller may be cancelled before it reports the result.
        debt.parts.iter_mut().for_each(|part| part.sent = part.sent.saturating_add(1));
        Some(Settlement { hash, counter: debt.counter.clone(), parts: debt.parts.clone() })
    }

    /// Up to `most` counters with debts.
    pub(crate) fn first(&self, most: usize) -> Vec<CounterHash> {
        self.lock().keys().take(most).copied().collect()
    }

    /// Removes the parts that the store confirmed, and the debt if nothing is left of it.
    pub(crate) fn confirm(&self, settlement: &Settlement) {
        let mut debts = self.lock();
        let Some(debt) = debts.get_mut(&settlement.hash) else { return };
        debt.parts
            .retain(|part| !settlement.parts.iter().any(|confirmed| confirmed.name == part.name));
        if debt.cost == 0 && debt.parts.is_empty() {
            debts.remove(&settlement.hash);
            self.count.store(debts.len(), Ordering::Release);
        }
    }

    /// Withdraws parts that certainly did not arrive, because less of them may count by the next
    /// attempt. A part that was also sent by another caller, or before without a reply, keeps its name
    /// and its cost.
    pub(crate) fn withdraw(&self, settlement: &Settlement) {
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
        lock_mutex(&self.by_counter)
    }
}

/// The longest time for which a charge counts under a limit: until its window ends, or its bucket is
/// full again.
fn counts_for(limit: &Limit) -> Duration {
    let quota = limit.quota();
    let bursts = quota.burst().get().div_ceil(quota.count().get());
    quota.period().saturating_mul(u32::try_from(bursts).unwrap_or(u32::MAX))
}
