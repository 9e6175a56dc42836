//! The layers on real sockets.

#![cfg(feature = "axum")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

#[path = "../common/mod.rs"]
mod common;

mod address;
mod answers;
mod attributes;
mod fields;
mod grpc;
mod hyper;
mod identity;
mod jitter;
mod nested;
mod outbound;
mod outbound_rules;
mod patience;
mod permits;
mod ready;
#[cfg(feature = "redis")]
mod redis;
mod wire;
