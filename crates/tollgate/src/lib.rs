//! Rate limiting, exact and distributed.
//!
//! A [`Limiter`] judges requests by rules on a store: [`EmbeddedStore`] in this process, or, with
//! the feature `redis`, one that many processes share. [`Gate`] and [`Shaper`] wait instead of
//! refusing; [`Semaphore`] bounds how many are at work in this process. With the feature `tower`,
//! `http` has layers for axum, tonic and hyper.
//!
//! ```
//! use tollgate::core::rule::Ask;
//! use tollgate::rules::{self, Format};
//! use tollgate::{EmbeddedStore, Limiter};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = "{ version: 1, domain: shop, rules: [{ name: per-user, by: [user], limits: [2 per 1m] }] }";
//! let limiter = Limiter::new(EmbeddedStore::new());
//! limiter.set_rules(rules::load(rules, Format::Yaml)?)?;
//!
//! let alice = Ask::new("shop").with("user", "alice")?;
//! assert!(limiter.admit(&alice).await.passes());
//! assert!(limiter.admit(&alice).await.passes());
//! assert!(!limiter.admit(&alice).await.passes());
//! # Ok(()) }
//! ```
//!
//! | To | Use |
//! |---|---|
//! | learn it by examples | [`guide`] |
//! | judge a request by rules | [`rules`], [`Limiter::admit`], [`Admission`] |
//! | charge one counter without rules | [`Limiter::check`] |
//! | know what would happen, and why | [`Limiter::peek`], [`Limiter::explain`] |
//! | charge an estimate, and settle later | [`Limiter::reserve`], [`Limiter::commit`], [`Limiter::refund`] |
//! | wait for a turn | [`Limiter::gate`], [`Shaper`] |
//! | bound how many are at work | a rule with `concurrent` and its [`Permits`]; [`Semaphore`] in one process |
//! | hear what happens | [`Observer`], [`Limiter::stats`] |

#![forbid(unsafe_code)]

mod admission;
mod builder;
mod chance;
mod clock;
mod engine;
mod explain;
pub mod guide;
#[cfg(feature = "tower")]
pub mod http;
mod limiter;
mod observer;
mod permits;
mod rate_limiter;
mod reserve;
pub mod rules;
mod semaphore;
mod stats;
mod wait;

pub use admission::{Admission, Blocked, Finding, Outage, Reason, Ruling};
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

/// The programs of the READMEs, compiled with the doctests; those that need no server run.
#[cfg(all(doctest, feature = "redis"))]
mod readme {
    #[doc = include_str!("../README.md")]
    struct Tollgate;

    #[doc = include_str!("../../../README.md")]
    struct Repository;
}

/// The programs of `docs/http.md`, compiled with the doctests.
#[cfg(all(doctest, feature = "axum"))]
mod http_md {
    #[doc = include_str!("../../../docs/http.md")]
    struct Http;
}
