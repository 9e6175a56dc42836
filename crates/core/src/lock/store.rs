//! The interface of stores that keep locks.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{
    AcquireOutcome, Fence, HoldId, Lease, LockKind, LockName, Owner, ReleaseOutcome, RenewOutcome,
};
use crate::StoreError;

/// The longest label of a holder, in bytes.
pub const MAX_LABEL: usize = 128;

/// A request to acquire a lock.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// Its kind.
    pub kind: LockKind,
    /// The owner that wants it.
    pub owner: &'a Owner,
    /// The id of this acquisition. Keep it if you send the acquisition again; never use it for
    /// another.
    pub hold: HoldId,
    /// The lease, unless renewed.
    pub lease: Lease,
    /// The time for which the lock stays closed after its holder vanished. Tollgate respects it;
    /// Redisson does not.
    pub delay: Duration,
    /// A label for the list of locks; cut at [`MAX_LABEL`] bytes.
    pub label: &'a str,
    /// The replicas that must have the grant before it counts.
    pub durability: Durability,
}

/// The replicas that must have a grant before it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The store has it. A failover may forget it.
    #[default]
    Primary,
    /// Waits until a majority of the replicas has it. Grants the lock even if that takes too long.
    Majority(Replicas),
    /// Waits until a majority of the replicas has it. Does not grant the lock if that takes too
    /// long.
    Required(Replicas),
}

/// The replicas to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The number of replicas there should be. The number of connected replicas is no measure,
    /// because they may be a minority.
    pub count: NonZeroU32,
    /// The time to wait for them.
    pub patience: Duration,
}

impl Replicas {
    /// The size of a majority.
    pub const fn majority(&self) -> u32 {
        (self.count.get() / 2).saturating_add(1)
    }
}

impl Durability {
    /// The replicas to wait for, if any.
    pub const fn replicas(&self) -> Option<Replicas> {
        match self {
            Self::Primary => None,
            Self::Majority(replicas) | Self::Required(replicas) => Some(*replicas),
        }
    }
}

/// A request to renew a lock.
#[derive(Clone, Copy, Debug)]
pub struct Renew<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// Its kind.
    pub kind: LockKind,
    /// The owner that holds it.
    pub owner: &'a Owner,
    /// The fence of the grant.
    pub fence: Fence,
    /// The lease from now on.
    pub lease: Lease,
}

/// A request to release one hold of a lock.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// Its kind.
    pub kind: LockKind,
    /// The owner that held it.
    pub owner: &'a Owner,
    /// The hold that ends.
    pub hold: HoldId,
    /// The shortest lease that the owner's other holds keep.
    pub lease: Lease,
    /// The state of other messages about this hold.
    pub attempt: Attempt,
}

/// The state of other messages about a hold: they were answered, or may still be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Every message was answered, so the store need not remember the release.
    Sole,
    /// A message was not answered. The store keeps a release record: it answers this release alike
    /// when it comes again, and does not grant this hold any more.
    Again,
}

/// The holder of a lock, as known to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The lock.
    pub name: LockName,
    /// Its kind.
    pub kind: LockKind,
    /// The owner. For a foreign holder, the stored text with invalid UTF-8 replaced.
    pub owner: String,
    /// The number of holds.
    pub depth: u32,
    /// Time until the lease ends, unless it is renewed; `None` if it has no end.
    pub left: Option<Duration>,
    /// The fence; `None` if the holder is not one of Tollgate's.
    pub fence: Option<Fence>,
    /// Time since the grant; `None` if the holder is not one of Tollgate's.
    pub age: Option<Duration>,
    /// The label of the holder.
    pub label: String,
    /// The number of processes that wait for it.
    pub waiting: u64,
}

/// A part of the list of all held locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The holders.
    pub holders: Vec<LockHolder>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<u64>,
}

/// Receives notices that a lock may be free. It must return soon, because the releasing task or the
/// store's thread calls it.
pub trait ReleaseNotifier: Send + Sync {
    /// The lock may be free: it was released, or releases may have been missed.
    fn notify(&self, name: &LockName);
}

/// Keeps locks. One step is one round trip.
///
/// Every store must pass `testing::locks`.
pub trait LockStore: Send + Sync + 'static {
    /// Keeps a notifier subscribed until it is dropped.
    type Subscription: Send + Sync + 'static;

    /// Acquires or re-enters a lock, or returns the reason it could not.
    ///
    /// # Errors
    ///
    /// When the store could not answer. After a timeout the lock may be held. Ask again under the
    /// same id, or release it.
    fn acquire(
        &self,
        ask: &Acquire<'_>,
    ) -> impl Future<Output = Result<AcquireOutcome, StoreError>> + Send;

    /// Extends leases. Returns one answer for each request, in order.
    ///
    /// # Errors
    ///
    /// When the store could not answer. Some leases may have been extended.
    fn renew(
        &self,
        batch: &[Renew<'_>],
    ) -> impl Future<Output = Result<Vec<RenewOutcome>, StoreError>> + Send;

    /// Ends one hold.
    ///
    /// # Errors
    ///
    /// When the store could not answer. It may be asked again as [`Attempt::Again`].
    fn release(
        &self,
        ask: &Release<'_>,
    ) -> impl Future<Output = Result<ReleaseOutcome, StoreError>> + Send;

    /// Frees a lock, and returns its holder.
    ///
    /// # Errors
    ///
    /// When the store could not answer.
    fn force_release(
        &self,
        name: &LockName,
    ) -> impl Future<Output = Result<Option<LockHolder>, StoreError>> + Send;

    /// The holder of a lock.
    ///
    /// # Errors
    ///
    /// When the store could not answer, or the value under the name is not a lock.
    fn inspect(
        &self,
        name: &LockName,
    ) -> impl Future<Output = Result<Option<LockHolder>, StoreError>> + Send;

    /// Lists some of the locks that Tollgate's holders hold, from `cursor` on; 0 at first. A lock
    /// that is held throughout the listing is listed at least once.
    ///
    /// # Errors
    ///
    /// When the store could not answer.
    fn list(&self, cursor: u64) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Calls the notifier for every release of a lock, from the return of this call until the
    /// subscription is dropped. Without a connection, releases may be missed. When it is back, the
    /// notifier is called once for all of them.
    ///
    /// # Errors
    ///
    /// When the store could not answer.
    fn subscribe(
        &self,
        name: &LockName,
        notifier: Arc<dyn ReleaseNotifier>,
    ) -> impl Future<Output = Result<Self::Subscription, StoreError>> + Send;
}

impl<S: LockStore> LockStore for Arc<S> {
    type Subscription = S::Subscription;

    async fn acquire(&self, ask: &Acquire<'_>) -> Result<AcquireOutcome, StoreError> {
        S::acquire(self, ask).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Result<Vec<RenewOutcome>, StoreError> {
        S::renew(self, batch).await
    }

    async fn release(&self, ask: &Release<'_>) -> Result<ReleaseOutcome, StoreError> {
        S::release(self, ask).await
    }

    async fn force_release(&self, name: &LockName) -> Result<Option<LockHolder>, StoreError> {
        S::force_release(self, name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<LockHolder>, StoreError> {
        S::inspect(self, name).await
    }

    async fn list(&self, cursor: u64) -> Result<Page, StoreError> {
        S::list(self, cursor).await
    }

    async fn subscribe(
        &self,
        name: &LockName,
        notifier: Arc<dyn ReleaseNotifier>,
    ) -> Result<Self::Subscription, StoreError> {
        S::subscribe(self, name, notifier).await
    }
}
