//! gRPC on a real socket, asked by a client that is generated from Envoy's own protocol.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod answers;
mod broken;
mod canary;
mod hostile;
mod json;
mod listener;
mod live;
mod outage;
mod own;
mod process;
mod program;
#[path = "../server/support.rs"]
#[allow(dead_code, reason = "it serves other tests as well")]
mod server;
mod services;
mod support;
mod tokens;
