//! The task that keeps one connection: it connects, watches, probes and connects again.
//!
//! There is one per connection and nobody else connects, so a thousand callers that lose their
//! connection together cause one attempt, not a thousand.

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
/// The longest pause. A recovered Redis waits no longer than this for its clients, and a hundred
/// nodes knock no more than some two hundred times a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A connection that lived this long is no reason to be slow with the next.
const PROVEN: Duration = Duration::from_secs(1);
/// A connection that leaves a `PING` unanswered for this long is given up. A network that was cut and
/// is whole again may take minutes to revive an old connection, and no time for a new one.
const STALLED: Duration = Duration::from_secs(1);
/// How often an idle connection is looked after, so that a firewall that forgot it is found out
/// before the next caller.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How the first attempt went, for whoever waits for it.
pub(super) type FirstAttempt = oneshot::Sender<Result<(), ConnectError>>;

/// Keeps a connection until the task is aborted.
pub(super) async fn keep_connected(
    shared: Arc<LinkState>,
    slot: Arc<ConnectionSlot>,
    mut first: Option<FirstAttempt>,
) {
    let mut backoff = Backoff::default();
    let (mut told, mut met) = (None, false);
    loop {
        match shared.dialer.dial().await {
            Ok(dialed) => match welcome(&shared, &dialed).await {
                Ok(()) => {
                    told = None;
                    if std::mem::replace(&mut met, true) {
                        shared.counters.reconnects.fetch_add(1, Relaxed);
                    }
                    if watch(&shared, &slot, dialed, first.take()).await >= PROVEN {
                        backoff = Backoff::default();
                    }
                }
                Err(error) => report(error, &mut told, first.take()),
            },
            Err(error) => report(error, &mut told, first.take()),
        }
        sleep(backoff.pause()).await;
    }
}

/// The checks of the first connection, whichever it is. The others find them done.
async fn welcome(shared: &LinkState, dialed: &NewConnection) -> Result<(), ConnectError> {
    if shared.warnings.get().is_none() {
        let warnings = checks::run(&dialed.connection, &shared.config).await?;
        for warning in &warnings {
            tracing::warn!(%warning, "redis can be used, but");
        }
        let _ = shared.warnings.set(warnings);
    }
    Ok(())
}

/// Offers the connection to callers for as long as it lives; returns how long that was.
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

/// Probes the connection from time to time; returns when it is to be given up.
async fn look_after(shared: &LinkState, slot: &ConnectionSlot, connection: &Connection) {
    let (deadline, breaker) = (shared.config.deadline, &shared.breaker);
    let stalled = STALLED.max(deadline.saturating_mul(2));
    loop {
        // For how long a PING may go unanswered before nobody else should wait for Redis.
        let patience = if breaker.is_open() {
            sleep(random::within(&shared.config.breaker.probe)).await;
            deadline
        } else {
            let patience = tokio::select! {
                () = slot.suspected() => deadline.max(shared.config.breaker.span).min(stalled),
                () = sleep(HEARTBEAT) => stalled,
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
                // Late is alive, but too slow to be asked: the breaker stays open.
                if timeout(stalled.saturating_sub(patience), ping).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Says why there is no connection: to the waiting `connect`, and once per kind to the log.
fn report(error: ConnectError, told: &mut Option<ConnectErrorKind>, first: Option<FirstAttempt>) {
    if told.replace(error.kind()) != Some(error.kind()) {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let source = source.unwrap_or_default();
        if error.is_permanent() {
            tracing::error!(%error, source, "redis cannot be used");
        } else {
            tracing::warn!(%error, source, "no connection to redis; trying on");
        }
    }
    if let Some(first) = first {
        let _ = first.send(Err(error));
    }
}

/// Pauses between attempts: none, then doubling up to the longest, each cut by up to half at
/// random so that the nodes of a fleet do not knock together.
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
