//! What the benches have in common.
#![allow(
    missing_docs,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::float_arithmetic,
    reason = "a bench"
)]

pub mod clock;
pub mod report;

/// xorshift64*, seeded apart.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let product = u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(bound);
        (product >> 64) as u64
    }

    /// From 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1_u64 << 53) as f64
    }
}
