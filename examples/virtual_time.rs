//! Virtual time, for programs that would take minutes: a store that reads tokio's clock, which
//! `start_paused` stops and moves on whenever everybody waits.
//!
//! Not needed in earnest: there it is `EmbeddedStore::new()`, and `#[tokio::main]` alone.

use tokio::time::Instant;
use tollgate::EmbeddedStore;
use tollgate::Timestamp;
use tollgate::store::Clock;

/// Tokio's clock, from some moment in 2023.
#[derive(Debug)]
pub(crate) struct VirtualClock {
    origin: Instant,
}

impl Clock for VirtualClock {
    const MONOTONIC: bool = true;

    fn now(&self) -> Timestamp {
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        start.checked_add(self.origin.elapsed()).unwrap_or(Timestamp::MAX)
    }
}

/// A store in this process that lives in tokio's time.
pub(crate) fn store() -> EmbeddedStore<VirtualClock> {
    EmbeddedStore::builder().with_clock(VirtualClock { origin: Instant::now() })
}
