//! Locking of standard mutexes, for all crates.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread panicked while it held the lock.
///
/// Use it only for mutexes whose edits are complete before anything can panic: a mutex around one
/// value that is replaced whole, or around a collection whose own methods leave it usable. A
/// request that panicked must not make every later one panic.
pub fn lock_mutex<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
