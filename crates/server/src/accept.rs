//! Accepts connections: without Nagle's delay, within `--max-connections`, and through a shortage of
//! file descriptors.
//!
//! [`serve`] is the accept loop of every listener that runs on the server's runtime. The Redis
//! protocol has threads of its own, and shares [`next`] and [`OpenConnection`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::listener::Listener;
use crate::state::ServerState;
use crate::tls::Alpn;

/// Pause after a failed accept: descriptors come back as connections end.
const PAUSE: Duration = Duration::from_millis(50);

/// Failures per log line: ten seconds, if one listener has to wait.
const TELL_EVERY: u64 = 200;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens at an address.
///
/// # Errors
///
/// When that is not possible; with the address.
pub(crate) fn bind(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let wrong = |error: std::io::Error| {
        std::io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
    };
    let listener = std::net::TcpListener::bind(address).map_err(wrong)?;
    listener.set_nonblocking(true).map_err(wrong)?;
    // The standard library lets fewer wait than come at once when a fleet starts.
    rustix::net::listen(&listener, BACKLOG).map_err(|error| wrong(error.into()))?;
    Ok(listener)
}

/// Raises the soft limit of file descriptors to the hard one, and returns it.
pub(crate) fn raise_descriptors() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // If that is not allowed, the limit stays.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current
}

/// Failed accepts since the last good one, at all listeners.
static FAILED: AtomicU64 = AtomicU64::new(0);

/// The next connection, however long that takes.
pub(crate) async fn next(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A reply that waits for an acknowledgement is forty milliseconds late.
                let _ = stream.set_nodelay(true);
                if FAILED.load(Ordering::Relaxed) > 0 {
                    FAILED.store(0, Ordering::Relaxed);
                }
                return stream;
            }
            Err(error) => {
                // A client that left before it was accepted is nothing to wait for.
                if !matches!(
                    error.kind(),
                    std::io::ErrorKind::ConnectionAborted | std::io::ErrorKind::ConnectionReset
                ) {
                    let times = FAILED.fetch_add(1, Ordering::Relaxed);
                    if times.is_multiple_of(TELL_EVERY) {
                        tracing::warn!(%error, times, "cannot accept connections");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// A connection that counts as open until this is dropped.
pub(crate) struct OpenConnection {
    server: Arc<ServerState>,
    listener: Listener,
}

impl OpenConnection {
    /// Counts one more connection, unless there are too many.
    pub(crate) fn admit(server: &Arc<ServerState>, listener: Listener) -> Option<Self> {
        let most = u64::try_from(server.settings.max_connections).unwrap_or(u64::MAX);
        let more = |open: u64| (open < most).then(|| open.saturating_add(1));
        let connections = &server.connections[listener];
        let admitted =
            connections.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        let count = if admitted { &connections.accepted } else { &connections.rejected };
        count.fetch_add(1, Ordering::Relaxed);
        admitted.then(|| Self { server: Arc::clone(server), listener })
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.server.connections[self.listener].open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket that is bound, and what serving it takes.
pub(crate) struct BoundListener {
    pub(crate) listener: Listener,
    pub(crate) socket: std::net::TcpListener,
    pub(crate) server: Arc<ServerState>,
    pub(crate) stop: watch::Receiver<bool>,
    /// Set if only this machine reaches it.
    pub(crate) local: bool,
}

/// A connection that was accepted, apart from its stream.
pub(crate) struct ConnectionContext {
    pub(crate) server: Arc<ServerState>,
    pub(crate) listener: Listener,
    pub(crate) peer: SocketAddr,
    /// Set if only this machine reaches the listener.
    pub(crate) local: bool,
    pub(crate) stop: watch::Receiver<bool>,
}

impl ConnectionContext {
    /// Counts that it was closed because its client took too long.
    pub(crate) fn timed_out(&self) {
        self.server.connections[self.listener].timed_out.fetch_add(1, Ordering::Relaxed);
    }
}

/// Serves the connections of a listener.
pub(crate) trait ServeConnection: Clone + Send + Sync + 'static {
    /// Application protocol, under TLS.
    const ALPN: Alpn;

    /// Response to a client above `--max-connections`, in the clear, before its connection is closed.
    const TOO_MANY: &'static [u8];

    /// Serves one connection to its end.
    fn serve<S>(self, stream: S, connection: ConnectionContext) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static;
}

/// Serves until the server stops, and then until the last connection has ended.
pub(crate) async fn serve(bound: BoundListener, protocol: impl ServeConnection) {
    let BoundListener { listener, socket, server, mut stop, local } = bound;
    let Ok(socket) = TcpListener::from_std(socket) else { return };
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            stream = next(&socket) => {
                let Some(open) = OpenConnection::admit(&server, listener) else {
                    turn_away(stream, &server, &protocol);
                    continue;
                };
                let Ok(peer) = stream.peer_addr() else { continue };
                let (server, stop) = (Arc::clone(&server), stop.clone());
                let connection = ConnectionContext { server, listener, peer, local, stop };
                tasks.spawn(begin(stream, connection, protocol.clone(), open));
            }
            () = stopped(&mut stop) => break,
            Some(_) = tasks.join_next() => {}
        }
    }
    drop(socket);
    let ended = async { while tasks.join_next().await.is_some() {} };
    // Connections that do not end in time are cut when the set is dropped.
    let _ = tokio::time::timeout(server.settings.drain_timeout, ended).await;
}

/// Waits until the server stops.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A dropped sender means that the server is gone.
    let _ = stop.wait_for(|stopped| *stopped).await;
}

/// Shakes hands if there is a certificate, and serves.
async fn begin<P: ServeConnection>(
    stream: TcpStream,
    mut connection: ConnectionContext,
    protocol: P,
    _open: OpenConnection,
) {
    let Some(tls) = connection.server.tls.clone() else {
        return protocol.serve(stream, connection).await;
    };
    let shaken = tokio::select! {
        shaken = tls.accept(stream, P::ALPN) => shaken,
        // A client without a request is owed no answer.
        () = stopped(&mut connection.stop) => return,
    };
    // `Tls::accept` has counted a handshake that failed.
    if let Ok(stream) = shaken {
        protocol.serve(stream, connection).await;
    }
}

/// Answers with an error, unless that takes a TLS handshake, and closes.
fn turn_away<P: ServeConnection>(stream: TcpStream, server: &ServerState, _: &P) {
    use std::io::Write as _;
    if server.tls.is_none()
        && let Ok(mut stream) = stream.into_std()
    {
        let _ = stream.write_all(P::TOO_MANY);
    }
}
