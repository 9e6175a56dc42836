//! The listeners of a server: one table, which settings, addresses, the banner, metrics and the
//! drain go over.
//!
//! A new listener is a variant of [`Listener`], its place in [`Listener::ALL`], its entry in [`TABLE`],
//! its flag in [`Options`] and a row in `docs/server.md`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Index, IndexMut};
use std::pin::Pin;

use crate::accept::BoundListener;
use crate::settings::Options;
use crate::settings::value::ListenAddress;
use crate::{admin, protocols};

/// A socket that a server accepts connections at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// Checks as JSON, and forward-auth.
    Http,
    /// Envoy's rate limit service.
    Grpc,
    /// The Redis protocol.
    Resp,
    /// The admin API.
    Admin,
}

/// One listener, as the rest of the server sees it.
struct ListenerSpec {
    /// Its flag, and its name in metrics, logs and the banner.
    name: &'static str,
    /// On loopback, unless its setting says otherwise.
    default_port: u16,
    transport: Transport,
    /// Purpose, in the banner.
    serves: &'static str,
    setting: fn(&Options) -> Option<ListenAddress>,
    start: fn(BoundListener) -> StartFuture,
}

/// Transport of a listener.
#[derive(Clone, Copy)]
enum Transport {
    /// HTTP, over TLS if there is a certificate.
    Web,
    /// Never TLS; with the scheme of its URLs.
    Clear(&'static str),
}

/// In the order of [`Listener::ALL`].
static TABLE: [ListenerSpec; Listener::ALL.len()] = [
    ListenerSpec {
        name: "http",
        default_port: 8080,
        transport: Transport::Web,
        serves: "checks as JSON, forward-auth",
        setting: |options| options.http,
        start: |bound| Box::pin(protocols::http::start(bound)),
    },
    ListenerSpec {
        name: "grpc",
        default_port: 8081,
        transport: Transport::Web,
        serves: "Envoy's rate limit service",
        setting: |options| options.grpc,
        start: |bound| Box::pin(protocols::grpc::start(bound)),
    },
    ListenerSpec {
        name: "resp",
        default_port: 6380,
        transport: Transport::Clear("redis"),
        serves: "CL.THROTTLE, TG.CHECK",
        setting: |options| options.resp,
        start: |bound| Box::pin(protocols::resp::start(bound)),
    },
    ListenerSpec {
        name: "admin",
        default_port: 9091,
        transport: Transport::Web,
        serves: "rules, explain, refusals, events, metrics",
        setting: |options| options.admin,
        start: |bound| Box::pin(admin::start(bound)),
    },
];

impl Listener {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Http, Self::Grpc, Self::Resp, Self::Admin];

    /// Its name: of its flag, in metrics and in logs.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Purpose, in a few words.
    pub fn serves(self) -> &'static str {
        self.spec().serves
    }

    /// Address unless a setting names another.
    pub fn default_address(self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.spec().default_port))
    }

    /// The scheme of its URLs, on a server that has a certificate or not.
    pub(crate) fn scheme(self, has_certificate: bool) -> &'static str {
        match self.spec().transport {
            Transport::Web if has_certificate => "https",
            Transport::Web => "http",
            Transport::Clear(scheme) => scheme,
        }
    }

    /// Address in the options, if they name one.
    pub(crate) fn setting(self, options: &Options) -> Option<ListenAddress> {
        (self.spec().setting)(options)
    }

    /// Begins to serve.
    pub(crate) fn start(self, bound: BoundListener) -> StartFuture {
        (self.spec().start)(bound)
    }

    fn spec(self) -> &'static ListenerSpec {
        &TABLE[self.index()]
    }

    #[expect(clippy::as_conversions, reason = "the number of a variant without fields")]
    const fn index(self) -> usize {
        self as usize
    }
}

/// One value for each listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerListener<T>([T; Listener::ALL.len()]);

impl<T> PerListener<T> {
    /// The value that `make` says for each.
    pub fn new(make: impl FnMut(Listener) -> T) -> Self {
        Self(Listener::ALL.map(make))
    }
}

impl<T> Index<Listener> for PerListener<T> {
    type Output = T;

    fn index(&self, listener: Listener) -> &T {
        &self.0[listener.index()]
    }
}

impl<T> IndexMut<Listener> for PerListener<T> {
    fn index_mut(&mut self, listener: Listener) -> &mut T {
        &mut self.0[listener.index()]
    }
}

/// A listener that is being started.
pub(crate) type StartFuture = Pin<Box<dyn Future<Output = io::Result<ListenerTask>> + Send>>;

/// A listener that serves.
pub(crate) struct ListenerTask {
    /// Serves until the stop, and ends when the last connection has.
    pub(crate) run: ServeFuture,
    pub(crate) announce_drain: Option<AnnounceDrain>,
}

type ServeFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tells clients that the drain begins, where the protocol has a way to.
pub(crate) type AnnounceDrain = Box<dyn FnOnce() -> ServeFuture + Send + Sync>;

impl ListenerTask {
    pub(crate) fn new(run: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { run: Box::pin(run), announce_drain: None }
    }

    pub(crate) fn announcing_drain<F: Future<Output = ()> + Send + 'static>(
        self,
        announce: impl FnOnce() -> F + Send + Sync + 'static,
    ) -> Self {
        Self { announce_drain: Some(Box::new(|| Box::pin(announce()))), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listener_has_a_row_of_its_own() {
        for (at, listener) in Listener::ALL.into_iter().enumerate() {
            assert_eq!(listener.index(), at);
            let others = Listener::ALL.into_iter().filter(|other| *other != listener);
            for other in others {
                assert_ne!(listener.name(), other.name());
                assert_ne!(listener.default_address(), other.default_address());
            }
        }
    }
}
