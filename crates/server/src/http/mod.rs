//! What the HTTP door and the admin listener have in common: connections with deadlines, bodies with
//! bounds, and problems told as RFC 9457 has them.
//!
//! HTTP/1.1 only: what HTTP/2 floods are made of does not exist here.

pub(crate) mod body;
pub(crate) mod framing;
pub(crate) mod guarded;
pub(crate) mod problem;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

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

/// A request, and the two ends of its connection.
pub(crate) struct Call {
    pub(crate) request: Request<Incoming>,
    pub(crate) peer: SocketAddr,
    /// Whether the listener is reached from this machine only.
    pub(crate) local: bool,
    pub(crate) id: String,
}

/// Serves until told to stop, and then until the last request is answered.
pub(crate) async fn serve<H, F>(
    listener: std::net::TcpListener,
    side: Side,
    room: Arc<Room>,
    mut stop: watch::Receiver<bool>,
    handle: H,
) where
    H: Fn(Arc<Room>, Call) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
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
                tasks.spawn(connection.accept(stream, handle.clone()));
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
    async fn accept<H, F>(mut self, stream: TcpStream, handle: H)
    where
        H: Fn(Arc<Room>, Call) -> F + Clone + Send + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let _open = Open { room: Arc::clone(&self.room), side: self.side };
        let Ok(peer) = stream.peer_addr() else { return };
        let Some(tls) = self.room.tls.clone() else {
            return self.serve(stream, peer, handle).await;
        };
        let shaken = tokio::select! {
            shaken = tls.accept(stream, Speaks::Http1) => shaken,
            // Whoever has not asked yet is owed nothing.
            () = stopped(&mut self.stop) => return,
        };
        // What became of a handshake that failed is counted there.
        if let Ok(stream) = shaken {
            self.serve(stream, peer, handle).await;
        }
    }

    async fn serve<S, H, F>(mut self, stream: S, peer: SocketAddr, handle: H)
    where
        S: AsyncRead + AsyncWrite + Unpin,
        H: Fn(Arc<Room>, Call) -> F + Clone + Send + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let phase = Arc::new(Phase::default());
        let io = TokioIo::new(Guarded::new(stream, Arc::clone(&phase)));
        let (room, local, at) = (Arc::clone(&self.room), self.local, Arc::clone(&phase));
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            at.serving();
            let (id, answer) = begin(&room, request, peer, local, &handle);
            // Who keeps its connection would find it closed a moment later, with a request in flight.
            let (at, last) = (Arc::clone(&at), room.is_draining());
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
                    at.idle();
                }
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .header_read_timeout(None::<Duration>)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = stopped(&mut self.stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if served.is_err() && phase.timed_out() {
            let connections = &self.room.connections[self.side.place()];
            connections.timed_out.fetch_add(1, Ordering::Relaxed);
        }
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

/// Begins to answer one request: what no handler should see is refused here, and every answer has an
/// id. Not a future, which would keep the request a second time: what hyper is given is copied for each
/// request, so it is short.
fn begin<H, F>(
    room: &Arc<Room>,
    request: Request<Incoming>,
    peer: SocketAddr,
    local: bool,
    handle: &H,
) -> (Option<HeaderValue>, Result<F, Problem>)
where
    H: Fn(Arc<Room>, Call) -> F,
{
    let id = harmless_id(request.headers()).unwrap_or_else(|| room.request_id());
    let value = HeaderValue::from_str(&id).ok();
    if let Some(problem) = refused(&request) {
        return (value, Err(problem));
    }
    tracing::debug!(request = id, method = %request.method(), "a request over HTTP");
    (value, Ok(handle(Arc::clone(room), Call { request, peer, local, id })))
}

/// The id that a client gave a request, if it is harmless.
pub(crate) fn harmless_id(headers: &http::HeaderMap) -> Option<String> {
    let id = headers.get(X_REQUEST_ID)?.to_str().ok()?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    ((1..=64).contains(&id.len()) && id.bytes().all(fits)).then(|| id.to_owned())
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
