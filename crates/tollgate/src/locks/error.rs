//! Why there is no lock.

use std::io;
use std::sync::Arc;

use tollgate_core::lock::{LeaseError, LockName, LockNameError};
use tollgate_core::{StoreError, StoreErrorKind};

/// Why a lock could not be asked for, held or given back. That somebody else has it is no error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockError {
    /// The name cannot be one.
    Name(LockNameError),
    /// The lease cannot be one.
    Lease(LeaseError),
    /// The store did not answer. The lock is not held: should it have been granted all the same, it is
    /// given back as soon as the store can be reached, or ends with its lease.
    Store(StoreError),
    /// What is kept under the name is no lock of this kind.
    Foreign(LockName),
    /// This owner holds the lock as often as one may.
    TooDeep(LockName),
    /// As many wait in this process as may.
    TooManyWaiting,
    /// Too few replicas had the grant in time, and the durability asked for was
    /// [`Durability::Required`](tollgate_core::lock::Durability::Required).
    NotReplicated {
        /// How many had it.
        copies: u32,
    },
    /// There is no thread to be had for the watchdog, without which no lock is safe.
    NoThread(Arc<io::Error>),
}

error_messages! {
    LockError {
        Self::Name(_) => "the lock cannot be called that";
        Self::Lease(_) => "the lock cannot be held for that long";
        Self::Store(error) if error.kind() == StoreErrorKind::Corrupt =>
            "what the store has there is no lock";
        Self::Store(_) => "the store of locks did not answer";
        Self::Foreign(name) =>
            "what is kept as {name:?} is no lock of this kind: choose another name";
        Self::TooDeep(name) => "the owner holds {name:?} 256 times: is there a release for each?";
        Self::TooManyWaiting =>
            "too many wait for locks in this process: let fewer, or raise the bound";
        Self::NotReplicated { copies } =>
            "only {copies} replicas had the lock in time, and a majority is required";
        Self::NoThread(_) => "no thread for the watchdog of locks";
    }
    source {
        Self::Name(error) => error;
        Self::Lease(error) => error;
        Self::Store(error) => error;
        Self::NoThread(error) => &**error;
    }
    from { LockNameError => Name; LeaseError => Lease; }
}
