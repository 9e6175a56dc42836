//! Real Redis servers for tests and benchmarks, their clock, and a network with faults.
//!
//! - [`RedisServer`] is a `redis-server` process, stopped, killed and restarted at will.
//! - [`ServerClock`] is the time such servers read, moved by the test.
//! - [`FaultProxy`] stands between a client and a server and delays, loses, cuts or corrupts.
//! - [`Client`] reads the contents of a server, without the client crate under test.
//!
//! Linux only. Nothing here skips a test: without `redis-server`, or without a C compiler for the
//! clock, the caller gets an error that names the package to install.

#![forbid(unsafe_code)]
#![allow(clippy::arithmetic_side_effects, reason = "a test shall stop at an overflow")]

mod clock;
mod process;
mod proxy;
mod resp;
mod scratch;
mod server;
#[cfg(feature = "tls")]
mod tls;

pub use crate::clock::ServerClock;
pub use crate::proxy::{Direction, Fault, FaultProxy, Traffic};
pub use crate::resp::{Client, Reply};
pub use crate::server::{RedisServer, RedisServerBuilder, StartError};
#[cfg(feature = "tls")]
pub use crate::tls::TlsEndpoint;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even a poisoned one: one failed test must not fail the others that share a
/// server.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
