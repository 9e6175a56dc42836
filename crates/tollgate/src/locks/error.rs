//! Why there is no lock.

use std::fmt;
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

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(_) => f.write_str("the lock cannot be called that"),
            Self::Lease(_) => f.write_str("the lock cannot be held for that long"),
            Self::Store(error) if error.kind() == StoreErrorKind::Corrupt => {
                f.write_str("what the store has there is no lock")
            }
            Self::Store(_) => f.write_str("the store of locks did not answer"),
            Self::Foreign(name) => {
                write!(f, "what is kept as {name:?} is no lock of this kind: choose another name")
            }
            Self::TooDeep(name) => {
                write!(f, "the owner holds {name:?} 256 times: is there a release for each?")
            }
            Self::TooManyWaiting => f.write_str(
                "too many wait for locks in this process: let fewer, or raise the bound",
            ),
            Self::NotReplicated { copies } => {
                write!(f, "only {copies} replicas had the lock in time, and a majority is required")
            }
            Self::NoThread(_) => f.write_str("no thread for the watchdog of locks"),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Name(error) => Some(error),
            Self::Lease(error) => Some(error),
            Self::Store(error) => Some(error),
            Self::NoThread(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<LockNameError> for LockError {
    fn from(error: LockNameError) -> Self {
        Self::Name(error)
    }
}

impl From<LeaseError> for LockError {
    fn from(error: LeaseError) -> Self {
        Self::Lease(error)
    }
}
