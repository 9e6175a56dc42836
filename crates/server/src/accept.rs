//! Accepting connections: without delays of small packets, without dying of a full table, and no
//! more than a door may have.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::room::Connections;

/// How long to wait after the system refused: descriptors come back as connections end.
const PAUSE: Duration = Duration::from_millis(50);

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
    Ok(listener)
}

/// The next connection, however long that takes.
pub(crate) async fn next(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A reply that waits for an acknowledgement is forty milliseconds late.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(error) => {
                // A client that left before it was accepted is nothing to wait for.
                if !matches!(
                    error.kind(),
                    std::io::ErrorKind::ConnectionAborted | std::io::ErrorKind::ConnectionReset
                ) {
                    tracing::warn!(%error, "no connection can be accepted at present");
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
