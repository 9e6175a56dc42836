//! Envoy's files, questions and answers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

#[path = "../common/mod.rs"]
mod common;

mod broken;
mod charging;
mod deciding;
mod docs;
mod matching;
mod model;
mod outage;
mod reading;
#[cfg(feature = "redis")]
mod stores;
mod support;
