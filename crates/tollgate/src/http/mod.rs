//! Limits for HTTP: layers for axum, tonic, hyper, and whatever else speaks tower.
//!
//! | File | Holds |
//! |---|---|
//! | `client`, `forwarded` | whom a request comes from |

mod client;
mod forwarded;

pub use client::{MAX_BYTES, MAX_HOPS, TooManyHops, Trust};
