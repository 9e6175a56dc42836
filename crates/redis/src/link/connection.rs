//! One established connection.

use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use super::resp::{self, ErrorReply, Value};
use super::script_outcome::parse;
use super::write_queue::{TimedReply, WriteQueue};
use crate::clock::Instant;
use crate::error::Cause;

/// One established connection. Clones share it; replies come in the order of the commands.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    queue: Arc<WriteQueue>,
    close: Arc<Notify>,
}

impl Connection {
    pub(super) fn new(queue: Arc<WriteQueue>) -> Self {
        Self { queue, close: Arc::default() }
    }

    /// Sends a command and returns its reply, which may be an error that Redis reports.
    ///
    /// Waits for as long as the connection lives. When the caller gives up, the command stays sent, and
    /// its reply is thrown away.
    ///
    /// # Errors
    ///
    /// When the connection ended. The command may have been executed.
    pub(crate) async fn request(&self, command: Vec<u8>) -> Result<Value, ConnectionClosed> {
        let reply = self.queue.send(command, None).ok_or(ConnectionClosed)?.await;
        reply.ok().flatten().map(|(value, _)| value).ok_or(ConnectionClosed)
    }

    /// Sends a command whose reply is `None` at the deadline. Returns `None` if the command was not sent.
    pub(super) fn send_until(
        &self,
        command: Vec<u8>,
        deadline: Instant,
    ) -> Option<oneshot::Receiver<Option<TimedReply>>> {
        self.queue.send(command, Some(deadline))
    }

    /// Sends a command and ignores its reply.
    pub(super) fn send_and_forget(&self, command: Vec<u8>) {
        drop(self.queue.send(command, None));
    }

    /// Sends commands together and returns their replies in order.
    ///
    /// # Errors
    ///
    /// As [`Connection::request`].
    pub(super) async fn request_all(
        &self,
        commands: impl Iterator<Item = Vec<u8>>,
    ) -> Result<Vec<Value>, ConnectionClosed> {
        let mut replies = Vec::new();
        for receiver in commands.map(|command| self.queue.send(command, None)).collect::<Vec<_>>() {
            let reply = receiver.ok_or(ConnectionClosed)?.await.ok().flatten();
            replies.push(reply.ok_or(ConnectionClosed)?.0);
        }
        Ok(replies)
    }

    /// Sends a `PING`.
    ///
    /// That this user may not use `PING` is a sign of life too. Any other error is a refusal.
    pub(super) async fn ping(&self) -> Result<PingReply, ConnectionClosed> {
        match self.request(resp::command(&[b"PING"])).await? {
            Value::Status(pong) if pong == b"PONG" => Ok(PingReply::Alive),
            Value::Error(error) if error.code == "NOPERM" => Ok(PingReply::Alive),
            Value::Error(error) => Ok(PingReply::Refused(error)),
            _ => Err(ConnectionClosed),
        }
    }

    /// Asks for the server's time in microseconds. The inner error is Redis's refusal.
    pub(super) async fn time(&self) -> Result<Result<u64, Cause>, ConnectionClosed> {
        let answer = self.request(resp::command(&[b"TIME"])).await?;
        let number = |value: &Value| match value {
            Value::String(digits) => parse(digits),
            _ => None,
        };
        match answer {
            Value::Error(error) => Ok(Err(error.into_cause())),
            Value::Array(parts) => {
                let [seconds, micros] = parts.as_slice() else { return Err(ConnectionClosed) };
                let (seconds, micros) =
                    number(seconds).zip(number(micros)).ok_or(ConnectionClosed)?;
                Ok(Ok(u64::saturating_mul(seconds, 1_000_000).saturating_add(micros)))
            }
            _ => Err(ConnectionClosed),
        }
    }

    /// Has the connection closed soon, and with it everything that waits on it.
    pub(super) fn close(&self) {
        self.close.notify_one();
    }

    pub(super) async fn close_requested(&self) {
        self.close.notified().await;
    }

    /// Returns whether both are the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.queue, &other.queue)
    }
}

/// The connection ended, or received something other than Redis's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionClosed;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PingReply {
    Alive,
    Refused(ErrorReply),
}
