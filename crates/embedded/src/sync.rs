//! The lock: the one module of the project that may use `unsafe`.
//!
//! A shard is locked for some tens of nanoseconds, millions of times a second. The standard mutex
//! spends about 14 ns on its two atomic exchanges; a flag that is released by a plain store spends
//! 9. A thread that finds the flag taken pauses, longer each time, so that a holder gets several
//! turns while the shard's cache lines are still with it. In the end the thread yields its
//! processor, because the holder may have lost its own.
//!
//! Loom explores its interleavings (`tests/loom.rs`): mutual exclusion, and that each holder sees
//! the writes of the one before.
//!
//! The lock is not fair and has no poisoning. Nothing panics while it holds a lock; if it did, the
//! guard would release the lock as on any other path.
#![allow(
    unsafe_code,
    reason = "a lock hands out exclusive access; see the two comments marked SAFETY"
)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::atomic::AtomicBool, thread};
#[cfg(not(loom))]
use std::{cell::UnsafeCell, sync::atomic::AtomicBool, thread};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::AtomicU64;
pub(crate) use std::sync::atomic::Ordering;

/// The first pause at a taken lock, in spin hints. At about 400 ns it is long enough for the holder
/// to have several turns. Handing the lock's cache line back and forth at every turn cost four
/// times as much in measurements.
const FIRST_PAUSE: u32 = 32;

/// The longest pause, one or two microseconds.
const LONGEST_PAUSE: u32 = 128;

/// Pauses before yielding the processor.
const PAUSES: u32 = 16;

/// A value that one thread at a time may access. The flag comes first, to share a cache line with
/// the beginning of the value.
#[repr(C)]
pub(crate) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, and there is at most one guard at a time,
// so sharing the lock between threads moves the value between them: `T: Send` is enough.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if !self.try_take() {
            self.wait();
        }
        Guard { lock: self, access: PhantomData }
    }

    /// Locks the value; `None` if another thread holds it.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Not `then_some`: a guard made for nothing would release another's lock.
        self.try_take().then(|| Guard { lock: self, access: PhantomData })
    }

    #[inline]
    fn try_take(&self) -> bool {
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut pause = FIRST_PAUSE;
        let mut pauses = 0_u32;
        loop {
            if cfg!(loom) || pauses >= PAUSES {
                thread::yield_now();
            } else {
                (0..pause).for_each(|_| std::hint::spin_loop());
                pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
                pauses = pauses.saturating_add(1);
            }
            // Look before trying: a failed exchange would take the cache line from the holder.
            if !self.taken.load(Ordering::Relaxed) && self.try_take() {
                return;
            }
        }
    }
}

impl<T> std::fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lock(..)")
    }
}

/// Exclusive access to a lock's value, until it is dropped.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// A guard may be shared between threads only if the value may.
    access: PhantomData<&'a mut T>,
}

// SAFETY of both: a guard exists only between a successful `try_take` and the store in its
// `drop`, so there is one at most, and what it lends lives no longer than the borrow of the guard
// itself, shared or exclusive. The acquire of `try_take` sees all that was written before the
// release. (Loom's cell checks the moment of each access, not how long the reference is kept.)
impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        #[cfg(not(loom))]
        unsafe {
            &*self.lock.value.get()
        }
        #[cfg(loom)]
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        #[cfg(not(loom))]
        unsafe {
            &mut *self.lock.value.get()
        }
        #[cfg(loom)]
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.taken.store(false, Ordering::Release);
    }
}
