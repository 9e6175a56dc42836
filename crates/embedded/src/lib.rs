//! Tollgate's store in this process.
//!
//! [`EmbeddedStore`] keeps a counter per key in a bounded table; [`Single`] is one counter
//! without keys. Both decide by [`tollgate_core`], exactly, and neither has a thread of its own
//! or needs one: keys that are full again are dropped when room is needed, on the path of the
//! request that needs it, in constant amortised time.
//!
//! - **Bounded.** At most [`Builder::max_keys`] keys, up to 41 bytes each. When no key is idle
//!   and there is no room, a new key is answered by its limit's `on-full`, flagged as
//!   [`core::Basis::Overflow`] and counted in [`Stats::overflowed`]. No key that still counts
//!   is ever dropped.
//! - **Keyed.** Keys are known by a fingerprint under a secret of this process; nobody can aim
//!   at a collision.
//! - **Atomic.** A request locks all it touches, in one order. There is no tokio here, so that
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

pub use builder::Builder;
pub use clock::MonotonicClock;
pub use locks::ReleaseSubscription;
pub use single::Single;
pub use store::{EmbeddedStore, Stats};
pub use tollgate_core as core;

/// The program of the README, compiled and run with the doctests.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../README.md")]
    struct Readme;
}
