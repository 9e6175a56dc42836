//! A semaphore in this process: a fixed number of permits.
//!
//! It is fair and cancel-safe. A permit goes back when it is dropped, also by a task that panics or
//! is cancelled. To share a semaphore among processes, use a rule with `algorithm: concurrency`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};

/// Admits a fixed number of tasks at once. Clones share the permits.
///
/// ```
/// use tollgate::Semaphore;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let seats = Semaphore::new(2);
///
/// let one = seats.acquire(1).await?;
/// let two = seats.acquire(1).await?;
/// assert!(seats.try_acquire(1).is_err(), "both are taken");
///
/// drop(one);
/// assert!(seats.try_acquire(1).is_ok());
/// # drop(two); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    inner: Arc<tokio::sync::Semaphore>,
    size: u32,
}

impl Semaphore {
    /// Creates a semaphore with this many permits. With none, no task ever passes.
    pub fn new(permits: u32) -> Self {
        let count = usize::try_from(permits).unwrap_or(usize::MAX);
        let most = tokio::sync::Semaphore::MAX_PERMITS;
        Self { inner: Arc::new(tokio::sync::Semaphore::new(count.min(most))), size: permits }
    }

    /// The number of free permits. Others may take them at any time.
    pub fn available(&self) -> u32 {
        u32::try_from(self.inner.available_permits()).unwrap_or(u32::MAX)
    }

    /// Waits for `permits` at once, first come, first served. Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// When the semaphore has fewer permits.
    pub async fn acquire(&self, permits: u32) -> Result<SemaphorePermit, NoPermit> {
        self.fits(permits)?;
        let granted = Arc::clone(&self.inner).acquire_many_owned(permits).await;
        granted.map(SemaphorePermit).map_err(|_| NoPermit::NotNow)
    }

    /// Takes `permits` if they are free.
    ///
    /// # Errors
    ///
    /// When they are not free.
    pub fn try_acquire(&self, permits: u32) -> Result<SemaphorePermit, NoPermit> {
        self.fits(permits)?;
        match Arc::clone(&self.inner).try_acquire_many_owned(permits) {
            Ok(permit) => Ok(SemaphorePermit(permit)),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => Err(NoPermit::NotNow),
        }
    }

    /// Waits for `permits`, but not longer than `patience`.
    ///
    /// # Errors
    ///
    /// When they do not become free in time, or the semaphore has fewer permits.
    pub async fn acquire_timeout(
        &self,
        permits: u32,
        patience: Duration,
    ) -> Result<SemaphorePermit, NoPermit> {
        let waited = tokio::time::timeout(patience, self.acquire(permits)).await;
        waited.unwrap_or(Err(NoPermit::NotNow))
    }

    fn fits(&self, permits: u32) -> Result<(), NoPermit> {
        if permits > self.size {
            return Err(NoPermit::Never { asked: permits, size: self.size });
        }
        Ok(())
    }
}

/// Permits of a [`Semaphore`]. Dropping them gives them back.
#[derive(Debug)]
#[must_use = "permits go back as soon as this is dropped"]
pub struct SemaphorePermit(OwnedSemaphorePermit);

impl SemaphorePermit {
    /// The number of permits.
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.num_permits()).unwrap_or(u32::MAX)
    }
}

/// The reason why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoPermit {
    /// Other tasks hold the permits.
    NotNow,
    /// The semaphore has fewer permits.
    Never {
        /// The number of permits that was asked for.
        asked: u32,
        /// The number of permits of the semaphore.
        size: u32,
    },
}

error_messages! {
    NoPermit {
        Self::NotNow => "no permit is free";
        Self::Never { asked, size } =>
            "the semaphore has {size} permits, fewer than the {asked} asked for";
    }
}
