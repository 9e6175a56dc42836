//! The attribute `#[limit]`: on functions of every kind, in scopes of every kind, on real sockets.

#![cfg(all(feature = "axum", feature = "macros"))]
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests; each uses a part of what they share"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../http/wire.rs"]
mod wire;

mod atomic;
mod functions;
mod http;
mod lints;
mod once;
mod permits;
mod readme;
mod redis;
mod rule;
mod scopes;
