//! Rate limiting, exact and distributed.
//!
//! A [`Limiter`] judges requests by rules on a store: [`EmbeddedStore`] in this process, or, with
//! the feature `redis`, one that many processes share. [`Gate`] and [`Shaper`] wait instead of
//! refusing; [`Semaphore`] bounds how many are at work in this process.

#![forbid(unsafe_code)]

mod admission;
mod builder;
mod chance;
mod clock;
mod engine;
mod explain;
mod limiter;
mod observer;
mod permits;
mod rate_limiter;
mod reserve;
pub mod rules;
mod semaphore;
mod stats;
mod wait;

pub use admission::{Admission, Finding, Outage, Reason, Ruling};
pub use builder::{Builder, DenyCache};
pub use engine::Source;
pub use explain::{ExplainedCounter, ExplainedRule, Explanation, Fate};
pub use limiter::{Limiter, StaleRules};
pub use observer::{Event, Observer};
pub use permits::Permits;
pub use rate_limiter::{Rate, RateError, RateLimiter, RateType};
pub use reserve::{MAX_LIFETIME, Reservation, ReservationError, TokenError};
pub use semaphore::{NoPermit, Semaphore, SemaphorePermit};
pub use stats::Stats;
pub use tollgate_core as core;
pub use tollgate_embedded::EmbeddedStore;
#[cfg(feature = "redis")]
pub use tollgate_redis as redis;
pub use wait::{Gate, GateError, NotAdmitted, Shaper, ShaperError};
