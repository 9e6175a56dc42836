//! Locks: each grant has a fence, and a holder learns of a loss.
//!
//! | Part | Contents |
//! |---|---|
//! | [`Locks`], [`Lock`] | the API |
//! | `acquisition`, `lock_queue` | acquiring a lock: trying, subscribing, one queue for each name |
//! | `guard`, `hold` | a lock that is held |
//! | `watchdog`, `lease_renewer` | the watchdog: its schedule, and its thread |
//! | `function`, `scope` | the code that `#[lock]` expands to, and the scope of its locks |
//! | [`fence_check`] | checks of a fence, for a resource |
//!
//! The steps themselves belong to the store ([`LockStore`]); `docs/locks.md` lists their promises.

mod acquisition;
mod error;
pub mod fence_check;
#[cfg(feature = "macros")]
pub(crate) mod function;
mod guard;
mod hold;
mod lease_renewer;
mod lock_queue;
#[cfg(feature = "macros")]
mod not_locked;
#[cfg(feature = "macros")]
pub(crate) mod scope;
mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::lock::{Fence, Lease, MAX_LABEL, Owner};

pub use error::LockError;
pub use guard::{LockGuard, Loss, ProtectedOutput, ReleaseResult};
pub use hold::LockState;
pub use lock_queue::Waiter;
#[cfg(feature = "macros")]
pub use not_locked::{NotLocked, NotLockedKind};
pub use tollgate_core::lock::{
    Durability, HoldId, LeaseError, LockHolder, LockKind, LockName, LockNameError, LockStore,
    OwnerError, Page, Replicas,
};

use crate::clock::{self, after};
use crate::observer::{Observer, Observers};
use crate::random::{self, IdGenerator};
use acquisition::LockPatience;
use hold::{LeaseMode, LockRequest};
use lease_renewer::RenewerThread;
use lock_queue::LockQueues;

/// The most tasks that may wait for locks in a process, by default: some hundred megabytes.
const MAX_WAITING: usize = 1 << 19;

/// Locks on a store. With an [`EmbeddedStore`](crate::EmbeddedStore) they are shared within a
/// process, with a `RedisStore` among many. Clones share all state. Waiting needs tokio's timers;
/// holding does not.
///
/// ```
/// use tollgate::{EmbeddedStore, Locks, ReleaseResult};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = Locks::new(EmbeddedStore::new());
///
/// let guard = locks.lock("order:42").await?;
/// assert!(locks.try_lock("order:42").await?.is_none(), "it is held");
/// println!("write with fence {}", guard.fence());
///
/// assert_eq!(guard.release().await?, ReleaseResult::Released);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Locks<S: LockStore> {
    shared: Arc<LocksShared<S>>,
}

impl<S: LockStore> Clone for Locks<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

pub(crate) struct LocksShared<S: LockStore> {
    thread: Arc<RenewerThread<S>>,
    queues: Arc<LockQueues>,
    ids: IdGenerator,
    process: u128,
    owners: AtomicU64,
    settings: LockSettings,
}

#[derive(Debug)]
pub(crate) struct LockSettings {
    lease: Lease,
    delay: Duration,
    durability: Durability,
    patience: Duration,
    label: String,
}

impl<S: LockStore> LocksShared<S> {
    fn new_owner(&self) -> Owner {
        Owner::new(self.process, self.owners.fetch_add(1, Ordering::Relaxed))
    }
}

opaque_debug!(LocksShared<S: LockStore>: |it| settings = it.settings);

/// An event of a lock; see [`LocksBuilder::observer`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockEvent {
    /// A lock was granted.
    Granted {
        /// The lock.
        name: LockName,
        /// The owner that holds it now.
        owner: Owner,
        /// The fence of the grant.
        fence: Fence,
        /// The time that the task waited.
        waited: Duration,
    },
    /// A lock was given back.
    Released {
        /// The lock.
        name: LockName,
        /// The owner that held it.
        owner: Owner,
        /// The fence under which it was held.
        fence: Fence,
    },
    /// A lock was lost, and its holder was notified.
    Lost {
        /// The lock.
        name: LockName,
        /// The owner that held it.
        owner: Owner,
        /// The fence under which it was held.
        fence: Fence,
    },
    /// A lock was taken from its holder by force.
    ForceReleased {
        /// The holder that lost it.
        holder: LockHolder,
        /// The reason given to [`Locks::force_release`].
        reason: String,
    },
}

impl<S: LockStore> Locks<S> {
    /// Creates locks on this store with the default settings.
    pub fn new(store: S) -> Self {
        Self::builder(store).build()
    }

    /// Starts to build locks with other settings.
    pub fn builder(store: S) -> LocksBuilder<S> {
        LocksBuilder {
            store,
            settings: LockSettings {
                lease: Lease::DEFAULT,
                delay: Duration::ZERO,
                durability: Durability::Primary,
                patience: Duration::from_secs(10),
                label: format!("pid {}", std::process::id()),
            },
            max_waiting: MAX_WAITING,
            observers: Vec::new(),
        }
    }

    /// Creates a new owner. Its clones may re-enter the locks that it holds.
    pub fn owner(&self) -> Owner {
        self.shared.new_owner()
    }

    /// A lock by its name, with options that the short forms below lack.
    ///
    /// # Errors
    ///
    /// When the name is empty or too long.
    pub fn named(&self, name: &str) -> Result<Lock<S>, LockError> {
        let name = LockName::new(name)?;
        let shared = Arc::clone(&self.shared);
        Ok(Lock { shared, name, kind: LockKind::Reentrant, owner: None, lease: None })
    }

    /// Waits for a re-entrant lock, and holds it under a new owner until the guard is dropped.
    ///
    /// # Errors
    ///
    /// When the name is empty or too long, the store does not answer, or too many tasks wait.
    pub async fn lock(&self, name: &str) -> Result<LockGuard, LockError> {
        self.named(name)?.lock().await
    }

    /// Acquires a re-entrant lock if it is free.
    ///
    /// # Errors
    ///
    /// As [`Locks::lock`].
    pub async fn try_lock(&self, name: &str) -> Result<Option<LockGuard>, LockError> {
        self.named(name)?.try_lock().await
    }

    /// Waits for a re-entrant lock, but not longer than `wait`, and holds it for `lease` and no
    /// longer: nothing renews it.
    ///
    /// # Errors
    ///
    /// As [`Locks::lock`], and when the lease is too short or too long.
    pub async fn lock_timeout(
        &self,
        name: &str,
        wait: Duration,
        lease: Duration,
    ) -> Result<Option<LockGuard>, LockError> {
        self.named(name)?.lock_timeout(wait, lease).await
    }

    /// Returns a page of the locks that any process holds. Pass 0 as the first `cursor`, then the
    /// cursor of the last page. Locks of Redisson are missing here; [`Locks::inspect`] finds them.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn holders(&self, cursor: u64) -> Result<Page, LockError> {
        self.shared.thread.renewer.store.list(cursor).await.map_err(LockError::Store)
    }

    /// The holder of a lock, and the number of processes that wait for it.
    ///
    /// # Errors
    ///
    /// When the name is empty or too long, the stored value is not a lock, or the store does not
    /// answer.
    pub async fn inspect(&self, name: &str) -> Result<Option<LockHolder>, LockError> {
        let name = LockName::new(name)?;
        self.shared.thread.renewer.store.inspect(&name).await.map_err(LockError::Store)
    }

    /// The tasks of this process that wait for locks, a thousand at most.
    pub fn waiters(&self) -> Vec<Waiter> {
        self.shared.queues.waiters(1_000)
    }

    /// Waits until dropped guards and unanswered attempts are given back. Call it before the
    /// process ends: locks that it leaves behind end only with their leases. It takes ten seconds
    /// at most if the store does not answer.
    pub async fn settled(&self) {
        self.shared.thread.renewer.settled().await;
    }

    /// Takes a lock from its holder by force, and returns the holder. Observers get the event with
    /// the reason.
    ///
    /// The holder's watchdog notices the loss within a third of its lease. Until then, only the
    /// fence protects the resource.
    ///
    /// # Errors
    ///
    /// As [`Locks::inspect`].
    pub async fn force_release(
        &self,
        name: &str,
        reason: &str,
    ) -> Result<Option<LockHolder>, LockError> {
        let name = LockName::new(name)?;
        let renewer = &self.shared.thread.renewer;
        let holder = renewer.store.force_release(&name).await.map_err(LockError::Store)?;
        if let Some(holder) = &holder {
            renewer.observers.tell(|| {
                let (holder, reason) = (holder.clone(), reason.to_owned());
                crate::Event::Lock(LockEvent::ForceReleased { holder, reason })
            });
        }
        Ok(holder)
    }
}

/// A lock by its name; see [`Locks::named`].
#[derive(Debug)]
pub struct Lock<S: LockStore> {
    shared: Arc<LocksShared<S>>,
    name: LockName,
    kind: LockKind,
    owner: Option<Owner>,
    lease: Option<Lease>,
}

impl<S: LockStore> Clone for Lock<S> {
    fn clone(&self) -> Self {
        let Self { shared, name, kind, owner, lease } = self;
        let (shared, name, owner) = (Arc::clone(shared), name.clone(), owner.clone());
        Self { shared, name, kind: *kind, owner, lease: *lease }
    }
}

impl<S: LockStore> Lock<S> {
    /// Sets the owner that holds the lock. It may hold it already.
    #[must_use]
    pub fn by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Chooses the simple kind of lock: a string in Redis, which cannot be acquired twice.
    #[must_use]
    pub const fn simple(mut self) -> Self {
        self.kind = LockKind::Simple;
        self
    }

    /// Sets the lease, which is renewed, in place of the default lease of these
    /// [locks](LocksBuilder::lease).
    #[must_use]
    pub const fn lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Waits for the lock. Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// When the store does not answer for the [patience](LocksBuilder::patience) of these locks,
    /// the stored value is not a lock, too many tasks wait, or the owner holds the lock too often.
    pub async fn lock(&self) -> Result<LockGuard, LockError> {
        let request = self.renewed();
        loop {
            // A wait without an end returns the lock or an error.
            if let Some(guard) = self.shared.acquire(&request, LockPatience::Forever).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquires the lock if it is free, even if tasks wait for it.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`], but after the store did not answer three times.
    pub async fn try_lock(&self) -> Result<Option<LockGuard>, LockError> {
        let request = self.renewed();
        self.shared.acquire(&request, LockPatience::None).await
    }

    /// Waits for the lock, but not longer than `wait`. The lock is renewed while it is held.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`], and when the store did not answer at the end of the wait: the holder is
    /// not known then.
    pub async fn lock_within(&self, wait: Duration) -> Result<Option<LockGuard>, LockError> {
        let request = self.renewed();
        self.shared.acquire(&request, LockPatience::Until(after(clock::now(), wait))).await
    }

    /// Waits for the lock, but not longer than `wait`, and holds it for `lease` and no longer:
    /// nothing renews it.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`], and when the lease is too short or too long.
    pub async fn lock_timeout(
        &self,
        wait: Duration,
        lease: Duration,
    ) -> Result<Option<LockGuard>, LockError> {
        let request = self.request(Lease::new(lease)?, LeaseMode::Fixed);
        self.shared.acquire(&request, LockPatience::Until(after(clock::now(), wait))).await
    }

    fn renewed(&self) -> LockRequest {
        self.request(self.lease.unwrap_or(self.shared.settings.lease), LeaseMode::Renewed)
    }

    fn request(&self, lease: Lease, lease_mode: LeaseMode) -> LockRequest {
        let owner = self.owner.clone().unwrap_or_else(|| self.shared.new_owner());
        let (name, shared_owner) = (self.name.clone(), self.owner.is_some());
        LockRequest { name, kind: self.kind, owner, shared_owner, lease, lease_mode }
    }
}

/// Settings of [`Locks`].
#[must_use]
pub struct LocksBuilder<S> {
    store: S,
    settings: LockSettings,
    max_waiting: usize,
    observers: Vec<Box<dyn Observer>>,
}

opaque_debug!(LocksBuilder<S>: |it| settings = it.settings);

impl<S: LockStore> LocksBuilder<S> {
    /// Sets the lease of locks that are renewed while they are held; 30 s by default. A lock stays
    /// closed for this time after its holder died. It is renewed every third of this time.
    pub const fn lease(mut self, lease: Lease) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Sets the time for which a lock stays closed after its holder vanished, so that requests of
    /// the holder can still arrive; none by default, a year at most. Use it for resources that
    /// cannot check a fence.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.settings.delay = delay.min(Lease::MAX);
        self
    }

    /// Sets the replicas that a grant must have reached; [`Durability::Primary`] by default.
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.settings.durability = durability;
        self
    }

    /// Sets the time for which a store that does not answer is asked again; 10 s by default.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.settings.patience = patience;
        self
    }

    /// Sets the most tasks that may wait in this process; 524 288 by default, 1 at least.
    pub fn max_waiting(mut self, tasks: usize) -> Self {
        self.max_waiting = tasks.max(1);
        self
    }

    /// Sets the label that lists of locks show for holders of this process; `pid` and its number by
    /// default. It is cut at 128 bytes.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        let mut label = label.into();
        label.truncate(label.floor_char_boundary(MAX_LABEL));
        self.settings.label = label;
        self
    }

    /// Adds an observer of [`Event::Lock`](crate::Event::Lock): grants, releases, losses, and locks
    /// taken by force, for an audit.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Builds the locks.
    pub fn build(self) -> Locks<S> {
        let thread = RenewerThread::new(self.store, Observers::start(self.observers));
        let shared = LocksShared {
            thread: Arc::new(thread),
            queues: Arc::new(LockQueues::new(self.max_waiting)),
            ids: IdGenerator::new(),
            process: u128::from_le_bytes(random::secret()),
            owners: AtomicU64::new(1),
            settings: self.settings,
        };
        Locks { shared: Arc::new(shared) }
    }
}
