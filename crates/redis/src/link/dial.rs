//! Dials: from an address to a connection that has answered.
//!
//! TLS uses the provider this crate was built with, and every wait is bounded by the connect timeout.

#[cfg(feature = "tls")]
mod tls;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{Connection, ConnectionClosed, PingReply};
use super::connection_task::{ConnectionTask, OnMessage};
use super::resp::{self, ErrorReply, Value};
use super::write_queue::{Socket, WriteQueue};
use crate::config::{Address, Config, Secret};
use crate::error::{ConnectError, ConnectErrorKind};

/// Everything needed to connect, read and checked once.
#[derive(Debug)]
pub(super) struct Dialer {
    config: Config,
    /// The most bytes of one reply or message.
    most: usize,
    #[cfg(feature = "tls")]
    tls: Option<tls::Connector>,
}

/// A connection that has answered a `PING`, its task, and the server's time if it is known.
pub(super) struct NewConnection {
    pub(super) connection: Connection,
    pub(super) task: JoinSet<()>,
    pub(super) now: Option<u64>,
}

impl Dialer {
    /// Makes a dialer for connections whose replies and messages have at most `most` bytes each.
    ///
    /// # Errors
    ///
    /// When a certificate cannot be read or used.
    pub(super) fn new(config: &Config, most: usize) -> Result<Self, ConnectError> {
        Ok(Self {
            #[cfg(feature = "tls")]
            tls: match &config.address {
                Address::Tls { host, .. } => Some(tls::Connector::new(host, &config.tls)?),
                Address::Tcp { .. } | Address::Unix(_) => None,
            },
            config: config.clone(),
            most,
        })
    }

    /// Makes one attempt, within the connect timeout. A subscriber passes its `on_message`.
    pub(super) async fn dial(
        &self,
        on_message: Option<OnMessage>,
    ) -> Result<NewConnection, ConnectError> {
        let address = &self.config.address;
        let attempt = async {
            let (connection, task) = self.open(on_message).await?;
            self.greet(connection, task).await
        };
        timeout(self.config.connect_timeout, attempt).await.unwrap_or_else(|_| {
            Err(ConnectError::unreachable(format!("redis at {address} does not answer")))
        })
    }

    async fn open(
        &self,
        on_message: Option<OnMessage>,
    ) -> Result<(Connection, JoinSet<()>), ConnectError> {
        let cannot = |error: io::Error| {
            let address = &self.config.address;
            ConnectError::unreachable(format!("cannot connect to redis at {address}"))
                .with_source(error)
        };
        match &self.config.address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(cannot)?;
                let socket = stream.as_fd().try_clone_to_owned().map_err(cannot)?;
                Ok(self.connection(stream, Some(Socket::Unix(socket.into())), on_message))
            }
            Address::Tcp { host, port } => {
                let stream = self.tcp(host, *port).await.map_err(cannot)?;
                let socket = stream.as_fd().try_clone_to_owned().map_err(cannot)?;
                Ok(self.connection(stream, Some(Socket::Tcp(socket.into())), on_message))
            }
            #[cfg(feature = "tls")]
            Address::Tls { host, port } => {
                let stream = self.tcp(host, *port).await.map_err(cannot)?;
                let Some(tls) = &self.tls else {
                    return Err(ConnectError::settings("TLS was not prepared"));
                };
                let stream = tls.connect(stream).await.map_err(|error| {
                    if tls::Connector::is_distrust(&error) {
                        let message =
                            format!("the certificate of redis at {host}:{port} is not trusted");
                        ConnectError::settings(message).with_source(error)
                    } else {
                        cannot(error)
                    }
                })?;
                // Only the task can encrypt, so only it writes.
                Ok(self.connection(stream, None, on_message))
            }
            #[cfg(not(feature = "tls"))]
            Address::Tls { .. } => {
                Err(ConnectError::settings("this build lacks the feature `tls`"))
            }
        }
    }

    /// Tries each address of a name in turn, each for its share of the time, so that a silent one
    /// does not use up all of it.
    async fn tcp(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let share = self.config.connect_timeout.checked_div(count).unwrap_or_default();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Nagle's algorithm would hold back a batch until the one
                    // before it is acknowledged.
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }

    /// Spawns the task of a connection.
    fn connection<S>(
        &self,
        stream: S,
        socket: Option<Socket>,
        on_message: Option<OnMessage>,
    ) -> (Connection, JoinSet<()>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // All calls that may be in flight, and a few PINGs.
        let max_pending = self.config.max_in_flight.saturating_add(8);
        let queue = Arc::new(WriteQueue::new(socket, max_pending));
        let mut task = JoinSet::new();
        task.spawn(ConnectionTask::new(stream, Arc::clone(&queue), on_message, self.most));
        (Connection::new(queue), task)
    }

    /// Logs in and waits for a `PING` to be answered: a stopped server accepts connections too.
    async fn greet(
        &self,
        connection: Connection,
        task: JoinSet<()>,
    ) -> Result<NewConnection, ConnectError> {
        let address = &self.config.address;
        let gone = |ConnectionClosed| {
            ConnectError::unreachable(format!(
                "redis at {address} closed the connection, or something else is listening there"
            ))
        };
        let db = self.config.db;
        let select = (db != 0).then(|| resp::command(&[b"SELECT", db.to_string().as_bytes()]));
        for command in self.auth().into_iter().chain(select) {
            self.expect_ok(connection.request(command).await.map_err(gone)?)?;
        }
        if let PingReply::Refused(refusal) = connection.ping().await.map_err(gone)? {
            return Err(self.refused(&refusal));
        }
        // Without the server's time, calls go without `not_after`; the checks warn.
        let now = connection.time().await.map_err(gone)?.ok();
        Ok(NewConnection { connection, task, now })
    }

    fn auth(&self) -> Option<Vec<u8>> {
        let Config { user, password, .. } = &self.config;
        if user.is_none() && password.is_none() {
            return None;
        }
        // A user without a password (`nopass`) accepts any, but one must be sent.
        let password = password.as_ref().map_or("", Secret::expose).as_bytes();
        Some(match user {
            Some(user) => resp::command(&[b"AUTH", user.as_bytes(), password]),
            None => resp::command(&[b"AUTH", password]),
        })
    }

    fn expect_ok(&self, value: Value) -> Result<(), ConnectError> {
        match value {
            Value::Status(status) if status == b"OK" => Ok(()),
            Value::Error(error) => Err(self.refused(&error)),
            _ => Err(ConnectError::unreachable(format!(
                "the server at {} does not speak the Redis protocol",
                self.config.address
            ))),
        }
    }

    fn refused(&self, refusal: &ErrorReply) -> ConnectError {
        use ConnectErrorKind::{Authentication, Settings, Unreachable};
        let Config { address, user, db, .. } = &self.config;
        let user = user.as_deref().unwrap_or("default");
        let cause = refusal.clone().into_cause();
        let detail = |part| refusal.detail.contains(part);
        let (kind, message) = match refusal.code.as_str() {
            "WRONGPASS" => {
                (Authentication, format!("does not accept the password of user {user:?}"))
            }
            "NOAUTH" => (Authentication, "requires a password, and none is configured".to_owned()),
            // Only AUTH and SELECT are answered like this, and both by what was configured.
            "ERR" if detail("AUTH") => {
                (Authentication, format!("has no password for user {user:?}"))
            }
            "ERR" if detail("DB index") => (Settings, format!("has no database {db}")),
            "NOPERM" => {
                (Authentication, format!("does not allow user {user:?} to select database {db}"))
            }
            _ => (Unreachable, "is not ready".to_owned()),
        };
        ConnectError::new(kind, format!("redis at {address} {message}")).with_source(cause)
    }
}
