//! Rules: which counters a request is charged on.

pub mod declaration;
