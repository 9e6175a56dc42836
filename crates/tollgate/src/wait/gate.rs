//! A gate: one counter at which callers wait for their turn.
//!
//! If the algorithm keeps a time line (token and leaky buckets, smooth limiters), the store grants
//! each caller a place in the future. Each caller sleeps until its place is due: no caller polls,
//! and each wakes once. If there is no time line (windows, logs), or the queue is full, callers
//! take turns in order: only the first asks the store, and it sleeps for the time that the store
//! returns.
//!
//! A caller that stops waiting gives its place back (`wait_queue.rs`). One task asks the store for
//! all callers (`batcher.rs`), and gives back grants of callers that have left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tollgate_core::{Algorithm, Charge, Cost, KeyError, Limit, Store, lock_mutex};
use tollgate_embedded::EmbeddedStore;

use super::batcher::{AskQueue, GateAnswer};
use super::wait_queue::WaitQueue;
use crate::clock::{self, Instant, after};
use crate::decision::{Background, OwnedCounter, Runner};

/// One counter at which callers wait. Clones share the queue.
///
/// ```
/// use tollgate::{EmbeddedStore, Limit, Limiter, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// let limit = Limit::new(TokenBucket, "10 per 1s burst 1".parse()?)?;
/// let gate = limiter.gate("mail", limit)?;
///
/// let start = tokio::time::Instant::now();
/// let (one, two, three) = tokio::join!(gate.acquire(1), gate.acquire(1), gate.acquire(1));
///
/// assert!(one.is_ok() && two.is_ok() && three.is_ok());
/// let took = start.elapsed().as_millis();
/// assert!((195..=205).contains(&took), "at once, and then a tenth of a second apart");
/// # Ok(()) }
/// ```
pub struct Gate<S = EmbeddedStore> {
    shared: Arc<GateShared<S>>,
}

pub(super) struct GateShared<S> {
    pub(super) runner: Arc<Runner<S>>,
    /// Keeps the background task alive, which counts the nodes that share the limit.
    _background: Background,
    pub(super) counter: OwnedCounter,
    pub(super) wait_queue: Arc<WaitQueue>,
    /// Callers with places that this process granted in an outage. They leave no debt to the store.
    pub(super) outage_queue: Arc<WaitQueue>,
    pub(super) asks: std::sync::Mutex<AskQueue>,
    /// Serializes calls of a local store.
    pub(super) local_call: std::sync::Mutex<()>,
    turn: Mutex<()>,
    /// The time at which the caller whose turn it is asks again. Callers behind it cannot pass
    /// earlier.
    next_ask: std::sync::Mutex<Option<Instant>>,
    waiting_for_turn: AtomicUsize,
}

impl<S: Store + 'static> Gate<S> {
    pub(crate) fn new(
        runner: Arc<Runner<S>>,
        background: Background,
        counter: OwnedCounter,
    ) -> Result<Self, GateError> {
        if matches!(counter.limit.algorithm(), Algorithm::Concurrency(_)) {
            return Err(GateError::CountsHolders);
        }
        let shared = GateShared {
            runner,
            _background: background,
            counter,
            wait_queue: Arc::default(),
            outage_queue: Arc::default(),
            asks: std::sync::Mutex::default(),
            local_call: std::sync::Mutex::default(),
            turn: Mutex::new(()),
            next_ask: std::sync::Mutex::default(),
            waiting_for_turn: AtomicUsize::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Waits for `cost` permits, up to a year. Dropping the future gives the place back.
    ///
    /// # Errors
    ///
    /// When the cost can never pass, or not within a year.
    pub async fn acquire(&self, cost: Cost) -> Result<(), NotAdmitted> {
        self.acquire_timeout(cost, Charge::MAX_PATIENCE).await
    }

    /// Waits for `cost` permits, but not longer than `patience`. A caller that cannot pass in time
    /// is refused at once, and nothing is charged.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{EmbeddedStore, Limit, Limiter, NotAdmitted, SlidingLog};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(EmbeddedStore::new());
    /// let gate = limiter.gate("export", Limit::new(SlidingLog, "2 per 1h".parse()?)?)?;
    /// assert_eq!(gate.available().await, 2);
    ///
    /// gate.acquire_timeout(1, Duration::from_secs(5)).await?;
    /// gate.try_acquire(1).await?;
    /// let late = gate.acquire_timeout(1, Duration::from_secs(5)).await;
    /// assert!(matches!(late, Err(NotAdmitted::Late { .. })), "an hour is too long");
    /// assert_eq!(gate.acquire(3).await, Err(NotAdmitted::Never { cost: 3 }));
    /// assert_eq!((gate.available().await, gate.waiting()), (0, 0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When the permits are not available in time, or never.
    pub async fn acquire_timeout(&self, cost: Cost, patience: Duration) -> Result<(), NotAdmitted> {
        let deadline = after(clock::now(), patience);
        if self.shared.waiting_for_turn.load(Ordering::Acquire) == 0 {
            match self.shared.ask(cost, patience).await {
                GateAnswer::Granted(grant) => {
                    grant.wait().await;
                    return Ok(());
                }
                GateAnswer::Never => return Err(NotAdmitted::Never { cost }),
                GateAnswer::NotYet { retry, in_all } => within(in_all, patience, retry)?,
            }
        }
        if self.shared.needs_no_turn(cost)? {
            return Ok(());
        }
        self.shared.check_deadline(deadline)?;
        let waiter = TurnWaiter::new(&self.shared.waiting_for_turn);
        let Ok(turn) = tokio::time::timeout_at(deadline, self.shared.turn.lock()).await else {
            self.shared.check_deadline(deadline)?;
            return Err(NotAdmitted::Late { retry_after: SOON });
        };
        let turn = AskTurn { next_ask: &self.shared.next_ask, _turn: turn };
        let grant = loop {
            let left = deadline.saturating_duration_since(clock::now());
            match self.shared.ask(cost, left).await {
                GateAnswer::Granted(grant) => break grant,
                GateAnswer::Never => return Err(NotAdmitted::Never { cost }),
                GateAnswer::NotYet { retry, in_all } => {
                    within(in_all, left, retry)?;
                    self.shared.set_next_ask(Some(after(clock::now(), retry)));
                    tokio::time::sleep(retry).await;
                }
            }
        };
        // This caller has its place. The next one may ask.
        drop(turn);
        drop(waiter);
        grant.wait().await;
        Ok(())
    }

    /// Takes `cost` permits if they are available now.
    ///
    /// # Errors
    ///
    /// When they are not available now.
    pub async fn try_acquire(&self, cost: Cost) -> Result<(), NotAdmitted> {
        // Callers that wait for their turn came first.
        if self.shared.waiting_for_turn.load(Ordering::Acquire) > 0 {
            if self.shared.needs_no_turn(cost)? {
                return Ok(());
            }
            self.shared.check_deadline(clock::now())?;
            return Err(NotAdmitted::Late { retry_after: SOON });
        }
        self.acquire_place(cost, Duration::ZERO).await
    }

    /// Takes a place that is due within `patience`, if there is one. Does not wait for room in a
    /// full queue.
    pub(crate) async fn acquire_place(
        &self,
        cost: Cost,
        patience: Duration,
    ) -> Result<(), NotAdmitted> {
        match self.shared.ask(cost, patience).await {
            GateAnswer::Granted(grant) => {
                grant.wait().await;
                Ok(())
            }
            GateAnswer::NotYet { retry, .. } => Err(NotAdmitted::Late { retry_after: retry }),
            GateAnswer::Never => Err(NotAdmitted::Never { cost }),
        }
    }

    /// The number of permits that could be taken now; in an outage, of this process's share.
    pub async fn available(&self) -> u64 {
        self.shared.runner.remaining(&self.shared.counter).await
    }

    /// The number of callers of this process that wait at a granted place. Callers at algorithms
    /// without places are not counted.
    pub fn waiting(&self) -> usize {
        self.shared.wait_queue.len().saturating_add(self.shared.outage_queue.len())
    }

    /// The limit of the gate's counter.
    pub fn limit(&self) -> &Limit {
        &self.shared.counter.limit
    }
}

impl<S: Store + 'static> GateShared<S> {
    /// Refuses a caller whose deadline comes before the next time that the store is asked.
    fn check_deadline(&self, deadline: Instant) -> Result<(), NotAdmitted> {
        let next = *lock_mutex(&self.next_ask);
        let Some(next) = next.filter(|next| *next > deadline) else { return Ok(()) };
        let retry_after = next.saturating_duration_since(deadline).max(SOON);
        Err(NotAdmitted::Late { retry_after })
    }

    /// True for a cost of zero, which passes without waiting.
    ///
    /// # Errors
    ///
    /// When the cost can never pass: a caller must not wait for that.
    fn needs_no_turn(&self, cost: Cost) -> Result<bool, NotAdmitted> {
        let limit = &self.counter.limit;
        let most = limit.quota().burst().get();
        // A smooth limiter grants more than its burst, and later callers wait for it.
        if cost > most && !matches!(limit.algorithm(), Algorithm::Smooth(_)) {
            return Err(NotAdmitted::Never { cost });
        }
        Ok(cost == 0)
    }

    fn set_next_ask(&self, next: Option<Instant>) {
        *lock_mutex(&self.next_ask) = next;
    }
}

/// The turn to ask. When it ends, the next caller asks at once.
struct AskTurn<'g> {
    next_ask: &'g std::sync::Mutex<Option<Instant>>,
    _turn: MutexGuard<'g, ()>,
}

impl Drop for AskTurn<'_> {
    fn drop(&mut self) {
        *lock_mutex(self.next_ask) = None;
    }
}

/// Counts a caller that waits for its turn.
struct TurnWaiter<'g>(&'g AtomicUsize);

impl<'g> TurnWaiter<'g> {
    fn new(count: &'g AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for TurnWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The shortest wait that a refusal names.
pub(super) const SOON: Duration = Duration::from_millis(1);

fn within(in_all: Duration, patience: Duration, retry_after: Duration) -> Result<(), NotAdmitted> {
    if in_all > patience { Err(NotAdmitted::Late { retry_after }) } else { Ok(()) }
}

/// The reason why a gate refused. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAdmitted {
    /// The permits are not available in time.
    Late {
        /// The time after which asking again, with the same patience, can help.
        retry_after: Duration,
    },
    /// The cost is above the most that can ever pass at once.
    Never {
        /// The cost that was asked for.
        cost: Cost,
    },
}

error_messages! {
    NotAdmitted {
        Self::Late { retry_after } => "not admitted in time; ask again after {retry_after:?}";
        Self::Never { cost } => "a cost of {cost} is above the largest that can ever pass";
    }
}

/// The reason why there can be no such gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateError {
    /// The key is empty or too long.
    Key(KeyError),
    /// Concurrency limits count holders: use a rule, and the permits of its admission.
    CountsHolders,
}

error_messages! {
    GateError {
        Self::Key(error) => "{error}";
        Self::CountsHolders =>
            "a concurrency limit counts holders: use a rule, and the permits of its admission";
    }
    from { KeyError => Key; }
}

impl<S> Clone for Gate<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

opaque_debug!(Gate<S>: |it| limit = it.shared.counter.limit);
