//! Reloads rules in Redis: on change notices, which are messages on a channel, and by polling, because
//! any message may be lost.
//!
//! Messages come over a connection of their own. After a reconnection everything is reloaded.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;
use tollgate_redis::AuxiliaryConnection;

use super::stored::ReadMode;
use super::{connection, watch};
use crate::state::ServerState;

/// Messages that may wait. Further ones are dropped: the next poll makes up for them.
const WAITING: usize = 64;

/// The longest message that is read. A rule has a few hundred bytes.
const MAX_MESSAGE: usize = 64 << 10;

/// Pause after a message, so that a flood of messages is not a flood of reads.
const PAUSE: Duration = Duration::from_millis(20);

/// Interval of pings on the subscription.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// The pauses before the subscription is made again: the first, which doubles, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A message on the channel, or a gap in which messages may have been lost.
#[derive(Debug)]
enum ChangeNotice {
    Message(Vec<u8>),
    Gap,
}

/// Follows until dropped.
pub(super) async fn follow(server: &Arc<ServerState>, channel: &str) {
    let (notice, notices) = mpsc::channel(WAITING);
    tokio::join!(listen(server, channel, notice), reload_on_notices(server, notices));
}

async fn reload_on_notices(server: &Arc<ServerState>, mut notices: mpsc::Receiver<ChangeNotice>) {
    loop {
        tokio::select! {
            Some(notice) = notices.recv() => {
                match notice {
                    ChangeNotice::Message(message) => watch::handle_message(server, &message).await,
                    ChangeNotice::Gap => watch::reload(server).await,
                }
                sleep(PAUSE).await;
            }
            // Drawn anew each time, so that the reloads of a fleet do not arrive together.
            () = sleep(jittered(server.settings.rules_poll)) => {
                watch::reload_with(server, ReadMode::Changes).await;
            }
        }
    }
}

/// Listens for messages until dropped.
async fn listen(server: &Arc<ServerState>, channel: &str, notice: mpsc::Sender<ChangeNotice>) {
    let Some(from) = &server.settings.rules_from else { return };
    let Ok(config) = connection::config(&server.settings, from) else { return };
    let (mut pause, mut is_logged) = (FIRST_PAUSE, false);
    loop {
        let sender = notice.clone();
        let on_message = move |content: &[u8]| {
            // The next poll makes up for a message that does not fit.
            let _ = sender.try_send(ChangeNotice::Message(content.to_vec()));
        };
        let subscription = AuxiliaryConnection::subscribe(
            &config,
            MAX_MESSAGE,
            connection::PATIENCE,
            channel.as_bytes(),
            on_message,
        );
        match subscription.await {
            Ok(mut connection) => {
                (pause, is_logged) = (FIRST_PAUSE, false);
                let _ = notice.try_send(ChangeNotice::Gap);
                while tokio::select! {
                    () = connection.closed() => false,
                    () = sleep(PING_INTERVAL) => true,
                } && connection.command(&[b"PING"]).await.is_ok()
                {}
                tracing::warn!("lost the subscription to rule changes");
            }
            Err(error) if !is_logged => {
                is_logged = true;
                let why = std::error::Error::source(&error).map(ToString::to_string);
                let why = why.unwrap_or_default();
                tracing::warn!(%error, why, "cannot subscribe to rule changes: polling only");
            }
            Err(_) => {}
        }
        sleep(jittered(pause)).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

/// Six to nine tenths of a time, drawn at random. The rest is for the read itself, so that reads begin
/// at least every `most`.
fn jittered(most: Duration) -> Duration {
    let tenth = most.checked_div(10).unwrap_or_default();
    let draw = u32::try_from(RandomState::new().hash_one(0_u8) % 1_024).unwrap_or(0);
    let part = tenth.saturating_mul(3).saturating_mul(draw).checked_div(1_024);
    tenth.saturating_mul(6).saturating_add(part.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_never_longer_and_not_always_the_same() {
        let second = Duration::from_secs(1);
        let draws: std::collections::HashSet<_> = (0..100).map(|_| jittered(second)).collect();
        let range = Duration::from_millis(600)..=Duration::from_millis(900);
        assert!(draws.iter().all(|draw| range.contains(draw)));
        assert!(draws.len() > 10);
    }
}
