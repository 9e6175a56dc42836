//! Errors of locks.

use std::io;
use std::sync::Arc;

use tollgate_core::lock::{LeaseError, LockName, LockNameError};
use tollgate_core::{StoreError, StoreErrorKind};

/// The reason why a lock could not be acquired, held or given back. A lock that another owner holds
/// is not an error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockError {
    /// The name is empty or too long.
    Name(LockNameError),
    /// The lease is too short or too long.
    Lease(LeaseError),
    /// The store did not answer. The lock is not held. If the store did grant it, the lock is given
    /// back as soon as the store is reachable, or ends with its lease.
    Store(StoreError),
    /// The value stored under the name is not a lock of this kind.
    Foreign(LockName),
    /// The owner holds the lock the largest number of times that is allowed.
    TooDeep(LockName),
    /// The largest number of tasks that is allowed waits in this process.
    TooManyWaiting,
    /// Too few replicas had the grant in time, and the durability asked for was
    /// [`Durability::Required`](tollgate_core::lock::Durability::Required).
    NotReplicated {
        /// The number of replicas that had it.
        copies: u32,
    },
    /// The watchdog's thread could not be started. Without it, no lock is safe.
    NoThread(Arc<io::Error>),
}

error_messages! {
    LockError {
        Self::Name(_) => "the name of the lock is not valid";
        Self::Lease(_) => "the lease of the lock is not valid";
        Self::Store(error) if error.kind() == StoreErrorKind::Corrupt =>
            "the value in the store is not a lock";
        Self::Store(_) => "the store of locks did not answer";
        Self::Foreign(name) =>
            "the value stored as {:?} is not a lock of this kind: choose another name", name.as_str();
        Self::TooDeep(name) =>
            "the owner holds {:?} 256 times: is there a release for each?", name.as_str();
        Self::TooManyWaiting =>
            "too many tasks wait for locks in this process: start fewer, or raise the bound";
        Self::NotReplicated { copies } =>
            "only {copies} replicas had the lock in time, and a majority is required";
        Self::NoThread(_) => "the thread of the watchdog could not be started";
    }
    source {
        Self::Name(error) => error;
        Self::Lease(error) => error;
        Self::Store(error) => error;
        Self::NoThread(error) => &**error;
    }
    from { LockNameError => Name; LeaseError => Lease; }
}
