//! Reload: reads the rules again at start, on SIGHUP, and when they may have changed.
//!
//! For a file, its directory is watched, because editors and ConfigMaps put another file in its place.
//! File system events get lost (on network file systems there are none), so rules are polled as well.
//! Only the content decides whether anything changed. `change_notices` does the same for rules in Redis.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use super::stored::ReadMode;
use super::{RuleSourceKind, RulesChange, RulesError, change_notices};
use crate::state::ServerState;

/// Time to wait for more events: one save makes several.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Applies the first rules: the last good ones, then the source's. Logs their errors;
/// [`RuleSource::error`](super::RuleSource::error) returns that of the source's rules.
pub(crate) async fn start(server: &Arc<ServerState>) {
    let shared = Arc::clone(server);
    let last_good = tokio::task::spawn_blocking(move || {
        shared.rules.apply_last_good(&shared.limiter);
    });
    // A panic there would be a bug; the source is read all the same.
    let _ = last_good.await;
    reload(server).await;
    if server.rules.are_missing() {
        tracing::warn!("no rules yet: not ready");
    }
}

/// Follows the source of the rules until dropped. Returns at once if only the admin API changes them.
pub async fn follow(server: Arc<ServerState>) {
    match &server.rules.kind {
        RuleSourceKind::File(path, _) => follow_file(&server, path).await,
        RuleSourceKind::Stored(stored) => change_notices::follow(&server, stored.channel()).await,
        RuleSourceKind::Hashes(hashes) => change_notices::follow(&server, hashes.channel()).await,
        RuleSourceKind::Memory => {}
    }
}

async fn follow_file(server: &Arc<ServerState>, path: &Path) {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = parent.unwrap_or(Path::new(".")).to_owned();
    follow_dirs(server, &[dir], "the rules", || reload(server)).await;
}

/// Reloads at every change in the directories, and at every poll, until dropped.
pub(crate) async fn follow_dirs<F: Future<Output = ()>>(
    server: &ServerState,
    dirs: &[PathBuf],
    what: &str,
    reload: impl Fn() -> F,
) {
    let (changed, mut changes) = mpsc::channel(1);
    let watcher = watch_dirs(dirs, changed);
    if let Err(error) = &watcher {
        tracing::warn!(%error, "cannot watch {what}: polling only");
    }
    let mut ticks = tokio::time::interval(server.settings.rules_poll);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(()) = changes.recv() => {
                tokio::time::sleep(DEBOUNCE).await;
                let _ = changes.try_recv();
            }
            _ = ticks.tick() => {}
        }
        reload().await;
    }
}

/// Reloads all rules once, off the threads that serve.
pub(crate) async fn reload(server: &Arc<ServerState>) {
    reload_with(server, ReadMode::Everything).await;
}

/// Reloads the rules, and logs new rules and errors.
pub(super) async fn reload_with(server: &Arc<ServerState>, mode: ReadMode) {
    let recheck_all = server.rules.recheck_all.swap(false, Ordering::Relaxed);
    let mode = if recheck_all { ReadMode::Everything } else { mode };
    let reloaded = match &server.rules.kind {
        RuleSourceKind::File(..) => {
            super::stored::blocking(server, |server| server.rules.reload_file(&server.limiter))
                .await
        }
        RuleSourceKind::Stored(stored) => {
            server.rules.note_rejection(stored.reload(server, mode).await)
        }
        RuleSourceKind::Hashes(hashes) => {
            server.rules.note_rejection(hashes.reload(server, mode).await)
        }
        RuleSourceKind::Memory => Ok(None),
    };
    log_reload(server, reloaded);
    if server.rules.save_error().is_some() {
        // The directory can become usable without a change of the rules.
        let _ = super::stored::blocking(server, |server| {
            server.rules.retry_save(&server.limiter);
            Ok(())
        })
        .await;
    }
}

/// Reloads after a message about a change.
pub(super) async fn handle_message(server: &Arc<ServerState>, message: &[u8]) {
    match &server.rules.kind {
        RuleSourceKind::Hashes(hashes) => {
            let applied = hashes.handle_message(server, message).await;
            log_reload(server, server.rules.note_rejection(applied));
        }
        _ => reload_with(server, ReadMode::Changes).await,
    }
}

/// Logs the result of a reload, and publishes an error as an event.
fn log_reload(server: &ServerState, reloaded: Result<Option<RulesChange>, RulesError>) {
    match reloaded {
        Ok(Some(applied)) => {
            tracing::info!(from = applied.from, version = applied.to, "applied new rules");
        }
        Ok(None) => {}
        Err(error) => {
            let version = server.limiter.rules().version();
            server.events.reject("rules-rejected", "the rules", &error.to_string(), version);
        }
    }
}

/// Sends a signal at each change in these directories.
fn watch_dirs(dirs: &[PathBuf], changed: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        // Reading the file is no change of it, or every reload would be followed by another.
        if event.is_ok_and(|event| is_read(event.kind)) {
            return;
        }
        // The channel holds one signal; a second adds nothing.
        let _ = changed.try_send(());
    })?;
    for dir in dirs {
        watcher.watch(dir, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

const fn is_read(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if !matches!(access, AccessKind::Close(AccessMode::Write)))
}
