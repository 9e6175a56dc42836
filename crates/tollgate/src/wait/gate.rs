//! A gate: one counter at which callers wait for their turn.
//!
//! Where the algorithm keeps a time line (token and leaky buckets, smooth limiters), the store
//! grants each caller a place in the future, and each sleeps until exactly then: nobody polls, and
//! each wakes once. Where it does not (windows, logs), or where the queue is full, callers line up
//! at the *door* in order; only the first asks, and sleeps for exactly as long as it is told.
//!
//! A caller that stops waiting gives its place back (`wait_queue.rs`). Questions are asked by somebody for
//! all (`batcher.rs`), so what was granted to a caller who had left meanwhile is given back as well.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tollgate_core::{Algorithm, Charge, Cost, KeyError, Limit, Store};
use tollgate_embedded::EmbeddedStore;

use super::batcher::{AskQueue, GateAnswer};
use super::wait_queue::WaitQueue;
use crate::clock::{self, Instant, after};
use crate::decision::{Background, OwnedCounter, Runner};

/// One counter at which callers wait. Clones share the line.
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
    /// Counts the nodes that share the limit for as long as the gate is there.
    _background: Background,
    pub(super) counter: OwnedCounter,
    pub(super) wait_queue: Arc<WaitQueue>,
    /// Those whom this process granted places itself, in an outage: nothing of theirs goes back.
    pub(super) outage_queue: Arc<WaitQueue>,
    pub(super) asks: std::sync::Mutex<AskQueue>,
    /// Who asks a store that answers at once.
    pub(super) turn: std::sync::Mutex<()>,
    ask_turn: Mutex<()>,
    /// When the first at the door asks again: nobody behind it passes earlier.
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
            turn: std::sync::Mutex::default(),
            ask_turn: Mutex::new(()),
            next_ask: std::sync::Mutex::default(),
            waiting_for_turn: AtomicUsize::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Waits for `cost` permits, however long it takes, up to a year. Dropping the future gives the
    /// place back.
    ///
    /// # Errors
    ///
    /// When that many can never pass.
    pub async fn acquire(&self, cost: Cost) -> Result<(), NotAdmitted> {
        self.acquire_timeout(cost, Charge::MAX_PATIENCE).await
    }

    /// Waits for `cost` permits, but not longer than `patience`. Whoever cannot pass in time is
    /// told so at once, and charges nothing.
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
    /// When they cannot be had in time, or never.
    pub async fn acquire_timeout(&self, cost: Cost, patience: Duration) -> Result<(), NotAdmitted> {
        let deadline = after(clock::now(), patience);
        if self.shared.waiting_for_turn.load(Ordering::Acquire) == 0 {
            match self.shared.ask(cost, patience).await {
                GateAnswer::Pass(passed) => {
                    passed.through();
                    return Ok(());
                }
                GateAnswer::GrantedPlace(held) => {
                    held.wait().await;
                    return Ok(());
                }
                GateAnswer::Never => return Err(NotAdmitted::Never { cost }),
                GateAnswer::NotYet { retry, in_all } => within(in_all, patience, retry)?,
            }
        }
        if self.shared.needs_no_turn(cost)? {
            return Ok(());
        }
        self.shared.not_before(deadline)?;
        let here = TurnWaiter::new(&self.shared.waiting_for_turn);
        let lined_up = tokio::time::timeout_at(deadline, self.shared.ask_turn.lock()).await;
        let Ok(turn) = lined_up else {
            self.shared.not_before(deadline)?;
            return Err(NotAdmitted::Late { retry_after: SOON });
        };
        let first = AskTurn { next_ask: &self.shared.next_ask, _turn: turn };
        let held = loop {
            let left = deadline.saturating_duration_since(clock::now());
            match self.shared.ask(cost, left).await {
                GateAnswer::Pass(passed) => {
                    passed.through();
                    return Ok(());
                }
                GateAnswer::GrantedPlace(held) => break held,
                GateAnswer::Never => return Err(NotAdmitted::Never { cost }),
                GateAnswer::NotYet { retry, in_all } => {
                    within(in_all, left, retry)?;
                    self.shared.set_next_ask(retry);
                    tokio::time::sleep(retry).await;
                }
            }
        };
        // The next may ask; this one has its place.
        drop(first);
        drop(here);
        held.wait().await;
        Ok(())
    }

    /// Takes `cost` permits if they are there.
    ///
    /// # Errors
    ///
    /// When they are not.
    pub async fn try_acquire(&self, cost: Cost) -> Result<(), NotAdmitted> {
        // Whoever waits at the door came first.
        if self.shared.waiting_for_turn.load(Ordering::Acquire) > 0 {
            if self.shared.needs_no_turn(cost)? {
                return Ok(());
            }
            self.shared.not_before(clock::now())?;
            return Err(NotAdmitted::Late { retry_after: SOON });
        }
        self.line_up(cost, Duration::ZERO).await
    }

    /// Takes a place if the line has one within `patience`; does not wait for room in the line.
    pub(crate) async fn line_up(&self, cost: Cost, patience: Duration) -> Result<(), NotAdmitted> {
        match self.shared.ask(cost, patience).await {
            GateAnswer::Pass(passed) => {
                passed.through();
                Ok(())
            }
            GateAnswer::GrantedPlace(held) => {
                held.wait().await;
                Ok(())
            }
            GateAnswer::NotYet { retry, .. } => Err(NotAdmitted::Late { retry_after: retry }),
            GateAnswer::Never => Err(NotAdmitted::Never { cost }),
        }
    }

    /// How many permits could be taken now; in an outage, of this process's share.
    pub async fn available(&self) -> u64 {
        self.shared.runner.remaining(&self.shared.counter).await
    }

    /// How many of this process wait for a place that they were granted. Those at the door, whose
    /// algorithm grants none, are not among them.
    pub fn waiting(&self) -> usize {
        self.shared.wait_queue.len().saturating_add(self.shared.outage_queue.len())
    }

    /// The limit that callers wait under.
    pub fn limit(&self) -> &Limit {
        &self.shared.counter.limit
    }
}

impl<S: Store + 'static> GateShared<S> {
    /// Whoever must pass before the first at the door asks again cannot.
    fn not_before(&self, deadline: Instant) -> Result<(), NotAdmitted> {
        let next = *self.next_ask.lock().unwrap_or_else(PoisonError::into_inner);
        match next {
            Some(next) if next > deadline => {
                let retry_after = next.saturating_duration_since(deadline).max(SOON);
                Err(NotAdmitted::Late { retry_after })
            }
            _ => Ok(()),
        }
    }

    /// Whether a cost passes without waiting its turn, as nothing does. What never can is told so
    /// before it waits.
    fn needs_no_turn(&self, cost: Cost) -> Result<bool, NotAdmitted> {
        let limit = &self.counter.limit;
        let most = limit.quota().burst().get();
        // Of a smooth limiter more can be had, and paid for later.
        if cost > most && !matches!(limit.algorithm(), Algorithm::Smooth(_)) {
            return Err(NotAdmitted::Never { cost });
        }
        Ok(cost == 0)
    }

    fn set_next_ask(&self, retry: Duration) {
        let next = after(clock::now(), retry);
        *self.next_ask.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
    }
}

/// The first at the door. When it leaves, whoever is next asks at once.
struct AskTurn<'g> {
    next_ask: &'g std::sync::Mutex<Option<Instant>>,
    _turn: MutexGuard<'g, ()>,
}

impl Drop for AskTurn<'_> {
    fn drop(&mut self) {
        *self.next_ask.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Somebody who waits at the door.
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

/// The least that somebody is told to wait.
pub(super) const SOON: Duration = Duration::from_millis(1);

fn within(in_all: Duration, patience: Duration, retry_after: Duration) -> Result<(), NotAdmitted> {
    if in_all > patience { Err(NotAdmitted::Late { retry_after }) } else { Ok(()) }
}

/// Why somebody was not let through. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAdmitted {
    /// Not in time.
    Late {
        /// After how long asking again, with the same patience, can help.
        retry_after: Duration,
    },
    /// More than can ever pass at once.
    Never {
        /// What was asked for.
        cost: Cost,
    },
}

error_messages! {
    NotAdmitted {
        Self::Late { retry_after } => "not admitted in time; ask again after {retry_after:?}";
        Self::Never { cost } => "a cost of {cost} is above what can ever pass";
    }
}

/// Why there can be no such gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateError {
    /// The key cannot be one.
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
