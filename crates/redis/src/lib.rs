//! Tollgate's store in Redis.
//!
//! One script decides a batch of requests atomically; this crate batches, sends and answers.
//! [`Config`] says how Redis is reached and how long a caller waits for it.

#![forbid(unsafe_code)]

mod batch;
mod batch_queue;
mod breaker;
mod checks;
mod clock;
mod config;
mod driver;
mod error;
mod keys;
mod layout;
mod link;
mod lock;
mod random;
#[cfg(test)]
mod replay;
mod script;
mod store;
mod sync;
mod waiters;
#[cfg(test)]
mod wake_count;

pub use crate::checks::Warning;
pub use crate::config::{BreakerSettings, Config, RetryPolicy};
pub use crate::error::{ConnectError, ConnectErrorKind};
pub use crate::link::{AuxiliaryConnection, RedisValue};
pub use crate::lock::{FencedWrite, ReleaseSubscription};
pub use crate::store::{RedisStore, Stats};
pub use tollgate_core as core;

/// The program of the README, compiled with the doctests.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../README.md")]
    struct Redis;
}
