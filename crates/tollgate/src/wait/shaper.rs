//! A shaper: runs tasks through a leaky queue, one after the other at an even rate.

use std::time::Duration;

use tollgate_core::algorithm::LeakyQueue;
use tollgate_core::{Charge, Limit, LimitError, Quota, Store};
use tollgate_embedded::EmbeddedStore;

use super::gate::{Gate, GateError, NotAdmitted};
use crate::Limiter;

/// Starts tasks in order and evenly spaced. At most as many tasks wait as the quota's burst. Clones
/// share the queue, and so do processes with the same store and name.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{EmbeddedStore, Limiter, Shaper};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// let shaper = Shaper::new(&limiter, "bank", "5 per 1s burst 100".parse()?)?;
///
/// let start = tokio::time::Instant::now();
/// let pay = async || shaper.run(async { start.elapsed().as_millis() }).await;
/// let (one, two) = tokio::join!(pay(), pay());
///
/// assert!(one? <= 5);
/// assert!((195..=205).contains(&two?));
/// # Ok(()) }
/// ```
pub struct Shaper<S = EmbeddedStore> {
    gate: Gate<S>,
    patience: Duration,
}

impl<S: Store + 'static> Shaper<S> {
    /// Creates a queue of this name, with the quota's rate. The quota's burst is the number of
    /// places.
    ///
    /// # Errors
    ///
    /// When the queue cannot represent the quota, or the name is empty or too long.
    pub fn new(limiter: &Limiter<S>, name: &str, quota: Quota) -> Result<Self, ShaperError> {
        let limit = Limit::new(LeakyQueue, quota).map_err(ShaperError::Limit)?;
        let gate = limiter.gate(name, limit).map_err(ShaperError::Name)?;
        Ok(Self { gate, patience: Charge::MAX_PATIENCE })
    }

    /// Returns the shaper with a limit on the wait. Tasks that would wait longer are refused at
    /// once.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Waits for the task's turn, and runs it. Dropping the future gives the place back.
    ///
    /// # Errors
    ///
    /// When the queue is full, or the wait is longer than the patience. The task is not run.
    pub async fn run<T>(&self, task: impl Future<Output = T>) -> Result<T, NotAdmitted> {
        self.turn().await?;
        Ok(task.await)
    }

    /// Waits for a turn, for callers that run the task themselves.
    ///
    /// # Errors
    ///
    /// As [`Shaper::run`].
    pub async fn turn(&self) -> Result<(), NotAdmitted> {
        self.gate.acquire_place(1, self.patience).await
    }

    /// The number of waiting tasks of this process.
    pub fn waiting(&self) -> usize {
        self.gate.waiting()
    }
}

impl<S> Clone for Shaper<S> {
    fn clone(&self) -> Self {
        Self { gate: self.gate.clone(), patience: self.patience }
    }
}

opaque_debug!(Shaper<S>: |it| gate = it.gate);

/// The reason why there can be no such shaper.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShaperError {
    /// The queue cannot represent the quota.
    Limit(LimitError),
    /// The name is empty or too long.
    Name(GateError),
}

error_messages! {
    ShaperError {
        Self::Limit(error) => "{error}";
        Self::Name(error) => "{error}";
    }
}
