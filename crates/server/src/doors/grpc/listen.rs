//! The gRPC listener: our accept loop, hyper's HTTP/2 in bounds, and an end in good order.
//!
//! What HTTP/2 floods are made of is bounded: streams, resets, heads, and what an answer may wait in
//! (hyper, below); frames that ask for nothing (`metered`); bodies and time (`vitals`, `bodies`).

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::calls::{Arrivals, Calls};
use super::dispatch::Dispatch;
use super::metered::Metered;
use super::vitals::{TICK, Verdict, Vitals, Watchdog};
use super::{NAMES, RateLimits, services};
use crate::accept;
use crate::http::stopped;
use crate::room::{Readiness, Room};
use crate::tls::Speaks;

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

/// What a stream may send before it is asked to wait: a message of usual length.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The same for all streams of a connection: one message of the longest.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// What may wait to be sent on a stream.
const SEND_BUFFER: usize = 64 * 1024;

/// How often a silent client is asked whether it is there, and how long it may take to say so.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// Settings, and that there are too many already: `GOAWAY` with `ENHANCE_YOUR_CALM`.
const TOO_MANY: [u8; 26] =
    [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11];

/// Where this door's connections are counted.
const PLACE: usize = 3;

/// What the server needs to open the door, and to say that it will close.
#[derive(Debug)]
pub(crate) struct Door {
    dispatch: Dispatch,
    health: Health,
}

/// Tells whoever asks about the health.
#[derive(Clone, Debug)]
pub(crate) struct Health(HealthReporter);

impl Door {
    /// The door of this room.
    ///
    /// # Errors
    ///
    /// When the description of the protocols cannot be read, which no build that compiles does.
    pub(crate) async fn new(room: &Arc<Room>, local: bool) -> std::io::Result<Self> {
        let limits = RateLimits::new(room.limiter.clone(), room.settings.envoy.door.clone());
        let (limits, others, health) =
            services(limits).await.map_err(|error| std::io::Error::other(error.to_string()))?;
        let health = Health(health);
        if room.readiness() != Readiness::Ready {
            health.tell(ServingStatus::NotServing).await;
            tokio::spawn(health.clone().when_ready(Arc::downgrade(room)));
        }
        let (others, room) = (others.prepare(), Arc::clone(room));
        let dispatch = Dispatch { limits, others, room, peer: None, local };
        Ok(Self { dispatch, health })
    }

    /// By which the server says that it is about to end.
    pub(crate) fn health(&self) -> Health {
        self.health.clone()
    }

    /// Serves until told to stop, and then until the last call is answered.
    pub(crate) async fn serve(
        self,
        listener: std::net::TcpListener,
        mut stop: watch::Receiver<bool>,
    ) {
        let Ok(listener) = TcpListener::from_std(listener) else { return };
        let room = Arc::clone(&self.dispatch.room);
        let connections = &room.connections[PLACE];
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                stream = accept::next(&listener) => {
                    if accept::admit(connections, room.settings.max_connections) {
                        tasks.spawn(begin(stream, self.dispatch.clone(), stop.clone()));
                    } else if room.tls.is_none() {
                        turn_away(stream);
                    }
                }
                () = stopped(&mut stop) => break,
                Some(_) = tasks.join_next() => {}
            }
        }
        drop(listener);
        // Whoever watches the health has been told, and would stay for ever.
        self.health.end().await;
        let ended = async { while tasks.join_next().await.is_some() {} };
        // Those that do not end in time are cut when the set is dropped.
        let _ = tokio::time::timeout(room.settings.drain_timeout, ended).await;
    }
}

impl Health {
    /// Not serving any more, or not yet.
    pub(crate) async fn tell(&self, status: ServingStatus) {
        for name in NAMES {
            self.0.set_service_status(name, status).await;
        }
    }

    /// Ends the answers of those who watch.
    async fn end(mut self) {
        for name in NAMES {
            self.0.clear_service_status(name).await;
        }
    }

    /// Serving as soon as there are rules. Once there are, there always will be.
    async fn when_ready(self, room: Weak<Room>) {
        const LOOK: Duration = Duration::from_millis(50);
        while let Some(room) = room.upgrade() {
            match room.readiness() {
                Readiness::NoRules => {}
                Readiness::Ready => return self.tell(ServingStatus::Serving).await,
                Readiness::Draining => return,
            }
            drop(room);
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn turn_away(stream: TcpStream) {
    use std::io::Write as _;
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write_all(&TOO_MANY);
    }
}

/// Shakes hands where that is asked for, and serves.
async fn begin(stream: TcpStream, mut dispatch: Dispatch, mut stop: watch::Receiver<bool>) {
    let _open = Open(Arc::clone(&dispatch.room));
    dispatch.peer = stream.peer_addr().ok();
    let Some(tls) = dispatch.room.tls.clone() else {
        return serve(stream, dispatch, stop).await;
    };
    let shaken = tokio::select! {
        shaken = tls.accept(stream, Speaks::Http2) => shaken,
        // Whoever has not asked yet is owed nothing.
        () = stopped(&mut stop) => return,
    };
    // What became of a handshake that failed is counted there.
    if let Ok(stream) = shaken {
        serve(stream, dispatch, stop).await;
    }
}

/// Serves one connection to its end.
async fn serve<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
    dispatch: Dispatch,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::clone(&dispatch.room);
    let vitals = Arc::new(Vitals::default());
    let io = TokioIo::new(Metered::new(stream, Arc::clone(&vitals)));
    let at = Arc::clone(&vitals);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        // In a box: hyper and tokio move what they are given several times before it has its place.
        let answer = Box::pin(dispatch.clone().answer(request, Arc::clone(&at)));
        async { Ok::<_, Infallible>(answer.await) }
    });
    let mut calls = Calls::default();
    let connection = bounded(calls.arrivals()).serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let mut watchdog = Watchdog::default();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.reset();
    let mut ending = false;
    loop {
        tokio::select! {
            _ = poll_fn(|context| calls.poll(connection.as_mut(), context)) => return,
            () = stopped(&mut stop), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = ticks.tick() => match watchdog.look(&vitals) {
                Verdict::Keep => {}
                Verdict::Retire => connection.as_mut().graceful_shutdown(),
                Verdict::Cut => {
                    room.connections[PLACE].timed_out.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            },
        }
    }
}

/// HTTP/2 in bounds.
fn bounded(arrivals: Arrivals) -> http2::Builder<Arrivals> {
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

struct Open(Arc<Room>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections[PLACE].open.fetch_sub(1, Ordering::Relaxed);
    }
}
