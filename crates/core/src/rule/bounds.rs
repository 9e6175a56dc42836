//! Upper bounds of a set of rules.
//!
//! A set is written by people or by programs that people wrote; these bounds keep a mistake from
//! becoming an outage. What clients send is bounded in `ask.rs` and `path.rs`, and what one
//! request may be charged on by [`Request::MAX_CHARGES`](crate::Request::MAX_CHARGES).

/// The most domains of a set: one for each service of a large company.
pub const MAX_DOMAINS: usize = 1_000;

/// The most rules of a set, over all domains: such a set still loads in about a second.
pub const MAX_RULES: usize = 100_000;

/// The longest name of a domain or a rule, in bytes. Names are part of every key.
pub const MAX_NAME: usize = 64;

/// The longest name of a limit, in bytes.
pub const MAX_LIMIT_NAME: usize = 32;

/// The most conditions of a rule.
pub const MAX_CONDITIONS: usize = 16;

/// The most values that one condition accepts. More of them are what lists are for.
pub const MAX_VALUES: usize = 1_000;

/// The longest value of a condition or a list, in bytes.
pub const MAX_VALUE_LEN: usize = 1_024;

/// The most attributes of `by`. With more, a key would be mostly hashes.
pub const MAX_BY: usize = 8;

/// The most limits of a rule, so that no rule alone fills a request.
pub const MAX_LIMITS: usize = 8;

/// The most rules that one rule replaces.
pub const MAX_REPLACES: usize = 1_000;

/// The most attributes of a domain's partition. They are in every key as well.
pub const MAX_PARTITION: usize = 4;

/// The most entries of a domain's `exempt` or `block` list.
pub const MAX_LIST: usize = 100_000;

/// The widest `local-guard`, in thousandths of the limit: beyond it guards nothing.
pub const MAX_LOCAL_GUARD: u32 = 1_000_000;
