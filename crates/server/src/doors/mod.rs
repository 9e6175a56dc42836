//! The doors: bytes to an ask, an admission to bytes, and nothing else.
//!
//! Each protocol has a directory of its own. A door that is added here (the gateway) is also a
//! setting, a listener in `server.rs`, and a row in `docs/server.md`.

pub mod grpc;
pub mod http;
pub mod resp;
