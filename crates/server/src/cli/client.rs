//! A small HTTP client for the commands that ask a running server, in the clear or over TLS.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{Failure, trust};
use crate::settings::value::Secret;

/// The longest answer that is taken: as much as rules may have.
const MAX_ANSWER: usize = 32 * 1024 * 1024;

/// Time limit to connect, and for an answer to begin.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server, and the token for it.
pub(super) struct Client {
    base: Uri,
    token: Option<Secret>,
    /// TLS connector, for `https` URLs.
    tls: Option<TlsConnector>,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct ServerReply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl ServerReply {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Error of a reply that is a problem.
    pub(super) fn problem(&self) -> Failure {
        let value: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let detail = value.get("detail").and_then(|detail| detail.as_str());
        format!("the server answered {}: {}", self.status, detail.unwrap_or("no details")).into()
    }
}

impl Client {
    /// A client of the server at a URL; `ca_file` has the trusted authorities for `https`.
    pub(super) fn new(
        url: &str,
        token: Option<Secret>,
        ca_file: Option<&Path>,
    ) -> Result<Self, Failure> {
        let base: Uri = url.parse().map_err(|_| format!("{url:?} is not a URL"))?;
        let tls = match base.scheme_str() {
            Some("http") if base.authority().is_some() => None,
            Some("https") if base.authority().is_some() => Some(trust::connector(ca_file)?),
            _ => return Err(format!("{url:?} is not http://host:port or https://host:port").into()),
        };
        Ok(Self { base, token, tls })
    }

    /// Asks, and waits for the whole answer.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<ServerReply, Failure> {
        let response = self.send(method, path, headers, body.into()).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
        Ok(ServerReply { status: head.status, headers: head.headers, body })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let host = self.base.host().unwrap_or_default().trim_matches(['[', ']']);
        let usual = if self.tls.is_some() { 443 } else { 80 };
        let address = (host, self.base.port_u16().unwrap_or(usual));
        let stream = self.in_time(TcpStream::connect(address)).await?;
        let stream = stream.map_err(|error| format!("{} cannot be reached: {error}", self.base))?;
        let Some(tls) = &self.tls else { return speak(stream).await };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("{host:?} is not a host name for a certificate"))?;
        let shaken = self.in_time(tls.connect(name, stream)).await?;
        speak(shaken.map_err(|error| format!("cannot trust {}: {error}", self.base))?).await
    }

    /// Waits for one step of a request, up to [`PATIENCE`].
    async fn in_time<T>(&self, step: impl Future<Output = T>) -> Result<T, Failure> {
        let done = tokio::time::timeout(PATIENCE, step).await;
        done.map_err(|_| format!("{} does not answer", self.base).into())
    }

    /// Asks, and hands over the answer as it comes.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<http::Response<Incoming>, Failure> {
        let mut sender = self.connect().await?;
        let authority = self.base.authority().map_or("", http::uri::Authority::as_str);
        let mut request = Request::builder().method(method).uri(path).header("host", authority);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {}", token.expose()));
        }
        let sent = sender.send_request(request.body(Full::new(body))?);
        Ok(self.in_time(sent).await??)
    }
}

/// HTTP/1.1 over a connection.
async fn speak<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
