//! The driver: turns the requests of many callers into few runs of the script.
//!
//! A caller puts its requests into a queue and waits. As soon as fewer batches than
//! [`BATCHES_PER_CONNECTION`] are in flight, whatever has queued becomes the next batch. Nobody waits
//! for company: under load it comes by itself while others are in flight. The requests of one caller
//! are never split, so they are decided in order.
//!
//! The driver and the link run on a thread of their own. So a caller is answered by its deadline
//! whatever happens to the runtime that made the store and however busy its own is; and a busy process
//! is not taken for a Redis that does not answer.
//!
//! Not here: connections, deadlines, failures (`link.rs`); what a batch is (`batch/`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::yield_now;
use tokio::time::timeout;
use tollgate_core::{Request, StoreError};

use crate::batch::{Batch, BatchBuffer, HashedName, PendingAnswer};
use crate::batch_queue::{BatchQueue, QueueRejection, QueuedBatch};
use crate::clock::{self, Instant};
use crate::config::Config;
use crate::error::{Cause, ConnectError};
use crate::link::Link;
use crate::script::SCRIPT;
use crate::waiters::{WaiterHandle, Waiters};

/// A batch that is filled, and its callers.
#[derive(Debug, Default)]
struct PendingBatch {
    buffer: BatchBuffer,
    waiters: Waiters,
    /// Deadlines in the order of the callers.
    deadlines: Vec<Instant>,
}

impl QueuedBatch for PendingBatch {
    fn charges(&self) -> usize {
        self.buffer.charges()
    }

    fn callers(&self) -> usize {
        self.deadlines.len()
    }

    fn deadlines(&self) -> Option<(Instant, Instant)> {
        self.deadlines.first().copied().zip(self.deadlines.last().copied())
    }

    fn clear(&mut self) {
        self.buffer.clear();
        self.waiters = Waiters::default();
        self.deadlines.clear();
    }
}

impl PendingBatch {
    /// Drops callers that gave up and rejects those that can no longer be answered in time: they
    /// would most likely be charged and time out. Returns the earliest deadline of the others, if
    /// any, and the place of each request unless all are left.
    fn drop_late_waiters(
        &mut self,
        now: Instant,
        least: Duration,
    ) -> Option<(Instant, Vec<usize>)> {
        let earliest = now.checked_add(least).unwrap_or(now);
        let places = match self.waiters.retain_live(&self.deadlines, earliest) {
            None => Vec::new(),
            Some(goes) => {
                self.buffer.retain(|request| goes.get(request).is_some_and(|goes| *goes));
                let places = goes.iter().enumerate().filter(|(_, goes)| **goes);
                places.map(|(place, _)| place).collect()
            }
        };
        let going = self.deadlines.iter().filter(|deadline| **deadline >= earliest);
        let deadline = going.min().filter(|_| self.buffer.len() > 0)?;
        Some((*deadline, places))
    }
}

/// Charges in one batch: about a millisecond of Redis's time when all keys differ.
pub(crate) const MAX_CHARGES: usize = 256;

/// Batches in flight on one connection: while Redis works on one, the next is on its way.
const BATCHES_PER_CONNECTION: usize = 3;

/// Returns the most batches in flight.
pub(crate) fn max_batches_in_flight(config: &Config) -> usize {
    BATCHES_PER_CONNECTION.saturating_mul(config.connections).min(config.max_in_flight)
}

/// The queue, and the thread behind it, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    queue: Arc<BatchQueue<PendingBatch>>,
    hasher: RandomState,
    link: Arc<Link>,
    runtime: runtime::Handle,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Closes the queue when the thread ends, so that nobody waits for it.
struct CloseOnDrop(Arc<BatchQueue<PendingBatch>>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Driver {
    /// Starts the thread, connects there, and returns once the link has made its first attempt.
    ///
    /// # Errors
    ///
    /// As [`Link::connect`], and when the thread cannot be started.
    pub(crate) async fn start(config: &Config) -> Result<(Self, Arc<Link>), ConnectError> {
        let queue = Arc::new(BatchQueue::new(MAX_CHARGES, config.max_waiting, config.deadline));
        let (started, starting) = oneshot::channel();
        let cannot = |error: io::Error| {
            ConnectError::settings("the thread of the store cannot be started").with_source(error)
        };
        let shared = DriverShared {
            queue: Arc::clone(&queue),
            max_in_flight: max_batches_in_flight(config),
        };
        let config = config.clone();
        let life = move || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let handle = runtime.handle().clone();
                runtime.block_on(run_thread(config, shared, handle, started));
            }
            Err(error) => drop(started.send(Err(cannot(error)))),
        };
        let thread = thread::Builder::new().name("tollgate-redis".to_owned());
        thread.spawn(life).map_err(cannot)?;
        let (link, runtime) = starting.await.unwrap_or_else(|_| {
            Err(ConnectError::settings("the thread of the store ended before it connected"))
        })?;
        let driver =
            Self { queue, hasher: RandomState::default(), link: Arc::clone(&link), runtime };
        Ok((driver, link))
    }

    /// Runs a future on the store's thread. Returns `None` if the thread has ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.runtime.spawn(work).await.ok()
    }

    /// Starts a future on the store's thread; it ends with the thread.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Adds one caller's requests to the queue.
    pub(crate) fn submit(
        &self,
        requests: &[Request<'_>],
        deadline: Instant,
        waker: Waker,
    ) -> Result<WaiterHandle, StoreError> {
        // Everything that needs no lock comes first.
        let names: SmallVec<[HashedName; 4]> = requests
            .iter()
            .flat_map(|request| request.charges().iter().map(move |charge| (request, charge)))
            .map(|(request, charge)| HashedName::new(request.partition(), charge, &self.hasher))
            .collect();
        let join = |pending: &mut PendingBatch| {
            let mut names = names.iter();
            requests.iter().for_each(|request| pending.buffer.push(request, &mut names));
            pending.deadlines.push(deadline);
            pending.waiters.add(requests.len(), waker)
        };
        self.queue.join(join).map_err(|why| match why {
            QueueRejection::Full => {
                self.link.counters().rejected.fetch_add(1, Ordering::Relaxed);
                Cause::TooManyInFlight.unavailable()
            }
            QueueRejection::Closed => Cause::Stopped.unavailable(),
        })
    }
}

/// State shared by the tasks of the thread.
struct DriverShared {
    queue: Arc<BatchQueue<PendingBatch>>,
    max_in_flight: usize,
}

/// Runs the thread until the queue is closed.
async fn run_thread(
    config: Config,
    shared: DriverShared,
    runtime: runtime::Handle,
    mut started: oneshot::Sender<Result<(Arc<Link>, runtime::Handle), ConnectError>>,
) {
    let _close = CloseOnDrop(Arc::clone(&shared.queue));
    let connected = tokio::select! {
        connected = Link::connect(&config, SCRIPT) => connected,
        () = started.closed() => return,
    };
    match connected {
        Ok(link) => {
            let link = Arc::new(link);
            if started.send(Ok((Arc::clone(&link), runtime))).is_ok() {
                dispatch_batches(link, shared).await;
            }
        }
        // A caller that stopped waiting need not know.
        Err(error) => drop(started.send(Err(error))),
    }
}

async fn dispatch_batches(link: Arc<Link>, shared: DriverShared) {
    let permits = Arc::new(Semaphore::new(shared.max_in_flight));
    let shared = Arc::new(shared);
    let mut pause = shared.queue.min_time_left();
    loop {
        // Callers whose time runs out while every slot is taken are rejected in time all the
        // same.
        match timeout(pause, Arc::clone(&permits).acquire_owned()).await {
            Ok(Ok(permit)) => {
                let Some(pending) = shared.queue.next_batch(clock::now).await else { return };
                tokio::spawn(run_batch(Arc::clone(&link), pending, permit, Arc::clone(&shared)));
            }
            Ok(Err(_)) => return,
            // Replies are handled between two batches of them.
            Err(_) => yield_now().await,
        }
        let more = reject_expired(&shared.queue);
        pause = if more { Duration::ZERO } else { shared.queue.min_time_left() };
    }
}

/// Rejects one batch of callers whose time ran out in the queue. Returns whether there was one.
fn reject_expired(queue: &BatchQueue<PendingBatch>) -> bool {
    let Some(pending) = queue.expired(clock::now()) else { return false };
    pending.waiters.reject_all();
    queue.recycle(pending);
    true
}

/// Runs an in-flight batch until every request is decided, and delivers each caller's answers as soon
/// as all of its own are.
async fn run_batch(
    link: Arc<Link>,
    mut pending: PendingBatch,
    _permit: OwnedSemaphorePermit,
    shared: Arc<DriverShared>,
) {
    let (queue, counters) = (&shared.queue, link.counters());
    let requests = pending.buffer.len();
    let Some((deadline, places)) = pending.drop_late_waiters(clock::now(), queue.min_time_left())
    else {
        return queue.recycle(pending);
    };
    let sent = u64::try_from(pending.buffer.len()).unwrap_or(0);
    counters.requests.fetch_add(sent, Ordering::Relaxed);
    let mut answers: Vec<PendingAnswer> = Vec::new();
    answers.resize_with(requests, PendingAnswer::default);
    let mut batch = Batch::new(std::mem::take(&mut pending.buffer), places);
    let waiters = &pending.waiters;
    while !batch.is_done() {
        counters.runs.fetch_add(1, Ordering::Relaxed);
        let reply = match link.run(batch.call(), deadline).await {
            Ok(reply) => reply,
            Err(error) => {
                waiters.fail(error, &answers);
                break;
            }
        };
        let Ok(counts) = batch.answer(&reply, &mut answers) else {
            // The batch was executed, whatever the reply says.
            waiters.fail(Cause::MalformedReply.timeout(), &answers);
            break;
        };
        // Counted before delivery, so that a caller that is answered finds it counted.
        for (counter, more) in [
            (&counters.poisoned, counts.poisoned),
            (&counters.twin_mismatches, counts.mismatches),
            (&counters.converted, counts.converted),
        ] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
        waiters.deliver(&mut answers);
    }
    pending.buffer = batch.into_buffer();
    queue.recycle(pending);
}
