//! Locks: a lease with a fence.
//!
//! | Part | Is |
//! |---|---|
//! | `name`, `owner`, `lease` | a lock's name, owner and lease; invalid ones cannot be built |
//! | `fence` | the number that rises with every grant |
//! | `LockRecord` | the record of one lock, and each step on it as a pure function |
//! | [`LockStore`] | the interface of stores that keep locks |
//!
//! Waiting, renewing and reporting a loss need time and tasks; they are in `tollgate`.
//!
//! The embedded store executes the steps of `LockRecord`. The Redis store's `lua/lock/*.lua` are
//! the same functions on Redisson's layout. Change them together: the suite of `testing::locks`
//! replays the same histories through both.

mod fence;
mod lease;
mod name;
mod owner;
mod record;
mod store;

pub use fence::Fence;
pub use lease::{Lease, LeaseError};
pub use name::{LockName, LockNameError};
pub use owner::{HoldId, Owner, OwnerError};
pub use record::{AcquireOutcome, LockKind, MAX_DEPTH, ReleaseOutcome, RenewOutcome};
#[cfg(feature = "store")]
pub use record::{HeldLock, LockRecord, RELEASE_RECORD_TTL};
pub use store::{
    Acquire, Attempt, Durability, LockHolder, LockStore, MAX_LABEL, Page, Release, ReleaseNotifier,
    Renew, Replicas,
};
