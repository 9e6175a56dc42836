//! A small HTTP client for the commands that ask a running server.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Failure;
use crate::settings::value::Secret;

/// The longest answer that is taken: as much as rules may have.
const MAX_ANSWER: usize = 32 * 1024 * 1024;

/// How long a server may take to be reached, and to begin to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server and what it is told by way of introduction.
#[derive(Clone, Debug)]
pub(super) struct Client {
    base: Uri,
    token: Option<Secret>,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Reply {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// What a problem says, for people.
    pub(super) fn problem(&self) -> Failure {
        let value: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let detail = value.get("detail").and_then(|detail| detail.as_str());
        format!("the server says {}: {}", self.status, detail.unwrap_or("no more")).into()
    }
}

impl Client {
    pub(super) fn new(url: &str, token: Option<Secret>) -> Result<Self, Failure> {
        let base: Uri = url.parse().map_err(|_| format!("{url:?} is no URL"))?;
        if base.scheme_str() != Some("http") || base.authority().is_none() {
            return Err(format!("{url:?} is not http://host:port").into());
        }
        Ok(Self { base, token })
    }

    /// Asks, and waits for the whole answer.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Reply, Failure> {
        let response = self.send(method, path, headers, body.into()).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
        Ok(Reply { status: head.status, headers: head.headers, body })
    }

    /// Asks, and hands over the answer as it comes.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<http::Response<Incoming>, Failure> {
        let host = self.base.host().unwrap_or_default().trim_matches(['[', ']']);
        let address = (host, self.base.port_u16().unwrap_or(80));
        let connected = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await;
        let stream = connected
            .map_err(|_| format!("{} does not answer", self.base))?
            .map_err(|error| format!("{} cannot be reached: {error}", self.base))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let authority = self.base.authority().map_or("", http::uri::Authority::as_str);
        let mut request = Request::builder().method(method).uri(path).header("host", authority);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {}", token.expose()));
        }
        let sent = sender.send_request(request.body(Full::new(body))?);
        tokio::time::timeout(PATIENCE, sent)
            .await
            .map_err(|_| format!("{} does not answer", self.base))?
            .map_err(Into::into)
    }
}
