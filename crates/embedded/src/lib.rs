//! Tollgate's store in this process.
//!
//! [`EmbeddedStore`] keeps a counter for each key in a bounded table; [`Single`] is one counter
//! without keys. Both decide exactly by [`tollgate_core`], and need no thread of their own. When
//! room is needed, keys that are full again are dropped in the request that needs it, in constant
//! amortised time.
//!
//! - **Bounded.** At most [`EmbeddedStoreBuilder::max_keys`] keys, up to 41 bytes each. If no key is
//!   idle and there is no room, the `on-full` of its limit answers a new key, marked as
//!   [`core::Basis::Overflow`] and counted in [`EmbeddedStats::overflowed`]. A key that still counts
//!   is never dropped.
//! - **Keyed.** A key is stored as a fingerprint under a secret of this process, so a client
//!   cannot aim at a collision.
//! - **Atomic.** A request locks all its counters, in one order. The crate does not use tokio, so
//!   loom can check that.

mod builder;
mod clock;
mod fingerprint;
mod hot_slot;
mod limit_interner;
mod locks;
mod multi_charge;
mod overflow;
mod shard;
mod single;
mod slot;
mod spill;
mod store;
mod sync;
mod table;
mod values;

pub use builder::EmbeddedStoreBuilder;
pub use clock::MonotonicClock;
pub use locks::EmbeddedReleaseSubscription;
pub use single::Single;
pub use store::{EmbeddedStats, EmbeddedStore};
pub use tollgate_core as core;

/// The program of the README, compiled and run with the doctests.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../README.md")]
    struct Readme;
}
