//! The protocols: bytes to an ask, an admission to bytes, and nothing else.
//!
//! Each has a directory of its own, and a row in `listener.rs` where it has a listener of its own.

pub mod grpc;
pub mod http;
pub mod resp;
