//! What this process let through while the store did not answer, and owes it.
//!
//! A counter that was answered for locally has a debt here, perhaps of nothing, until the store
//! answers for it again. Before it does, it is told what passed meanwhile: as a request of its own
//! that takes from a counter nobody else knows and debits the other, all or none. So a debt whose
//! settling timed out can be sent again, and counts once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate_core::{Cost, Limit};

use super::slots::Print;
use super::toll::{OwnedToll, Toll};
use crate::clock::Instant;

/// How many counters may be owed to at a time. Beyond, what passes is not remembered, and counted.
pub(crate) const MOST: usize = 65_536;

/// What is owed to one counter.
#[derive(Clone, Debug)]
pub(crate) struct Debt {
    pub(crate) toll: OwnedToll,
    /// The limit that this process answers by meanwhile.
    pub(crate) share: Limit,
    pub(crate) cost: Cost,
    /// When something last passed.
    pub(crate) last: Instant,
    /// Under which name it is settled. A debt that grows after it was sent gets another.
    pub(crate) name: u128,
}

/// All debts.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    by_print: Mutex<HashMap<Print, Debt>>,
    /// So that the way of every request need not lock.
    count: AtomicUsize,
}

/// Whether a counter has been answered for in this outage before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    First,
    Again,
    /// There is no room to remember it.
    Unknown,
}

impl Debts {
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Notes that a counter is answered for locally.
    pub(crate) fn meet(
        &self,
        print: Print,
        toll: &Toll<'_>,
        partition: Option<&[u8]>,
        share: &Limit,
        now: Instant,
        name: u128,
    ) -> Met {
        let mut debts = self.lock();
        if debts.contains_key(&print) {
            return Met::Again;
        }
        if debts.len() >= MOST {
            return Met::Unknown;
        }
        let toll = OwnedToll::new(toll, partition);
        debts.insert(print, Debt { toll, share: *share, cost: 0, last: now, name });
        self.count.store(debts.len(), Ordering::Release);
        Met::First
    }

    /// Adds what passed. The most that still counts is what the share holds at once.
    pub(crate) fn add(&self, print: Print, cost: Cost, now: Instant, name: u128) -> bool {
        let mut debts = self.lock();
        let Some(debt) = debts.get_mut(&print) else { return false };
        debt.cost = debt.cost.saturating_add(cost).min(debt.share.quota().burst().get());
        debt.last = now;
        debt.name = name;
        true
    }

    pub(crate) fn of(&self, print: Print) -> Option<Debt> {
        self.lock().get(&print).cloned()
    }

    /// Some of them, with what they are known by.
    pub(crate) fn some(&self, most: usize) -> Vec<(Print, Debt)> {
        self.lock().iter().take(most).map(|(print, debt)| (*print, debt.clone())).collect()
    }

    /// Forgets a debt that was settled under this name, unless it has grown since.
    pub(crate) fn settled(&self, print: Print, name: u128) {
        let mut debts = self.lock();
        if debts.get(&print).is_some_and(|debt| debt.name == name) {
            debts.remove(&print);
            self.count.store(debts.len(), Ordering::Release);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Print, Debt>> {
        // Every edit above is whole before anything could panic.
        self.by_print.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
