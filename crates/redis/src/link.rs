//! The link to one Redis server: runs scripts, returns by the deadline, and knows whether a call that
//! failed may have been executed.
//!
//! The link knows neither what the scripts do nor how calls are batched. It expects of a script:
//!
//! - `ARGV[1]` is the server's time in microseconds after which the script does nothing and returns
//!   the status `late` in an array of one; `0` means never.
//! - `ARGV[2]` is an id. The script keeps its reply under the id until that time, and returns the
//!   kept reply when the id comes again. An empty id keeps nothing.
//! - The reply is an array: the server's time in microseconds as a decimal string, then strings or
//!   nil. A batch replies with one string instead.
//! - Once a script has written, it does not fail.
//!
//! Lock steps may get fewer of these arguments (`script.rs`), and may reply with the time alone, or 0.
//!
//! | Module | Contents |
//! |---|---|
//! | `dial` | opens a socket, logs in, waits for a `PING` to be answered |
//! | `reconnector` | one task for each connection: connects, probes, connects again |
//! | `connection`, `write_queue`, `connection_task` | an established connection, its write queue, its task |
//! | `resp` | the Redis protocol |
//! | `command`, `script_outcome` | a call as it is sent, and its reply |
//! | `server_time` | the server's clock |
//! | `lock_calls` | calls that only locks make: replicated grants, subscriptions |
//! | `auxiliary` | connections beside the link |

mod auxiliary;
mod command;
mod connection;
mod connection_task;
mod dial;
mod lock_calls;
mod reconnector;
mod resp;
mod script_outcome;
mod server_time;
#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests;
mod write_queue;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout_at;
use tollgate_core::StoreError;

use self::command::{EvalForm, Preamble};
use self::dial::Dialer;
use self::resp::ErrorReply;
use self::script_outcome::ScriptOutcome;
use self::server_time::ServerTime;
use crate::breaker::{Breaker, Failure};
use crate::checks::Warning;
use crate::clock::{self, Instant};
use crate::config::{Config, RetryPolicy};
use crate::error::{Cause, ConnectError};
use crate::script::{Step, VALUES};
use crate::store::{Counters, RedisStats};
use tollgate_core::lock_mutex;

pub use self::auxiliary::{AuxiliaryConnection, RedisValue};

pub(crate) use self::command::{Call, Keys, PackedStrings, Script, ScriptId};
pub(crate) use self::connection::{Connection, ConnectionClosed};
pub(crate) use self::lock_calls::SubscriberConnection;
pub(crate) use self::resp::{Value, command};
pub(crate) use self::script_outcome::Reply;
pub(crate) use self::write_queue::WATCH_INTERVAL;

/// A link to one Redis server, for one script. Dropping it ends its tasks and connections.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<LinkState>,
    _reconnectors: JoinSet<()>,
}

impl Link {
    /// Connects, checks the server, and spawns a task per connection on the current runtime.
    ///
    /// Returns after the first attempt, at the latest after the connect timeout. A server that
    /// cannot be reached is not an error: the link keeps trying, and every call fails with
    /// `Unavailable` until it succeeds.
    ///
    /// # Errors
    ///
    /// When someone has to change something: settings, credentials, the version of the server.
    pub(crate) async fn connect(
        config: &Config,
        script: &'static str,
    ) -> Result<Self, ConnectError> {
        let shared = Arc::new(LinkState {
            script: Script::new(script),
            values: Script::new(VALUES),
            locks: Step::ALL.map(|step| Script::new(step.text())),
            dialer: Dialer::new(config, resp::MAX_BYTES)?,
            slots: (0..config.connections).map(|_| Arc::default()).collect(),
            turn: AtomicUsize::new(0),
            arrivals: watch::Sender::new(()),
            in_flight: Semaphore::new(config.max_in_flight),
            breaker: Breaker::new(config.breaker.clone()),
            time: ServerTime::default(),
            ids: CallIds::default(),
            warnings: OnceLock::new(),
            counters: Counters::default(),
            config: config.clone(),
        });
        let mut reconnectors = JoinSet::new();
        let mut first_attempt = Some(oneshot::channel());
        for slot in &shared.slots {
            let (sender, receiver) = first_attempt.take().unzip();
            let (shared, slot) = (Arc::clone(&shared), Arc::clone(slot));
            reconnectors.spawn(reconnector::keep_connected(shared, slot, sender));
            // The others follow when the first is done, so that checks and complaints come once.
            if let Some(receiver) = receiver
                && let Ok(Err(error)) = receiver.await
                && error.is_permanent()
            {
                return Err(error);
            }
        }
        Ok(Self { shared, _reconnectors: reconnectors })
    }

    /// Runs the script once, and returns by the deadline whatever happens.
    ///
    /// # Errors
    ///
    /// - `Unavailable`: it was not executed, and will not be.
    /// - `Timeout`: it may have been executed, or may yet be within two deadlines of the sending.
    /// - `Corrupt`: a key holds the data of another program. Nothing was charged.
    pub(crate) async fn run(&self, call: Call<'_>, deadline: Instant) -> Result<Reply, StoreError> {
        let shared = &*self.shared;
        let Ok(_room) = shared.in_flight.try_acquire() else {
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
        let mut progress = CallProgress::default();
        // A decision waits no longer than the configured deadline, but a lock step may.
        let worth = left.max(shared.config.deadline).saturating_mul(2);
        match timeout_at(deadline, shared.attempt(call, worth, &mut progress)).await {
            Ok(result) => result.map(|(reply, _)| reply),
            // A call that waited for most of its time elsewhere says nothing about Redis.
            Err(_) => {
                Err(shared.timed_out(&progress, left.saturating_mul(2) >= shared.config.deadline))
            }
        }
    }

    /// Returns the findings of the checks at the first connection; empty before it.
    pub(crate) fn warnings(&self) -> &[Warning] {
        self.shared.warnings.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the counters of the store and of this link.
    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Returns the counters and the health of the connections.
    pub(crate) fn health(&self) -> RedisStats {
        let LinkState { slots, breaker, counters, .. } = &*self.shared;
        RedisStats {
            connected: slots.iter().filter(|slot| slot.connection().is_some()).count(),
            breaker_open: breaker.is_open(),
            breaker_opens: breaker.opens(),
            ..counters.read()
        }
    }
}

/// State shared by the link, its calls and its reconnectors.
#[derive(Debug)]
struct LinkState {
    config: Config,
    script: Script,
    values: Script,
    locks: [Script; Step::ALL.len()],
    dialer: Dialer,
    slots: Box<[Arc<ConnectionSlot>]>,
    turn: AtomicUsize,
    /// Marked whenever a connection is made.
    arrivals: watch::Sender<()>,
    in_flight: Semaphore,
    breaker: Breaker,
    time: ServerTime,
    ids: CallIds,
    warnings: OnceLock<Vec<Warning>>,
    counters: Counters,
}

/// The progress of a call, for when its time is up.
#[derive(Debug, Default)]
struct CallProgress {
    /// The connection that the call waits on.
    connection: Option<Arc<ConnectionSlot>>,
    /// The call may have been executed, or may yet be.
    uncertain: bool,
}

impl LinkState {
    /// Sends the call, and again where that is safe: by text when Redis does not know the script,
    /// with a corrected time when ours was wrong, and after a lost connection if the call has an
    /// id. Returns the reply and the connection it came on.
    async fn attempt(
        &self,
        call: Call<'_>,
        worth: Duration,
        progress: &mut CallProgress,
    ) -> Result<(Reply, Connection), StoreError> {
        let id = match (self.config.retry, call.script) {
            // A lock step has ids of its own, and its caller sends it again.
            (RetryPolicy::Never, _) | (_, ScriptId::Lock(_)) => String::new(),
            (RetryPolicy::Once, _) => self.ids.next(),
        };
        let mut preamble = Preamble { not_after: self.not_after(worth), id };
        let (mut form, mut resent, mut retimed) = (EvalForm::BySha, false, false);
        let Some((mut slot, mut connection)) = self.pick() else {
            return Err(Cause::NotConnected.unavailable());
        };
        loop {
            progress.connection = Some(Arc::clone(&slot));
            progress.uncertain = true;
            let command = call.pack(self.script(call.script), form, &preamble);
            let answer = connection.request(command).await;
            let outcome = ScriptOutcome::to(call.script, answer.ok());
            // The first attempt may have been executed, whatever happens to the second.
            progress.uncertain = resent;
            match outcome {
                ScriptOutcome::Reply(reply) => {
                    self.time.learn(reply.now, clock::now());
                    self.breaker.succeed();
                    return Ok((reply, connection));
                }
                ScriptOutcome::NoScript => {
                    self.counters.noscript.fetch_add(1, Relaxed);
                    form = EvalForm::ByText;
                }
                ScriptOutcome::Late => {
                    self.counters.dropped_late.fetch_add(1, Relaxed);
                    self.breaker.succeed();
                    if resent {
                        return Err(Cause::Late.timeout());
                    }
                    // Answered in time, and yet late: our reading of the server's
                    // clock is wrong.
                    if retimed || !self.relearn(&connection).await {
                        return Err(Cause::Late.unavailable());
                    }
                    retimed = true;
                    preamble.not_after = self.not_after(worth);
                }
                ScriptOutcome::Refusal(refusal) => {
                    self.refused(&slot, &refusal);
                    let cause = resent.then(|| refusal.clone().into_cause());
                    return Err(cause.map_or_else(|| refusal.into_error(), Cause::timeout));
                }
                ScriptOutcome::Unexpected => {
                    self.lost(&slot, &connection);
                    progress.uncertain = true;
                    if resent || preamble.id.is_empty() {
                        return Err(Cause::Lost.timeout());
                    }
                    progress.connection = None;
                    (slot, connection) = self.await_connection().await;
                    resent = true;
                    self.counters.retried.fetch_add(1, Relaxed);
                }
            }
        }
    }

    fn script(&self, script: ScriptId) -> &Script {
        match script {
            ScriptId::Batch => &self.script,
            ScriptId::Values => &self.values,
            // The scripts are in the order of `Step::ALL`, which has every step.
            ScriptId::Lock(step) => {
                &self.locks[Step::ALL.iter().position(|known| *known == step).unwrap_or(0)]
            }
        }
    }

    fn timed_out(&self, progress: &CallProgress, had_time: bool) -> StoreError {
        if let Some(slot) = progress.connection.as_ref().filter(|_| had_time) {
            self.failed(slot);
        }
        self.counters.timeouts.fetch_add(1, Relaxed);
        if progress.uncertain { Cause::NoReply.timeout() } else { Cause::NoReply.unavailable() }
    }

    /// Handles an error reply.
    fn refused(&self, slot: &ConnectionSlot, refusal: &ErrorReply) {
        if refusal.is_indisposed() {
            self.failed(slot);
        } else {
            self.breaker.succeed();
        }
    }

    /// Handles a connection that ended or cannot be trusted any more.
    fn lost(&self, slot: &ConnectionSlot, connection: &Connection) {
        // The reconnector notices by itself, but the next caller may be faster.
        slot.retract(connection);
        connection.close();
        self.counters.lost.fetch_add(1, Relaxed);
        self.failed(slot);
    }

    /// Returns the server's time after which a call sent now must not be executed.
    fn not_after(&self, worth: Duration) -> u64 {
        self.time.ahead(clock::now(), worth)
    }

    /// Asks for the server's time. Returns whether Redis answered.
    async fn relearn(&self, connection: &Connection) -> bool {
        let Ok(Ok(micros)) = connection.time().await else { return false };
        self.time.learn(micros, clock::now());
        true
    }

    /// Picks an open connection, in turn.
    fn pick(&self) -> Option<(Arc<ConnectionSlot>, Connection)> {
        let turn = self.turn.fetch_add(1, Relaxed);
        let start = turn.checked_rem(self.slots.len()).unwrap_or(0);
        let (before, after) = self.slots.split_at_checked(start)?;
        after.iter().chain(before).find_map(|slot| Some((Arc::clone(slot), slot.connection()?)))
    }

    /// Waits for an open connection.
    async fn await_connection(&self) -> (Arc<ConnectionSlot>, Connection) {
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

    /// Counts a failed call, and has its connection probed.
    fn failed(&self, slot: &ConnectionSlot) {
        match self.breaker.fail(clock::now()) {
            Failure::First => slot.suspect(),
            Failure::Another => {}
            Failure::Opened => {
                self.opened();
                // Without this the probes would begin only when the heartbeat is due.
                self.slots.iter().for_each(|slot| slot.suspect());
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
            "redis does not answer; calls fail at once until it answers a PING"
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
struct ConnectionSlot {
    connection: Mutex<Option<Connection>>,
    suspicion: Notify,
}

impl ConnectionSlot {
    fn connection(&self) -> Option<Connection> {
        lock_mutex(&self.connection).clone()
    }

    fn publish(&self, connection: Option<Connection>) {
        *lock_mutex(&self.connection) = connection;
    }

    /// Empties the slot if it holds this connection.
    fn retract(&self, connection: &Connection) {
        let mut offered = lock_mutex(&self.connection);
        if offered.as_ref().is_some_and(|offered| offered.is(connection)) {
            *offered = None;
        }
    }

    /// Has the connection probed now, not at the next heartbeat.
    fn suspect(&self) {
        self.suspicion.notify_one();
    }

    async fn suspected(&self) {
        self.suspicion.notified().await;
    }
}

/// Unique ids of calls, across processes too.
#[derive(Debug)]
struct CallIds {
    process: String,
    next: AtomicU64,
}

impl Default for CallIds {
    fn default() -> Self {
        let (high, low) = (crate::random::bits(), crate::random::bits());
        Self { process: format!("{high:016x}{low:016x}"), next: AtomicU64::new(0) }
    }
}

impl CallIds {
    fn next(&self) -> String {
        format!("{}-{:x}", self.process, self.next.fetch_add(1, Relaxed))
    }
}
