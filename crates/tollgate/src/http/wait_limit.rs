//! The number of requests of a layer that wait at once, and its bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The default bound: a minute of a service that takes a hundred requests a second, at a few
/// kilobytes for each request.
const MAX_WAITING: usize = 6_000;

/// A bound on waiting requests. Clones count together.
#[derive(Clone, Debug)]
pub(super) struct WaitLimit {
    most: usize,
    waiting: Arc<AtomicUsize>,
}

impl Default for WaitLimit {
    fn default() -> Self {
        Self::of(MAX_WAITING)
    }
}

impl WaitLimit {
    /// A new bound, with a count of its own.
    pub(super) fn of(most: usize) -> Self {
        Self { most, waiting: Arc::default() }
    }

    /// Reserves a slot to wait in; `None` if all are taken.
    pub(super) fn reserve(&self) -> Option<WaitSlot> {
        let before = self.waiting.fetch_add(1, Ordering::AcqRel);
        let slot = WaitSlot(Arc::clone(&self.waiting));
        (before < self.most).then_some(slot)
    }
}

/// The slot of one waiting request, free again when dropped.
#[derive(Debug)]
pub(super) struct WaitSlot(Arc<AtomicUsize>);

impl Drop for WaitSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
