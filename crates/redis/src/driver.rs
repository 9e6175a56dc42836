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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::yield_now;
use tokio::time::timeout;
use tollgate_core::{Answer, StoreError};

use crate::batch::{Batch, Owned, Tally};
use crate::clock::{self, Instant};
use crate::config::Config;
use crate::error::{Cause, ConnectError};
use crate::link::Link;
use crate::queue::{Load, Queue, TurnedAway};
use crate::script::SCRIPT;

/// What one caller asks, and where to tell it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) requests: Requests,
    /// Empty, with room for all of them: what the caller's thread allocates it shall free.
    pub(crate) answers: Vec<Answer>,
    pub(crate) deadline: Instant,
    pub(crate) tell: oneshot::Sender<Told>,
}

pub(crate) type Requests = SmallVec<[Owned; 1]>;

impl Job {
    fn turn_away(self, error: StoreError) {
        let Self { requests, answers, tell, .. } = self;
        let _ = tell.send(Told { answers, error: Some(error), _spent: requests });
    }
}

impl Load for Job {
    fn charges(&self) -> usize {
        self.requests.iter().map(Owned::len).sum()
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// What one caller is told. The requests go back to whom they came from, as memory that one thread
/// allocates and another frees is dear.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) answers: Vec<Answer>,
    /// Why not all of them are there.
    pub(crate) error: Option<StoreError>,
    _spent: Requests,
}

/// Charges in one run of the script: about a millisecond of Redis's time when every key is another.
pub(crate) const MAX_CHARGES: usize = 256;

/// Runs under way at a time on a connection: while Redis works on one, the next is on its way.
const FLIGHTS: usize = 3;

/// The queue, and the thread behind it, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    queue: Arc<Queue<Job>>,
    counts: Arc<Counts>,
    runtime: runtime::Handle,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Lets go of those who wait, should the thread end before its queue does.
struct Closing(Arc<Queue<Job>>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
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
        let queue = Arc::new(Queue::new(MAX_CHARGES, config.max_waiting, config.deadline));
        let counts = Arc::new(Counts::default());
        let (tell, told) = oneshot::channel();
        let cannot =
            |error: io::Error| ConnectError::settings("no thread for the store").with_source(error);
        let driven = Driven {
            queue: Arc::clone(&queue),
            counts: Arc::clone(&counts),
            flights: FLIGHTS.saturating_mul(config.connections).min(config.max_in_flight),
        };
        let config = config.clone();
        let life = move || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let handle = runtime.handle().clone();
                runtime.block_on(live(config, driven, handle, tell));
            }
            Err(error) => drop(tell.send(Err(cannot(error)))),
        };
        let thread = thread::Builder::new().name("tollgate-redis".to_owned());
        thread.spawn(life).map_err(cannot)?;
        let (link, runtime) = told.await.unwrap_or_else(|_| {
            Err(ConnectError::settings("the thread of the store ended before it was connected"))
        })?;
        Ok((Self { queue, counts, runtime }, link))
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Runs something on the store's thread; `None` if that has ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.runtime.spawn(work).await.ok()
    }

    /// Puts a job into the queue.
    pub(crate) fn submit(&self, job: Job) -> Result<(), StoreError> {
        self.queue.join(job).map_err(|why| match why {
            TurnedAway::Full => {
                self.counts.turned_away.fetch_add(1, Ordering::Relaxed);
                Cause::TooManyInFlight.unavailable()
            }
            TurnedAway::Closed => Cause::Stopped.unavailable(),
        })
    }
}

/// What the thread works with.
struct Driven {
    queue: Arc<Queue<Job>>,
    counts: Arc<Counts>,
    flights: usize,
}

/// What the thread does, until the queue is closed.
async fn live(
    config: Config,
    driven: Driven,
    runtime: runtime::Handle,
    mut tell: oneshot::Sender<Result<(Arc<Link>, runtime::Handle), ConnectError>>,
) {
    let _closing = Closing(Arc::clone(&driven.queue));
    let connected = tokio::select! {
        connected = Link::connect(&config, SCRIPT) => connected,
        () = tell.closed() => return,
    };
    match connected {
        Ok(link) => {
            let link = Arc::new(link);
            if tell.send(Ok((Arc::clone(&link), runtime))).is_ok() {
                drive(link, driven).await;
            }
        }
        // Whoever does not wait for it any more need not know.
        Err(error) => drop(tell.send(Err(error))),
    }
}

async fn drive(link: Arc<Link>, driven: Driven) {
    let flights = Arc::new(Semaphore::new(driven.flights));
    let driven = Arc::new(driven);
    let mut pause = driven.queue.least();
    loop {
        // Those whose time runs out while no flight is free are told in time all the same.
        match timeout(pause, Arc::clone(&flights).acquire_owned()).await {
            Ok(Ok(flight)) => {
                let Some(load) = driven.queue.depart(clock::now).await else { return };
                tokio::spawn(fly(Arc::clone(&link), load, flight, Arc::clone(&driven)));
            }
            Ok(Err(_)) => return,
            // Between two loads of them, replies are looked at.
            Err(_) => yield_now().await,
        }
        let more = turn_away(&driven.queue);
        pause = if more { Duration::ZERO } else { driven.queue.least() };
    }
}

/// Tells a load of those whose time has run out in the queue; whether there was one.
fn turn_away(queue: &Queue<Job>) -> bool {
    let Some(mut load) = queue.expired(clock::now()) else { return false };
    let error = Cause::DeadlinePassed.unavailable();
    load.drain(..).for_each(|job| job.turn_away(error.clone()));
    queue.give_back(load);
    true
}

/// A caller that waits for the answers to its requests.
struct Waiting {
    tell: oneshot::Sender<Told>,
    requests: usize,
    /// Those that are there, and what they answer.
    answers: Vec<Answer>,
    spent: Requests,
    /// The place of each among the caller's requests, unless there is only one.
    places: Vec<usize>,
}

impl Waiting {
    fn is_done(&self) -> bool {
        self.answers.len() == self.requests
    }

    fn tell(mut self) {
        if !self.places.is_sorted() {
            // A request that was decided in a later run comes later here.
            let mut answers: Vec<_> = self.places.into_iter().zip(self.answers).collect();
            answers.sort_unstable_by_key(|(place, _)| *place);
            self.answers = answers.into_iter().map(|(_, answer)| answer).collect();
        }
        // Whoever no longer listens was charged all the same.
        let _ = self.tell.send(Told { answers: self.answers, error: None, _spent: self.spent });
    }

    fn fail(self, error: StoreError) {
        let partly = !self.answers.is_empty();
        let error = Some(if partly { error.after_a_charge() } else { error });
        let _ = self.tell.send(Told { answers: self.answers, error, _spent: self.spent });
    }
}

/// Those who fly together, and whose each request is.
#[derive(Default)]
struct Passengers {
    waiting: Vec<Option<Waiting>>,
    owners: Vec<(usize, usize)>,
    deadline: Option<Instant>,
}

impl Passengers {
    /// Boards who may still be answered in time; their requests.
    fn board(&mut self, load: &mut Vec<Job>, now: Instant, least: Duration) -> Vec<Owned> {
        let earliest = now.checked_add(least).unwrap_or(now);
        let mut requests = Vec::with_capacity(load.len());
        self.waiting.reserve(load.len());
        self.owners.reserve(load.len());
        for job in load.drain(..) {
            // A caller that has given up is not charged for it.
            if job.tell.is_closed() {
                continue;
            }
            // With so little time left it would most likely be charged and told that it may have
            // been.
            if job.deadline < earliest {
                job.turn_away(Cause::DeadlinePassed.unavailable());
                continue;
            }
            self.deadline = Some(self.deadline.map_or(job.deadline, |d| d.min(job.deadline)));
            let Job { requests: mut own, answers, tell, .. } = job;
            let count = own.len();
            if count == 1
                && let Some(request) = own.pop()
            {
                self.owners.push((self.waiting.len(), 0));
                requests.push(request);
            } else {
                self.owners.extend((0..count).map(|i| (self.waiting.len(), i)));
                requests.extend(own.drain(..));
            }
            let (spent, places) = (own, Vec::new());
            self.waiting.push(Some(Waiting { tell, requests: count, answers, spent, places }));
        }
        requests
    }

    /// Notes an answer; the caller it completes.
    fn note(&mut self, place: usize, request: Owned, answer: Answer) -> Option<usize> {
        let (number, i) = *self.owners.get(place)?;
        let caller = self.waiting.get_mut(number)?.as_mut()?;
        caller.answers.push(answer);
        caller.spent.push(request);
        if caller.requests > 1 {
            caller.places.push(i);
        }
        caller.is_done().then_some(number)
    }

    fn tell(&mut self, number: usize) {
        if let Some(caller) = self.waiting.get_mut(number).and_then(Option::take) {
            caller.tell();
        }
    }

    fn fail(self, error: &StoreError) {
        for caller in self.waiting.into_iter().flatten() {
            caller.fail(error.clone());
        }
    }
}

/// Runs a batch until every request is decided, and tells each caller as soon as all of its own
/// are.
async fn fly(
    link: Arc<Link>,
    mut load: Vec<Job>,
    _flight: OwnedSemaphorePermit,
    driven: Arc<Driven>,
) {
    let Driven { queue, counts, .. } = &*driven;
    let mut passengers = Passengers::default();
    let requests = passengers.board(&mut load, clock::now(), queue.least());
    queue.give_back(load);
    let Some(deadline) = passengers.deadline else { return };
    counts.requests.fetch_add(u64::try_from(requests.len()).unwrap_or(0), Ordering::Relaxed);
    let mut done = Vec::with_capacity(requests.len());
    let mut batch = Batch::new(requests);
    while !batch.is_done() {
        counts.runs.fetch_add(1, Ordering::Relaxed);
        let reply = match link.run(batch.call(), deadline).await {
            Ok(reply) => reply,
            Err(error) => return passengers.fail(&error),
        };
        let tally = batch.answer(&reply, |place, request, answer| {
            done.extend(passengers.note(place, request, answer));
        });
        // Whoever is told finds it counted.
        counts.add(tally.unwrap_or_default());
        for number in done.drain(..) {
            passengers.tell(number);
        }
        if tally.is_err() {
            // It was executed, whatever it says.
            return passengers.fail(&Cause::Garbled.timeout());
        }
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
