//! The seam to where locks are kept.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{
    AcquireOutcome, Fence, HoldId, Lease, LockKind, LockName, Owner, ReleaseOutcome, RenewOutcome,
};
use crate::StoreError;

/// The longest that a holder may say of itself.
pub const MAX_LABEL: usize = 128;

/// A wish to hold a lock.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a> {
    /// Which lock.
    pub name: &'a LockName,
    /// Of which kind it is.
    pub kind: LockKind,
    /// Who wants it.
    pub owner: &'a Owner,
    /// The id of this acquisition: the same when it is sent again, and never otherwise.
    pub hold: HoldId,
    /// For how long.
    pub lease: Lease,
    /// For how long nobody shall have it after the holder vanished. Others of Tollgate keep to it;
    /// Redisson does not.
    pub delay: Duration,
    /// What the holder says of itself, for whoever lists locks; cut at [`MAX_LABEL`] bytes.
    pub label: &'a str,
    /// How far it must have spread before it counts.
    pub durability: Durability,
}

/// How far a grant must have spread before it counts.
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

/// Which replicas are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// How many there should be. What is connected just now is no measure: it may be a minority.
    pub count: NonZeroU32,
    /// How long they are waited for.
    pub patience: Duration,
}

impl Replicas {
    /// How many of them are a majority.
    pub const fn majority(&self) -> u32 {
        (self.count.get() / 2).saturating_add(1)
    }
}

impl Durability {
    /// Which replicas are waited for, if any.
    pub const fn replicas(&self) -> Option<Replicas> {
        match self {
            Self::Primary => None,
            Self::Majority(replicas) | Self::Required(replicas) => Some(*replicas),
        }
    }
}

/// A wish to hold a lock for longer.
#[derive(Clone, Copy, Debug)]
pub struct Renew<'a> {
    /// Which lock.
    pub name: &'a LockName,
    /// Of which kind it is.
    pub kind: LockKind,
    /// Who holds it.
    pub owner: &'a Owner,
    /// Under which fence.
    pub fence: Fence,
    /// For how long from now.
    pub lease: Lease,
}

/// The end of one hold of a lock.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    /// Which lock.
    pub name: &'a LockName,
    /// Of which kind it is.
    pub kind: LockKind,
    /// Who held it.
    pub owner: &'a Owner,
    /// Which hold ends.
    pub hold: HoldId,
    /// For how long the others of the same owner shall last at least.
    pub lease: Lease,
    /// Whether an acquisition or release of this hold may still be under way.
    pub attempt: Attempt,
}

/// Whether something of a hold may still be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Everything that was sent was answered, so the store need not remember the release.
    Sole,
    /// Something was sent and not answered. The store remembers the release, answers it alike when
    /// it comes again, and does not grant this hold any more.
    Again,
}

/// Who holds a lock, as far as the store knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The lock.
    pub name: LockName,
    /// Of which kind it is.
    pub kind: LockKind,
    /// Who: of a foreign holder the text that is stored, of which some may have been replaced.
    pub owner: String,
    /// How often.
    pub depth: u32,
    /// When it ends unless it is renewed; `None` if it has no end.
    pub left: Option<Duration>,
    /// Under which fence; `None` if the holder is not one of Tollgate's.
    pub fence: Option<Fence>,
    /// For how long already; `None` if the holder is not one of Tollgate's.
    pub age: Option<Duration>,
    /// What the holder says of itself.
    pub label: String,
    /// How many processes wait for it.
    pub waiting: u64,
}

/// A part of the list of all locks that are held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Who holds which.
    pub holders: Vec<LockHolder>,
    /// What to ask for next; `None` at the end.
    pub next: Option<u64>,
}

/// Is told that a lock may be free. Must return soon: it is called by whoever releases, or by the
/// thread of the store.
pub trait ReleaseNotifier: Send + Sync {
    /// The lock may be free: it was released, or releases may have been missed.
    fn notify(&self, name: &LockName);
}

/// Keeps locks. One step is one round trip.
///
/// Every store must pass `testing::locks`.
pub trait LockStore: Send + Sync + 'static {
    /// While it lives, the bell it was made with is rung.
    type Subscription: Send + Sync + 'static;

    /// Takes a lock, or once more, or says why not.
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

    /// Frees a lock, whoever holds it; who that was.
    ///
    /// # Errors
    ///
    /// When the store could not answer.
    fn force_release(
        &self,
        name: &LockName,
    ) -> impl Future<Output = Result<Option<LockHolder>, StoreError>> + Send;

    /// Who holds a lock.
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

    /// Has the bell rung for every release of a lock from the moment this returns on, until the ear
    /// is dropped. Releases may be missed while there is no connection; the bell is rung for all
    /// that when it is back.
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
