//! Notices that a rule file has changed.
//!
//! The directory is watched rather than the file: editors and ConfigMaps put another file in its
//! place. Notices get lost (on network file systems there are none), so the file is looked at now
//! and then as well; its text decides whether anything changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use crate::room::Room;

/// How long to wait for more, as one save makes several notices.
pub(crate) const DEBOUNCE: Duration = Duration::from_millis(20);

/// Follows the file until dropped. Ends at once where rules come from nowhere.
pub async fn follow(room: Arc<Room>) {
    let Some(path) = room.rules.file().map(Path::to_owned) else { return };
    let (notice, mut noticed) = mpsc::channel(1);
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let watcher = watch_dirs(&[parent.unwrap_or(Path::new(".")).to_owned()], notice);
    if let Err(error) = &watcher {
        tracing::warn!(%error, "the rules are not watched, only looked at now and then");
    }
    let mut ticks = tokio::time::interval(room.settings.rules_poll);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(()) = noticed.recv() => {
                tokio::time::sleep(DEBOUNCE).await;
                let _ = noticed.try_recv();
            }
            _ = ticks.tick() => {}
        }
        look(&room).await;
    }
}

/// Looks once, off the threads that serve.
pub(crate) async fn look(room: &Arc<Room>) {
    let looking = Arc::clone(room);
    let looked = tokio::task::spawn_blocking(move || looking.rules.refresh(&looking.limiter)).await;
    match looked {
        Ok(Ok(Some(applied))) => {
            tracing::info!(from = applied.from, version = applied.to, "other rules apply");
        }
        Ok(Ok(None)) | Err(_) => {}
        Ok(Err(error)) => {
            let version = room.limiter.rules().version();
            tracing::error!(%error, version, "the rules were not taken; those before still apply");
            room.events.tell(
                "rules-rejected",
                || serde_json::json!({ "error": error.to_string(), "version": version }),
            );
        }
    }
}

/// Notices changes in these directories.
pub(crate) fn watch_dirs(
    dirs: &[PathBuf],
    notice: mpsc::Sender<()>,
) -> notify::Result<RecommendedWatcher> {
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
