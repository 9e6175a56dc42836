//! Rules: what is wrong with a declaration, and which counters an ask is charged on.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::unwrap_used,
    reason = "a test shall stop at an overflow"
)]

mod check;
mod judge;
mod keys;
mod matching;
mod named;
mod oracle;
mod paths;
mod support;
