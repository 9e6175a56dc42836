//! Forward-auth: a proxy asks about a request before it passes it on.
//!
//! The request is put together from the fields `X-Forwarded-*` (Traefik, Caddy) or `X-Original-*` (nginx);
//! only trusted proxies may ask. It then goes through the layer that services use (`tollgate::http`), around a
//! service that answers 204, so that the answer, its fields and its problems are the layer's own.
//!
//! A permit of a concurrency limit ends with the answer: to bound work, limit it in the service itself.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use tollgate::Ask;
use tollgate::http::{LimitLayer, Peer, Refusal, Rulings, Trust};
use tollgate::{Ruling, Source};
use tower_layer::Layer as _;
use tower_service::Service;

use crate::http::HttpCall;
use crate::http::body::Body;
use crate::http::problem::Problem;
use crate::protocols::grpc::{NO_RULES, RULES_VERSION};
use crate::settings::value::AttributeHeader;
use crate::state::ServerState;
use crate::store::AnyStore;
use crate::sync::lock;
use crate::telemetry::counts::{InFlightRequest, Outcome, Protocol};
use crate::telemetry::refusals::RefusalRecord;

type DomainLayer = LimitLayer<AnyStore>;

/// Answers forward-auth requests.
#[derive(Debug)]
pub(super) struct ForwardAuth {
    trust: Trust,
    attributes: Vec<AttributeHeader>,
    domain: Option<String>,
    /// A layer for each domain that rules have, by the version that had it.
    layers: ArcSwap<(u64, HashMap<String, DomainLayer>)>,
    /// Domains without rules that were logged.
    unknown: Mutex<Vec<String>>,
}

impl ForwardAuth {
    pub(super) fn new(server: &ServerState) -> Self {
        Self {
            trust: server.settings.trust.clone(),
            attributes: server.settings.auth_attributes.clone(),
            domain: server.settings.auth_domain.clone(),
            layers: ArcSwap::default(),
            unknown: Mutex::default(),
        }
    }

    pub(super) async fn answer(
        &self,
        server: &Arc<ServerState>,
        call: HttpCall,
    ) -> Result<Response<Body>, Problem> {
        let in_flight = InFlightRequest::new(&server.counts, Protocol::Auth);
        let (parts, _) = call.request.into_parts();
        if server.refuses_all() {
            return Err(Problem::new(503, NO_RULES).retry_after(1));
        }
        if !self.is_trusted_proxy(call.peer.ip()) {
            let why = "only trusted proxies may ask: add the network of this one to --trust";
            return Err(Problem::new(403, why));
        }
        let query = AuthQuery::read(parts.uri.query().unwrap_or_default())?;
        let layer = self.layer(server, query.domain.as_deref());
        // A proxy that adds its own line leaves the client's before it.
        let twice = |of: &&AttributeHeader| parts.headers.get_all(&of.header).iter().count() > 1;
        if let Some(AttributeHeader { header, .. }) = self.attributes.iter().find(twice) {
            return Err(Problem::new(400, format!("{header} is repeated")));
        }
        let mut request = proxied_request(parts)?;
        request.extensions_mut().insert(Peer(call.peer));
        let mut service = layer.layer(AllowedService(Arc::clone(server)));
        let Ok(response) = service.call(request).await;
        // `AllowedService` or `record_refusal` has counted the request.
        in_flight.end();
        let (mut head, body) = response.into_parts();
        head.status = query.status(head.status);
        // The layer's own answers are there at once.
        let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        Ok(Response::from_parts(head, bytes.into()))
    }

    /// The layer of the domain that `?domain=` names. No header names it: proxies pass on headers of
    /// clients, and a client must not choose its limits.
    fn layer(&self, server: &Arc<ServerState>, named: Option<&str>) -> DomainLayer {
        let rules = server.limiter.rules();
        let first = rules.declaration().domains.first().map(|domain| domain.name.as_str());
        let domain = named.or(self.domain.as_deref()).or(first).unwrap_or_default();
        let layers = self.layers.load();
        if layers.0 == rules.version()
            && let Some(layer) = layers.1.get(domain)
        {
            return layer.clone();
        }
        if !rules.declaration().domains.iter().any(|known| known.name == domain) {
            // The request passes, as by every protocol. But a proxy cannot see that this is for want of
            // rules.
            self.log_unknown_domain(domain, rules.version());
            return self.build_layer(server, domain);
        }
        let made = rules.declaration().domains.iter();
        let made = made.map(|domain| (domain.name.clone(), self.build_layer(server, &domain.name)));
        let layers = Arc::new((rules.version(), made.collect::<HashMap<_, _>>()));
        self.layers.store(Arc::clone(&layers));
        layers.1.get(domain).cloned().unwrap_or_else(|| self.build_layer(server, domain))
    }

    /// Logs once that a domain has no rules.
    fn log_unknown_domain(&self, domain: &str, version: u64) {
        let mut told = lock(&self.unknown);
        if told.len() >= MAX_UNKNOWN || told.iter().any(|known| known == domain) {
            return;
        }
        told.push(domain.to_owned());
        tracing::warn!(
            domain,
            version,
            "a proxy asks about a domain without rules: every request there is allowed"
        );
    }

    fn build_layer(&self, server: &Arc<ServerState>, domain: &str) -> DomainLayer {
        let (records, trust, named) = (Arc::clone(server), self.trust.clone(), domain.to_owned());
        let layer = LimitLayer::new(server.limiter.clone(), domain)
            .trust(self.trust.clone())
            .with_rulings()
            .refuse_with(move |refusal| {
                record_refusal(&records, &trust, &named, refusal);
                let mut response = refusal.respond();
                if let Some(ruling) = refusal.ruling() {
                    response.headers_mut().insert(RULES_VERSION, ruling.version().into());
                }
                response
            });
        self.attributes.iter().fold(layer, |layer, AttributeHeader { name, header }| {
            let header = header.clone();
            layer.attribute(name.clone(), move |parts| {
                Some(parts.headers.get(&header)?.as_bytes().into())
            })
        })
    }

    /// Returns true if the peer is a trusted proxy: the client is then the address that the proxy names.
    fn is_trusted_proxy(&self, peer: IpAddr) -> bool {
        let mut probe = HeaderMap::new();
        let other = if peer == IpAddr::from([192, 0, 2, 1]) { "192.0.2.2" } else { "192.0.2.1" };
        probe.insert("x-forwarded-for", HeaderValue::from_static(other));
        self.trust.client(peer, &probe).is_ok_and(|client| client != peer.to_canonical())
    }
}

/// Domains without rules that are logged: a proxy's settings name a few.
const MAX_UNKNOWN: usize = 32;

/// Query of a forward-auth request. Strict: a misspelt field would let everybody pass.
#[derive(Debug, Default, PartialEq, Eq)]
struct AuthQuery {
    domain: Option<String>,
    /// The status of a refusal, for nginx, which takes every other one for a failure.
    refuse: Option<StatusCode>,
}

impl AuthQuery {
    /// The status for this proxy.
    fn status(&self, status: StatusCode) -> StatusCode {
        match (self.refuse, status) {
            (Some(refuse), StatusCode::TOO_MANY_REQUESTS) => refuse,
            // A malformed request is the client's error, and no failure of the proxy.
            (Some(_), StatusCode::BAD_REQUEST) => StatusCode::FORBIDDEN,
            (_, status) => status,
        }
    }

    fn read(query: &str) -> Result<Self, Problem> {
        let wrong = |why: &str| Problem::new(400, why);
        let (mut domain, mut refuse) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let shown = name.escape_debug();
            let place = match name {
                "domain" => &mut domain,
                "refuse" => &mut refuse,
                _ => {
                    return Err(wrong(&format!(
                        "unknown query field `{shown}`: only `domain` and `refuse` are known"
                    )));
                }
            };
            if place.replace(value).is_some() {
                return Err(wrong(&format!("the query repeats `{name}`")));
            }
        }
        let unescaped = |text| unescape(text).filter(|name| !name.is_empty());
        let domain = domain
            .map(|text| unescaped(text).ok_or_else(|| wrong("`domain` is empty or not UTF-8")));
        let refuse = match refuse {
            None | Some("429") => None,
            Some("403") => Some(StatusCode::FORBIDDEN),
            Some("401") => Some(StatusCode::UNAUTHORIZED),
            Some(_) => return Err(wrong("`refuse` must be 401, 403 or 429")),
        };
        Ok(Self { domain: domain.transpose()?, refuse })
    }
}

/// A text of a query without its percent escapes.
fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Returns the request that a proxy asks about.
fn proxied_request(mut parts: Parts) -> Result<Request<()>, Problem> {
    let header_of = |names: [&str; 2]| -> Result<Option<HeaderValue>, Problem> {
        let mut values = names.iter().flat_map(|name| parts.headers.get_all(*name));
        let first = values.next();
        // A proxy sets one of the two, and may pass on the other as a client said it.
        if values.any(|other| Some(other) != first)
            || names.iter().any(|name| parts.headers.get_all(*name).iter().count() > 1)
        {
            let [one, other] = names;
            return Err(Problem::new(
                400,
                format!("{one} and {other} conflict, or one of them is repeated"),
            ));
        }
        Ok(first.cloned())
    };
    let wrong = |what: &str| Problem::new(400, format!("the proxy sent an invalid {what}"));
    let method = header_of(["x-forwarded-method", "x-original-method"])?;
    let uri = header_of(["x-forwarded-uri", "x-original-uri"])?;
    let host = header_of(["x-forwarded-host", "x-original-host"])?;
    let (Some(method), Some(uri)) = (method, uri) else {
        let why = "missing X-Forwarded-Method and X-Forwarded-Uri, or X-Original-Method and X-Original-URI";
        return Err(Problem::new(400, why));
    };
    parts.method = Method::from_bytes(method.as_bytes()).map_err(|_| wrong("method"))?;
    // The host of an absolute URI is ignored: X-Forwarded-Host has it.
    let uri = Uri::try_from(uri.as_bytes()).map_err(|_| wrong("target"))?;
    parts.uri = Uri::from(uri.path_and_query().cloned().ok_or_else(|| wrong("target"))?);
    if let Some(host) = host {
        parts.headers.insert(HOST, host);
    }
    Ok(Request::from_parts(parts, ()))
}

/// Counts a request that does not pass, and records the refusal.
fn record_refusal(server: &ServerState, trust: &Trust, domain: &str, refusal: &Refusal<'_>) {
    let Some(ruling) = refusal.ruling() else {
        return server.counts.add(Protocol::Auth, Outcome::Error, 1);
    };
    let outcome = outcome(ruling, Outcome::Refused);
    server.counts.count_decision(Protocol::Auth, ruling, outcome, || server.limiter.rules());
    let request = refusal.request();
    let peer = request.extensions.get::<Peer>().map(|peer| peer.0.ip());
    let client = peer.and_then(|peer| trust.client(peer, &request.headers).ok());
    let mut ask = Ask::new(domain);
    if let Some(client) = client {
        ask = ask.ip(client);
    }
    // Invalid attributes are left out of the record.
    let _ = ask.push("path", request.uri.path().as_bytes());
    let _ = ask.push("method", request.method.as_str().as_bytes());
    let retry = refusal.retry_after().map(|seconds| seconds.saturating_mul(1_000));
    server.record_refusal(RefusalRecord::new(Protocol::Auth, &ask, ruling, retry), 1);
}

fn outcome(ruling: &Ruling, usual: Outcome) -> Outcome {
    if matches!(ruling.source(), Source::Outage(_)) { Outcome::Degraded } else { usual }
}

/// Service behind the layer: reaching it means that the request is allowed.
#[derive(Clone)]
struct AllowedService(Arc<ServerState>);

impl Service<Request<()>> for AllowedService {
    type Response = Response<http_body_util::Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let judged = request.extensions().get::<Rulings>();
        for ruling in judged.iter().flat_map(|judged| judged.iter()) {
            let outcome = outcome(ruling, Outcome::Allowed);
            self.0
                .counts
                .count_decision(Protocol::Auth, ruling, outcome, || self.0.limiter.rules());
        }
        let mut response = Response::new(http_body_util::Empty::new());
        *response.status_mut() = StatusCode::NO_CONTENT;
        if let Some(ruling) = judged.iter().find_map(|judged| judged.iter().next()) {
            response.headers_mut().insert(RULES_VERSION, ruling.version().into());
        }
        ready(Ok(response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_strictly() {
        let domain = |query: &str| AuthQuery::read(query).ok().and_then(|query| query.domain);
        assert_eq!(AuthQuery::read("").unwrap(), AuthQuery::default());
        assert_eq!(domain("domain=shop&refuse=401").as_deref(), Some("shop"));
        assert_eq!(domain("refuse=429&domain=my%20sh%C3%B6p").as_deref(), Some("my shöp"));
        for wrong in [
            "domian=shop",
            "domain=shop&domain=shop",
            "refuse=401&refuse=401",
            "refuse=500",
            "refuse",
            "domain",
            "domain=",
            "domain=%",
            "domain=%+1",
            "domain=%ff",
            "Domain=shop",
            "domain=shop&x",
        ] {
            assert!(AuthQuery::read(wrong).is_err(), "{wrong}");
        }
    }
}
