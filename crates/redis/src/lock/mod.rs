//! Locks in Redis: one script a step, on Redisson's layout.
//!
//! | Module | Contents |
//! |---|---|
//! | `names` | the keys and the channel of a lock |
//! | `reply` | the replies of the scripts |
//! | `release_notifier` | the subscription that announces releases |
//! | `release_records` | removes release records that are no longer needed |
//! | `replicated` | grants that wait for replicas |
//! | `fenced_write` | a value that only the newest holder may set |
//!
//! A step is sent alone and at once on the connections of the store, so that no lock waits for a batch.
//! The caller writes it; the thread of the store delivers the reply. A step has a longer deadline than a
//! decision, since there is no answer without Redis. Steps are not sent again here: the caller does that,
//! with the same ids.
//!
//! Waiting, renewing and the deadlines of leases are in `tollgate::Locks`.

mod fenced_write;
pub(crate) mod names;
mod release_notifier;
mod release_records;
mod replicated;
mod reply;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout_at;
use tollgate_core::lock::{
    Acquire, AcquireOutcome, Attempt, LockHolder, LockKind, LockName, LockStore, MAX_LABEL, Page,
    Release, ReleaseNotifier, ReleaseOutcome, Renew, RenewOutcome,
};
use tollgate_core::{StoreError, StoreErrorKind};

use crate::config::Config;
use crate::error::Cause;
use crate::link::{Call, Reply, ScriptId, WATCH_INTERVAL};
use crate::script::Step;
use crate::{RedisStore, clock};

pub use self::fenced_write::FencedWrite;
pub use self::release_notifier::RedisReleaseSubscription;

/// The deadline of one step, unless decisions have a longer one: far above a round trip, and short
/// enough that a lost reply is noticed and the step sent again well within the shortest usual lease.
const PATIENCE: Duration = Duration::from_millis(250);

// A step with less time cannot be written by its caller; and some time passes until it is written.
const _: () =
    assert!(WATCH_INTERVAL.as_millis() + 50 <= PATIENCE.as_millis(), "no step would be posted");

/// Locks renewed with one call: less than a millisecond of Redis's time.
const RENEWED_AT_ONCE: usize = 128;

/// Keys that one call for a list scans: a fraction of a millisecond.
const LISTED_AT_ONCE: &str = "500";

/// The command that publishes a message. In a cluster it would be `SPUBLISH`.
const PUBLISH: &str = "PUBLISH";

/// The state of a store that only locks use.
#[derive(Debug)]
pub(crate) struct LockContext {
    /// Limits the steps in flight, so that decisions always have room.
    room: Arc<Semaphore>,
    notifier: release_notifier::ReleaseSubscriptions,
    replicated: replicated::ReplicatedLink,
    records: Arc<release_records::ReleaseRecords>,
    patience: Duration,
}

impl LockContext {
    pub(crate) fn new(config: &Config, max_batches: usize) -> Self {
        let room = config.max_in_flight.saturating_sub(max_batches).max(1);
        Self {
            room: Arc::new(Semaphore::new(room)),
            notifier: release_notifier::ReleaseSubscriptions::default(),
            replicated: replicated::ReplicatedLink::new(config),
            records: Arc::default(),
            patience: PATIENCE.max(config.deadline),
        }
    }
}

/// Makes the call of a step.
fn call<'a>(
    step: Step,
    keys: impl IntoIterator<Item = &'a str>,
    args: impl IntoIterator<Item = String>,
) -> Call<'static> {
    let keys = keys.into_iter().map(str::as_bytes).collect();
    Call { script: ScriptId::Lock(step), keys, args: args.into_iter().map(Into::into).collect() }
}

fn kind_code(kind: LockKind) -> String {
    match kind {
        LockKind::Reentrant => "r".to_owned(),
        LockKind::Simple => "s".to_owned(),
    }
}

/// Cuts a label to the length that is kept.
fn label(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LABEL)]
}

/// Makes the call that acquires. `lua/lock/acquire_uncontended.lua` documents the arguments.
fn acquisition(ask: &Acquire<'_>) -> Call<'static> {
    let Acquire { name, owner, hold, .. } = *ask;
    let (sidecar, record) = (names::sidecar(name), names::release_record(name, hold));
    let delay = u64::try_from(ask.delay.as_millis()).unwrap_or(u64::MAX).min(MAX_DELAY_MS);
    let lease = ask.lease.millis();
    let args = [
        owner.as_str().to_owned(),
        lease.to_string(),
        format!(" 0 {delay} {owner} {hold} {}", label(ask.label)),
        lease.saturating_add(SIDECAR_MS).to_string(),
    ];
    call(Step::acquire(ask.kind), [name.as_str(), &sidecar, &record], args)
}

/// Makes the call that releases, and the name of the release record it leaves.
/// `lua/lock/release_sole_hold.lua` documents the arguments.
fn ending(ask: &Release<'_>) -> (Call<'static>, String) {
    let Release { name, owner, hold, .. } = *ask;
    let (sidecar, record) = (names::sidecar(name), names::release_record(name, hold));
    let channel = names::channel(name);
    let before = match ask.attempt {
        Attempt::Sole => " 0 0 ",
        Attempt::Again => "again ",
    };
    let args = [
        format!("{before}{owner} {hold} "),
        owner.as_str().to_owned(),
        ask.lease.millis().to_string(),
    ];
    let keys = [name.as_str(), &sidecar, &record, &channel];
    (call(Step::release(ask.kind), keys, args), record)
}

/// The time by which a sidecar outlives its lock: a day, as in `lua/lock/common.lua`.
const SIDECAR_MS: u64 = 24 * 60 * 60 * 1_000;

/// A lock-delay is no longer than the longest lease: the sum of both stays exact in a script.
const MAX_DELAY_MS: u64 = 365 * 24 * 60 * 60 * 1_000;

impl RedisStore {
    /// Runs a step and returns by its deadline.
    pub(crate) async fn step(&self, call: Call<'static>) -> Result<Reply, StoreError> {
        let deadline = clock::ahead(self.locks.patience);
        // The caller writes the step itself, if there is room and nothing unusual: waking the
        // thread of the store takes longer than that.
        if let Ok(_room) = self.locks.room.try_acquire()
            && let Some(answered) = self.driver.link.run_on_caller(&call, deadline).await
        {
            return answered;
        }
        let (link, room) = (Arc::clone(&self.driver.link), Arc::clone(&self.locks.room));
        let work = async move {
            let Ok(Ok(_room)) = timeout_at(deadline, room.acquire_owned()).await else {
                return Err(Cause::TooManyInFlight.unavailable());
            };
            link.run(call, deadline).await
        };
        self.driver.run(work).await
    }

    async fn holder_of(
        &self,
        step: Step,
        name: &LockName,
    ) -> Result<Option<LockHolder>, StoreError> {
        let (sidecar, channel) = (names::sidecar(name), names::channel(name));
        let args = (step == Step::Force).then(|| PUBLISH.to_owned());
        let reply = self.step(call(step, [name.as_str(), &sidecar, &channel], args)).await?;
        reply::holder(&reply, name)
    }
}

impl LockStore for RedisStore {
    type Subscription = RedisReleaseSubscription;

    async fn acquire(&self, ask: &Acquire<'_>) -> Result<AcquireOutcome, StoreError> {
        if let Some(replicas) = ask.durability.replicas() {
            return self.acquire_replicated(acquisition(ask), replicas).await;
        }
        let reply = self.step(acquisition(ask)).await?;
        reply::acquired(&reply).ok_or_else(reply::malformed)
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Result<Vec<RenewOutcome>, StoreError> {
        let mut renewed = Vec::with_capacity(batch.len());
        for part in batch.chunks(RENEWED_AT_ONCE) {
            let sidecars: Vec<String> = part.iter().map(|ask| names::sidecar(ask.name)).collect();
            let keys = part.iter().zip(&sidecars);
            let keys = keys.flat_map(|(ask, sidecar)| [ask.name.as_str(), sidecar]);
            let args = part.iter().flat_map(|ask| {
                let (fence, lease) = (ask.fence.to_string(), ask.lease.millis().to_string());
                [kind_code(ask.kind), ask.owner.as_str().to_owned(), fence, lease]
            });
            let reply = self.step(call(Step::Renew, keys, args)).await?;
            renewed.extend(reply::renewed(&reply, part.len()).ok_or_else(reply::malformed)?);
        }
        Ok(renewed)
    }

    async fn release(&self, ask: &Release<'_>) -> Result<ReleaseOutcome, StoreError> {
        let (call, record) = ending(ask);
        let reply = self.step(call).await?;
        // Nothing of this hold is in flight any more, so nobody will read the release record.
        if ask.attempt == Attempt::Sole
            && let Some(sweep) = self.locks.records.remove(&self.driver.link, record)
        {
            self.driver.spawn(sweep);
        }
        reply::released(&reply).ok_or_else(reply::malformed)
    }

    async fn force_release(&self, name: &LockName) -> Result<Option<LockHolder>, StoreError> {
        self.holder_of(Step::Force, name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<LockHolder>, StoreError> {
        self.holder_of(Step::Inspect, name).await
    }

    async fn list(&self, cursor: u64) -> Result<Page, StoreError> {
        let args = [cursor.to_string(), LISTED_AT_ONCE.to_owned()];
        let reply = self.step(call(Step::List, [], args)).await?;
        let (next, names) = reply::page(&reply).ok_or_else(reply::malformed)?;
        let mut holders = Vec::new();
        for name in &names {
            match self.inspect(name).await {
                Ok(holder) => holders.extend(holder),
                // Somebody put something else there.
                Err(error) if error.kind() == StoreErrorKind::Corrupt => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Page { holders, next: (next != 0).then_some(next) })
    }

    async fn subscribe(
        &self,
        name: &LockName,
        notifier: Arc<dyn ReleaseNotifier>,
    ) -> Result<RedisReleaseSubscription, StoreError> {
        self.subscribe_to_releases(name, notifier).await
    }
}
