//! Locks in this process: a map of records behind one mutex.
//!
//! Every step is [`Record`]'s; here are the map, its bound, the releases remembered, and the bells.
//! Fences are counted for all locks together, so that a lock that is free need not be remembered for
//! its own. A bell is rung after the mutex is let go.
//!
//! One mutex, not shards: a step is some hundred nanoseconds, and whoever wants a lock is about to do
//! something slower under it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tollgate_core::lock::{
    Acquire, Acquired, Bell, Fence, Held, HoldId, Holder, LATCH, LockName, LockStore, Page, Record,
    Release, Released, Renew, Renewed,
};
use tollgate_core::{Clock, StoreError, StoreErrorKind, Timestamp};

use crate::EmbeddedStore;

/// Locks that may be held at a time: some tens of megabytes with their names.
const MOST: usize = 100_000;

/// Releases remembered. Nothing is lost on the way to this store; only a store put before it can make
/// a release come twice, and then at once.
const LATCHES: usize = 1_024;

/// Locks listed at a time.
const LISTED: usize = 256;

/// The locks of a store.
#[derive(Debug, Default)]
pub(crate) struct Locks(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    records: HashMap<LockName, Record>,
    fence: Option<Fence>,
    /// What releases were answered, and until which millisecond that is remembered.
    latches: HashMap<HoldId, (Released, u64)>,
    /// Those in the order in which they were made.
    latched: VecDeque<HoldId>,
    bells: HashMap<LockName, Vec<(u64, Ring)>>,
    next_bell: u64,
    /// When the records are looked through for idle ones: as often as they double.
    sweep_at: usize,
}

#[derive(Clone)]
struct Ring(Arc<dyn Bell>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring(..)")
    }
}

/// Listens for the releases of a lock until it is dropped.
#[derive(Debug)]
pub struct Ear {
    locks: Weak<Mutex<State>>,
    name: LockName,
    number: u64,
}

impl Drop for Ear {
    fn drop(&mut self) {
        let Some(locks) = self.locks.upgrade() else { return };
        let mut state = lock(&locks);
        if let Entry::Occupied(mut bells) = state.bells.entry(self.name.clone()) {
            bells.get_mut().retain(|(number, _)| *number != self.number);
            if bells.get().is_empty() {
                bells.remove();
            }
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Every edit is whole before anything could panic.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn latch(&self, hold: HoldId, now: Timestamp) -> Option<Released> {
        let (answer, until) = self.latches.get(&hold)?;
        (millis(now) <= *until).then_some(*answer)
    }

    fn remember(&mut self, hold: HoldId, answer: Released, now: Timestamp) {
        if self.latched.len() >= LATCHES
            && let Some(oldest) = self.latched.pop_front()
        {
            self.latches.remove(&oldest);
        }
        let span = u64::try_from(LATCH.as_millis()).unwrap_or(u64::MAX);
        self.latches.insert(hold, (answer, millis(now).saturating_add(span)));
        self.latched.push_back(hold);
    }

    /// The record of a name, made if there is room.
    fn record(&mut self, name: &LockName, now: Timestamp) -> Result<&mut Record, StoreError> {
        let known = self.records.contains_key(name);
        if !known && self.records.len() >= self.sweep_at.max(64) {
            self.records.retain(|_, record| !record.is_idle(now));
            self.sweep_at = self.records.len().saturating_mul(2).min(MOST);
            if self.records.len() >= MOST {
                let full = StoreError::new(StoreErrorKind::Unavailable);
                return Err(full.with_source("the store keeps 100000 locks already"));
            }
        }
        let last = self.fence;
        Ok(self.records.entry(name.clone()).or_insert_with(|| Record::after(last)))
    }

    /// Whom to ring for a lock that became free.
    fn rings(&self, name: &LockName) -> Vec<Ring> {
        let bells = self.bells.get(name).into_iter().flatten();
        bells.map(|(_, ring)| ring.clone()).collect()
    }

    fn describe(&self, name: &LockName, held: &Held, now: Timestamp) -> Holder {
        let left = held.expires_ms.saturating_sub(millis(now));
        let waiting = self.bells.get(name).map_or(0, Vec::len);
        Holder {
            name: name.clone(),
            kind: held.kind,
            owner: held.owner.as_str().to_owned(),
            depth: u32::try_from(held.holds.len()).unwrap_or(u32::MAX),
            left: Some(Duration::from_millis(left)),
            fence: Some(held.fence),
            age: Some(now.since(held.since)),
            label: held.label.to_string(),
            waiting: u64::try_from(waiting).unwrap_or(u64::MAX),
        }
    }
}

const fn millis(now: Timestamp) -> u64 {
    now.as_micros() / 1_000
}

fn ring(rings: Vec<Ring>, name: &LockName) {
    rings.into_iter().for_each(|Ring(bell)| bell.ring(name));
}

impl Locks {
    fn acquire(&self, ask: &Acquire<'_>, clock: &impl Clock) -> Result<Acquired, StoreError> {
        let mut state = lock(&self.0);
        let now = clock.now();
        if state.latch(ask.hold, now).is_some() {
            return Ok(Acquired::Over);
        }
        let last = state.fence;
        let record = state.record(ask.name, now)?;
        record.rise_above(last);
        let acquired = record.acquire(ask, now);
        if let Acquired::Granted { fence, .. } = acquired {
            state.fence = state.fence.max(Some(fence));
        }
        Ok(acquired)
    }

    fn renew(&self, batch: &[Renew<'_>], clock: &impl Clock) -> Vec<Renewed> {
        let mut state = lock(&self.0);
        let now = clock.now();
        let renew = |ask: &Renew<'_>| {
            state.records.get_mut(ask.name).map_or(Renewed::Lost, |record| record.renew(ask, now))
        };
        batch.iter().map(renew).collect()
    }

    fn release(&self, ask: &Release<'_>, clock: &impl Clock) -> Released {
        let mut state = lock(&self.0);
        let now = clock.now();
        if let Some(answer) = state.latch(ask.hold, now) {
            return answer;
        }
        let record = state.records.get_mut(ask.name);
        let released = record.map_or(Released::AlreadyLost, |record| record.release(ask, now));
        if released == Released::Freed {
            state.records.remove(ask.name);
        }
        state.remember(ask.hold, released, now);
        if released == Released::Freed {
            let rings = state.rings(ask.name);
            drop(state);
            ring(rings, ask.name);
        }
        released
    }

    fn force_release(&self, name: &LockName, clock: &impl Clock) -> Option<Holder> {
        let mut state = lock(&self.0);
        let now = clock.now();
        let held = state.records.remove(name)?.force_release(now)?;
        let (holder, rings) = (state.describe(name, &held, now), state.rings(name));
        drop(state);
        ring(rings, name);
        Some(holder)
    }

    fn inspect(&self, name: &LockName, clock: &impl Clock) -> Option<Holder> {
        let mut state = lock(&self.0);
        let now = clock.now();
        state.records.get_mut(name)?.settle(now);
        let held = state.records.get(name)?.holder(now)?;
        Some(state.describe(name, held, now))
    }

    /// The locks whose names come after the `cursor`-th in order.
    fn list(&self, cursor: u64, clock: &impl Clock) -> Page {
        let state = lock(&self.0);
        let now = clock.now();
        let held = |(name, record): (&LockName, &Record)| {
            record.holder(now).map(|held| state.describe(name, held, now))
        };
        let mut holders: Vec<Holder> = state.records.iter().filter_map(held).collect();
        holders.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let skipped = usize::try_from(cursor).unwrap_or(usize::MAX).min(holders.len());
        let mut holders = holders.split_off(skipped);
        let next = (holders.len() > LISTED).then(|| skipped.saturating_add(LISTED));
        holders.truncate(LISTED);
        Page { holders, next: next.and_then(|next| u64::try_from(next).ok()) }
    }

    fn listen(&self, name: &LockName, bell: Arc<dyn Bell>) -> Ear {
        let mut state = lock(&self.0);
        let number = state.next_bell;
        state.next_bell = number.wrapping_add(1);
        state.bells.entry(name.clone()).or_default().push((number, Ring(bell)));
        Ear { locks: Arc::downgrade(&self.0), name: name.clone(), number }
    }
}

impl<C: Clock + 'static> LockStore for EmbeddedStore<C> {
    type Ear = Ear;

    async fn acquire(&self, ask: &Acquire<'_>) -> Result<Acquired, StoreError> {
        self.locks.acquire(ask, &self.clock)
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Result<Vec<Renewed>, StoreError> {
        Ok(self.locks.renew(batch, &self.clock))
    }

    async fn release(&self, ask: &Release<'_>) -> Result<Released, StoreError> {
        Ok(self.locks.release(ask, &self.clock))
    }

    async fn force_release(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        Ok(self.locks.force_release(name, &self.clock))
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        Ok(self.locks.inspect(name, &self.clock))
    }

    async fn list(&self, cursor: u64) -> Result<Page, StoreError> {
        Ok(self.locks.list(cursor, &self.clock))
    }

    async fn listen(&self, name: &LockName, bell: Arc<dyn Bell>) -> Result<Ear, StoreError> {
        Ok(self.locks.listen(name, bell))
    }
}
