//! Locking of standard mutexes, for all crates.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread panicked while it held the lock.
///
/// Only for mutexes whose edits are complete before anything can panic: a mutex that guards one value
/// that is replaced whole, or a collection whose own methods leave it usable. A request that panicked
/// must not make every later one panic.
pub fn lock_mutex<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
