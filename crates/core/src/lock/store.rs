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
    /// The id of this acquisition: the same when it is sent again, and never otherwise.
    pub hold: HoldId,
    /// The lease, unless renewed.
    pub lease: Lease,
    /// The time for which the lock stays closed after its holder vanished. Tollgate keeps to it;
    /// Redisson does not.
    pub delay: Duration,
    /// A label for the list of locks; cut at [`MAX_LABEL`] bytes.
    pub label: &'a str,
    /// The replicas that must have it before it counts.
    pub durability: Durability,
}

/// The replicas that must have a grant before it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The store has it. A failover may forget it.
    #[default]
    Primary,
    /// Waits until a majority of the replicas has it; granted all the same if that takes too long.
    Majority(Replicas),
    /// Waits until a majority of the replicas has it; not granted if that takes too long.
    Required(Replicas),
}

/// The replicas to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The number of replicas there should be. Those connected now are no measure: they may be a minority.
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
    /// The least lease of the same owner's other holds.
    pub lease: Lease,
    /// Tells if an acquisition or release of this hold may still be in flight.
    pub attempt: Attempt,
}

/// Tells if another message about a hold may still be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Everything that was sent was answered, so the store need not remember the release.
    Sole,
    /// Something was sent and not answered. The store keeps a release record: it answers this release
    /// alike when it comes again, and does not grant this hold any more.
    Again,
}

/// The holder of a lock, as far as the store knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The lock.
    pub name: LockName,
    /// Its kind.
    pub kind: LockKind,
    /// The owner; of a foreign holder the stored text, with invalid UTF-8 replaced.
    pub owner: String,
    /// The number of holds.
    pub depth: u32,
    /// Time until the lease ends, unless it is renewed; `None` if it has no end.
    pub left: Option<Duration>,
    /// The fence; `None` if the holder is not one of Tollgate's.
    pub fence: Option<Fence>,
    /// Time since the grant; `None` if the holder is not one of Tollgate's.
    pub age: Option<Duration>,
    /// The label that the holder gave itself.
    pub label: String,
    /// Processes that wait for it.
    pub waiting: u64,
}

/// A part of the list of all locks that are held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The holders.
    pub holders: Vec<LockHolder>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<u64>,
}

/// Receives the news that a lock may be free. Must return soon: the releasing task calls it, or the
/// thread of the store.
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
    /// When the store could not answer. After a timeout it may be held; it may be asked again
    /// under the same id, and must be released if it is not.
    fn acquire(
        &self,
        ask: &Acquire<'_>,
    ) -> impl Future<Output = Result<AcquireOutcome, StoreError>> + Send;

    /// Lengthens leases: as many answers as were asked for, in order.
    ///
    /// # Errors
    ///
    /// When the store could not answer. Some may have been lengthened.
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
    /// When the store could not answer, or what is kept under the name is no lock.
    fn inspect(
        &self,
        name: &LockName,
    ) -> impl Future<Output = Result<Option<LockHolder>, StoreError>> + Send;

    /// Some of the locks that are held by Tollgate's holders, from `cursor` on, 0 at first. What is
    /// held all the while is listed at least once.
    ///
    /// # Errors
    ///
    /// When the store could not answer.
    fn list(&self, cursor: u64) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Calls the notifier for every release of a lock, from the moment this returns until the
    /// subscription is dropped. Releases may be missed while there is no connection; when it is back,
    /// the notifier is called once for all of them.
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
