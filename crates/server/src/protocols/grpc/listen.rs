//! The gRPC listener: our accept loop, hyper's HTTP/2 in bounds, and an end in good order.
//!
//! Everything that HTTP/2 floods use is bounded: streams, resets, heads, and send buffers
//! (hyper, below); frames without a request (`metered`); bodies and time (`connection_health`, `bodies`).

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::calls::{CallQueue, ConnectionCalls};
use super::connection_health::{ConnectionHealth, HealthAction, HealthCheck, TICK};
use super::dispatch::{Dispatch, Services};
use super::metered::MeteredStream;
use super::{NAMES, RateLimits, services};
use crate::accept::{self, BoundListener, ConnectionContext, ServeConnection, stopped};
use crate::listener::ListenerTask;
use crate::state::{Readiness, ServerState};
use crate::tls::Alpn;

/// Calls of one connection at a time. Envoy opens another connection when they do not suffice.
const MAX_STREAMS: u32 = 256;

/// The longest head of a request, unpacked.
const MAX_HEAD: u32 = 16 * 1024;

/// Streams that the client reset before they were looked at; above that it floods. Envoy resets the calls of
/// all clients that leave at once, and the others of its connection must not end with them.
const MAX_RESETS: usize = 1024;

/// Streams that the client made the server reset: by breaking them, or by opening more than
/// [`MAX_STREAMS`], which honest clients do until they have heard of that bound.
const MAX_BROKEN: usize = 1024;

/// Flow control window of a stream: a message of usual length.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The same for all streams of a connection: one message of the longest.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Bytes that may wait to be sent on a stream.
const SEND_BUFFER: usize = 64 * 1024;

/// Interval and time limit of pings to a silent client.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// `SETTINGS`, and that there are too many already: `GOAWAY` with `ENHANCE_YOUR_CALM`.
const TOO_MANY: [u8; 26] =
    [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11];

/// Status that the health service reports.
#[derive(Clone, Debug)]
struct HealthStatus(HealthReporter);

/// Starts the gRPC listener.
///
/// # Errors
///
/// When the description of the protocols cannot be read, which no build that compiles does.
pub(crate) async fn start(bound: BoundListener) -> std::io::Result<ListenerTask> {
    let BoundListener { server, .. } = &bound;
    let limits = RateLimits::new(server.limiter.clone(), server.settings.envoy.calls.clone());
    let (limits, others, health) =
        services(limits).await.map_err(|error| std::io::Error::other(error.to_string()))?;
    let health = HealthStatus(health);
    if server.readiness() != Readiness::Ready {
        health.tell(ServingStatus::NotServing).await;
        tokio::spawn(health.clone().when_ready(Arc::downgrade(server)));
    }
    let (ends, mut stop) = (health.clone(), bound.stop.clone());
    // A client that watches the health has the last status by now, and would stay for ever.
    let end = async move {
        stopped(&mut stop).await;
        ends.end().await;
    };
    let run = accept::serve(bound, Services { limits, others: others.prepare() });
    let serving = ListenerTask::new(async {
        tokio::join!(run, end);
    });
    let ending = || async move { health.tell(ServingStatus::NotServing).await };
    Ok(serving.announcing_drain(ending))
}

impl HealthStatus {
    /// Sets the status of all services.
    async fn tell(&self, status: ServingStatus) {
        for name in NAMES {
            self.0.set_service_status(name, status).await;
        }
    }

    /// Ends the streams of clients that watch.
    async fn end(mut self) {
        for name in NAMES {
            self.0.clear_service_status(name).await;
        }
    }

    /// Waits until there are rules, and reports that the server serves. Rules never go away again.
    async fn when_ready(self, server: Weak<ServerState>) {
        const LOOK: Duration = Duration::from_millis(50);
        while let Some(server) = server.upgrade() {
            match server.readiness() {
                Readiness::NoRules => {}
                Readiness::Ready => return self.tell(ServingStatus::Serving).await,
                Readiness::Draining => return,
            }
            drop(server);
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl ServeConnection for Services {
    const ALPN: Alpn = Alpn::Http2;
    const TOO_MANY: &'static [u8] = &TOO_MANY;

    async fn serve<S>(self, stream: S, connection: ConnectionContext)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let health = Arc::new(ConnectionHealth::default());
        let io = TokioIo::new(MeteredStream::new(stream, Arc::clone(&health)));
        let at = Arc::clone(&health);
        let connection = Arc::new(connection);
        let dispatch = Dispatch { services: self, connection: Arc::clone(&connection) };
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            // In a box: hyper and tokio move what they are given several times before it has its place.
            let answer = Box::pin(dispatch.clone().answer(request, Arc::clone(&at)));
            async { Ok::<_, Infallible>(answer.await) }
        });
        let mut calls = ConnectionCalls::default();
        let http2 = bounded(calls.arrivals()).serve_connection(io, service);
        let mut http2 = std::pin::pin!(http2);
        let mut health_check = HealthCheck::default();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.reset();
        let mut stop = connection.stop.clone();
        let mut ending = false;
        loop {
            tokio::select! {
                _ = poll_fn(|context| calls.poll(http2.as_mut(), context)) => return,
                () = stopped(&mut stop), if !ending => {
                    ending = true;
                    http2.as_mut().graceful_shutdown();
                }
                _ = ticks.tick() => match health_check.look(&health) {
                    HealthAction::Keep => {}
                    HealthAction::Retire => http2.as_mut().graceful_shutdown(),
                    HealthAction::Cut => return connection.timed_out(),
                },
            }
        }
    }
}

/// HTTP/2 in bounds.
fn bounded(arrivals: CallQueue) -> http2::Builder<CallQueue> {
    let mut builder = http2::Builder::new(arrivals);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_BROKEN)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1);
    builder
}
