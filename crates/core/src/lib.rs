//! Rate-limiting decisions as pure functions.
//!
//! A [`Limit`] gives a [`Quota`] the meaning of an [`algorithm`]. A [`Charge`] says what is to
//! happen to the counter of a [`Key`] under a limit; a [`Request`] makes several charges all or
//! none. Deciding is a pure function of a state, a charge and a moment; a [`Store`] keeps the
//! states, owns the [`Clock`] and applies the edits.
//!
//! ```
//! use tollgate_core::{Charge, Counter, Key, Limit, Timestamp, algorithm::TokenBucket};
//!
//! let limit = Limit::new(TokenBucket, "100 per 1m burst 20".parse()?)?;
//! let mut counter = Counter::absent(&limit);
//!
//! let decision = counter.charge(&Charge::take(Key::new("user:42")?, &limit, 1)?, Timestamp::EPOCH);
//!
//! assert!(decision.passes());
//! assert_eq!(decision.remaining, 19);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No clock, no I/O, no locks: this crate could not read the time if it wanted to.

#![forbid(unsafe_code)]

pub mod algorithm;
mod charge;
mod counter;
mod decision;
mod key;
mod limit;
pub mod lock;
mod quota;
mod request;
pub mod rule;
mod span;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod time;

pub use algorithm::{Algorithm, Effect, Plan, State};
pub use charge::{Charge, ChargeError, Cost, Holder, Need, Op};
pub use counter::Counter;
pub use decision::{Answer, Basis, Decision, Retry, Verdict};
pub use key::{Key, KeyError};
pub use limit::{Limit, LimitError, LimitErrorKind, OnChange, OnFull, Revision};
pub use quota::{ParseQuotaError, ParseQuotaErrorKind, Quota, QuotaError};
pub use request::{ChargeTarget, Request, RequestError};
pub use span::{Rate, Span};
pub use store::{MAX_VALUE, Store, StoreError, StoreErrorKind};
pub use time::{Clock, Timestamp};

/// The program of the README, compiled and run with the doctests.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../README.md")]
    struct Core;
}
