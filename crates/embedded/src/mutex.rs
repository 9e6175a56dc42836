//! One way to lock a standard mutex.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, poisoned or not.
///
/// Sound because every edit under a mutex of this crate is complete before anything can panic: a
/// thread that panicked has left no half-written value behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
