//! One established connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::{Notify, mpsc, oneshot};

use super::connection_task::Question;
use super::resp::{self, Value};
use super::script_outcome::Refusal;
use super::write_queue::{TimedReply, WriteQueue};
use crate::clock::Instant;
use crate::error::Cause;

/// One established connection. Clones share it; what is sent on it is answered in order.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    questions: mpsc::Sender<Question>,
    queue: Arc<WriteQueue>,
    close: Arc<Notify>,
    serial: u64,
}

impl Connection {
    pub(super) fn new(questions: mpsc::Sender<Question>, queue: Arc<WriteQueue>) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Relaxed);
        Self { questions, queue, close: Arc::new(Notify::new()), serial }
    }

    /// The answer to a command, be it an error that Redis reports.
    ///
    /// Waits for as long as the connection lives. A caller that gives up leaves its command where
    /// it is; the answer is thrown away when it comes.
    ///
    /// # Errors
    ///
    /// When the connection ended. The command may have been executed.
    pub(crate) async fn request(&self, command: Vec<u8>) -> Result<Value, ConnectionClosed> {
        let (tell, told) = oneshot::channel();
        self.questions.send(Question { command, tell }).await.map_err(|_| ConnectionClosed)?;
        told.await.ok().flatten().map(|(value, _)| value).ok_or(ConnectionClosed)
    }

    /// Writes a command here and now, or has it written with others; where its answer comes, or by then
    /// that it did not. `None` if it must be asked.
    pub(super) fn send(
        &self,
        command: Vec<u8>,
        until: Instant,
    ) -> Option<oneshot::Receiver<Option<TimedReply>>> {
        self.queue.send(command, until)
    }

    /// The answers to these commands, in order. They are sent without waiting for each other's.
    ///
    /// # Errors
    ///
    /// As [`Connection::ask`].
    pub(super) async fn request_all(
        &self,
        commands: impl Iterator<Item = Vec<u8>>,
    ) -> Result<Vec<Value>, ConnectionClosed> {
        let mut asked = Vec::new();
        for command in commands {
            let (tell, told) = oneshot::channel();
            self.questions.send(Question { command, tell }).await.map_err(|_| ConnectionClosed)?;
            asked.push(told);
        }
        let mut answers = Vec::with_capacity(asked.len());
        for told in asked {
            answers
                .push(told.await.ok().flatten().map(|(value, _)| value).ok_or(ConnectionClosed)?);
        }
        Ok(answers)
    }

    /// Whether Redis answers a `PING`.
    ///
    /// Any answer is a sign of life, even that this user may not use `PING`; except one that
    /// says that Redis is not to be had now.
    pub(super) async fn ping(&self) -> Result<PingReply, ConnectionClosed> {
        match self.request(resp::command(&[b"PING"])).await? {
            Value::Status(pong) if pong == b"PONG" => Ok(PingReply::Alive),
            Value::Error(error) => {
                let refusal = Refusal::new(error);
                let alive = refusal.code() == "NOPERM";
                Ok(if alive { PingReply::Alive } else { PingReply::Refused(refusal) })
            }
            _ => Err(ConnectionClosed),
        }
    }

    /// The server's time in microseconds, or why it is not told.
    pub(super) async fn time(&self) -> Result<Result<u64, Cause>, ConnectionClosed> {
        let answer = self.request(resp::command(&[b"TIME"])).await?;
        let number = |value: &Value| match value {
            Value::String(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
            _ => None,
        };
        match answer {
            Value::Error(error) => Ok(Err(Refusal::new(error).into_cause())),
            Value::Array(parts) => {
                let [seconds, micros] = parts.as_slice() else { return Err(ConnectionClosed) };
                let (seconds, micros) =
                    number(seconds).zip(number(micros)).ok_or(ConnectionClosed)?;
                Ok(Ok(u64::saturating_mul(seconds, 1_000_000).saturating_add(micros)))
            }
            _ => Err(ConnectionClosed),
        }
    }

    /// Ends the connection soon, and with it everything that waits on it.
    pub(super) fn close(&self) {
        self.close.notify_one();
    }

    pub(super) async fn close_requested(&self) {
        self.close.notified().await;
    }

    /// Whether both are the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

/// The connection ended, or what came over it was not Redis's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionClosed;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PingReply {
    Alive,
    Refused(Refusal),
}
