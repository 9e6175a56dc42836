//! The reconnector: one task for each connection, which connects, probes and connects again.
//!
//! Nobody else connects, so a thousand callers that lose their connection together cause one attempt,
//! not a thousand.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::connection::{Connection, PingReply};
use super::dial::NewConnection;
use super::{ConnectionSlot, LinkState};
use crate::error::{ConnectError, ConnectErrorKind};
use crate::{checks, clock, random};

/// The pause before the second attempt; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause. A recovered Redis waits no longer than this for its clients, and a hundred nodes
/// make at most some two hundred attempts a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After a connection that lived this long, the pauses start over.
const PROVEN: Duration = Duration::from_secs(1);
/// A connection that leaves a `PING` unanswered for this long is closed. After a network partition an
/// old connection may take minutes to revive, and a new one no time.
const STALLED: Duration = Duration::from_secs(1);
/// The interval of probes on an idle connection, so that a firewall that forgot it is noticed before
/// the next caller.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Reports the first attempt to the waiting `connect`.
pub(super) type FirstAttempt = oneshot::Sender<Result<(), ConnectError>>;

/// Keeps one slot connected until the task is aborted.
pub(super) async fn keep_connected(
    shared: Arc<LinkState>,
    slot: Arc<ConnectionSlot>,
    mut first: Option<FirstAttempt>,
) {
    let mut backoff = Backoff::default();
    let (mut reported, mut was_connected) = (None, false);
    loop {
        match connect(&shared).await {
            Ok(dialed) => {
                reported = None;
                if std::mem::replace(&mut was_connected, true) {
                    shared.counters.reconnects.fetch_add(1, Relaxed);
                }
                if watch(&shared, &slot, dialed, first.take()).await >= PROVEN {
                    backoff = Backoff::default();
                }
            }
            Err(error) => report(error, &mut reported, first.take()),
        }
        sleep(backoff.pause()).await;
    }
}

/// Connects, and runs the checks on the first connection. Later connections find them done.
async fn connect(shared: &LinkState) -> Result<NewConnection, ConnectError> {
    let dialed = shared.dialer.dial(None).await?;
    if shared.warnings.get().is_none() {
        let warnings = checks::run(&dialed.connection, &shared.config).await?;
        for warning in &warnings {
            tracing::warn!(%warning, "redis is usable, with a warning");
        }
        let _ = shared.warnings.set(warnings);
    }
    Ok(dialed)
}

/// Offers the connection to callers for as long as it lives. Returns how long that was.
async fn watch(
    shared: &LinkState,
    slot: &ConnectionSlot,
    mut dialed: NewConnection,
    first: Option<FirstAttempt>,
) -> Duration {
    let since = clock::now();
    if let Some(now) = dialed.now {
        shared.time.learn(now, since);
    }
    slot.publish(Some(dialed.connection.clone()));
    shared.connected();
    if let Some(first) = first {
        let _ = first.send(Ok(()));
    }
    tokio::select! {
        _ = dialed.task.join_next() => {}
        () = dialed.connection.close_requested() => {}
        () = look_after(shared, slot, &dialed.connection) => {}
    }
    slot.publish(None);
    let address = &shared.config.address;
    tracing::warn!(%address, "the connection to redis ended");
    // Dropping the task ends every call that still waits on it.
    drop(dialed);
    clock::now().saturating_duration_since(since)
}

/// Probes the connection from time to time. Returns when it must be closed.
async fn look_after(shared: &LinkState, slot: &ConnectionSlot, connection: &Connection) {
    let (deadline, breaker) = (shared.config.deadline, &shared.breaker);
    let stalled = STALLED.max(deadline.saturating_mul(2));
    loop {
        // After this long without a reply to PING, no caller should wait for Redis.
        let patience = if breaker.is_open() {
            sleep(random::within(&shared.config.breaker.probe)).await;
            deadline
        } else {
            let patience = tokio::select! {
                () = slot.suspected() => deadline.max(shared.config.breaker.span).min(stalled),
                () = sleep(PING_INTERVAL) => stalled,
            };
            if breaker.is_open() {
                continue;
            }
            patience
        };
        let ping = connection.ping();
        tokio::pin!(ping);
        match timeout(patience, &mut ping).await {
            Ok(Ok(PingReply::Alive)) => shared.revive(),
            Ok(Ok(PingReply::Refused(_))) => shared.trip(),
            Ok(Err(_)) => return,
            Err(_) => {
                shared.trip();
                // A late reply is a sign of life, but Redis is too slow to be used: the
                // breaker stays open.
                if timeout(stalled.saturating_sub(patience), ping).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Reports a failed attempt: to the waiting `connect`, and once per kind to the log.
fn report(
    error: ConnectError,
    reported: &mut Option<ConnectErrorKind>,
    first: Option<FirstAttempt>,
) {
    if reported.replace(error.kind()) != Some(error.kind()) {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let source = source.unwrap_or_default();
        if error.is_permanent() {
            tracing::error!(%error, source, "redis cannot be used");
        } else {
            tracing::warn!(%error, source, "no connection to redis; retrying");
        }
    }
    if let Some(first) = first {
        let _ = first.send(Err(error));
    }
}

/// Pauses between attempts: none, then doubling up to the longest. Each is cut by up to half at random,
/// so that the nodes of a fleet do not connect together.
#[derive(Debug, Default)]
struct Backoff {
    next: Duration,
}

impl Backoff {
    fn pause(&mut self) -> Duration {
        let longest = self.next;
        self.next = longest.saturating_mul(2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        random::within(&(longest.checked_div(2).unwrap_or_default()..=longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_start_at_none_double_and_are_bounded() {
        let mut backoff = Backoff::default();

        let pauses: Vec<_> = (0..12).map(|_| backoff.pause()).collect();

        assert_eq!(pauses[0], Duration::ZERO, "the first attempt is made at once");
        for (attempt, pause) in pauses.iter().enumerate().skip(1) {
            let longest = (FIRST_PAUSE * (1 << (attempt - 1))).min(LONGEST_PAUSE);
            assert!((longest / 2..=longest).contains(pause), "attempt {attempt}: {pause:?}");
        }
    }
}
