//! Names that nobody else draws.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Sixty-four bits from the operating system's randomness, as the standard library draws it.
pub(crate) fn bits() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Sixteen bytes of it.
pub(crate) fn secret() -> [u8; 16] {
    let bits = (u128::from(bits()) << 64) | u128::from(bits());
    bits.to_le_bytes()
}

/// Draws names: this process's own bits and a number that rises.
#[derive(Debug)]
pub(crate) struct Names {
    process: u64,
    next: AtomicU64,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self { process: bits(), next: AtomicU64::new(1) }
    }

    /// A name that was never drawn before.
    pub(crate) fn draw(&self) -> u128 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (u128::from(self.process) << 64) | u128::from(number)
    }

    /// What all names of this process have in common.
    pub(crate) fn process(&self) -> u128 {
        u128::from(self.process) << 64
    }
}
