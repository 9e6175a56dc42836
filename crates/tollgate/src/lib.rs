//! A rate limiter and locks, in this process or on Redis for many processes.
//!
//! **Limit a handler** (features `axum` and `macros`). The limits of a function are one decision:
//! if one limit refuses a call, no limit is charged.
//!
//! ```
//! # #[cfg(all(feature = "axum", feature = "macros"))] mod handler {
//! use axum::{Router, routing::post};
//! use tollgate::http::ScopeLayer;
//! use tollgate::{EmbeddedStore, Limiter, Refused, limit};
//!
//! #[limit("5 per 1m", "20 per 1h", by = ip)]
//! async fn login() -> Result<&'static str, Refused> {
//!     Ok("welcome")
//! }
//!
//! # fn app() -> Router {
//! Router::new().route("/login", post(login)).layer(ScopeLayer::new(Limiter::new(EmbeddedStore::new())))
//! # } }
//! ```
//!
//! **Limit by rules**, from a file or a text. You may replace them while requests run:
//!
//! ```
//! use tollgate::rules::{self, Format};
//! use tollgate::{Ask, EmbeddedStore, Limiter};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = "{ version: 1, domain: shop, rules: [{ name: per-user, by: [user], limits: [1 per 1m] }] }";
//! let limiter = Limiter::new(EmbeddedStore::new());
//! limiter.set_rules(rules::load(rules, Format::Yaml)?)?;
//!
//! let alice = Ask::new("shop").with("user", "alice")?;
//! assert!(limiter.admit(&alice).await.passes());
//! assert_eq!(limiter.admit(&alice).await.refused_by(), Some("per-user"));
//! # Ok(()) }
//! ```
//!
//! **Take a lock**, with a fence for the protected resource to check:
//!
//! ```
//! use tollgate::{EmbeddedStore, Locks};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = Locks::new(EmbeddedStore::new());
//! let guard = locks.lock("order:42").await?;
//! println!("with fence {}", guard.fence());
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! With the feature `redis`, use `RedisStore` in place of [`EmbeddedStore`] to share counters and
//! locks among many processes.
//!
//! | To | Use |
//! |---|---|
//! | learn by examples | [`guide`] |
//! | judge a request by rules | [`rules`], [`Limiter::admit`], [`Admission`] |
//! | limit HTTP services | `http` (feature `tower`): layers for axum, tonic and hyper |
//! | limit a function | `#[limit]` and `scope` (feature `macros`) |
//! | charge one counter without rules | [`Limiter::check`] |
//! | ask without charging, and see the reasons | [`Limiter::peek`], [`Limiter::explain`] |
//! | charge an estimate, and settle later | [`Limiter::reserve`], [`Limiter::commit`], [`Limiter::refund`] |
//! | wait for a turn | [`Limiter::gate`], [`Shaper`] |
//! | bound the work in progress | a rule with `concurrent` and its [`Permits`]; [`Semaphore`] in one process |
//! | answer Envoy, by its own files | [`envoy`], [`Limiter::should_rate_limit`] |
//! | hold a lock | [`Locks`], [`LockGuard`]; `#[lock]` (feature `macros`) |
//! | observe decisions | [`Observer`], [`Limiter::stats`] |

#![forbid(unsafe_code)]

#[macro_use]
mod trait_macros;

mod admission;
#[cfg(any(feature = "tower", feature = "macros"))]
mod attribute_value;
mod builder;
mod check;
mod clock;
mod decision;
pub mod envoy;
mod explain;
#[cfg(feature = "macros")]
mod function;
pub mod guide;
#[cfg(feature = "tower")]
pub mod http;
mod limiter;
pub mod locks;
mod observer;
mod permits;
mod random;
mod rate_limiter;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "macros")]
mod refused;
mod reserve;
mod reset;
pub mod rules;
#[cfg(feature = "macros")]
pub mod scope;
mod semaphore;
mod stats;
pub mod store;
mod wait;

pub use admission::Admission;
pub use builder::{DenyCacheMode, LimiterBuilder};
pub use decision::{Blocked, Finding, Outage, Reason, Ruling, Source};
pub use explain::{ExplainedCounter, ExplainedOutcome, ExplainedRule, Explanation};
pub use limiter::{Limiter, StaleRules};
pub use locks::{
    Lock, LockError, LockEvent, LockGuard, LockState, Locks, LocksBuilder, Loss, ProtectedOutput,
    ReleaseResult, Waiter,
};
#[cfg(feature = "macros")]
pub use locks::{NotLocked, NotLockedKind};
pub use observer::{Event, Observer, RecordedAsk};
pub use permits::Permits;
pub use rate_limiter::{Rate, RateError, RateLimiter, RateType};
#[cfg(feature = "macros")]
pub use refused::{Refused, RefusedKind};
pub use reserve::{MAX_LIFETIME, Reservation, ReservationError, TokenError};
pub use reset::ResetError;
pub use semaphore::{NoPermit, Semaphore, SemaphorePermit};
pub use stats::Stats;
pub use tollgate_core::algorithm::{
    Anchor, Concurrency, Estimate, FixedWindow, LeakyMeter, LeakyQueue, Payment, SlidingLog,
    SlidingWindow, Smooth, TokenBucket,
};
pub use tollgate_core::lock::{Fence, Lease, Owner};
pub use tollgate_core::rule::{Ask, AskError, Attribute, RuleSet};
pub use tollgate_core::{
    Algorithm, Basis, Cost, Decision, KeyError, Limit, LimitError, LimitErrorKind, OnChange,
    OnFull, ParseQuotaError, Quota, QuotaError, Retry, Store, StoreError, StoreErrorKind,
    Timestamp, Verdict,
};
pub use tollgate_embedded::EmbeddedStore;
/// Limits the calls of a function: `#[limit("5 per 1m", by = ip)]`. All limits of a function, in
/// one attribute or in several, are one decision.
///
/// ```
/// use tollgate::{EmbeddedStore, Limiter, Refused, limit, scope};
///
/// #[limit("2 per 1m", "20 per 1h", by = user, message = "too many attempts, try again later")]
/// #[limit("100 per 1s", "10 concurrent")]
/// async fn login(user: &str) -> Result<&'static str, Refused> {
///     Ok("welcome")
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// assert_eq!(scope::with(&limiter, login("alice")).await.unwrap(), "welcome");
/// assert!(scope::with(&limiter, login("alice")).await.is_ok());
///
/// let refused = scope::with(&limiter, login("alice")).await.unwrap_err();
/// assert_eq!(refused.to_string(), "too many attempts, try again later");
/// assert!(scope::with(&limiter, login("bob")).await.is_ok());
/// # }
/// ```
///
/// | Argument | Meaning |
/// |---|---|
/// | `"5 per 1m"`, `"10 concurrent"` | limits |
/// | `by = ip`, `header("…")`, `attribute("…")`, `user.id`, `(ip, id)` | the values that each have a counter of their own |
/// | `message = "…"` | the message of a refusal |
/// | `algorithm = token-bucket` | the algorithm of the limits; `sliding-log` by default |
/// | `cost = expr` | the cost of a call |
/// | `rule = "login"`, `domain = "shop"` | a rule of the limiter in place of limits |
/// | `limiter = expr` | the limiter, unless it is that of the [`scope`] |
/// | `error = expr` | converts a [`Refused`] into the function's error, if there is no `From` |
/// | `name = "…"` | the name of the counters, in place of the function's path |
///
/// `docs/macro.md` describes each of them.
#[cfg(feature = "macros")]
pub use tollgate_macros::limit;
/// Runs a function under a lock: `#[lock("order:{id}")]`.
///
/// ```
/// use tollgate::{EmbeddedStore, Locks, NotLocked, lock, scope};
///
/// #[lock("order:{order.id}", wait = "5s", fence = fence)]
/// async fn pay(order: &Order) -> Result<u64, NotLocked> {
///     // Pass the fence on with every write.
///     Ok(fence.get())
/// }
///
/// struct Order { id: u64 }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let locks = Locks::new(EmbeddedStore::new());
/// let first = scope::with_locks(&locks, pay(&Order { id: 42 })).await.unwrap();
/// let second = scope::with_locks(&locks, pay(&Order { id: 42 })).await.unwrap();
/// assert!(second > first);
/// # }
/// ```
///
/// | Argument | Meaning |
/// |---|---|
/// | `"order:{id}"` | the name of the lock, with arguments and their fields |
/// | `by = (from, to)` | values added to the name, each behind its length |
/// | `wait = "5s"`, `wait = forever` | the longest wait; 10 s by default |
/// | `lease = "30s"` | the lease, which is renewed; that of the locks by default |
/// | `fence = name`, `guard = name` | the [`Fence`] and the [`LockGuard`] by a name, for the body |
/// | `owner = expr` | the [`Owner`]; a new one by default |
/// | `locks = expr` | the [`Locks`], unless they are those of the [`scope`] |
/// | `error = expr` | converts a [`NotLocked`] into the function's error, if there is no `From` |
///
/// `docs/macro.md` describes each of them.
#[cfg(feature = "macros")]
pub use tollgate_macros::lock;
pub use wait::{Gate, GateError, NotAdmitted, Shaper, ShaperError};

/// The code that `#[limit]` and `#[lock]` expand to. It is not part of the API, and may change in
/// any version.
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod __private {
    pub use crate::function::{
        AnswersAtOnce, KeyPart, LimitAttribute, LimitCall, QuotaText, Refuse, Site, enter,
        enter_now, path, refuse,
    };
    pub use crate::locks::function::{
        FromNotLocked, FunctionLock, LockCall, LockWait, Outcome, enter_lock, not_locked,
    };
}

/// The programs in the READMEs and in `docs/locks.md`, compiled with the doctests. Programs that
/// need no server run.
#[cfg(all(doctest, feature = "axum", feature = "macros", feature = "redis"))]
mod readme {
    #[doc = include_str!("../README.md")]
    struct Tollgate;

    #[doc = include_str!("../../../README.md")]
    struct Repository;

    #[doc = include_str!("../../../README.zh-CN.md")]
    struct InChinese;

    #[doc = include_str!("../locks.md")]
    struct LocksPage;
}

/// The programs of `docs/macro.md`.
#[cfg(all(doctest, feature = "axum", feature = "macros"))]
#[doc = include_str!("../../../docs/macro.md")]
struct MacroPage;

/// The programs of `docs/http.md`, compiled with the doctests.
#[cfg(all(doctest, feature = "axum"))]
mod http_md {
    #[doc = include_str!("../../../docs/http.md")]
    struct Http;
}
