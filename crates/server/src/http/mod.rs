//! What the HTTP door and the admin listener have in common: connections with deadlines, requests that can be
//! read in one way only, bodies with bounds, and problems told as RFC 9457 has them. A listener may answer some
//! requests before hyper sees the connection ([`Answers::without_hyper`]).
//!
//! HTTP/1.1 only: what HTTP/2 floods are made of does not exist here.

pub(crate) mod body;
pub(crate) mod framing;
pub(crate) mod guarded;
pub(crate) mod problem;

use std::convert::Infallible;
use std::future::{self, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, unconstrained};

use crate::accept;
use crate::room::Room;
use crate::tls::Speaks;
use body::Body;
use guarded::{Guarded, Phase};
use problem::Problem;

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The most headers of a request.
const MAX_HEADERS: usize = 100;

/// The most bytes that a request may have before its body, and that are read ahead.
const MAX_HEAD: usize = 16 * 1024;

/// The longest target of a request.
const MAX_TARGET: usize = 8 * 1024;

/// What a connection too many is told, before there is a request to answer.
const TOO_MANY: &str = r#"{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"as many connections are open as may be (--max-connections): try again later"}"#;

/// Which listener a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The HTTP door.
    Door,
    /// The admin listener.
    Admin,
}

impl Side {
    const fn place(self) -> usize {
        match self {
            Self::Door => 0,
            Self::Admin => 2,
        }
    }
}

/// Who answers the requests of a listener.
pub(crate) trait Answers: Clone + Send + Sync + 'static {
    /// Answers one request. hyper copies what it gets from here for each of them, so it is short.
    fn answer(
        &self,
        room: Arc<Room>,
        call: Call,
    ) -> impl Future<Output = Response<Body>> + Send + use<Self>;

    /// Answers what it can read by itself, and says what comes next. Usually hyper reads everything.
    ///
    /// # Errors
    ///
    /// When the connection breaks or is given up.
    fn without_hyper<S: AsyncRead + AsyncWrite + Send + Unpin>(
        &self,
        _connection: &mut Plain<'_, S>,
    ) -> impl Future<Output = io::Result<Next>> + Send {
        future::ready(Ok(Next::Hyper(Vec::new())))
    }
}

/// A connection that hyper does not know of yet.
pub(crate) struct Plain<'c, S> {
    pub(crate) room: &'c Arc<Room>,
    pub(crate) stream: &'c mut Guarded<S>,
    pub(crate) phase: &'c Phase,
    pub(crate) stop: &'c mut Stop,
}

/// What comes after requests that were answered without hyper.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// hyper reads these bytes, and then the rest.
    Hyper(Vec<u8>),
    /// Nothing.
    End,
}

/// A request, and the two ends of its connection.
pub(crate) struct Call {
    pub(crate) request: Request<Incoming>,
    pub(crate) peer: SocketAddr,
    /// Whether the listener is reached from this machine only.
    pub(crate) local: bool,
    pub(crate) id: String,
}

/// Serves until told to stop, and then until the last request is answered.
pub(crate) async fn serve(
    listener: std::net::TcpListener,
    side: Side,
    room: Arc<Room>,
    mut stop: watch::Receiver<bool>,
    handler: impl Answers,
) {
    let local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            stream = accept::next(&listener) => {
                let connections = &room.connections[side.place()];
                if !accept::admit(connections, room.settings.max_connections) {
                    turn_away(stream, &room);
                    continue;
                }
                let connection = Connection { room: Arc::clone(&room), side, local, stop: stop.clone() };
                tasks.spawn(connection.accept(stream, handler.clone()));
            }
            () = stopped(&mut stop) => break,
            Some(_) = tasks.join_next() => {}
        }
    }
    drop(listener);
    let ended = async { while tasks.join_next().await.is_some() {} };
    // Those that do not end in time are cut when the set is dropped.
    let _ = tokio::time::timeout(room.settings.drain_timeout, ended).await;
}

/// Waits until the server is told to stop.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // If nobody can tell any more, there is nothing to serve for.
    let _ = stop.wait_for(|stopped| *stopped).await;
}

/// That the server stops, as the task of one connection looks out for it.
///
/// Listening takes a lock, which is much beside a decision. So it is done once, and after that only when
/// the room drains, as it does before it stops: who listens is the same task every time.
pub(crate) struct Stop {
    room: Arc<Room>,
    told: Pin<Box<dyn Future<Output = ()> + Send>>,
    listens: bool,
}

impl Stop {
    pub(crate) fn new(room: Arc<Room>, mut stop: watch::Receiver<bool>) -> Self {
        // Who has used up its turn would be put off, and not listen at all.
        let told = unconstrained(async move { stopped(&mut stop).await });
        Self { room, told: Box::pin(told), listens: false }
    }

    /// Whether it does; else wakes the task when it does. Not to be asked again then.
    pub(crate) fn is_now(&mut self, context: &mut Context<'_>) -> bool {
        if self.listens && !self.room.is_draining() {
            return false;
        }
        self.listens = true;
        self.told.as_mut().poll(context).is_ready()
    }
}

/// Says why, if that can be said without shaking hands, and closes.
fn turn_away(stream: TcpStream, room: &Room) {
    use std::io::Write as _;
    if room.tls.is_none()
        && let Ok(mut stream) = stream.into_std()
    {
        let length = TOO_MANY.len();
        let _ = write!(
            stream,
            "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\
             content-type: application/problem+json\r\ncontent-length: {length}\r\n\r\n{TOO_MANY}",
        );
    }
}

struct Connection {
    room: Arc<Room>,
    side: Side,
    local: bool,
    stop: watch::Receiver<bool>,
}

impl Connection {
    /// Shakes hands where that is asked for, and serves.
    async fn accept(mut self, stream: TcpStream, handler: impl Answers) {
        let _open = Open { room: Arc::clone(&self.room), side: self.side };
        let Ok(peer) = stream.peer_addr() else { return };
        let Some(tls) = self.room.tls.clone() else {
            return self.serve(stream, peer, handler).await;
        };
        let shaken = tokio::select! {
            shaken = tls.accept(stream, Speaks::Http1) => shaken,
            // Whoever has not asked yet is owed nothing.
            () = stopped(&mut self.stop) => return,
        };
        // What became of a handshake that failed is counted there.
        if let Ok(stream) = shaken {
            self.serve(stream, peer, handler).await;
        }
    }

    async fn serve<S>(self, stream: S, peer: SocketAddr, handler: impl Answers)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let Self { room, side, local, stop } = self;
        let phase = Arc::new(Phase::default());
        let mut stream = Guarded::new(stream, Arc::clone(&phase));
        let mut stop = Stop::new(Arc::clone(&room), stop);
        let mut plain = Plain { room: &room, stream: &mut stream, phase: &phase, stop: &mut stop };
        let served = match handler.without_hyper(&mut plain).await {
            Ok(Next::Hyper(bytes)) => {
                stream.unread(bytes);
                let half_close = side == Side::Door;
                let by = By { room: Arc::clone(&room), peer, local, half_close, handler };
                by.hyper(stream, Arc::clone(&phase), stop).await.is_ok()
            }
            Ok(Next::End) => true,
            Err(_) => false,
        };
        if !served && phase.timed_out() {
            room.connections[side.place()].timed_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Who answers on a connection, and to whom.
struct By<H> {
    room: Arc<Room>,
    peer: SocketAddr,
    local: bool,
    half_close: bool,
    handler: H,
}

impl<H: Answers> By<H> {
    /// Serves a connection to its end.
    async fn hyper<S>(
        self,
        stream: Guarded<S>,
        phase: Arc<Phase>,
        mut stop: Stop,
    ) -> hyper::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let half_close = self.half_close;
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            phase.serving();
            let (id, answer) = self.begin(request);
            // Who keeps its connection would find it closed a moment later, with a request in flight.
            let (phase, last) = (Arc::clone(&phase), self.room.is_draining());
            async move {
                let mut response = match answer {
                    Ok(answer) => answer.await,
                    Err(problem) => problem.close().into(),
                };
                if let Some(id) = id {
                    response.headers_mut().insert(X_REQUEST_ID, id);
                }
                let stream = matches!(response.body(), Body::Stream(_));
                // A stream is served until it ends, however silent it is, and ends with its connection.
                if stream || last {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(http::header::CONNECTION, close);
                }
                if !stream {
                    phase.idle();
                }
                Ok::<_, Infallible>(response)
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .header_read_timeout(None::<Duration>)
            // Who has asked and says no more is answered; but who listens to a stream and leaves has left.
            .half_close(half_close)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let served = poll_fn(|context| match connection.as_mut().poll(context) {
            Poll::Ready(served) => Poll::Ready(Some(served)),
            Poll::Pending if stop.is_now(context) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        if let Some(served) = served.await {
            return served;
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    }

    /// Begins to answer one request: what no handler should see is refused here, and every answer has
    /// an id. Not a future, which would keep the request a second time.
    fn begin(
        &self,
        request: Request<Incoming>,
    ) -> (Option<HeaderValue>, Result<impl Future<Output = Response<Body>> + Send + use<H>, Problem>)
    {
        let id = said_id(request.headers()).unwrap_or_else(|| self.room.request_id());
        let value = HeaderValue::from_str(&id).ok();
        if let Some(problem) = refused(&request) {
            return (value, Err(problem));
        }
        tracing::debug!(request = id, method = %request.method(), "a request over HTTP");
        let call = Call { request, peer: self.peer, local: self.local, id };
        (value, Ok(self.handler.answer(Arc::clone(&self.room), call)))
    }
}

struct Open {
    room: Arc<Room>,
    side: Side,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.room.connections[self.side.place()].open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The id that a client gave a request, if it is harmless.
pub(crate) fn said_id(headers: &http::HeaderMap) -> Option<String> {
    harmless_id(headers.get(X_REQUEST_ID)?.as_bytes()).map(str::to_owned)
}

/// An id that can be repeated to anybody.
pub(crate) fn harmless_id(said: &[u8]) -> Option<&str> {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let harmless = (1..=64).contains(&said.len()) && said.iter().all(fits);
    std::str::from_utf8(said).ok().filter(|_| harmless)
}

/// What is wrong with a request whatever it asks for.
fn refused(request: &Request<Incoming>) -> Option<Problem> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > MAX_TARGET {
        return Some(Problem::new(414, "the target is longer than 8 KiB"));
    }
    let mut codings = request.headers().get_all(http::header::TRANSFER_ENCODING).iter();
    let plain = match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    };
    if !plain {
        return Some(Problem::new(400, "the body is coded in a way that can be read twice"));
    }
    match request.headers().get_all(http::header::HOST).iter().count() {
        1 => None,
        0 if request.version() < http::Version::HTTP_11 => None,
        0 => Some(Problem::new(400, "the request names no host")),
        _ => Some(Problem::new(400, "the request names two hosts")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Server;
    use crate::settings::Settings;
    use crate::settings::value::Listen;
    use crate::telemetry::log::LevelHandle;

    /// A client that sends from its first byte on has its task use up its turn before it first waits: then
    /// tokio does not let it listen, and nothing woke it any more.
    #[tokio::test]
    async fn a_task_that_has_used_up_its_turn_hears_of_the_end() {
        let free = Listen::At(SocketAddr::from(([127, 0, 0, 1], 0)));
        let settings =
            Settings { http: free, resp: free, grpc: free, admin: free, ..Settings::default() };
        let server = Server::start(settings, LevelHandle::default()).await.unwrap();
        let room = Arc::clone(server.room());
        let (stops, stopped) = watch::channel(false);
        let mut stop = Stop::new(Arc::clone(&room), stopped);
        let connection = tokio::spawn(poll_fn(move |context| {
            if !stop.listens {
                while tokio::task::coop::poll_proceed(context)
                    .map(|it| it.made_progress())
                    .is_ready()
                {}
            }
            if stop.is_now(context) { Poll::Ready(()) } else { Poll::Pending }
        }));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!connection.is_finished());

        room.drain();
        stops.send(true).unwrap();

        let heard = tokio::time::timeout(Duration::from_secs(60), connection).await;
        assert!(heard.is_ok(), "nobody woke it");
    }
}
