//! Locks that ignore poisoning.
//!
//! A lock is poisoned when a thread panics while it holds it. In this crate every edit under a lock is
//! complete before anything that could panic runs, so the data is whole whatever happened.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, poisoned or not.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
