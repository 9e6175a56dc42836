//! Rules: they choose the counters that a request is charged on.
//!
//! A [`declaration`] is a set of rules as data. A [`RuleSet`] is a checked and compiled
//! declaration. An [`Ask`] holds the attributes of a request. Judging an ask returns a block, or
//! the counters that it charges, with their keys. Nothing is counted here.
//!
//! | File | Holds |
//! |---|---|
//! | `declaration`, `bounds` | declarations, and their bounds |
//! | `check`, `compile`, `condition`, `error` | its errors, or the active rules |
//! | `active`, `domain`, `set` | active rules |
//! | `ask`, `path`, `host`, `network`, `template` | normal forms of values from clients |
//! | `ask_view`, `matching`, `judge`, `charges`, `key` | from an ask to keys |
//! | `key_writer` | the same keys for counters without a rule |
//! | `index`, `trie`, `hash` | candidates that may match, found without looking at every rule |
//! | `explain` | the outcome of each rule, for people |
//! | `named` | one rule, by its name |

#![allow(
    clippy::arithmetic_side_effects,
    reason = "counts and places of rules and paths, whose bounds are checked; costs are not added here"
)]

mod active;
mod ask;
mod ask_view;
pub mod bounds;
mod charges;
mod check;
mod compile;
mod condition;
pub mod declaration;
mod domain;
mod error;
mod explain;
mod hash;
pub mod host;
mod index;
mod judge;
mod key;
mod key_writer;
mod matching;
mod named;
mod network;
pub mod path;
mod set;
mod template;
mod trie;

pub use active::{ActiveBan, ActiveLimit, ActiveRule, LimitKind};
pub use ask::{Ask, AskError, Attribute};
pub use charges::{BlockedBy, Charges, Judgement, RuleCharge};
#[doc(hidden)]
pub use check::edit_distance;
pub use error::{Place, RuleError};
pub use explain::{RuleExplanation, RuleOutcome};
pub use key::KeySecret;
pub use key_writer::KeyWriter;
pub use named::NamedRuleError;
pub use network::NetworkError;
pub use set::RuleSet;
