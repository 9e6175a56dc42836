//! Accepting connections: without delays of small packets, without dying of a full table, and no
//! more than a door may have.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};

use crate::room::Connections;

/// How long to wait after the system refused: descriptors come back as connections end.
const PAUSE: Duration = Duration::from_millis(50);

/// Every how many times it is told that none can be accepted: ten seconds, if one listener has to wait.
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
        std::io::Error::new(error.kind(), format!("{address} cannot be listened at: {error}"))
    };
    let listener = std::net::TcpListener::bind(address).map_err(wrong)?;
    listener.set_nonblocking(true).map_err(wrong)?;
    // The standard library lets fewer wait than come at once when a fleet starts.
    rustix::net::listen(&listener, BACKLOG).map_err(|error| wrong(error.into()))?;
    Ok(listener)
}

/// Lets this process have as many descriptors as it may, and says how many these are.
pub(crate) fn raise_descriptors() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // Where that is not allowed it stays as it was.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current
}

/// How often none could be accepted since one was, at all listeners.
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
                        tracing::warn!(%error, times, "no connection can be accepted at present");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Counts one more connection, unless there are too many.
pub(crate) fn admit(connections: &Connections, most: usize) -> bool {
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let more = |open: u64| (open < most).then(|| open.saturating_add(1));
    let admitted =
        connections.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
    let count = if admitted { &connections.accepted } else { &connections.turned_away };
    count.fetch_add(1, Ordering::Relaxed);
    admitted
}
