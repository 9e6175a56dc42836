//! Rules: which counters a request is charged on.
//!
//! A [`declaration`] is what people write, as plain data. A [`RuleSet`] is what is made of it
//! once it is found to be right. An [`Ask`] is what is known of a request; judging it says who
//! blocks it, or on which counters it is charged, under which keys. Nothing is counted here.
//!
//! | File | Holds |
//! |---|---|
//! | `declaration`, `bounds` | what can be declared, and how much of it |
//! | `check`, `compile`, `condition`, `error` | what is wrong with it, or the rules at work |
//! | `active`, `domain`, `set` | rules at work |
//! | `ask`, `path`, `host`, `network`, `template` | one spelling for what comes from clients |
//! | `view`, `matching`, `judge`, `charges`, `key` | from an ask to keys |
//! | `writer` | the same keys for what is not a rule |
//! | `index`, `trie`, `hash` | which rules may match, without looking at all |
//! | `consider` | the same in words |
//! | `named` | one rule, by its name |

mod active;
mod ask;
pub mod bounds;
mod charges;
mod check;
mod compile;
mod condition;
mod consider;
pub mod declaration;
mod domain;
mod error;
mod hash;
pub mod host;
mod index;
mod judge;
mod key;
mod matching;
mod named;
mod network;
pub mod path;
mod set;
mod template;
mod trie;
mod view;
mod writer;

pub use active::{ActiveBan, ActiveLimit, ActiveRule, LimitKind};
pub use ask::{Ask, AskError, Attribute};
pub use charges::{BlockedBy, Charges, Due, Judgement};
pub use consider::{Considered, Outcome};
pub use error::{Place, RuleError};
pub use key::KeySecret;
pub use named::NamedError;
pub use network::NetworkError;
pub use set::RuleSet;
pub use writer::KeyWriter;
