//! Notices that the rules have changed.
//!
//! For a file, its directory is watched, because editors and ConfigMaps put another file in its place.
//! Notices get lost (on network file systems there are none), so rules are polled as well. Only the
//! content decides whether anything changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use super::stored::ReadMode;
use super::{Authority, RulesChange, RulesError, change_notices};
use crate::state::ServerState;

/// Time to wait for more notices: one save makes several.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Applies the first rules: the last good ones, then the authority's. Their errors are logged, and are
/// [`RuleSource::trouble`](super::RuleSource::trouble).
pub(crate) async fn start(server: &Arc<ServerState>) {
    let recalling = Arc::clone(server);
    let recalled = tokio::task::spawn_blocking(move || {
        recalling.rules.recall(&recalling.limiter);
    });
    // A panic there would be a bug; the authority is asked all the same.
    let _ = recalled.await;
    look(server).await;
    if server.rules.are_missing() {
        tracing::warn!("no rules yet: not ready");
    }
}

/// Follows the authority until dropped. Ends at once where rules come from nowhere.
pub async fn follow(server: Arc<ServerState>) {
    match &server.rules.authority {
        Authority::File(path, _) => follow_file(&server, path).await,
        Authority::Stored(stored) => change_notices::follow(&server, stored.channel()).await,
        Authority::Hashes(hashes) => change_notices::follow(&server, hashes.channel()).await,
        Authority::Memory => {}
    }
}

async fn follow_file(server: &Arc<ServerState>, path: &Path) {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = parent.unwrap_or(Path::new(".")).to_owned();
    follow_dirs(server, &[dir], "the rules", || look(server)).await;
}

/// Looks at every change in the directories, and at every poll, until dropped.
pub(crate) async fn follow_dirs<F: Future<Output = ()>>(
    server: &ServerState,
    dirs: &[PathBuf],
    what: &str,
    look: impl Fn() -> F,
) {
    let (notice, mut noticed) = mpsc::channel(1);
    let watcher = watch_dirs(dirs, notice);
    if let Err(error) = &watcher {
        tracing::warn!(%error, "cannot watch {what}: polling only");
    }
    let mut ticks = tokio::time::interval(server.settings.rules_poll);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(()) = noticed.recv() => {
                tokio::time::sleep(DEBOUNCE).await;
                let _ = noticed.try_recv();
            }
            _ = ticks.tick() => {}
        }
        look().await;
    }
}

/// Reads everything once, off the threads that serve.
pub(crate) async fn look(server: &Arc<ServerState>) {
    look_how(server, ReadMode::Everything).await;
}

pub(super) async fn look_how(server: &Arc<ServerState>, how: ReadMode) {
    let how =
        if server.rules.anew.swap(false, Ordering::Relaxed) { ReadMode::Everything } else { how };
    let looked = match &server.rules.authority {
        Authority::File(..) => {
            super::stored::blocking(server, |server| server.rules.refresh(&server.limiter)).await
        }
        Authority::Stored(stored) => server.rules.noted(stored.look(server, how).await),
        Authority::Hashes(hashes) => server.rules.noted(hashes.look(server, how).await),
        Authority::Memory => Ok(None),
    };
    tell(server, looked);
    if server.rules.state_trouble().is_some() {
        // The directory can become usable without a change of the rules.
        let _ = super::stored::blocking(server, |server| {
            server.rules.keep_again(&server.limiter);
            Ok(())
        })
        .await;
    }
}

/// Handles a message.
pub(super) async fn hear(server: &Arc<ServerState>, message: &[u8]) {
    match &server.rules.authority {
        Authority::Hashes(hashes) => {
            let heard = hashes.hear(server, message).await;
            tell(server, server.rules.noted(heard));
        }
        _ => look_how(server, ReadMode::Changes).await,
    }
}

fn tell(server: &ServerState, looked: Result<Option<RulesChange>, RulesError>) {
    match looked {
        Ok(Some(applied)) => {
            tracing::info!(from = applied.from, version = applied.to, "applied new rules");
        }
        Ok(None) => {}
        Err(error) => {
            let version = server.limiter.rules().version();
            tracing::error!(%error, version, "rejected the rules; the previous ones still apply");
            server.events.publish_rejected("rules-rejected", &error.to_string(), version);
        }
    }
}

/// Notices changes in these directories.
fn watch_dirs(dirs: &[PathBuf], notice: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        // Looking at the file is no change of it, or every look would be followed by another.
        if event.is_ok_and(|event| is_read(event.kind)) {
            return;
        }
        // One that waits to be seen is as good as two.
        let _ = notice.try_send(());
    })?;
    for dir in dirs {
        watcher.watch(dir, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

const fn is_read(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if !matches!(access, AccessKind::Close(AccessMode::Write)))
}
