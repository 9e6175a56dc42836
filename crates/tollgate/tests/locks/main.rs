//! Locks: one body of tests on both stores, the regressions, and guarded sections among faults.

#![cfg(feature = "redis")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::float_arithmetic,
    clippy::panic,
    reason = "tests"
)]

#[cfg(feature = "macros")]
mod attribute;
mod both_stores;
mod history;
mod losses;
mod processes;
mod regressions;
mod sections;
mod stage;
