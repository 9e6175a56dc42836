//! From many callers to few runs of the script.
//!
//! A caller puts its requests into a queue and waits. As soon as a *flight* is free, whatever has
//! queued by then becomes one batch: nobody waits for company, and company comes by itself while
//! others are under way. A job is never torn apart, so its requests are decided in order.
//!
//! All of this, and the link, runs on a thread of its own. So a caller is answered by its deadline
//! whatever becomes of the runtime that the store was made on, and however busy its own is; and a
//! busy process is not taken for a Redis that does not answer.
//!
//! Not here: connections, deadlines, failures (`link.rs`); what a batch is (`batch/`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tollgate_core::{Answer, StoreError};

use crate::batch::{Batch, Owned, Tally};
use crate::clock::{self, Instant};
use crate::config::Config;
use crate::error::{Cause, ConnectError};
use crate::link::Link;
use crate::script::SCRIPT;

/// What one caller asks, and where to tell it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) requests: SmallVec<[Owned; 1]>,
    pub(crate) deadline: Instant,
    pub(crate) tell: oneshot::Sender<Outcome>,
}

/// What one caller is told.
pub(crate) type Outcome = Result<Vec<Answer>, StoreError>;

/// Charges in one run of the script: about a millisecond of Redis's time when every key is another.
pub(crate) const MAX_CHARGES: usize = 256;

/// Runs under way at a time on a connection: while Redis works on one, the next is on its way.
const FLIGHTS: usize = 3;

/// The queue, and the thread behind it, which ends when the queue is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    queue: mpsc::Sender<Job>,
    counts: Arc<Counts>,
}

/// What was counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) runs: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) turned_away: AtomicU64,
    pub(crate) poisoned: AtomicU64,
    pub(crate) mismatches: AtomicU64,
    pub(crate) converted: AtomicU64,
}

impl Driver {
    /// Starts the thread, connects there, and returns once the link has made its first attempt.
    ///
    /// # Errors
    ///
    /// Those of [`Link::connect`], and when there can be no thread.
    pub(crate) async fn start(config: &Config) -> Result<(Self, Arc<Link>), ConnectError> {
        let (queue, jobs) = mpsc::channel(config.max_waiting);
        let counts = Arc::new(Counts::default());
        let (tell, told) = oneshot::channel();
        let cannot =
            |error: io::Error| ConnectError::settings("no thread for the store").with_source(error);
        let (config, counted) = (config.clone(), Arc::clone(&counts));
        let life = move || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(live(config, jobs, counted, tell)),
            Err(error) => drop(tell.send(Err(cannot(error)))),
        };
        let thread = thread::Builder::new().name("tollgate-redis".to_owned());
        thread.spawn(life).map_err(cannot)?;
        let link = told.await.unwrap_or_else(|_| {
            Err(ConnectError::settings("the thread of the store ended before it was connected"))
        })?;
        Ok((Self { queue, counts }, link))
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Puts a job into the queue.
    pub(crate) fn submit(&self, job: Job) -> Result<(), StoreError> {
        self.queue.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => {
                self.counts.turned_away.fetch_add(1, Ordering::Relaxed);
                Cause::TooManyInFlight.unavailable()
            }
            TrySendError::Closed(_) => Cause::Stopped.unavailable(),
        })
    }
}

/// What the thread does, until nobody can put anything into the queue any more.
async fn live(
    config: Config,
    jobs: mpsc::Receiver<Job>,
    counts: Arc<Counts>,
    mut tell: oneshot::Sender<Result<Arc<Link>, ConnectError>>,
) {
    let connected = tokio::select! {
        connected = Link::connect(&config, SCRIPT) => connected,
        () = tell.closed() => return,
    };
    match connected {
        Ok(link) => {
            let link = Arc::new(link);
            let flights = FLIGHTS.saturating_mul(config.connections).min(config.max_in_flight);
            if tell.send(Ok(Arc::clone(&link))).is_ok() {
                drive(link, jobs, flights, config.deadline, counts).await;
            }
        }
        // Whoever does not wait for it any more need not know.
        Err(error) => drop(tell.send(Err(error))),
    }
}

async fn drive(
    link: Arc<Link>,
    mut jobs: mpsc::Receiver<Job>,
    flights: usize,
    patience: Duration,
    counts: Arc<Counts>,
) {
    let flights = Arc::new(Semaphore::new(flights));
    while let Ok(flight) = Arc::clone(&flights).acquire_owned().await {
        let Some(first) = jobs.recv().await else { return };
        let aboard = board(first, &mut jobs);
        tokio::spawn(fly(Arc::clone(&link), aboard, flight, patience, Arc::clone(&counts)));
    }
}

/// Takes what has queued until it is a batch; the last job may be one too many, as jobs are not
/// torn apart.
fn board(first: Job, jobs: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    let charges = |job: &Job| job.requests.iter().map(Owned::len).sum::<usize>();
    let mut sum = charges(&first);
    let mut aboard = vec![first];
    while sum < MAX_CHARGES {
        match jobs.try_recv() {
            Ok(job) => {
                sum = sum.saturating_add(charges(&job));
                aboard.push(job);
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
        }
    }
    aboard
}

/// A caller that waits for the answers to its requests.
struct Waiting {
    tell: oneshot::Sender<Outcome>,
    requests: usize,
    /// Those that are there, with their places.
    answers: Vec<(usize, Answer)>,
}

/// Runs a batch until every request is decided, and tells each caller as soon as all of its own
/// are.
async fn fly(
    link: Arc<Link>,
    jobs: Vec<Job>,
    _flight: OwnedSemaphorePermit,
    patience: Duration,
    counts: Arc<Counts>,
) {
    let now = clock::now();
    let mut deadline = None;
    let mut waiting: Vec<Option<Waiting>> = Vec::with_capacity(jobs.len());
    let mut owners: Vec<(usize, usize)> = Vec::with_capacity(jobs.len());
    let mut requests = Vec::with_capacity(jobs.len());
    for job in jobs {
        // A caller that has given up is not charged for it.
        if job.tell.is_closed() {
            continue;
        }
        // With so little time left it would most likely be charged and told that it may have been.
        if job.deadline.saturating_duration_since(now).saturating_mul(4) < patience {
            let _ = job.tell.send(Err(Cause::DeadlinePassed.unavailable()));
            continue;
        }
        deadline = Some(deadline.map_or(job.deadline, |first: Instant| first.min(job.deadline)));
        let count = job.requests.len();
        owners.extend((0..count).map(|i| (waiting.len(), i)));
        requests.extend(job.requests);
        waiting.push(Some(Waiting { tell: job.tell, requests: count, answers: Vec::new() }));
    }
    let Some(deadline) = deadline else { return };
    counts.requests.fetch_add(u64::try_from(requests.len()).unwrap_or(0), Ordering::Relaxed);
    let mut batch = Batch::new(requests);
    while !batch.is_done() {
        counts.runs.fetch_add(1, Ordering::Relaxed);
        let told = match link.run(batch.call(), deadline).await {
            Ok(reply) => batch
                .answer(&reply, |place, answer| tell(&mut waiting, &owners, place, answer))
                // It was executed, whatever it says.
                .map_err(|_| Cause::Garbled.timeout()),
            Err(error) => Err(error),
        };
        match told {
            Ok(tally) => counts.add(tally),
            Err(error) => return fail(waiting, &error),
        }
    }
}

fn tell(waiting: &mut [Option<Waiting>], owners: &[(usize, usize)], place: usize, answer: Answer) {
    let Some((job, i)) = owners.get(place) else { return };
    let Some(slot) = waiting.get_mut(*job) else { return };
    let Some(caller) = slot else { return };
    if caller.requests > 1 {
        caller.answers.push((*i, answer));
        if caller.answers.len() == caller.requests
            && let Some(mut caller) = slot.take()
        {
            // A request that was decided in a later run comes later here.
            caller.answers.sort_unstable_by_key(|(i, _)| *i);
            let answers = caller.answers.into_iter().map(|(_, answer)| answer).collect();
            // Whoever no longer listens was charged all the same.
            let _ = caller.tell.send(Ok(answers));
        }
    } else if let Some(caller) = slot.take() {
        let _ = caller.tell.send(Ok(vec![answer]));
    }
}

fn fail(waiting: Vec<Option<Waiting>>, error: &StoreError) {
    for caller in waiting.into_iter().flatten() {
        let partly = !caller.answers.is_empty();
        let error = error.clone();
        let error = if partly { error.after_a_charge() } else { error };
        let _ = caller.tell.send(Err(error));
    }
}

impl Counts {
    fn add(&self, tally: Tally) {
        for (count, more) in [
            (&self.poisoned, tally.poisoned),
            (&self.mismatches, tally.mismatches),
            (&self.converted, tally.converted),
        ] {
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}
