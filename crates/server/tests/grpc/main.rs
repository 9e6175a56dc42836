//! The gRPC door on a real socket, asked by a client that is generated from Envoy's own protocol.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod answers;
mod broken;
mod json;
mod outage;
mod services;
mod support;
