//! Oracles, a manual clock, histories, and the suite that every store must pass.
//!
//! The oracle of an algorithm, asked through a [`oracle::Ledger`], decides by the specification: slowly,
//! in exact arithmetic, and without sharing a line with the algorithm. A [`History`] invents traffic. A
//! [`ManualClock`] shows the time that a test sets. Only the feature `testing` builds them.
//!
//! An oracle follows the specification, never the implementation: when the two disagree, one of
//! them has a bug, and it need not be the implementation.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::float_arithmetic,
    clippy::expect_used,
    reason = "a judge shall stop at an overflow, not saturate; tests check arithmetic"
)]

mod clock;
pub mod history;
pub mod locks;
pub mod oracle;
mod ratio;
mod rng;
pub mod suite;

pub use clock::ManualClock;
pub use history::History;
pub use ratio::Ratio;
pub use rng::Rng;
