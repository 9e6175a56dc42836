//! Locks in this process: a map of records behind one mutex.
//!
//! Every step is one of [`LockRecord`]; this module has the map, its bound, the release records and
//! the notifiers. Fences are counted for all locks together, so a free lock needs no record for its
//! own. A notifier is called after the mutex is released.
//!
//! There is one mutex and no shards: a step takes some hundred nanoseconds, and the work under a
//! lock takes longer.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tollgate_core::lock::{
    Acquire, AcquireOutcome, Fence, HeldLock, HoldId, LockHolder, LockName, LockRecord, LockStore,
    Page, RELEASE_RECORD_TTL, Release, ReleaseNotifier, ReleaseOutcome, Renew, RenewOutcome,
};
use tollgate_core::{Clock, StoreError, StoreErrorKind, Timestamp};

use crate::EmbeddedStore;
use tollgate_core::lock_mutex;

/// The most locks that may be held at a time: some tens of megabytes with their names.
const MAX_LOCKS: usize = 100_000;

/// The most release records. No message to this store is lost. Only a store in front of it can send
/// a release twice, and then at once.
const MAX_RELEASE_RECORDS: usize = 1_024;

/// The most locks in one page of a list.
const PAGE_SIZE: usize = 256;

/// The locks of a store.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    records: HashMap<LockName, LockRecord>,
    fence: Option<Fence>,
    /// The answer to each release, and the millisecond until which it is stored.
    release_records: HashMap<HoldId, (ReleaseOutcome, u64)>,
    /// The release records, in the order in which they were made.
    release_order: VecDeque<HoldId>,
    notifiers: HashMap<LockName, Vec<(u64, NotifierHandle)>>,
    next_number: u64,
    /// The number of records at which idle ones are swept: twice that of the last sweep.
    sweep_at: usize,
}

#[derive(Clone)]
struct NotifierHandle(Arc<dyn ReleaseNotifier>);

impl std::fmt::Debug for NotifierHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NotifierHandle(..)")
    }
}

/// Keeps a notifier subscribed to the releases of a lock until it is dropped.
#[derive(Debug)]
pub struct EmbeddedReleaseSubscription {
    locks: Weak<Mutex<LockTable>>,
    name: LockName,
    number: u64,
}

impl Drop for EmbeddedReleaseSubscription {
    fn drop(&mut self) {
        let Some(locks) = self.locks.upgrade() else { return };
        let mut state = lock_mutex(&locks);
        if let Entry::Occupied(mut notifiers) = state.notifiers.entry(self.name.clone()) {
            notifiers.get_mut().retain(|(number, _)| *number != self.number);
            if notifiers.get().is_empty() {
                notifiers.remove();
            }
        }
    }
}

impl LockTable {
    fn release_record(&self, hold: HoldId, now: Timestamp) -> Option<ReleaseOutcome> {
        let (answer, until) = self.release_records.get(&hold)?;
        (millis(now) <= *until).then_some(*answer)
    }

    fn remember(&mut self, hold: HoldId, answer: ReleaseOutcome, now: Timestamp) {
        if self.release_order.len() >= MAX_RELEASE_RECORDS
            && let Some(oldest) = self.release_order.pop_front()
        {
            self.release_records.remove(&oldest);
        }
        let span = u64::try_from(RELEASE_RECORD_TTL.as_millis()).unwrap_or(u64::MAX);
        self.release_records.insert(hold, (answer, millis(now).saturating_add(span)));
        self.release_order.push_back(hold);
    }

    /// Returns the record of a name, and creates it if there is room.
    fn record(&mut self, name: &LockName, now: Timestamp) -> Result<&mut LockRecord, StoreError> {
        let known = self.records.contains_key(name);
        if !known && self.records.len() >= self.sweep_at.max(64) {
            self.records.retain(|_, record| !record.is_idle(now));
            self.sweep_at = self.records.len().saturating_mul(2).min(MAX_LOCKS);
            if self.records.len() >= MAX_LOCKS {
                let full = StoreError::new(StoreErrorKind::Unavailable);
                return Err(full.with_source("the store keeps 100000 locks already"));
            }
        }
        let last = self.fence;
        Ok(self.records.entry(name.clone()).or_insert_with(|| LockRecord::after(last)))
    }

    fn describe(&self, name: &LockName, held: &HeldLock, now: Timestamp) -> LockHolder {
        let left = held.expires_ms.saturating_sub(millis(now));
        let waiting = self.notifiers.get(name).map_or(0, Vec::len);
        LockHolder {
            name: name.clone(),
            kind: held.kind,
            owner: held.owner.as_str().to_owned(),
            depth: held.depth(),
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

/// Unlocks the table, and then calls the notifiers of a lock that became free.
fn notify(table: MutexGuard<'_, LockTable>, name: &LockName) {
    let notifiers = table.notifiers.get(name).into_iter().flatten();
    let notifiers: Vec<NotifierHandle> = notifiers.map(|(_, notifier)| notifier.clone()).collect();
    drop(table);
    notifiers.into_iter().for_each(|NotifierHandle(notifier)| notifier.notify(name));
}

impl<C: Clock> EmbeddedStore<C> {
    /// Locks the table, and reads the clock.
    fn lock_table(&self) -> (MutexGuard<'_, LockTable>, Timestamp) {
        let table = lock_mutex(&self.locks);
        // Read under the mutex, so that steps are made in the order of their moments.
        (table, self.clock.now())
    }
}

impl<C: Clock + 'static> LockStore for EmbeddedStore<C> {
    type Subscription = EmbeddedReleaseSubscription;

    async fn acquire(&self, ask: &Acquire<'_>) -> Result<AcquireOutcome, StoreError> {
        let (mut table, now) = self.lock_table();
        if table.release_record(ask.hold, now).is_some() {
            return Ok(AcquireOutcome::Over);
        }
        let last = table.fence;
        let record = table.record(ask.name, now)?;
        record.rise_above(last);
        let acquired = record.acquire(ask, now);
        if let AcquireOutcome::Granted { fence, .. } = acquired {
            table.fence = table.fence.max(Some(fence));
        }
        Ok(acquired)
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Result<Vec<RenewOutcome>, StoreError> {
        let (mut table, now) = self.lock_table();
        let renew = |ask: &Renew<'_>| match table.records.get_mut(ask.name) {
            Some(record) => record.renew(ask, now),
            None => RenewOutcome::Lost,
        };
        Ok(batch.iter().map(renew).collect())
    }

    async fn release(&self, ask: &Release<'_>) -> Result<ReleaseOutcome, StoreError> {
        let (mut table, now) = self.lock_table();
        if let Some(answer) = table.release_record(ask.hold, now) {
            return Ok(answer);
        }
        let record = table.records.get_mut(ask.name);
        let released =
            record.map_or(ReleaseOutcome::AlreadyLost, |record| record.release(ask, now));
        table.remember(ask.hold, released, now);
        if released == ReleaseOutcome::Freed {
            table.records.remove(ask.name);
            notify(table, ask.name);
        }
        Ok(released)
    }

    async fn force_release(&self, name: &LockName) -> Result<Option<LockHolder>, StoreError> {
        let (mut table, now) = self.lock_table();
        let record = table.records.remove(name);
        let Some(held) = record.and_then(|mut record| record.force_release(now)) else {
            return Ok(None);
        };
        let holder = table.describe(name, &held, now);
        notify(table, name);
        Ok(Some(holder))
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<LockHolder>, StoreError> {
        let (mut table, now) = self.lock_table();
        if let Some(record) = table.records.get_mut(name) {
            record.settle(now);
        }
        let held = table.records.get(name).and_then(|record| record.holder(now));
        Ok(held.map(|held| table.describe(name, held, now)))
    }

    /// Lists the locks whose names come after the `cursor`-th in order.
    async fn list(&self, cursor: u64) -> Result<Page, StoreError> {
        let (table, now) = self.lock_table();
        let held = |(name, record): (&LockName, &LockRecord)| {
            record.holder(now).map(|held| table.describe(name, held, now))
        };
        let mut holders: Vec<LockHolder> = table.records.iter().filter_map(held).collect();
        holders.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let skipped = usize::try_from(cursor).unwrap_or(usize::MAX).min(holders.len());
        let mut holders = holders.split_off(skipped);
        let next = (holders.len() > PAGE_SIZE).then(|| skipped.saturating_add(PAGE_SIZE));
        holders.truncate(PAGE_SIZE);
        Ok(Page { holders, next: next.and_then(|next| u64::try_from(next).ok()) })
    }

    async fn subscribe(
        &self,
        name: &LockName,
        notifier: Arc<dyn ReleaseNotifier>,
    ) -> Result<EmbeddedReleaseSubscription, StoreError> {
        let mut table = lock_mutex(&self.locks);
        let number = table.next_number;
        table.next_number = number.wrapping_add(1);
        table.notifiers.entry(name.clone()).or_default().push((number, NotifierHandle(notifier)));
        Ok(EmbeddedReleaseSubscription {
            locks: Arc::downgrade(&self.locks),
            name: name.clone(),
            number,
        })
    }
}
