//! Code that the benches share.
#![allow(
    missing_docs,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::float_arithmetic,
    reason = "a bench"
)]

pub mod clock;
pub mod count;
pub mod layers;
pub mod report;
pub mod rules;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The result of a future that never waits, as those of the embedded store.
pub fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("the embedded store answers at once"),
    }
}

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

/// A key written without allocating: what is measured is the store.
#[derive(Clone, Copy, Default)]
pub struct Name {
    text: [u8; 24],
    from: usize,
}

impl Name {
    pub fn new(case: &str, rule: usize, mut number: u64) -> Self {
        let mut name = Self { text: [0; 24], from: 24 };
        let mut put = |byte: u8| {
            name.from -= 1;
            name.text[name.from] = byte;
        };
        loop {
            put(b'0' + (number % 10) as u8);
            number /= 10;
            if number == 0 {
                break;
            }
        }
        put(b'0' + rule as u8);
        case.bytes().rev().for_each(put);
        name
    }

    pub fn bytes(&self) -> &[u8] {
        &self.text[self.from..]
    }
}
