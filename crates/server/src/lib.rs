//! Tollgate's server: limits over HTTP, gRPC and the Redis protocol, by one set of rules that can
//! change while it runs.
//!
//! [`Server::start`] is the whole of it; `main.rs` is only [`cli::run`]. Tests start servers on free
//! ports in their own process, as users could.

#![forbid(unsafe_code)]

mod accept;
pub mod admin;
pub mod cli;
mod enum_text;
pub mod envoy;
mod failed_logins;
#[cfg(test)]
mod fuzz;
mod http;
mod listener;
mod local_limit;
pub mod protocols;
pub mod rules;
mod server;
pub mod settings;
mod state;
mod store;
mod sync;
pub mod telemetry;
pub mod tls;

pub use listener::{Listener, PerListener};
pub use server::{Server, StartError};
pub use state::{Connections, Readiness, ServerState};
pub use store::{AnyStore, StoreTime};
