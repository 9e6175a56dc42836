//! Envoy's rate limits: its files, its calls and their answers.
//!
//! [`EnvoyRules`] are the files of envoyproxy/ratelimit, read unchanged. A [`Call`] is a question
//! of Envoy's. [`Limiter::should_rate_limit`] answers it by the rules of
//! [`Limiter::set_envoy_rules`], with one status for each descriptor. `docs/envoy.md` compares the
//! answers with those of the reference service.
//!
//! ```
//! use tollgate::envoy::{Call, Code, CallPolicy, Descriptor, EnvoyRules, Entry};
//! use tollgate::{EmbeddedStore, Limiter};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = "
//! domain: shop
//! descriptors:
//!   - key: remote_address
//!     rate_limit: { unit: hour, requests_per_unit: 2 }
//! ";
//! let limiter = Limiter::new(EmbeddedStore::new());
//! limiter.set_envoy_rules(EnvoyRules::load(1, [("shop.yaml", file)])?)?;
//!
//! let entries = [Entry { key: "remote_address", value: "203.0.113.9" }];
//! let descriptors = [Descriptor::new(&entries)];
//! let call = Call::new("shop", &descriptors);
//! for code in [Code::Ok, Code::Ok, Code::OverLimit] {
//!     assert_eq!(limiter.should_rate_limit(&call, CallPolicy::default()).await?.code(), code);
//! }
//! # Ok(()) }
//! ```
//!
//! | File | Holds |
//! |---|---|
//! | `read`, `rule`, `unit`, `metadata` | files into rules |
//! | `tree`, `pattern` | from entries to a rule |
//! | `call`, `answer` | questions and answers |
//! | `plan`, `key` | which counters a call is charged on |
//! | `decide` | charging them: all or none, or each by itself |
//!
//! The server has the listener that reads and writes bytes.
//!
//! [`Limiter::should_rate_limit`]: crate::Limiter::should_rate_limit
//! [`Limiter::set_envoy_rules`]: crate::Limiter::set_envoy_rules

mod answer;
mod call;
mod decide;
mod key;
mod metadata;
mod pattern;
mod plan;
mod read;
mod rule;
mod set;
mod tree;
mod unit;

pub use answer::{Code, EnvoyAnswer, Status};
pub use call::{Call, CallError, CallPolicy, ChargeMode, Descriptor, Entry, MAX_ENTRIES, Override};
pub use metadata::Metadata;
pub use rule::{EnvoyMode, EnvoyRule, RateLimit, TooFast};
pub use set::EnvoyRules;
pub use unit::Unit;
