//! A gate: one counter at which callers wait for their turn.
//!
//! Where the algorithm keeps a time line (token and leaky buckets, smooth limiters), the store
//! grants each caller a place in the future, and each sleeps until exactly then: nobody polls, and
//! each wakes once. Where it does not (windows, logs), or where the queue is full, callers line up
//! at the *door* in order; only the first asks, and sleeps for exactly as long as it is told.
//!
//! A caller that stops waiting gives its place back (`line.rs`). A question that is under way when
//! its caller leaves runs to its end, so that what it was granted is given back as well. Smooth
//! limiters price permits by what is stored, so their places stay taken.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, oneshot};
use tollgate_core::{
    Algorithm, Charge, Cost, KeyError, Limit, Op, Retry, Store, Timestamp, Verdict,
};
use tollgate_embedded::EmbeddedStore;

use super::line::{Line, Place, Ticket};
use crate::clock::{self, Instant, after};
use crate::engine::{Chore, Engine, Keeper, OwnedToll, Source};

/// One counter at which callers wait. Clones share the line.
///
/// ```
/// use tollgate::{EmbeddedStore, Limiter, core::{Limit, algorithm::TokenBucket}};
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
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    engine: Arc<Engine<S>>,
    keeper: Keeper,
    counter: OwnedToll,
    line: Arc<Line>,
    /// Those whom this process granted places itself, in an outage: nothing of theirs goes back.
    outage_line: Arc<Line>,
    door: Mutex<()>,
    /// When the first at the door asks again: nobody behind it passes earlier.
    next_question: std::sync::Mutex<Option<Instant>>,
    at_door: AtomicUsize,
    numbers: AtomicU64,
}

impl<S: Store + 'static> Gate<S> {
    pub(crate) fn new(
        engine: Arc<Engine<S>>,
        keeper: Keeper,
        counter: OwnedToll,
    ) -> Result<Self, GateError> {
        if matches!(counter.limit.algorithm(), Algorithm::Concurrency(_)) {
            return Err(GateError::CountsHolders);
        }
        let shared = Shared {
            engine,
            keeper,
            counter,
            line: Arc::default(),
            outage_line: Arc::default(),
            door: Mutex::new(()),
            next_question: std::sync::Mutex::default(),
            at_door: AtomicUsize::new(0),
            numbers: AtomicU64::new(0),
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
    /// # Errors
    ///
    /// When they cannot be had in time, or never.
    pub async fn acquire_timeout(&self, cost: Cost, patience: Duration) -> Result<(), NotAdmitted> {
        let deadline = after(clock::now(), patience);
        if self.shared.at_door.load(Ordering::Acquire) == 0 {
            match self.ask(cost, patience).await {
                Said::Pass => return Ok(()),
                Said::Place(held) => return held.wait().await,
                Said::Never => return Err(NotAdmitted::Never { cost }),
                Said::NotYet { retry, in_all } => within(in_all, patience, retry)?,
            }
        }
        self.shared.not_before(deadline)?;
        let here = AtDoor::new(&self.shared.at_door);
        let lined_up = tokio::time::timeout_at(deadline, self.shared.door.lock()).await;
        let Ok(turn) = lined_up else {
            self.shared.not_before(deadline)?;
            return Err(NotAdmitted::Late { retry_after: SOON });
        };
        let first = First { next_question: &self.shared.next_question, _turn: turn };
        let held = loop {
            let left = deadline.saturating_duration_since(clock::now());
            match self.ask(cost, left).await {
                Said::Pass => return Ok(()),
                Said::Place(held) => break held,
                Said::Never => return Err(NotAdmitted::Never { cost }),
                Said::NotYet { retry, in_all } => {
                    within(in_all, left, retry)?;
                    self.shared.say_next_question(retry);
                    tokio::time::sleep(retry).await;
                }
            }
        };
        // The next may ask; this one has its place.
        drop(first);
        drop(here);
        held.wait().await
    }

    /// Takes `cost` permits if they are there.
    ///
    /// # Errors
    ///
    /// When they are not.
    pub async fn try_acquire(&self, cost: Cost) -> Result<(), NotAdmitted> {
        // Whoever waits at the door came first.
        if self.shared.at_door.load(Ordering::Acquire) > 0 {
            self.shared.not_before(clock::now())?;
            return Err(NotAdmitted::Late { retry_after: SOON });
        }
        self.line_up(cost, Duration::ZERO).await
    }

    /// Takes a place if the line has one within `patience`; does not wait for room in the line.
    pub(crate) async fn line_up(&self, cost: Cost, patience: Duration) -> Result<(), NotAdmitted> {
        match self.ask(cost, patience).await {
            Said::Pass => Ok(()),
            Said::Place(held) => held.wait().await,
            Said::NotYet { retry, .. } => Err(NotAdmitted::Late { retry_after: retry }),
            Said::Never => Err(NotAdmitted::Never { cost }),
        }
    }

    /// How many permits could be taken now; in an outage, of this process's share.
    pub async fn available(&self) -> u64 {
        let Some(toll) = self.shared.counter.toll(Op::Peek(0)) else { return 0 };
        let partition = self.shared.counter.partition.as_deref();
        let outcome = self.shared.engine.decide(&[toll], partition).await;
        outcome.answer.decisions.first().map_or(0, |decision| decision.remaining)
    }

    /// How many of this process wait for a place that they were granted. Those at the door, whose
    /// algorithm grants none, are not among them.
    pub fn waiting(&self) -> usize {
        self.shared.line.len().saturating_add(self.shared.outage_line.len())
    }

    /// The limit that callers wait under.
    pub fn limit(&self) -> &Limit {
        &self.shared.counter.limit
    }

    async fn ask(&self, cost: Cost, patience: Duration) -> Said<S> {
        let granted = if S::REMOTE {
            let (tell, told) = oneshot::channel();
            let shared = Arc::clone(&self.shared);
            // On a task of its own, so that a caller who leaves does not leave a charge behind.
            tokio::spawn(async move {
                drop(tell.send(shared.decide(cost, patience).await));
            });
            told.await
        } else {
            Ok(Arc::clone(&self.shared).decide(cost, patience).await)
        };
        granted.map_or(Said::Never, Granted::say)
    }
}

impl<S: Store + 'static> Shared<S> {
    async fn decide(self: Arc<Self>, cost: Cost, patience: Duration) -> Granted<S> {
        let toll = self.counter.toll(Op::Take(cost)).map(|toll| toll.with_patience(patience));
        let (verdict, reset, at, source) = match toll {
            Some(toll) => {
                let outcome = self.engine.decide(&[toll], self.counter.partition.as_deref()).await;
                let reset = outcome.answer.decisions.first().map(|decision| decision.reset_after);
                let reset = reset.unwrap_or_default();
                (outcome.answer.verdict, reset, outcome.answer.at, outcome.source)
            }
            None => (Verdict::Deny(Retry::Never), Duration::ZERO, Timestamp::EPOCH, Source::Store),
        };
        Granted { shared: Some(self), verdict, reset, at, source, cost, patience }
    }

    /// Whoever must pass before the first at the door asks again cannot.
    fn not_before(&self, deadline: Instant) -> Result<(), NotAdmitted> {
        let next = *self.next_question.lock().unwrap_or_else(PoisonError::into_inner);
        match next {
            Some(next) if next > deadline => {
                let retry_after = next.saturating_duration_since(deadline).max(SOON);
                Err(NotAdmitted::Late { retry_after })
            }
            _ => Ok(()),
        }
    }

    fn say_next_question(&self, retry: Duration) {
        let next = after(clock::now(), retry);
        *self.next_question.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
    }

    /// Has a charge given back that nobody uses.
    fn give_back(&self, cost: Cost, granted: Timestamp) {
        if !matches!(self.counter.limit.algorithm(), Algorithm::Smooth(_)) {
            self.keeper.ask(Chore::Credit { toll: self.counter.clone(), cost, at: granted });
        }
    }
}

/// What the store granted, given back unless it is used.
struct Granted<S: Store + 'static> {
    shared: Option<Arc<Shared<S>>>,
    verdict: Verdict,
    reset: Duration,
    at: Timestamp,
    source: Source,
    cost: Cost,
    patience: Duration,
}

impl<S: Store + 'static> Granted<S> {
    fn say(mut self) -> Said<S> {
        let Some(shared) = self.shared.take() else { return Said::Never };
        match self.verdict {
            Verdict::Allow => Said::Pass,
            Verdict::Wait(wait) => {
                let place = Place {
                    due: after(clock::now(), wait),
                    granted: self.at.checked_add(wait).unwrap_or(Timestamp::MAX),
                    cost: self.cost,
                };
                let number = shared.numbers.fetch_add(1, Ordering::Relaxed);
                let line = match self.source {
                    Source::Store => &shared.line,
                    _ => &shared.outage_line,
                };
                let ticket = line.join(number, place);
                Said::Place(HeldPlace { shared, ticket: Some(ticket), source: self.source })
            }
            Verdict::Deny(Retry::Never) => Said::Never,
            Verdict::Deny(Retry::After(retry)) => {
                let in_all = match shared.counter.limit.algorithm() {
                    // What is above the share may pass when the store is back.
                    _ if matches!(self.source, Source::Outage(_)) => retry,
                    // The queue may be full, and still short enough.
                    Algorithm::LeakyQueue(_) => self.reset.max(retry),
                    Algorithm::TokenBucket(_) | Algorithm::LeakyMeter(_) | Algorithm::Smooth(_) => {
                        retry.saturating_add(self.patience)
                    }
                    _ => retry,
                };
                Said::NotYet { retry, in_all }
            }
        }
    }
}

impl<S: Store + 'static> Drop for Granted<S> {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        if let (Source::Store, true) = (self.source, self.verdict.passes()) {
            let wait = match self.verdict {
                Verdict::Wait(wait) => wait,
                _ => Duration::ZERO,
            };
            shared.give_back(self.cost, self.at.checked_add(wait).unwrap_or(Timestamp::MAX));
        }
    }
}

enum Said<S: Store + 'static> {
    Pass,
    Place(HeldPlace<S>),
    /// Ask again after `retry`; passing takes `in_all` at least.
    NotYet {
        retry: Duration,
        in_all: Duration,
    },
    Never,
}

/// A place in the future, given back when dropped before its time.
struct HeldPlace<S: Store + 'static> {
    shared: Arc<Shared<S>>,
    ticket: Option<Ticket>,
    source: Source,
}

impl<S: Store + 'static> HeldPlace<S> {
    async fn wait(mut self) -> Result<(), NotAdmitted> {
        if let Some(ticket) = &mut self.ticket {
            ticket.wait().await;
        }
        self.ticket = None;
        Ok(())
    }
}

impl<S: Store + 'static> Drop for HeldPlace<S> {
    fn drop(&mut self) {
        let Some(free) = self.ticket.take().and_then(|ticket| ticket.leave()) else { return };
        if self.source == Source::Store {
            self.shared.give_back(free.cost, free.granted);
        }
    }
}

/// The first at the door. When it leaves, whoever is next asks at once.
struct First<'g> {
    next_question: &'g std::sync::Mutex<Option<Instant>>,
    _turn: MutexGuard<'g, ()>,
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        *self.next_question.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Somebody who waits at the door.
struct AtDoor<'g>(&'g AtomicUsize);

impl<'g> AtDoor<'g> {
    fn new(count: &'g AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for AtDoor<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The least that somebody is told to wait.
const SOON: Duration = Duration::from_millis(1);

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

impl fmt::Display for NotAdmitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late { retry_after } => {
                write!(f, "not admitted in time; ask again after {retry_after:?}")
            }
            Self::Never { cost } => write!(f, "a cost of {cost} is above what can ever pass"),
        }
    }
}

impl std::error::Error for NotAdmitted {}

/// Why there can be no such gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateError {
    /// The key cannot be one.
    Key(KeyError),
    /// Concurrency limits count holders: use a rule, and the permits of its admission.
    CountsHolders,
}

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(error) => error.fmt(f),
            Self::CountsHolders => f.write_str(
                "a concurrency limit counts holders: use a rule, and the permits of its admission",
            ),
        }
    }
}

impl std::error::Error for GateError {}

impl From<KeyError> for GateError {
    fn from(error: KeyError) -> Self {
        Self::Key(error)
    }
}

impl<S> Clone for Gate<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S> fmt::Debug for Gate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("limit", &self.shared.counter.limit).finish_non_exhaustive()
    }
}
