//! A lock that is held.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tollgate_core::lock::{Fence, LockName, LockStore, Owner};

use super::error::LockError;
use super::hold::{Hold, LockState};
use super::lease_renewer::RenewerThread;
use crate::clock::BootTime;

/// What a release comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The lock was held until now, and this hold of it has ended.
    Released,
    /// The lock was lost before. Somebody else may have had it while this guard lived.
    AlreadyLost,
}

/// What became of work that a lock protects.
#[derive(Debug, PartialEq, Eq)]
pub enum Protected<T> {
    /// It was done, and the lock held throughout as far as the store said.
    Sure(T),
    /// It was done before the lease could end, but the store did not answer when it was last asked.
    Unsure(T),
    /// The lock was lost. The work was dropped where it was, or came to its end too late.
    Lost(Option<T>),
}

impl<T> Protected<T> {
    /// The output of the work, unless the lock was lost.
    pub fn held(self) -> Option<T> {
        match self {
            Self::Sure(output) | Self::Unsure(output) => Some(output),
            Self::Lost(_) => None,
        }
    }
}

type Releasing<'a> = Pin<Box<dyn Future<Output = Result<Release, LockError>> + Send + 'a>>;

/// How a guard gives its hold back, whatever the store.
pub(crate) trait HoldReleaser: Send + Sync {
    fn release<'a>(&'a self, hold: &'a Hold) -> Releasing<'a>;
    fn give_back(&self, hold: Arc<Hold>);
}

impl<S: LockStore> HoldReleaser for RenewerThread<S> {
    fn release<'a>(&'a self, hold: &'a Hold) -> Releasing<'a> {
        Box::pin(self.lease_renewer.release(hold))
    }

    fn give_back(&self, hold: Arc<Hold>) {
        Self::give_back(self, hold);
    }
}

/// A lock that is held. Dropping it gives it back in the background; [`LockGuard::release`] does so
/// and says what came of it.
///
/// Show [`LockGuard::fence`] to whatever the lock protects. Everything else here tells of a loss soon;
/// the fence alone makes it harmless.
#[must_use = "the lock is given back as soon as this is dropped"]
pub struct LockGuard {
    releaser: Arc<dyn HoldReleaser>,
    hold: Arc<Hold>,
    copies: u32,
    live: bool,
}

opaque_debug! {
    LockGuard: |it| name = it.hold.name, owner = it.hold.owner, fence = it.hold.fence,
    state = it.state()
}

impl LockGuard {
    pub(crate) fn new(releaser: Arc<dyn HoldReleaser>, hold: Arc<Hold>, copies: u32) -> Self {
        Self { releaser, hold, copies, live: true }
    }

    /// The lock.
    pub fn name(&self) -> &LockName {
        &self.hold.name
    }

    /// Who holds it. Clones of it may take it again.
    pub fn owner(&self) -> &Owner {
        &self.hold.owner
    }

    /// The number to show to what the lock protects. It rises with every change of the owner.
    pub fn fence(&self) -> Fence {
        self.hold.fence
    }

    /// How many replicas had the grant when it was waited for; 0 if it was not.
    pub const fn copies(&self) -> u32 {
        self.copies
    }

    /// How sure one can be of the lock now. Also right after the process was stopped for a while.
    pub fn state(&self) -> LockState {
        self.hold.state(BootTime::now())
    }

    /// How long the lock is held for certain, should it not be renewed.
    pub fn remaining(&self) -> Duration {
        self.hold.deadline().since(BootTime::now())
    }

    /// Waits until the lock is lost, which is told before the store may give it to another. May be
    /// waited for any number of times; dropping the future changes nothing.
    pub async fn lost(&self) {
        self.loss().lost().await;
    }

    /// A token that tells of the loss, for tasks that outlive a borrow of the guard. Clones tell the
    /// same. Once the lock was released, what it tells means nothing.
    pub fn loss(&self) -> Loss {
        Loss { hold: Arc::clone(&self.hold), told: self.hold.subscribe() }
    }

    /// Does work under the lock, and drops it where it is when the lock is lost.
    ///
    /// A future is dropped between two of its `await`s: what it has sent cannot be called back. Show
    /// it the fence.
    pub async fn protect<F: Future>(&self, work: F) -> Protected<F::Output> {
        let output = tokio::select! {
            biased;
            () = self.lost() => return Protected::Lost(None),
            output = work => output,
        };
        match self.state() {
            LockState::Sure => Protected::Sure(output),
            LockState::Unsure => Protected::Unsure(output),
            LockState::Lost => Protected::Lost(Some(output)),
        }
    }

    /// Gives the lock back, and says whether it was held until now.
    ///
    /// Nothing renews it once this is called, even if the future is dropped: then it is given back in
    /// the background.
    ///
    /// # Errors
    ///
    /// When the store did not answer for ten seconds. The lock ends with its lease.
    pub async fn release(mut self) -> Result<Release, LockError> {
        let released = self.releaser.release(&self.hold).await;
        self.live = false;
        released
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.live {
            self.releaser.give_back(Arc::clone(&self.hold));
        }
    }
}

/// Tells of the loss of a lock; see [`LockGuard::loss`].
#[derive(Clone, Debug)]
pub struct Loss {
    hold: Arc<Hold>,
    told: watch::Receiver<LockState>,
}

impl Loss {
    /// Whether the lock is lost.
    pub fn is_lost(&self) -> bool {
        self.hold.state(BootTime::now()) == LockState::Lost
    }

    /// Waits until it is. May never end if it is released before.
    pub async fn lost(&self) {
        if self.is_lost() {
            return;
        }
        // The sender lives in the hold, which lives in this.
        let _ = self.told.clone().wait_for(|state| *state == LockState::Lost).await;
    }
}
