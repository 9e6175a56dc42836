//! One established connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::sync::Notify;

use super::answer::Refusal;
use crate::error::Cause;

/// One established connection. Clones share it; what is sent on it is answered in order.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    connection: MultiplexedConnection,
    hang_up: Arc<Notify>,
    serial: u64,
}

impl Wire {
    pub(super) fn new(connection: MultiplexedConnection) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Relaxed);
        Self { connection, hang_up: Arc::new(Notify::new()), serial }
    }

    /// The answer to a command, be it an error that Redis reports.
    ///
    /// Waits for as long as the connection lives. A caller that gives up leaves its command where
    /// it is; the answer is thrown away when it comes.
    ///
    /// # Errors
    ///
    /// When the connection ended. The command may have been executed.
    pub(crate) async fn ask(&self, cmd: &Cmd) -> Result<Value, Gone> {
        // The client's own error would quote what it could not parse, which may be anybody's data.
        self.connection.clone().send_packed_command(cmd).await.map_err(|_| Gone)
    }

    /// Whether Redis answers a `PING`.
    ///
    /// Any answer is a sign of life, even that this user may not use `PING`; except one that
    /// says that Redis is not to be had now.
    pub(super) async fn ping(&self) -> Result<Pulse, Gone> {
        match self.ask(&redis::cmd("PING")).await? {
            Value::SimpleString(pong) if pong == "PONG" => Ok(Pulse::Alive),
            Value::ServerError(error) => {
                let refusal = Refusal::new(&error);
                let alive = refusal.code() == "NOPERM";
                Ok(if alive { Pulse::Alive } else { Pulse::Refused(refusal) })
            }
            _ => Err(Gone),
        }
    }

    /// The server's time in microseconds, or why it is not told.
    pub(super) async fn time(&self) -> Result<Result<u64, Cause>, Gone> {
        let value = self.ask(&redis::cmd("TIME")).await?;
        if let Value::ServerError(error) = &value {
            return Ok(Err(Refusal::new(error).into_cause()));
        }
        match redis::from_redis_value::<(u64, u64)>(value) {
            Ok((seconds, micros)) => {
                Ok(Ok(seconds.saturating_mul(1_000_000).saturating_add(micros)))
            }
            Err(_) => Err(Gone),
        }
    }

    /// Ends the connection soon, and with it everything that waits on it.
    pub(super) fn hang_up(&self) {
        self.hang_up.notify_one();
    }

    pub(super) async fn hung_up(&self) {
        self.hang_up.notified().await;
    }

    /// Whether both are the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

/// The connection ended, or what came over it was not Redis's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pulse {
    Alive,
    Refused(Refusal),
}
