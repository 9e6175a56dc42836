//! The same questions and answers in JSON, as protocol buffers spell it.
//!
//! Fields may be in `camelCase` or `snake_case`, enumerations by name or number, and numbers of 64
//! bits in quotes. A field that is unknown or twice is an error with its name; `null` is as if it
//! were not there.

mod read;
mod write;

pub use read::{BadJson, read};
pub use write::{status, write};
