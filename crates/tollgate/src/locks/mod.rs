//! Locks: fenced, and told when lost.
//!
//! | Part | Is |
//! |---|---|
//! | [`Locks`], [`Lock`] | what is called |
//! | `wait`, `lock_queue` | getting a lock: trying, listening, one line a name |
//! | `guard`, `hold` | a lock that is held |
//! | `watchdog`, `lease_renewer` | the watchdog: its book, and its thread |
//! | `function`, `scope` | what `#[lock]` expands to, and where it finds its locks |
//! | [`fencing`] | what protects a resource by the fence |
//!
//! The steps themselves are the store's ([`LockStore`]); `docs/locks.md` says what they promise.

mod acquisition;
mod error;
pub mod fencing;
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
pub use guard::{LockGuard, Loss, Protected, Release};
pub use hold::LockState;
pub use lock_queue::Waiter;
#[cfg(feature = "macros")]
pub use not_locked::{NotLocked, NotLockedKind};
pub use tollgate_core::lock::{
    Durability, HoldId, LeaseError, LockHolder, LockKind, LockName, LockNameError, LockStore,
    OwnerError, Page, Replicas,
};

use crate::chance::{self, Names};
use crate::clock::{self, after};
use crate::observer::{Observer, Observers};
use acquisition::{LockPatience, LockRequest};
use hold::Upkeep;
use lease_renewer::RenewerThread;
use lock_queue::LockQueues;

/// Tasks that may wait for locks in a process unless set: some hundred megabytes.
const MOST_WAITING: usize = 1 << 19;

/// Locks on a store: [`EmbeddedStore`](crate::EmbeddedStore) within a process, `RedisStore` among many.
/// Clones are the same. Waiting needs tokio's time; holding does not.
///
/// ```
/// use tollgate::{EmbeddedStore, Locks, Release};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = Locks::new(EmbeddedStore::new());
///
/// let guard = locks.lock("order:42").await?;
/// assert!(locks.try_lock("order:42").await?.is_none(), "it is held");
/// println!("write with fence {}", guard.fence());
///
/// assert_eq!(guard.release().await?, Release::Released);
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
    ids: Names,
    process: u128,
    owners: AtomicU64,
    lease: Lease,
    delay: Duration,
    durability: Durability,
    patience: Duration,
    label: Box<str>,
}

opaque_debug!(LocksShared<S: LockStore>: |it| label = it.label);

/// What happened to a lock; see [`LocksBuilder::observer`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockEvent {
    /// It was granted.
    Granted {
        /// Which.
        name: LockName,
        /// To whom.
        owner: Owner,
        /// Under which fence.
        fence: Fence,
        /// After how long.
        waited: Duration,
    },
    /// It was given back.
    Released {
        /// Which.
        name: LockName,
        /// By whom.
        owner: Owner,
        /// Under which fence it was held.
        fence: Fence,
    },
    /// Its holder was told that it is lost.
    Lost {
        /// Which.
        name: LockName,
        /// Who held it.
        owner: Owner,
        /// Under which fence.
        fence: Fence,
    },
    /// Somebody took it from its holder.
    ForceReleased {
        /// Who held it.
        holder: LockHolder,
        /// Why.
        reason: String,
    },
}

impl<S: LockStore> Locks<S> {
    /// Locks on this store with the usual settings.
    pub fn new(store: S) -> Self {
        Self::builder(store).build()
    }

    /// Locks with other settings.
    pub fn builder(store: S) -> LocksBuilder<S> {
        LocksBuilder {
            store,
            lease: Lease::DEFAULT,
            delay: Duration::ZERO,
            durability: Durability::Primary,
            patience: Duration::from_secs(10),
            most_waiting: MOST_WAITING,
            label: format!("pid {}", std::process::id()),
            observers: Vec::new(),
        }
    }

    /// An owner that nobody else is. What it holds, its clones may take again.
    pub fn owner(&self) -> Owner {
        let number = self.shared.owners.fetch_add(1, Ordering::Relaxed);
        Owner::new(self.shared.process, number)
    }

    /// A lock by its name, for everything that the short forms below leave out.
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
    /// When the name is none, the store does not answer, or too many wait.
    pub async fn lock(&self, name: &str) -> Result<LockGuard, LockError> {
        self.named(name)?.lock().await
    }

    /// Takes a re-entrant lock if it is free.
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
    /// As [`Locks::lock`], and when the lease is none.
    pub async fn lock_timeout(
        &self,
        name: &str,
        wait: Duration,
        lease: Duration,
    ) -> Result<Option<LockGuard>, LockError> {
        self.named(name)?.lock_timeout(wait, lease).await
    }

    /// Some of the locks that are held by any process, from `cursor` on: 0 at first, then what the
    /// page says. Locks that Redisson holds are found by [`Locks::inspect`] only.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn holders(&self, cursor: u64) -> Result<Page, LockError> {
        self.shared.thread.lease_renewer.store.list(cursor).await.map_err(LockError::Store)
    }

    /// Who holds a lock, and how many processes wait for it.
    ///
    /// # Errors
    ///
    /// When the name is none, what is there is no lock, or the store does not answer.
    pub async fn inspect(&self, name: &str) -> Result<Option<LockHolder>, LockError> {
        let name = LockName::new(name)?;
        self.shared.thread.lease_renewer.store.inspect(&name).await.map_err(LockError::Store)
    }

    /// Who waits in this process, a thousand at most.
    pub fn waiters(&self) -> Vec<Waiter> {
        self.shared.queues.waiters(1_000)
    }

    /// Waits until everything that was dropped is given back: guards, and attempts whose answer did
    /// not come. For a process that is about to end, since what it leaves ends with its lease only.
    /// Takes ten seconds at most, if the store does not answer.
    pub async fn settled(&self) {
        self.shared.thread.lease_renewer.settled().await;
    }

    /// Takes a lock from whoever holds it; who that was. Observers are told, with the reason.
    ///
    /// The holder is told by its watchdog, within a third of its lease. Until then only the fence
    /// protects what the lock protects.
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
        let lease_renewer = &self.shared.thread.lease_renewer;
        let holder = lease_renewer.store.force_release(&name).await.map_err(LockError::Store)?;
        if let Some(holder) = &holder {
            lease_renewer.observers.tell(|| {
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
    /// Holds it as this owner, who may hold it already.
    #[must_use]
    pub fn by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// The simple kind of lock: a string in Redis, held once or not at all.
    #[must_use]
    pub const fn simple(mut self) -> Self {
        self.kind = LockKind::Simple;
        self
    }

    /// Holds it under this lease, which is renewed, in place of that of these
    /// [locks](LocksBuilder::lease).
    #[must_use]
    pub const fn lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Waits for the lock. Dropping the future gives the place in the line up.
    ///
    /// # Errors
    ///
    /// When the store does not answer for the [patience](LocksBuilder::patience) of these locks, what
    /// is there is no lock, too many wait, or the owner holds it too often.
    pub async fn lock(&self) -> Result<LockGuard, LockError> {
        let request = self.renewed();
        loop {
            // Without an end to the wait there is only the lock or an error.
            if let Some(guard) = self.shared.get(&request, LockPatience::Forever).await? {
                return Ok(guard);
            }
        }
    }

    /// Takes the lock if it is free, before those who wait for it.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`], but when the store did not answer three times.
    pub async fn try_lock(&self) -> Result<Option<LockGuard>, LockError> {
        let request = self.renewed();
        self.shared.get(&request, LockPatience::None).await
    }

    /// Waits for the lock, but not longer than `wait`; it is renewed while it is held.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`], and when the store was silent as the wait ended: nobody is known to have it.
    pub async fn lock_within(&self, wait: Duration) -> Result<Option<LockGuard>, LockError> {
        let request = self.renewed();
        self.shared.get(&request, LockPatience::Until(after(clock::now(), wait))).await
    }

    /// Waits for the lock, but not longer than `wait`, and holds it for `lease` and no longer: nothing
    /// renews it.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`], and when the lease is none.
    pub async fn lock_timeout(
        &self,
        wait: Duration,
        lease: Duration,
    ) -> Result<Option<LockGuard>, LockError> {
        let request = self.request(Lease::new(lease)?, Upkeep::Fixed);
        self.shared.get(&request, LockPatience::Until(after(clock::now(), wait))).await
    }

    fn renewed(&self) -> LockRequest {
        self.request(self.lease.unwrap_or(self.shared.lease), Upkeep::Renewed)
    }

    fn request(&self, lease: Lease, upkeep: Upkeep) -> LockRequest {
        let shared = &self.shared;
        let owner = self.owner.clone().unwrap_or_else(|| {
            let number = shared.owners.fetch_add(1, Ordering::Relaxed);
            Owner::new(shared.process, number)
        });
        LockRequest {
            name: self.name.clone(),
            kind: self.kind,
            owner,
            shared_owner: self.owner.is_some(),
            lease,
            upkeep,
            delay: shared.delay,
            durability: shared.durability,
        }
    }
}

/// Settings of [`Locks`].
#[must_use]
pub struct LocksBuilder<S> {
    store: S,
    lease: Lease,
    delay: Duration,
    durability: Durability,
    patience: Duration,
    most_waiting: usize,
    label: String,
    observers: Vec<Box<dyn Observer>>,
}

opaque_debug!(LocksBuilder<S>: |it| lease = it.lease);

impl<S: LockStore> LocksBuilder<S> {
    /// The lease of locks that are renewed while they are held; 30 s unless set. So long a lock stays
    /// closed after its holder died, and three times in it it is renewed.
    pub const fn lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }

    /// For how long nobody gets a lock whose holder vanished, so that what it has sent may arrive; none
    /// unless set, at most a year. For resources that cannot check a fence.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.delay = delay.min(Lease::MAX);
        self
    }

    /// How far a grant must have spread before it counts; [`Durability::Primary`] unless set.
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// For how long a store that does not answer is asked again; 10 s unless set.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How many tasks may wait in this process; 524 288 unless set, 1 at least.
    pub fn max_waiting(mut self, tasks: usize) -> Self {
        self.most_waiting = tasks.max(1);
        self
    }

    /// What holders of this process say of themselves to whoever lists locks; its number unless set.
    /// Cut at 128 bytes.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        let mut end = self.label.len().min(MAX_LABEL);
        while !self.label.is_char_boundary(end) {
            end = end.saturating_sub(1);
        }
        self.label.truncate(end);
        self
    }

    /// Tells this observer of [`Event::Lock`](crate::Event::Lock): grants, releases, losses, and locks
    /// that were taken by force, for an audit.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// The locks.
    pub fn build(self) -> Locks<S> {
        let process = u128::from_le_bytes(chance::secret());
        let thread = RenewerThread::new(self.store, Observers::start(self.observers));
        Locks {
            shared: Arc::new(LocksShared {
                thread: Arc::new(thread),
                queues: Arc::new(LockQueues::new(self.most_waiting)),
                ids: Names::new(),
                process,
                owners: AtomicU64::new(1),
                lease: self.lease,
                delay: self.delay,
                durability: self.durability,
                patience: self.patience,
                label: self.label.into(),
            }),
        }
    }
}
