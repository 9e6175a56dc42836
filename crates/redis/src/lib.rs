//! Tollgate's store in Redis.
//!
//! [`RedisStore`] is the store: it keeps counters ([`Store`](tollgate_core::Store)) and locks
//! ([`LockStore`](tollgate_core::lock::LockStore)) in one Redis server. [`Config`] says where Redis
//! is and how long a caller waits for it.
//!
//! | To find | Look in |
//! |---|---|
//! | the queue of callers, and the batches in flight | `batch_queue.rs`, `driver.rs`, `waiters.rs` |
//! | the batch sent to Redis, and its answers | `batch/`, `lua/batch.lua` |
//! | connections, their write queues, reconnecting | `link/` |
//! | locks | `lock/`, `lua/lock/` |
//! | names and stored bytes | `keys.rs`, `layout/` |

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
mod waiters;
#[cfg(test)]
mod wake_count;

pub use crate::checks::Warning;
pub use crate::config::{BreakerSettings, Config, RetryPolicy};
pub use crate::error::{ConnectError, ConnectErrorKind};
pub use crate::link::{AuxiliaryConnection, RedisValue};
pub use crate::lock::{FencedWrite, RedisReleaseSubscription};
pub use crate::store::{RedisStats, RedisStore};
pub use tollgate_core as core;

/// Compiles the program of the README with the doctests.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../README.md")]
    struct Redis;
}
