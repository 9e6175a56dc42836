//! The protocols: bytes into an ask, and an admission into bytes.
//!
//! Each has a directory of its own, and a row in `listener.rs` where it has a listener of its own.

pub mod grpc;
pub mod http;
pub mod resp;
