//! The counts of a limiter.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::decision::Ruling;
use crate::limiter::Shared;

/// The counts since a limiter was built. Each request by rules, and each
/// [`Limiter::check`](crate::Limiter::check), is admitted, refused or degraded. Waiting at a gate
/// is not counted here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that passed by a decision of the store, or without limits.
    pub admitted: u64,
    /// Requests that were refused by the store, the deny cache, a local guard or a block.
    pub refused: u64,
    /// Requests that were answered without the store, in an outage.
    pub degraded: u64,
    /// Refusals by the deny cache, without asking the store. Questions that charge nothing are
    /// included.
    pub deny_cache_refusals: u64,
    /// Refusals by a local guard, without asking the store.
    pub local_guard_refusals: u64,
    /// Requests that a shadow rule counted.
    pub shadow_admitted: u64,
    /// Requests that a shadow rule would have refused.
    pub shadow_refused: u64,
    /// Events that were dropped because observers were too slow.
    pub dropped_events: u64,
    /// Background jobs that were dropped before the store got them: releases, credits and refusals.
    pub lost_jobs: u64,
    /// Debts of an outage that the store has recorded. A debt that grew while it was settled counts
    /// once for each part.
    pub settled_debts: u64,
    /// Counters that the outage fallback answered for, and whose debt, possibly of 0, the store has not
    /// recorded yet.
    pub counters_in_debt: usize,
    /// Cost that passed in an outage and that the store will never record, because there was no
    /// room for a debt.
    pub lost_debt_cost: u64,
    /// Nodes that share the store, by the last count.
    pub nodes: u64,
}

/// The counts behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    admitted: AtomicU64,
    refused: AtomicU64,
    degraded: AtomicU64,
    shadow_admitted: AtomicU64,
    shadow_refused: AtomicU64,
}

impl Counts {
    pub(crate) fn add(&self, ruling: &Ruling) {
        let count = match ruling.outage() {
            Some(_) => &self.degraded,
            None if ruling.passes() => &self.admitted,
            None => &self.refused,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_shadow(&self, passes: bool) {
        let count = if passes { &self.shadow_admitted } else { &self.shadow_refused };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats<S>(&self, shared: &Shared<S>) -> Stats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (runner, fallback) = (&shared.runner.counts, &shared.runner.fallback);
        Stats {
            admitted: count(&self.admitted),
            refused: count(&self.refused),
            degraded: count(&self.degraded),
            deny_cache_refusals: count(&runner.deny_cache_refusals),
            local_guard_refusals: count(&runner.local_guard_refusals),
            shadow_admitted: count(&self.shadow_admitted),
            shadow_refused: count(&self.shadow_refused),
            dropped_events: shared.observers.dropped(),
            lost_jobs: count(&runner.lost_jobs),
            settled_debts: count(&runner.settled_debts),
            counters_in_debt: fallback.debts.len(),
            lost_debt_cost: count(&fallback.lost_debt_cost),
            nodes: fallback.nodes(),
        }
    }
}
