//! Rate-limiting decisions as pure functions.
//!
//! A [`Limit`] gives a [`Quota`] the meaning of an [`algorithm`]. A [`Charge`] is an operation on
//! the counter of a [`Key`] under a limit. A [`Request`] makes several charges, all or none.
//! Deciding is a pure function of a state, a charge and a moment. A [`Store`] keeps the states,
//! owns the [`Clock`] and applies the edits.
//!
//! ```
//! use tollgate_core::{Charge, Key, Limit, Op, algorithm::TokenBucket};
//!
//! let limit = Limit::new(TokenBucket, "100 per 1m burst 20".parse()?)?;
//!
//! let charge = Charge::take(Key::new("user:42")?, &limit, 1)?;
//!
//! assert_eq!(charge.op(), Op::Take(1));
//! assert_eq!(limit.to_string(), "100 per 1m burst 20 (token-bucket)");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate cannot read the time: it has no clock, no I/O and no locks.
//!
//! | Feature | Adds |
//! |---|---|
//! | `store` | items for stores: counters, plans, states, and the steps over them |
//! | `testing` | oracles, histories, a manual clock, and the suite that every store must pass |

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "store"),
    allow(dead_code, unreachable_pub, unnameable_types, reason = "only stores decide")
)]

pub mod algorithm;
mod charge;
mod counter;
mod decision;
mod errors;
mod key;
mod limit;
pub mod lock;
#[cfg(feature = "store")]
mod mutex;
mod quota;
mod request;
pub mod rule;
mod span;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod time;

pub use algorithm::Algorithm;
pub use charge::{Charge, ChargeError, Cost, Holder, Need, Op};
pub use decision::{Answer, Basis, Decision, Retry, Verdict};
pub use key::{Key, KeyError, shard_of};
pub use limit::{Limit, LimitError, LimitErrorKind, OnChange, OnFull, Revision};
pub use quota::{ParseQuotaError, Quota, QuotaError};
pub use request::{Request, RequestError};
pub use store::{MAX_VALUE, Store, StoreError, StoreErrorKind};
pub use time::{Clock, Timestamp};

#[cfg(feature = "store")]
pub use algorithm::table::{Effect, Plan, State};
#[cfg(feature = "store")]
pub use counter::Counter;
#[cfg(feature = "store")]
pub use mutex::lock_mutex;
#[cfg(feature = "store")]
pub use request::ChargeTarget;
#[cfg(feature = "store")]
pub use span::{PermitRate, Span};

/// The plan, state and edit of each algorithm, for stores.
#[cfg(feature = "store")]
pub mod state {
    pub use crate::algorithm::bucket::{
        AheadReason, Bucket, BucketPlan, FURTHEST_US, ImmediateTake,
    };
    pub use crate::algorithm::concurrency::{ConcurrencyPlan, HeldPermit, Holders, HoldersEdit};
    pub use crate::algorithm::fixed_window::{FixedWindowPlan, MAX_USED, Window};
    pub use crate::algorithm::sliding_log::{
        Log, LogAction, LogEdit, LogEntry, LogView, MAX_SCALED, SlidingLogPlan,
    };
    pub use crate::algorithm::sliding_window::{Panes, PanesEdit, SlidingWindowPlan};
    pub use crate::algorithm::smooth::{SmoothPlan, SmoothState};
}

/// The program of the README, compiled and run with the doctests.
#[cfg(all(doctest, feature = "store"))]
mod readme {
    #[doc = include_str!("../README.md")]
    struct Readme;
}
