//! The number of requests of a layer that wait at once, and its bound.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The default bound: a minute of a service that takes a hundred requests a second, at a few
/// kilobytes for each request.
const MAX_WAITING: usize = 6_000;

/// A bound on waiting requests. Clones count together.
#[derive(Clone, Debug)]
pub(super) struct WaitLimit(Arc<Semaphore>);

/// The slot of one waiting request, until it is dropped.
pub(super) type WaitSlot = OwnedSemaphorePermit;

impl Default for WaitLimit {
    fn default() -> Self {
        Self::of(MAX_WAITING)
    }
}

impl WaitLimit {
    pub(super) fn of(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))))
    }

    /// A slot for one more; `None` if too many wait.
    pub(super) fn reserve(&self) -> Option<WaitSlot> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}
