//! How many requests of a layer wait at once, and how many may.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// As many as wait where nobody says how many may: a minute of a service that takes a hundred a
/// second, at a few kilobytes for each request.
const WAITING: usize = 6_000;

/// Those who wait. Clones count together.
#[derive(Clone, Debug)]
pub(super) struct WaitLimit {
    most: usize,
    waiting: Arc<AtomicUsize>,
}

impl Default for WaitLimit {
    fn default() -> Self {
        Self::of(WAITING)
    }
}

impl WaitLimit {
    /// A crowd of its own, of at most so many.
    pub(super) fn of(most: usize) -> Self {
        Self { most, waiting: Arc::default() }
    }

    /// Joins those who wait; `None` if as many as may do so already.
    pub(super) fn join(&self) -> Option<Waiting> {
        let before = self.waiting.fetch_add(1, Ordering::AcqRel);
        let here = Waiting(Arc::clone(&self.waiting));
        (before < self.most).then_some(here)
    }
}

/// Somebody who waits, until this is dropped.
#[derive(Debug)]
pub(super) struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
