//! Reload of Envoy's files when they may have changed, as `rules::watch` does for the other rules.

use std::path::PathBuf;
use std::sync::Arc;

use crate::rules::follow_dirs;
use crate::state::ServerState;

/// Follows the files until dropped. Ends at once where there are none.
pub(crate) async fn follow(server: Arc<ServerState>) {
    let paths = server.envoy.paths();
    if paths.is_empty() {
        return;
    }
    let dirs: Vec<PathBuf> = paths
        .iter()
        .map(|path| match path.parent().filter(|_| !path.is_dir()) {
            Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
            Some(parent) => parent.to_owned(),
            None => path.clone(),
        })
        .collect();
    follow_dirs(&server, &dirs, "Envoy's rules", || reload(&server)).await;
}

/// Reloads all files once, off the threads that serve.
pub(crate) async fn reload(server: &Arc<ServerState>) {
    if server.envoy.paths().is_empty() {
        return;
    }
    let shared = Arc::clone(server);
    let reloaded =
        tokio::task::spawn_blocking(move || shared.envoy.reload(&shared.limiter, &shared.rules));
    let version = || server.limiter.envoy_rules().version();
    match reloaded.await {
        Ok(Ok(true)) => tracing::info!(version = version(), "applied new rules for Envoy"),
        Ok(Ok(false)) | Err(_) => {}
        Ok(Err(error)) => {
            server.events.reject("envoy-rules-rejected", "Envoy's rules", &error, version());
        }
    }
}
