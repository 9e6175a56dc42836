//! The driver: turns the requests of many callers into few runs of the script.
//!
//! A caller puts its requests into a queue and waits. As soon as fewer batches than
//! [`BATCHES_PER_CONNECTION`] are in flight, whatever has queued becomes the next batch. There is no
//! timer: under load, batches fill while others are in flight. The requests of one caller
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
use tollgate_core::{Request, StoreError, StoreErrorKind};

use crate::batch::{Batch, BatchBuffer, HashedName, PendingAnswer};
use crate::batch_queue::{BatchQueue, QueueRejection};
use crate::clock::{self, Instant};
use crate::config::Config;
use crate::error::{Cause, ConnectError};
use crate::link::Link;
use crate::script::SCRIPT;
use crate::waiters::{WaiterHandle, Waiters};

/// The batch that callers are filling, and these callers.
#[derive(Debug, Default)]
struct PendingBatch {
    buffer: BatchBuffer,
    waiters: Waiters,
}

impl PendingBatch {
    /// Drops callers that gave up and rejects those that can no longer be answered in time: they
    /// would most likely be charged and time out. Returns the earliest deadline of the others, if
    /// any, and the place of each request unless all are left.
    fn drop_late_waiters(&mut self, least: Duration) -> Option<(Instant, Vec<usize>)> {
        let (deadline, live) = self.waiters.retain_live(clock::ahead(least));
        let live = live.unwrap_or_default();
        let places: Vec<usize> = (0..live.len()).filter(|request| live[*request]).collect();
        if !live.is_empty() {
            self.buffer.retain(|request| live[request]);
        }
        Some((deadline?, places))
    }

    /// Empties the batch, and gives its memory to the queue.
    fn recycle(mut self, queue: &BatchQueue<Self>) {
        self.buffer.clear();
        self.waiters = Waiters::default();
        queue.recycle(self);
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
    queue: OpenQueue,
    hasher: RandomState,
    pub(crate) link: Arc<Link>,
    runtime: runtime::Handle,
}

/// The queue, closed when either end is dropped, so that nobody waits for the other.
#[derive(Debug)]
struct OpenQueue(Arc<BatchQueue<PendingBatch>>);

impl Drop for OpenQueue {
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
    pub(crate) async fn start(config: &Config) -> Result<Self, ConnectError> {
        let queue = Arc::new(BatchQueue::new(MAX_CHARGES, config.max_waiting, config.deadline));
        let (started, starting) = oneshot::channel();
        let cannot = |error: io::Error| {
            ConnectError::settings("the thread of the store cannot be started").with_source(error)
        };
        let (config, opened) = (config.clone(), OpenQueue(Arc::clone(&queue)));
        let life = move || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let handle = runtime.handle().clone();
                runtime.block_on(run_thread(config, opened, handle, started));
            }
            Err(error) => drop(started.send(Err(cannot(error)))),
        };
        let thread = thread::Builder::new().name("tollgate-redis".to_owned());
        thread.spawn(life).map_err(cannot)?;
        let (link, runtime) = starting.await.unwrap_or_else(|_| {
            Err(ConnectError::settings("the thread of the store ended before it connected"))
        })?;
        let (queue, hasher) = (OpenQueue(queue), RandomState::default());
        Ok(Self { queue, hasher, link, runtime })
    }

    /// Runs a future on the store's thread. Fails with `Timeout` if the thread has ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let ran = self.runtime.spawn(work).await;
        ran.unwrap_or_else(|_| Err(StoreError::new(StoreErrorKind::Timeout)))
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
        let mut names: SmallVec<[HashedName; 4]> = SmallVec::new();
        for request in requests {
            for charge in request.charges() {
                names.push(HashedName::new(request.partition(), charge, &self.hasher));
            }
        }
        let join = |pending: &mut PendingBatch| {
            let mut names = names.iter();
            requests.iter().for_each(|request| pending.buffer.push(request, &mut names));
            pending.waiters.add(requests.len(), deadline, waker)
        };
        self.queue.0.join(names.len(), deadline, join).map_err(|why| match why {
            QueueRejection::Full => {
                self.link.counters().rejected.fetch_add(1, Ordering::Relaxed);
                Cause::TooManyInFlight.unavailable()
            }
            QueueRejection::Closed => Cause::Stopped.unavailable(),
        })
    }
}

/// Runs the thread until the queue is closed.
async fn run_thread(
    config: Config,
    queue: OpenQueue,
    runtime: runtime::Handle,
    mut started: oneshot::Sender<Result<(Arc<Link>, runtime::Handle), ConnectError>>,
) {
    let connected = tokio::select! {
        connected = Link::connect(&config, SCRIPT) => connected,
        () = started.closed() => return,
    };
    match connected {
        Ok(link) => {
            let link = Arc::new(link);
            if started.send(Ok((Arc::clone(&link), runtime))).is_ok() {
                dispatch_batches(link, &queue.0, max_batches_in_flight(&config)).await;
            }
        }
        // A caller that stopped waiting need not know.
        Err(error) => drop(started.send(Err(error))),
    }
}

async fn dispatch_batches(
    link: Arc<Link>,
    queue: &Arc<BatchQueue<PendingBatch>>,
    max_in_flight: usize,
) {
    let permits = Arc::new(Semaphore::new(max_in_flight));
    let mut pause = queue.min_time_left();
    loop {
        // Callers whose time runs out while every slot is taken are rejected in time all the
        // same.
        match timeout(pause, Arc::clone(&permits).acquire_owned()).await {
            Ok(Ok(permit)) => {
                let Some(pending) = queue.next_batch(clock::now).await else { return };
                tokio::spawn(run_batch(Arc::clone(&link), pending, permit, Arc::clone(queue)));
            }
            Ok(Err(_)) => return,
            // Replies are handled between two batches of them.
            Err(_) => yield_now().await,
        }
        let more = reject_expired(queue);
        pause = if more { Duration::ZERO } else { queue.min_time_left() };
    }
}

/// Rejects one batch of callers whose time ran out in the queue. Returns whether there was one.
fn reject_expired(queue: &BatchQueue<PendingBatch>) -> bool {
    let Some(pending) = queue.expired(clock::now()) else { return false };
    pending.waiters.reject_all();
    pending.recycle(queue);
    true
}

/// Runs an in-flight batch until every request is decided, and delivers each caller's answers as soon
/// as all of its own are.
async fn run_batch(
    link: Arc<Link>,
    mut pending: PendingBatch,
    _permit: OwnedSemaphorePermit,
    queue: Arc<BatchQueue<PendingBatch>>,
) {
    let (counters, requests) = (link.counters(), pending.buffer.len());
    let Some((deadline, places)) = pending.drop_late_waiters(queue.min_time_left()) else {
        return pending.recycle(&queue);
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
    pending.recycle(&queue);
}
