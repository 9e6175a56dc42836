//! Upper bounds of a set of rules.
//!
//! People and programs write sets of rules; these bounds keep a mistake from becoming an outage.
//! `ask.rs` and `path.rs` bound the values of clients, and
//! [`Request::MAX_CHARGES`](crate::Request::MAX_CHARGES) bounds the charges of one request.

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

/// The most values of one condition. Use a list for more.
pub const MAX_VALUES: usize = 1_000;

/// The longest value of a condition or a list, in bytes.
pub const MAX_VALUE_LEN: usize = 1_024;

/// The most attributes of `by`. With more, a key would be mostly hashes.
pub const MAX_BY: usize = 8;

/// The most limits of a rule, so that no rule alone fills a request.
pub const MAX_LIMITS: usize = 8;

/// The most rules that one rule replaces.
pub const MAX_REPLACES: usize = 1_000;

/// The most attributes of a domain's partition. They are part of every key.
pub const MAX_PARTITION: usize = 4;

/// The most entries of a domain's `exempt` or `block` list.
pub const MAX_LIST: usize = 100_000;

/// The largest `local-guard`, in thousandths of the limit. A larger one guards nothing.
pub const MAX_LOCAL_GUARD: u32 = 1_000_000;
