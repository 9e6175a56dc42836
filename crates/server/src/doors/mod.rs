//! The doors: bytes to an ask, an admission to bytes, and nothing else.
//!
//! Each protocol has a directory of its own. A door that is added here (the gateway) is also a
//! setting, a listener in `server.rs`, and a row in `docs/server.md`.

pub mod grpc;
pub mod http;
pub mod resp;

use tollgate::core::Store;

/// Lets the other calls of this thread be read before one asks a store that takes a trip: calls arrive in
/// droves, and those that ask together share it. Not where one task asks several things in order.
async fn give_way(store: &impl Store) {
    if store.is_remote() {
        tokio::task::yield_now().await;
    }
}
