//! Rules: which counters a request is charged on.
//!
//! A [`declaration`] is a set of rules as data. A [`RuleSet`] is a declaration that was checked and
//! compiled. An [`Ask`] holds the attributes of a request. Judging an ask returns who blocks it, or the
//! counters it is charged on, with their keys. Nothing is counted here.
//!
//! | File | Holds |
//! |---|---|
//! | `declaration`, `bounds` | what can be declared, and how much of it |
//! | `check`, `compile`, `condition`, `error` | what is wrong with it, or the rules at work |
//! | `active`, `domain`, `set` | rules at work |
//! | `ask`, `path`, `host`, `network`, `template` | one spelling for what comes from clients |
//! | `ask_view`, `matching`, `judge`, `charges`, `key` | from an ask to keys |
//! | `key_writer` | the same keys for what is not a rule |
//! | `index`, `trie`, `hash` | which rules may match, without looking at all |
//! | `explain` | the same in words |
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
pub use charges::{BlockedBy, Charges, Due, Judgement};
#[doc(hidden)]
pub use check::edit_distance;
pub use error::{Place, RuleError};
pub use explain::{RuleExplanation, RuleOutcome};
pub use key::KeySecret;
pub use key_writer::KeyWriter;
pub use named::NamedRuleError;
pub use network::NetworkError;
pub use set::RuleSet;
