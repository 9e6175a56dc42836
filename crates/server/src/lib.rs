//! Tollgate's server: limits over HTTP, gRPC and the Redis protocol, by one set of rules that can
//! change while it runs.
//!
//! [`Server::start`] is the whole of it; `main.rs` is only [`cli::run`]. Tests start servers on free
//! ports in their own process, as users could.

#![forbid(unsafe_code)]

mod accept;
pub mod admin;
pub mod cli;
pub mod envoy;
#[cfg(test)]
mod fuzz;
mod guesses;
mod http;
mod listener;
pub mod protocols;
mod room;
pub mod rules;
mod server;
pub mod settings;
mod store;
pub mod telemetry;
pub mod tls;

pub use listener::{Listener, PerListener};
pub use room::{Connections, Readiness, Room};
pub use server::{Server, StartError};
pub use store::{AnyStore, StoreTime};
