//! From many callers to few runs of the script.
//!
//! A caller puts its requests into a queue and waits. As soon as a *flight* is free, whatever has
//! queued by then becomes one batch: nobody waits for company, and company comes by itself while
//! others are under way. What one caller asks is never torn apart, so it is decided in order.
//!
//! All of this, and the link, runs on a thread of its own. So a caller is answered by its deadline
//! whatever becomes of the runtime that the store was made on, and however busy its own is; and a
//! busy process is not taken for a Redis that does not answer.
//!
//! Not here: connections, deadlines, failures (`link.rs`); what a batch is (`batch/`).

use std::io;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::yield_now;
use tokio::time::timeout;
use tollgate_core::{Charge, Request, StoreError};

use crate::batch::{Batch, Cargo, Named, Tally, Told};
use crate::clock::{self, Instant};
use crate::config::Config;
use crate::error::{Cause, ConnectError};
use crate::link::Link;
use crate::queue::{Load, Queue, TurnedAway};
use crate::ride::{Pilot, Ticket};
use crate::script::SCRIPT;

/// Those who fly together, and what they ask.
#[derive(Debug, Default)]
struct Party {
    cargo: Cargo,
    pilot: Pilot,
    /// Of each caller.
    deadlines: Vec<Instant>,
}

impl Load for Party {
    fn charges(&self) -> usize {
        self.cargo.charges()
    }

    fn callers(&self) -> usize {
        self.deadlines.len()
    }

    fn deadlines(&self) -> Option<(Instant, Instant)> {
        self.deadlines.first().copied().zip(self.deadlines.last().copied())
    }

    fn clear(&mut self) {
        self.cargo.clear();
        self.pilot = Pilot::default();
        self.deadlines.clear();
    }
}

impl Party {
    /// Leaves behind who gave up, and who can no longer be answered in time: with so little time left
    /// it would most likely be charged and told that it may have been. Returns until when the others
    /// wait, if there are any, and the place of each request unless all are there.
    fn board(&mut self, now: Instant, least: Duration) -> Option<(Instant, Vec<usize>)> {
        let earliest = now.checked_add(least).unwrap_or(now);
        let places = match self.pilot.depart(&self.deadlines, earliest) {
            None => Vec::new(),
            Some(goes) => {
                self.cargo.retain(|request| goes.get(request).is_some_and(|goes| *goes));
                let places = goes.iter().enumerate().filter(|(_, goes)| **goes);
                places.map(|(place, _)| place).collect()
            }
        };
        let going = self.deadlines.iter().filter(|deadline| **deadline >= earliest);
        let deadline = going.min().filter(|_| self.cargo.len() > 0)?;
        Some((*deadline, places))
    }
}

/// Charges in one run of the script: about a millisecond of Redis's time when every key is another.
pub(crate) const MAX_CHARGES: usize = 256;

/// Runs under way at a time on a connection: while Redis works on one, the next is on its way.
const FLIGHTS: usize = 3;

/// How many runs are under way at most.
pub(crate) fn flights(config: &Config) -> usize {
    FLIGHTS.saturating_mul(config.connections).min(config.max_in_flight)
}

/// The queue, and the thread behind it, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    queue: Arc<Queue<Party>>,
    hasher: RandomState,
    counts: Arc<Counts>,
    runtime: runtime::Handle,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Lets go of those who wait, should the thread end before its queue does.
struct Closing(Arc<Queue<Party>>);

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
            flights: flights(config),
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
        Ok((Self { queue, hasher: RandomState::default(), counts, runtime }, link))
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

    /// Starts something on the store's thread, which ends with it.
    pub(crate) fn start_beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Puts what one caller asks into the queue.
    pub(crate) fn submit(
        &self,
        requests: &[Request<'_>],
        deadline: Instant,
        waker: Waker,
    ) -> Result<Ticket, StoreError> {
        // All that can be done before the others are kept waiting.
        let name = |request: &Request<'_>, charge: &Charge<'_>| {
            Named::new(request.partition(), charge, &self.hasher)
        };
        let (one, mut many);
        let names = if let [request] = requests
            && let [charge] = request.charges()
        {
            one = name(request, charge);
            slice::from_ref(&one)
        } else {
            many = Vec::with_capacity(requests.len());
            for request in requests {
                many.extend(request.charges().iter().map(|charge| name(request, charge)));
            }
            many.as_slice()
        };
        let enter = |party: &mut Party| {
            let mut names = names.iter();
            requests.iter().for_each(|request| party.cargo.push(request, &mut names));
            party.deadlines.push(deadline);
            party.pilot.seat(requests.len(), waker)
        };
        self.queue.join(enter).map_err(|why| match why {
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
    queue: Arc<Queue<Party>>,
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
                let Some(party) = driven.queue.depart(clock::now).await else { return };
                tokio::spawn(fly(Arc::clone(&link), party, flight, Arc::clone(&driven)));
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
fn turn_away(queue: &Queue<Party>) -> bool {
    let Some(party) = queue.expired(clock::now()) else { return false };
    party.pilot.turn_away();
    queue.give_back(party);
    true
}

/// Runs a batch until every request is decided, and tells each caller as soon as all of its own
/// are.
async fn fly(
    link: Arc<Link>,
    mut party: Party,
    _flight: OwnedSemaphorePermit,
    driven: Arc<Driven>,
) {
    let Driven { queue, counts, .. } = &*driven;
    let requests = party.cargo.len();
    let Some((deadline, places)) = party.board(clock::now(), queue.least()) else {
        return queue.give_back(party);
    };
    let boarded = u64::try_from(party.cargo.len()).unwrap_or(0);
    counts.requests.fetch_add(boarded, Ordering::Relaxed);
    let mut told: Vec<Told> = Vec::new();
    told.resize_with(requests, Told::default);
    let mut batch = Batch::new(std::mem::take(&mut party.cargo), places);
    let pilot = &party.pilot;
    while !batch.is_done() {
        counts.runs.fetch_add(1, Ordering::Relaxed);
        let reply = match link.run(batch.call(), deadline).await {
            Ok(reply) => reply,
            Err(error) => {
                pilot.fail(error, &told);
                break;
            }
        };
        let tally = batch.answer(&reply, &mut told);
        // Whoever is told finds it counted.
        counts.add(tally.unwrap_or_default());
        if tally.is_err() {
            // It was executed, whatever it says.
            pilot.fail(Cause::Garbled.timeout(), &told);
            break;
        }
        pilot.tell(&mut told);
    }
    party.cargo = batch.into_cargo();
    queue.give_back(party);
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
