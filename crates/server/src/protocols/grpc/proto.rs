//! The protocols, as `build.rs` compiles them from `proto/`.

#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::as_conversions,
    clippy::use_self,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "generated; Envoy's pages describe it"
)]

include!(concat!(env!("OUT_DIR"), "/protocols.rs"));

/// Encoded descriptors, for reflection.
pub const DESCRIPTION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rls.bin"));
