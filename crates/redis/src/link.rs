//! The connection to Redis: it runs one script, answers by the deadline, and knows whether what it
//! could not answer may have happened.
//!
//! Not here: what the script does, and how calls are batched. The script's side of the bargain:
//!
//! - `ARGV[1]` is the server's time in microseconds after which it must do nothing and return the
//!   status `late` in an array of one; `0` means never. (`script.rs` says which steps on locks are sent
//!   less than these two.)
//! - `ARGV[2]` is an id under which it keeps its reply until then, and answers with that reply when
//!   it meets the id again; the empty string means that it will not.
//! - It returns an array: the server's time in microseconds as a decimal string, then strings or
//!   nil. Steps on locks that are sent less may return the time alone, or 0 for none.
//! - Once it has written, it does not fail.
//!
//! | Part | Does |
//! |---|---|
//! | `dial` | opens a socket, logs in, waits for a sign of life |
//! | `keeper` | one task per connection: connects, probes, connects again |
//! | `wire`, `talk`, `desk` | an established connection, the task behind it, and what both share |
//! | `resp` | Redis's protocol |
//! | `command`, `answer` | what is sent, what comes back |
//! | `server_time` | what time it is at the server |
//! | `locks` | what only locks ask: copies, releases that are heard |
//! | `aside` | connections beside the link, for what is no decision |

mod answer;
mod aside;
mod command;
mod desk;
mod dial;
mod keeper;
mod locks;
mod resp;
mod server_time;
mod talk;
#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests;
mod wire;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout_at;
use tollgate_core::StoreError;

use self::answer::{Answer, Refusal};
use self::command::{Form, Preamble};
use self::dial::Dialer;
use self::server_time::ServerTime;
use crate::breaker::{Breaker, Failure};
use crate::checks::Warning;
use crate::clock::{self, Instant};
use crate::config::{Config, Retry};
use crate::error::{Cause, ConnectError};
use crate::script::{Step, VALUES};

pub use self::aside::{Aside, Said};

pub(crate) use self::answer::Reply;
pub(crate) use self::command::{Call, Keys, Script, Strings, Which};
pub(crate) use self::desk::WATCH;
pub(crate) use self::locks::Hearing;
pub(crate) use self::resp::{Value, command};
pub(crate) use self::wire::{Gone, Wire};

/// A link to one Redis server, for one script. Dropping it ends its tasks and connections.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    _keepers: JoinSet<()>,
}

impl Link {
    /// Connects, checks the server, and spawns a task per connection on the current runtime.
    ///
    /// Returns after the first attempt, at the latest when the connect timeout has passed. A server
    /// that cannot be reached is no error: the link keeps trying, and until it succeeds every call
    /// is answered with `Unavailable`.
    ///
    /// # Errors
    ///
    /// When a person has to change something: settings, credentials, the version of the server.
    pub(crate) async fn connect(
        config: &Config,
        script: &'static str,
    ) -> Result<Self, ConnectError> {
        let shared = Arc::new(Shared {
            script: Script::new(script),
            values: Script::new(VALUES),
            locks: Step::ALL.map(|step| Script::new(step.text())),
            dialer: Dialer::new(config)?,
            lanes: (0..config.connections).map(|_| Arc::default()).collect(),
            turn: AtomicUsize::new(0),
            arrivals: watch::Sender::new(()),
            room: Semaphore::new(config.max_in_flight),
            breaker: Breaker::new(config.breaker.clone()),
            time: ServerTime::default(),
            ids: Ids::default(),
            warnings: OnceLock::new(),
            counters: Counters::default(),
            config: config.clone(),
        });
        let mut keepers = JoinSet::new();
        let (attempt, mut first) = (oneshot::channel(), None);
        let mut sender = Some(attempt.0);
        let mut receiver = Some(attempt.1);
        for lane in &shared.lanes {
            keepers.spawn(keeper::keep(Arc::clone(&shared), Arc::clone(lane), sender.take()));
            // The others follow when the first is done, so that checks and complaints come once.
            if let Some(receiver) = receiver.take() {
                first = receiver.await.ok();
            }
            if let Some(Err(error)) = first.take()
                && error.is_permanent()
            {
                return Err(error);
            }
        }
        Ok(Self { shared, _keepers: keepers })
    }

    /// Runs the script once, and returns by the deadline whatever happens.
    ///
    /// # Errors
    ///
    /// - `Unavailable`: it was not executed, and will not be.
    /// - `Timeout`: it may have been executed, or may yet be within two deadlines of the sending.
    /// - `Corrupt`: it met a key that is somebody else's, and charged nothing.
    pub(crate) async fn run(&self, call: Call<'_>, deadline: Instant) -> Result<Reply, StoreError> {
        let shared = &*self.shared;
        let Ok(_room) = shared.room.try_acquire() else {
            shared.counters.rejected.fetch_add(1, Relaxed);
            return Err(Cause::TooManyInFlight.unavailable());
        };
        if shared.breaker.is_open() {
            return Err(Cause::BreakerOpen.unavailable());
        }
        let left = deadline.saturating_duration_since(clock::now());
        if left.is_zero() {
            return Err(Cause::DeadlinePassed.unavailable());
        }
        let mut trail = Trail::default();
        // Nobody waits for a decision beyond the configured deadline, but for a lock.
        let worth = left.max(shared.config.deadline).saturating_mul(2);
        match timeout_at(deadline, shared.attempt(call, worth, &mut trail)).await {
            Ok(result) => result,
            // A call that waited for most of its time elsewhere says nothing about Redis.
            Err(_) => {
                Err(shared.timed_out(&trail, left.saturating_mul(2) >= shared.config.deadline))
            }
        }
    }

    /// What the checks of the server found; empty as long as there was no connection.
    pub(crate) fn warnings(&self) -> &[Warning] {
        self.shared.warnings.get().map_or(&[], Vec::as_slice)
    }

    /// How the link is doing, counted since it was made.
    pub(crate) fn health(&self) -> Health {
        let Shared { lanes, breaker, counters, .. } = &*self.shared;
        Health {
            connected: lanes.iter().filter(|lane| lane.wire().is_some()).count(),
            connections: lanes.len(),
            breaker_open: breaker.is_open(),
            breaker_opens: breaker.opens(),
            reconnects: counters.reconnects.load(Relaxed),
            timeouts: counters.timeouts.load(Relaxed),
            lost: counters.lost.load(Relaxed),
            noscript: counters.noscript.load(Relaxed),
            retried: counters.retried.load(Relaxed),
            dropped_late: counters.dropped_late.load(Relaxed),
            rejected: counters.rejected.load(Relaxed),
        }
    }
}

/// How a link is doing. The counts run since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// Connections that are up, of how many.
    pub(crate) connected: usize,
    pub(crate) connections: usize,
    pub(crate) breaker_open: bool,
    pub(crate) breaker_opens: u64,
    /// Connections made beyond the first of each.
    pub(crate) reconnects: u64,
    /// Calls that were sent and not answered by their deadline.
    pub(crate) timeouts: u64,
    /// Calls whose connection ended before the reply, whether or not they were sent again.
    pub(crate) lost: u64,
    /// Calls that had to bring the script's text.
    pub(crate) noscript: u64,
    /// Calls sent once more after their connection was lost.
    pub(crate) retried: u64,
    /// Calls that the script dropped because they came too late.
    pub(crate) dropped_late: u64,
    /// Calls refused because too many were in flight.
    pub(crate) rejected: u64,
}

/// What the link, its calls and its keepers share.
#[derive(Debug)]
struct Shared {
    config: Config,
    script: Script,
    values: Script,
    locks: [Script; Step::ALL.len()],
    dialer: Dialer,
    lanes: Box<[Arc<Lane>]>,
    turn: AtomicUsize,
    /// Marked whenever a connection is made.
    arrivals: watch::Sender<()>,
    room: Semaphore,
    breaker: Breaker,
    time: ServerTime,
    ids: Ids,
    warnings: OnceLock<Vec<Warning>>,
    counters: Counters,
}

/// How far a call got, for when its time is up.
#[derive(Debug, Default)]
struct Trail {
    /// Where it waits for an answer, if it does.
    wire: Option<Arc<Lane>>,
    /// Whether it may have been executed, or may yet be.
    uncertain: bool,
}

impl Shared {
    /// Sends the call, and again where that is safe: by text when Redis does not know the script,
    /// with the right time when ours was wrong, and after a loss if it has an id.
    async fn attempt(
        &self,
        call: Call<'_>,
        worth: Duration,
        trail: &mut Trail,
    ) -> Result<Reply, StoreError> {
        let id = match (self.config.retry, call.which) {
            // A step on a lock has ids of its own, and whoever asks sends it again.
            (Retry::Never, _) | (_, Which::Lock(_)) => String::new(),
            (Retry::Once, _) => self.ids.next(),
        };
        let mut preamble = Preamble { not_after: self.not_after(worth), id };
        let (mut form, mut resent, mut retimed) = (Form::BySha, false, false);
        let Some((mut lane, mut wire)) = self.pick() else {
            return Err(Cause::NotConnected.unavailable());
        };
        loop {
            trail.wire = Some(Arc::clone(&lane));
            trail.uncertain = true;
            let command = call.pack(self.script(call.which), form, &preamble);
            let answer = wire.ask(command).await;
            let answer = answer.map_or(Answer::Foreign, |value| Answer::to(call.which, value));
            // What was sent first may have been executed, whatever becomes of the second.
            trail.uncertain = resent;
            match answer {
                Answer::Reply(reply) => {
                    self.time.learn(reply.now, clock::now());
                    self.breaker.succeed();
                    return Ok(reply);
                }
                Answer::NoScript => {
                    self.counters.noscript.fetch_add(1, Relaxed);
                    form = Form::ByText;
                }
                Answer::Late => {
                    self.counters.dropped_late.fetch_add(1, Relaxed);
                    self.breaker.succeed();
                    if resent {
                        return Err(Cause::Late.timeout());
                    }
                    // Answered in time, and yet late: the server's clock is not where we think.
                    if retimed || !self.relearn(&wire).await {
                        return Err(Cause::Late.unavailable());
                    }
                    retimed = true;
                    preamble.not_after = self.not_after(worth);
                }
                Answer::Refusal(refusal) => {
                    self.refused(&lane, &refusal);
                    let cause = resent.then(|| refusal.clone().into_cause());
                    return Err(cause.map_or_else(|| refusal.into_error(), Cause::timeout));
                }
                Answer::Foreign => {
                    self.lost(&lane, &wire);
                    trail.uncertain = true;
                    if resent || preamble.id.is_empty() {
                        return Err(Cause::Lost.timeout());
                    }
                    trail.wire = None;
                    (lane, wire) = self.await_connection().await;
                    resent = true;
                    self.counters.retried.fetch_add(1, Relaxed);
                }
            }
        }
    }

    const fn script(&self, which: Which) -> &Script {
        let [
            acquire,
            acquire_simple,
            renew,
            release,
            release_simple,
            inspect,
            force,
            list,
            guarded,
        ] = &self.locks;
        match which {
            Which::Batch => &self.script,
            Which::Values => &self.values,
            Which::Lock(Step::Acquire) => acquire,
            Which::Lock(Step::AcquireSimple) => acquire_simple,
            Which::Lock(Step::Renew) => renew,
            Which::Lock(Step::Release) => release,
            Which::Lock(Step::ReleaseSimple) => release_simple,
            Which::Lock(Step::Inspect) => inspect,
            Which::Lock(Step::Force) => force,
            Which::Lock(Step::List) => list,
            Which::Lock(Step::Guarded) => guarded,
        }
    }

    fn timed_out(&self, trail: &Trail, had_time: bool) -> StoreError {
        if let Some(lane) = trail.wire.as_ref().filter(|_| had_time) {
            self.failed(lane);
        }
        self.counters.timeouts.fetch_add(1, Relaxed);
        if trail.uncertain { Cause::NoReply.timeout() } else { Cause::NoReply.unavailable() }
    }

    /// Redis would not, now or ever.
    fn refused(&self, lane: &Lane, refusal: &Refusal) {
        if refusal.is_indisposed() {
            self.failed(lane);
        } else {
            self.breaker.succeed();
        }
    }

    /// The connection ended, or cannot be trusted any more.
    fn lost(&self, lane: &Lane, wire: &Wire) {
        // Its keeper notices by itself, but the next caller may be faster.
        lane.retract(wire);
        wire.hang_up();
        self.counters.lost.fetch_add(1, Relaxed);
        self.failed(lane);
    }

    /// Until when, by the server's clock, a call sent now is worth executing.
    fn not_after(&self, worth: Duration) -> u64 {
        self.time.ahead(clock::now(), worth)
    }

    /// Asks for the server's time. Returns whether it told.
    async fn relearn(&self, wire: &Wire) -> bool {
        let Ok(Ok(micros)) = wire.time().await else { return false };
        self.time.learn(micros, clock::now());
        true
    }

    /// A connection, in turn, if there is one.
    fn pick(&self) -> Option<(Arc<Lane>, Wire)> {
        let turn = self.turn.fetch_add(1, Relaxed);
        let start = turn.checked_rem(self.lanes.len()).unwrap_or(0);
        let (before, after) = self.lanes.split_at_checked(start)?;
        after.iter().chain(before).find_map(|lane| Some((Arc::clone(lane), lane.wire()?)))
    }

    /// A connection, once there is one.
    async fn await_connection(&self) -> (Arc<Lane>, Wire) {
        let mut arrivals = self.arrivals.subscribe();
        loop {
            if let Some(picked) = self.pick() {
                return picked;
            }
            if arrivals.changed().await.is_err() {
                // Not while `self` lives, which holds the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    fn connected(&self) {
        tracing::info!(address = %self.config.address, "connected to redis");
        // The connection has answered a PING.
        self.revive();
        self.arrivals.send_replace(());
    }

    /// A call failed: counts it, and has its connection looked after.
    fn failed(&self, lane: &Lane) {
        match self.breaker.fail(clock::now()) {
            Failure::First => lane.suspect(),
            Failure::Another => {}
            Failure::Opened => {
                self.opened();
                // Without this the probes would begin only when the heartbeat is due.
                self.lanes.iter().for_each(|lane| lane.suspect());
            }
        }
    }

    fn trip(&self) {
        if self.breaker.trip() {
            self.opened();
        }
    }

    fn opened(&self) {
        tracing::warn!(
            address = %self.config.address,
            "redis does not answer; nobody is made to wait for it until it does"
        );
    }

    fn revive(&self) {
        if self.breaker.close() {
            tracing::info!(address = %self.config.address, "redis answers again");
        }
    }
}

/// The place of one connection, empty while there is none.
#[derive(Debug, Default)]
struct Lane {
    wire: RwLock<Option<Wire>>,
    suspicion: Notify,
}

impl Lane {
    fn wire(&self) -> Option<Wire> {
        self.wire.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, wire: Option<Wire>) {
        *self.wire.write().unwrap_or_else(PoisonError::into_inner) = wire;
    }

    /// Offers the connection to nobody any more.
    fn retract(&self, wire: &Wire) {
        let mut offered = self.wire.write().unwrap_or_else(PoisonError::into_inner);
        if offered.as_ref().is_some_and(|offered| offered.is(wire)) {
            *offered = None;
        }
    }

    /// Has the connection probed now rather than at the next heartbeat.
    fn suspect(&self) {
        self.suspicion.notify_one();
    }

    async fn suspected(&self) {
        self.suspicion.notified().await;
    }
}

/// Ids of calls, never the same twice, here or in another process.
#[derive(Debug)]
struct Ids {
    process: String,
    next: AtomicU64,
}

impl Default for Ids {
    fn default() -> Self {
        let (high, low) = (crate::random::bits(), crate::random::bits());
        Self { process: format!("{high:016x}{low:016x}"), next: AtomicU64::new(0) }
    }
}

impl Ids {
    fn next(&self) -> String {
        format!("{}-{:x}", self.process, self.next.fetch_add(1, Relaxed))
    }
}

#[derive(Debug, Default)]
struct Counters {
    reconnects: AtomicU64,
    timeouts: AtomicU64,
    lost: AtomicU64,
    noscript: AtomicU64,
    retried: AtomicU64,
    dropped_late: AtomicU64,
    rejected: AtomicU64,
}
