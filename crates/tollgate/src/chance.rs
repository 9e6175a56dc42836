//! Names that nobody else draws.

use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sixty-four bits from the operating system's randomness, as the standard library draws it.
pub(crate) fn bits() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Sixteen bytes of it.
pub(crate) fn secret() -> [u8; 16] {
    let bits = (u128::from(bits()) << 64) | u128::from(bits());
    bits.to_le_bytes()
}

/// A duration of the range, evenly spread. An inverted range yields its start.
pub(crate) fn within(range: &RangeInclusive<Duration>) -> Duration {
    let width = range.end().saturating_sub(*range.start()).as_micros();
    let width = u64::try_from(width).unwrap_or(u64::MAX).saturating_add(1);
    let offset = bits().checked_rem(width).unwrap_or(0);
    range.start().saturating_add(Duration::from_micros(offset))
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

    /// The bits that all names of this process share.
    pub(crate) fn process(&self) -> u128 {
        u128::from(self.process) << 64
    }
}
