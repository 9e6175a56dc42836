//! A lock that is held.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tollgate_core::lock::{Fence, LockName, Owner};

use super::error::LockError;
use super::hold::{Hold, LockState};
use crate::clock::BootTime;

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseResult {
    /// The lock was held until now, and this hold of it has ended.
    Released,
    /// The lock was lost before. Another owner may have had it while this guard lived.
    AlreadyLost,
}

/// The outcome of work under a lock.
#[derive(Debug, PartialEq, Eq)]
pub enum ProtectedOutput<T> {
    /// The work ended, and the store confirmed the lock when it was last asked.
    Sure(T),
    /// The work ended before the lease could end, but the store did not answer the last time it was
    /// asked.
    Unsure(T),
    /// The lock was lost. The work was stopped, or ended too late.
    Lost(Option<T>),
}

impl<T> ProtectedOutput<T> {
    /// The output of the work, unless the lock was lost.
    pub fn held(self) -> Option<T> {
        match self {
            Self::Sure(output) | Self::Unsure(output) => Some(output),
            Self::Lost(_) => None,
        }
    }
}

pub(crate) type ReleaseFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ReleaseResult, LockError>> + Send + 'a>>;

/// Gives the hold of a guard back, on any store.
pub(crate) trait HoldReleaser: Send + Sync {
    fn release<'a>(&'a self, hold: &'a Hold) -> ReleaseFuture<'a>;
    fn give_back(&self, hold: Arc<Hold>);
}

/// A lock that is held. Dropping it gives the lock back in the background. [`LockGuard::release`]
/// gives it back and returns the result.
///
/// Show [`LockGuard::fence`] to the resource that the lock protects. Everything else here reports a
/// loss soon; only the fence makes a loss harmless.
#[must_use = "the lock is given back as soon as this is dropped"]
pub struct LockGuard {
    releaser: Arc<dyn HoldReleaser>,
    hold: Arc<Hold>,
    copies: u32,
    live: bool,
}

opaque_debug! {
    LockGuard: |it| name = it.hold.request.name, owner = it.hold.request.owner, fence = it.hold.fence,
    state = it.state()
}

impl LockGuard {
    pub(crate) fn new(releaser: Arc<dyn HoldReleaser>, hold: Arc<Hold>, copies: u32) -> Self {
        Self { releaser, hold, copies, live: true }
    }

    /// The lock.
    pub fn name(&self) -> &LockName {
        &self.hold.request.name
    }

    /// The owner that holds it. Clones of the owner may acquire it again.
    pub fn owner(&self) -> &Owner {
        &self.hold.request.owner
    }

    /// The number to show to the resource. It rises with every change of the owner.
    pub fn fence(&self) -> Fence {
        self.hold.fence
    }

    /// The number of replicas that had the grant; 0 if replicas were not waited for.
    pub const fn copies(&self) -> u32 {
        self.copies
    }

    /// The certainty about the lock now. It is correct even right after the process was stopped for
    /// a while.
    pub fn state(&self) -> LockState {
        self.hold.state(BootTime::now())
    }

    /// The time for which the lock is certainly held, even if nobody renews it.
    pub fn remaining(&self) -> Duration {
        self.hold.deadline().since(BootTime::now())
    }

    /// Waits until the lock is lost. This returns before the store may grant the lock to another
    /// owner. You may call it any number of times; dropping the future changes nothing.
    pub async fn lost(&self) {
        self.loss().lost().await;
    }

    /// A token that reports the loss, for tasks that outlive a borrow of the guard. Once the lock
    /// is released, its report means nothing.
    pub fn loss(&self) -> Loss {
        Loss { hold: Arc::clone(&self.hold), told: self.hold.subscribe() }
    }

    /// Runs work under the lock, and stops it when the lock is lost.
    ///
    /// A future stops at an `await`, so requests that it has sent cannot be called back. Send the
    /// fence with them.
    pub async fn protect<F: Future>(&self, work: F) -> ProtectedOutput<F::Output> {
        let output = tokio::select! {
            biased;
            () = self.lost() => return ProtectedOutput::Lost(None),
            output = work => output,
        };
        match self.state() {
            LockState::Sure => ProtectedOutput::Sure(output),
            LockState::Unsure => ProtectedOutput::Unsure(output),
            LockState::Lost => ProtectedOutput::Lost(Some(output)),
        }
    }

    /// Gives the lock back, and returns whether it was held until now.
    ///
    /// Nothing renews the lock after this call. If you drop the future, the lock is given back in
    /// the background.
    ///
    /// # Errors
    ///
    /// When the store did not answer for ten seconds. The lock ends with its lease.
    pub async fn release(mut self) -> Result<ReleaseResult, LockError> {
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

/// Reports the loss of a lock; see [`LockGuard::loss`].
#[derive(Clone, Debug)]
pub struct Loss {
    hold: Arc<Hold>,
    told: watch::Receiver<LockState>,
}

impl Loss {
    /// True if the lock is lost.
    pub fn is_lost(&self) -> bool {
        self.hold.state(BootTime::now()) == LockState::Lost
    }

    /// Waits until the lock is lost. The future may never end if the lock is released first.
    pub async fn lost(&self) {
        if self.is_lost() {
            return;
        }
        // The sender lives in the hold, which lives in this.
        let _ = self.told.clone().wait_for(|state| *state == LockState::Lost).await;
    }
}
