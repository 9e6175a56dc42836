//! HTTP/1.1 for the HTTP and admin listeners: connections with deadlines, requests that can be
//! read in one way only, bodies with bounds, and problems as in RFC 9457. A listener may answer some
//! requests before hyper sees the connection ([`Handler::without_hyper`]).
//!
//! HTTP/1.1 only, which has no frames to flood a server with.

pub(crate) mod body;
pub(crate) mod checked_input;
pub(crate) mod deadline;
pub(crate) mod framing;
pub(crate) mod problem;

use std::convert::Infallible;
use std::future::{self, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::unconstrained;

use crate::accept::{self, BoundListener, ConnectionContext, ServeConnection, stopped};
use crate::listener::ListenerTask;
use crate::state::ServerState;
use crate::tls::Alpn;
use body::Body;
use deadline::{ConnectionPhase, DeadlineStream};
use problem::Problem;

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The most headers of a request.
const MAX_HEADERS: usize = 100;

/// The most bytes that a request may have before its body, and that are read ahead.
const MAX_HEAD: usize = 16 * 1024;

/// The longest target of a request.
const MAX_TARGET: usize = 8 * 1024;

/// Response to a client above `--max-connections`, before it sends a request.
const TOO_MANY: &str = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\
    content-type: application/problem+json\r\ncontent-length: 134\r\n\r\n\
    {\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
    \"detail\":\"too many connections (--max-connections): try again later\"}";

/// Answers the requests of a listener.
pub(crate) trait Handler: Clone + Send + Sync + 'static {
    /// Answers clients that have closed their sending half. Not for streams: a client that
    /// closes one half has left.
    const ANSWERS_HALF_CLOSED: bool;

    /// Answers one request. hyper copies the future for each request, so it is short.
    fn answer(
        &self,
        server: Arc<ServerState>,
        call: HttpCall,
    ) -> impl Future<Output = Response<Body>> + Send + use<Self>;

    /// Answers the requests that it reads by itself, and returns the next step. By default hyper reads all.
    ///
    /// # Errors
    ///
    /// When the connection breaks or is given up.
    fn without_hyper<S: AsyncRead + AsyncWrite + Send + Unpin>(
        &self,
        _connection: &mut RawConnection<'_, S>,
    ) -> impl Future<Output = io::Result<Handover>> + Send {
        future::ready(Ok(Handover::Hyper(Vec::new())))
    }
}

/// A connection that hyper does not know of yet.
pub(crate) struct RawConnection<'c, S> {
    pub(crate) server: &'c Arc<ServerState>,
    pub(crate) stream: &'c mut DeadlineStream<S>,
    pub(crate) phase: &'c ConnectionPhase,
    pub(crate) stop: &'c mut StopSignal,
}

/// Next step after requests that were answered without hyper.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Handover {
    /// hyper reads these bytes, and then the rest.
    Hyper(Vec<u8>),
    /// Nothing.
    End,
}

/// A request, and the two ends of its connection.
pub(crate) struct HttpCall {
    pub(crate) request: Request<Incoming>,
    pub(crate) peer: SocketAddr,
    /// Set if only this machine reaches the listener.
    pub(crate) local: bool,
    pub(crate) id: String,
}

/// Serves a listener by HTTP/1.1, until the server stops and the last request is answered.
pub(crate) fn serving(bound: BoundListener, handler: impl Handler) -> ListenerTask {
    ListenerTask::new(accept::serve(bound, Http1(handler)))
}

/// Stop signal of the server, as the task of one connection polls it.
///
/// Polling the signal takes a lock, which is slow beside a decision. So it is polled once, and then only
/// while the server drains, as it does before it stops. The same task polls every time.
pub(crate) struct StopSignal {
    server: Arc<ServerState>,
    told: Pin<Box<dyn Future<Output = ()> + Send>>,
    listens: bool,
}

impl StopSignal {
    pub(crate) fn new(server: Arc<ServerState>, mut stop: watch::Receiver<bool>) -> Self {
        // Unconstrained: a task that has used up its budget would not be registered at all.
        let told = unconstrained(async move { stopped(&mut stop).await });
        Self { server, told: Box::pin(told), listens: false }
    }

    /// True if the server stops; otherwise it wakes the task when it does. Must not be called again after
    /// that.
    pub(crate) fn is_now(&mut self, context: &mut Context<'_>) -> bool {
        if self.listens && !self.server.is_draining() {
            return false;
        }
        self.listens = true;
        self.told.as_mut().poll(context).is_ready()
    }
}

/// HTTP/1.1, by a handler.
#[derive(Clone)]
struct Http1<H>(H);

impl<H: Handler> ServeConnection for Http1<H> {
    const ALPN: Alpn = Alpn::Http1;
    const TOO_MANY: &'static [u8] = TOO_MANY.as_bytes();

    async fn serve<S>(self, stream: S, connection: ConnectionContext)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self(handler) = self;
        let connection = Arc::new(connection);
        let server = &connection.server;
        let phase = Arc::new(ConnectionPhase::default());
        let mut stream = DeadlineStream::new(stream, Arc::clone(&phase));
        let mut stop = StopSignal::new(Arc::clone(server), connection.stop.clone());
        let mut raw = RawConnection { server, stream: &mut stream, phase: &phase, stop: &mut stop };
        let served = match handler.without_hyper(&mut raw).await {
            Ok(Handover::Hyper(bytes)) => {
                stream.unread(bytes);
                let by = HttpConnection { connection: Arc::clone(&connection), handler };
                by.hyper(stream, Arc::clone(&phase), stop).await.is_ok()
            }
            Ok(Handover::End) => true,
            Err(_) => false,
        };
        if !served && phase.timed_out() {
            connection.timed_out();
        }
    }
}

/// One connection and its handler.
struct HttpConnection<H> {
    connection: Arc<ConnectionContext>,
    handler: H,
}

impl<H: Handler> HttpConnection<H> {
    /// Serves a connection to its end.
    async fn hyper<S>(
        self,
        stream: DeadlineStream<S>,
        phase: Arc<ConnectionPhase>,
        mut stop: StopSignal,
    ) -> hyper::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            phase.serving();
            let (id, answer) = self.begin(request);
            // A client that kept its connection would have the next request cut off.
            let (phase, last) = (Arc::clone(&phase), self.connection.server.is_draining());
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
            .half_close(H::ANSWERS_HALF_CLOSED)
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
        let ConnectionContext { server, peer, local, .. } = &*self.connection;
        let id = said_id(request.headers()).unwrap_or_else(|| server.request_id());
        let value = HeaderValue::from_str(&id).ok();
        if let Some(problem) = refused(&request) {
            return (value, Err(problem));
        }
        tracing::debug!(request = id, method = %request.method(), "HTTP request");
        let call = HttpCall { request, peer: *peer, local: *local, id };
        (value, Ok(self.handler.answer(Arc::clone(server), call)))
    }
}

/// The id that a client gave a request, if it is harmless.
pub(crate) fn said_id(headers: &http::HeaderMap) -> Option<String> {
    harmless_id(headers.get(X_REQUEST_ID)?.as_bytes()).map(str::to_owned)
}

/// An id that is safe to repeat.
pub(crate) fn harmless_id(said: &[u8]) -> Option<&str> {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let harmless = (1..=64).contains(&said.len()) && said.iter().all(fits);
    std::str::from_utf8(said).ok().filter(|_| harmless)
}

/// Rejects requests that no handler should see.
fn refused(request: &Request<Incoming>) -> Option<Problem> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > MAX_TARGET {
        return Some(Problem::new(414, "the request target is longer than 8 KiB"));
    }
    let mut codings = request.headers().get_all(http::header::TRANSFER_ENCODING).iter();
    let plain = match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    };
    if !plain {
        return Some(Problem::new(400, "ambiguous Transfer-Encoding"));
    }
    match request.headers().get_all(http::header::HOST).iter().count() {
        1 => None,
        0 if request.version() < http::Version::HTTP_11 => None,
        0 => Some(Problem::new(400, "missing Host")),
        _ => Some(Problem::new(400, "more than one Host")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Server;
    use crate::settings::Settings;
    use crate::telemetry::log::LevelHandle;

    #[test]
    fn a_client_too_many_is_told_a_whole_problem() {
        let (head, body) = TOO_MANY.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok(), "{body}");
    }

    /// A client that sends from its first byte on has its task use up its turn before it first waits: then
    /// tokio does not let it listen, and nothing woke it any more.
    #[tokio::test]
    async fn a_task_that_has_used_up_its_turn_hears_of_the_end() {
        let server =
            Server::start(Settings::on_free_ports(), LevelHandle::default()).await.unwrap();
        let server = Arc::clone(server.state());
        let (stops, stopped) = watch::channel(false);
        let mut stop = StopSignal::new(Arc::clone(&server), stopped);
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

        server.drain();
        stops.send(true).unwrap();

        let heard = tokio::time::timeout(Duration::from_secs(60), connection).await;
        assert!(heard.is_ok(), "nobody woke it");
    }
}
