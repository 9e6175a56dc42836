//! Calls that only locks make: steps that the caller writes itself, grants that wait for replicas, and
//! subscriptions.
//!
//! A step that needs more, such as the script's text, goes through `Link::run`.
//! `lock/release_notifier.rs` decides which channels are subscribed and when.

use tokio::task::JoinSet;
use tokio::time::timeout_at;
use tollgate_core::StoreError;
use tollgate_core::lock::Replicas;

use super::command::{Call, EvalForm, Preamble};
use super::connection::{Connection, ConnectionClosed};
use super::connection_task::OnMessage;
use super::dial::NewConnection;
use super::resp::{self, Value};
use super::script_outcome::{Reply, ScriptOutcome};
use super::{CallProgress, Link, WATCH_INTERVAL};
use crate::clock::{self, Instant};
use crate::error::{Cause, ConnectError};

impl Link {
    /// Runs the script on the caller's thread: the caller writes the command, and the connection
    /// task delivers the reply, or the end of the wait at the deadline. Returns `None` if the
    /// script was not run and [`Link::run`] must run it.
    ///
    /// # Errors
    ///
    /// As [`Link::run`].
    pub(crate) async fn run_on_caller(
        &self,
        call: &Call<'_>,
        deadline: Instant,
    ) -> Option<Result<Reply, StoreError>> {
        let shared = &*self.shared;
        let _room = shared.in_flight.try_acquire().ok()?;
        let left = deadline.saturating_duration_since(clock::now());
        if shared.breaker.is_open() || left < WATCH_INTERVAL {
            return None;
        }
        let (slot, connection) = shared.pick()?;
        let not_after = shared.not_after(left.max(shared.config.deadline).saturating_mul(2));
        let preamble = Preamble { not_after, id: String::new() };
        let command = call.pack(shared.script(call.script), EvalForm::BySha, &preamble);
        let reply = match connection.send_until(command, deadline)?.await {
            Ok(None) => {
                let progress = CallProgress { connection: Some(slot), uncertain: true };
                return Some(Err(shared.timed_out(&progress, true)));
            }
            reply => reply.ok().flatten(),
        };
        let (value, arrived) = reply.unzip();
        match ScriptOutcome::to(call.script, value) {
            ScriptOutcome::Reply(reply) => {
                shared.time.learn(reply.now, arrived?);
                shared.breaker.succeed();
                Some(Ok(reply))
            }
            ScriptOutcome::NoScript | ScriptOutcome::Late => None,
            ScriptOutcome::Refusal(refusal) => {
                shared.refused(&slot, &refusal);
                Some(Err(refusal.into_error()))
            }
            ScriptOutcome::Unexpected => {
                shared.lost(&slot, &connection);
                Some(Err(Cause::Lost.timeout()))
            }
        }
    }

    /// Runs the script, and waits on the same connection until a majority of the replicas has its
    /// writes. Returns how many have. Sent once.
    ///
    /// # Errors
    ///
    /// As [`Link::run`].
    pub(crate) async fn run_replicated(
        &self,
        call: Call<'_>,
        replicas: Replicas,
        deadline: Instant,
    ) -> Result<(Reply, u32), StoreError> {
        let worth = deadline.saturating_duration_since(clock::now()).saturating_mul(2);
        let run = async {
            let mut progress = CallProgress::default();
            let (reply, connection) = self.shared.attempt(call, worth, &mut progress).await?;
            let majority = replicas.majority().to_string();
            let patience = replicas.patience.as_millis().max(1).to_string();
            let wait = resp::command(&[b"WAIT", majority.as_bytes(), patience.as_bytes()]);
            match connection.request(wait).await {
                Ok(Value::Number(copies)) => Ok((reply, u32::try_from(copies).unwrap_or(0))),
                // The lock is held. Without an answer, no copy is certain.
                _ => Ok((reply, 0)),
            }
        };
        timeout_at(deadline, run).await.unwrap_or_else(|_| Err(Cause::NoReply.timeout()))
    }

    /// Sends a command, if there is a connection, and ignores its reply.
    pub(crate) fn send_and_forget(&self, command: Vec<u8>) {
        if let Some((_, connection)) = self.shared.pick() {
            connection.send_and_forget(command);
        }
    }

    /// Opens a connection that receives messages. `on_message` gets each, on the thread of the
    /// connection, and must not block.
    ///
    /// # Errors
    ///
    /// When no connection can be made.
    pub(crate) async fn subscribe(
        &self,
        on_message: OnMessage,
    ) -> Result<SubscriberConnection, ConnectError> {
        let NewConnection { connection, task, .. } =
            self.shared.dialer.dial(Some(on_message)).await?;
        Ok(SubscriberConnection { connection, task })
    }
}

/// A connection that receives messages. It closes when dropped.
///
/// Redis replies to each channel of a `SUBSCRIBE` by itself, so each channel is a command of its own.
/// They leave together, and each has one reply, as every command has.
#[derive(Debug)]
pub(crate) struct SubscriberConnection {
    connection: Connection,
    task: JoinSet<()>,
}

impl SubscriberConnection {
    /// Subscribes to these channels. Returns for each whether it succeeded: an ACL may forbid some.
    ///
    /// # Errors
    ///
    /// When the connection ended.
    pub(crate) async fn subscribe(
        &self,
        channels: &[&[u8]],
    ) -> Result<Vec<bool>, ConnectionClosed> {
        let answers = self.request_each(b"SUBSCRIBE", channels).await?;
        Ok(answers.iter().map(|answer| matches!(answer, Value::Array(_))).collect())
    }

    /// Unsubscribes from these channels.
    ///
    /// # Errors
    ///
    /// When the connection ended.
    pub(crate) async fn unsubscribe(&self, channels: &[&[u8]]) -> Result<(), ConnectionClosed> {
        self.request_each(b"UNSUBSCRIBE", channels).await.map(drop)
    }

    async fn request_each(
        &self,
        verb: &[u8],
        channels: &[&[u8]],
    ) -> Result<Vec<Value>, ConnectionClosed> {
        let commands = channels.iter().map(|channel| resp::command(&[verb, channel]));
        self.connection.request_all(commands).await
    }

    /// Sends a `PING`. Any reply is a sign of life: a subscriber gets another one than usual.
    ///
    /// # Errors
    ///
    /// When the connection ended.
    pub(crate) async fn ping(&self) -> Result<(), ConnectionClosed> {
        self.connection.request(resp::command(&[b"PING"])).await.map(drop)
    }

    /// Waits until the connection has closed.
    pub(crate) async fn ended(&mut self) {
        self.task.join_next().await;
    }
}
