//! Locks of this crate.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not a holder panicked.
///
/// Sound because no holder leaves a value half changed: each lock guards one value that is replaced
/// whole, or a collection whose own methods leave it usable. A request that panicked must not make
/// every later one panic, too.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
