//! The life of a server: start, serve, graceful shutdown (drain), end.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::Limiter;

use crate::accept::{self, BoundListener};
use crate::listener::{AnnounceDrain, Listener, PerListener};
use crate::settings::Settings;
use crate::settings::value::ListenAddress;
use crate::state::ServerState;
use crate::store::AnyStore;
use crate::telemetry::events::{EventForwarder, Events};
use crate::telemetry::log::LevelHandle;
use crate::tls::Tls;
use crate::{envoy, rules};

/// A server that runs until [`Server::stop`]. Dropped, it ends at once.
pub struct Server {
    state: Arc<ServerState>,
    addresses: PerListener<Option<SocketAddr>>,
    stop: watch::Sender<bool>,
    listeners: JoinSet<()>,
    followers: JoinSet<()>,
    announcements: Vec<AnnounceDrain>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// The reason why a server cannot start: a listener, the store, or the certificate.
pub type StartError = Box<dyn std::error::Error + Send + Sync>;

impl Server {
    /// Opens the store and the listeners, and serves. Redis and the rules need not be there yet: the
    /// server starts, reports what is missing, and retries.
    ///
    /// # Errors
    ///
    /// When an address is taken, or the store or the certificate cannot be used as it is described.
    pub async fn start(settings: Settings, level: LevelHandle) -> Result<Self, StartError> {
        let mut sockets = Vec::new();
        for listener in Listener::ALL {
            if let ListenAddress::At(address) = settings.listen[listener] {
                sockets.push((listener, accept::bind(address)?));
            }
        }
        let state = Arc::new(open_state(settings, level).await?);
        rules::start(&state).await;
        state.envoy.start(&state.limiter, &state.rules);
        let (stop, stopped) = watch::channel(false);
        let mut addresses = PerListener::default();
        let (mut listeners, mut announcements) = (JoinSet::new(), Vec::new());
        for (listener, socket) in sockets {
            let address = socket.local_addr()?;
            addresses[listener] = Some(address);
            let (server, stop, local) =
                (Arc::clone(&state), stopped.clone(), address.ip().is_loopback());
            let serving =
                listener.start(BoundListener { listener, socket, server, stop, local }).await?;
            listeners.spawn(serving.run);
            announcements.extend(serving.announce_drain);
        }
        let mut followers = JoinSet::new();
        followers.spawn(rules::follow(Arc::clone(&state)));
        followers.spawn(envoy::follow(Arc::clone(&state)));
        if let Some(tls) = &state.tls {
            followers.spawn(Arc::clone(tls).follow());
        }
        Ok(Self { state, addresses, stop, listeners, followers, announcements })
    }

    /// Address of a listener; `None` if it is off.
    pub fn address(&self, listener: Listener) -> Option<SocketAddr> {
        self.addresses[listener]
    }

    /// State that its listeners share.
    pub const fn state(&self) -> &Arc<ServerState> {
        &self.state
    }

    /// Reloads the rules and the certificate, as on SIGHUP.
    pub async fn reload(&self) {
        if let Some(tls) = self.state.tls.clone() {
            let _ = tokio::task::spawn_blocking(move || tls.reload()).await;
        }
        rules::reload(&self.state).await;
        envoy::reload(&self.state).await;
    }

    /// Drains and ends, as on SIGTERM: turns readiness off, waits for `drain-delay`, and then lets
    /// connections end, for at most `drain-timeout` and a second in which they are closed.
    pub async fn stop(mut self) {
        self.state.drain();
        for announcement in self.announcements.drain(..) {
            announcement().await;
        }
        tokio::time::sleep(self.state.settings.drain_delay).await;
        // No receiver is left if all listeners have ended.
        let _ = self.stop.send(true);
        self.followers.abort_all();
        let patience = self.state.settings.drain_timeout.saturating_add(Duration::from_secs(1));
        let ended = async { while self.listeners.join_next().await.is_some() {} };
        if tokio::time::timeout(patience, ended).await.is_err() {
            tracing::warn!("cut connections that did not end in time");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.drain();
        self.followers.abort_all();
        let _ = self.stop.send(true);
    }
}

/// Opens the store and the certificate, and builds the limiter.
async fn open_state(settings: Settings, level: LevelHandle) -> Result<ServerState, StartError> {
    let tls = settings.tls.clone().map(Tls::open).transpose()?;
    let store = AnyStore::open(&settings).await?;
    if let AnyStore::Redis(store, _) = &store {
        for warning in store.warnings() {
            tracing::warn!(%warning, "store warning");
        }
        if store.stats().connected == 0 {
            tracing::warn!(
                "Redis does not answer: this node enforces its share of each limit until it does"
            );
        }
    }
    let events = Arc::new(Events::default());
    let mut builder = Limiter::builder(store)
        .fleet(&settings.fleet)
        .nodes(settings.nodes)
        .observer(EventForwarder(Arc::clone(&events)));
    if let Some(secret) = settings.secret {
        builder = builder.secret(secret.0);
    }
    let tls = tls.map(Arc::new);
    Ok(ServerState::new(builder.build(), settings, events, level, tls)?)
}
