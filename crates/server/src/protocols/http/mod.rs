//! HTTP: limits as JSON, and forward-auth for proxies.
//!
//! | Path | Does |
//! |---|---|
//! | `POST /v1/check` | charges a request; `patience_ms` lets it be granted later |
//! | `POST /v1/check/batch` | several, each on its own, in order |
//! | `POST /v1/peek` | a check without charging |
//! | `POST /v1/reserve`, `/v1/commit`, `/v1/refund` | charges an estimate, and settles it |
//! | `GET /v1/auth` | 204 or 429 for a proxy that asks about a request |
//! | `POST /json` | a call of Envoy's, as its reference service takes it |
//! | `GET /healthz`, `/readyz`, `/openapi.json`, `/docs` | |
//!
//! A refusal of a check is an answer (200), not an error; only forward-auth turns it into a status,
//! by the same layer that services use.

mod auth;
mod check;
mod json;
mod openapi;
mod reserve;
mod wire;
mod without_hyper;

use std::future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::Either;
use http::{Method, Response};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::accept::BoundListener;
use crate::http::body::Body;
use crate::http::problem::{Problem, json as object};
use crate::http::{self as common, Handler, Handover, HttpCall, RawConnection};
use crate::listener::{Listener, ListenerTask};
use crate::protocols::grpc::RateLimits;
use crate::state::{Readiness, ServerState};
use crate::store::AnyStore;
use auth::ForwardAuth;
use check::CheckKind;
pub(crate) use check::MAX_BODY;
pub(crate) use wire::{CheckRequest, read};
#[cfg(test)]
pub(crate) use without_hyper::length as whole_length;

/// Starts the HTTP listener.
pub(crate) async fn start(bound: BoundListener) -> io::Result<ListenerTask> {
    let server = &bound.server;
    let forward_auth = Arc::new(ForwardAuth::new(server));
    let envoy = Arc::new(Envoy::new(server.limiter.clone(), server.settings.envoy.calls.clone()));
    Ok(common::serving(bound, HttpApi { forward_auth, envoy }))
}

/// Service behind `/json`.
type Envoy = RateLimits<AnyStore>;

/// Future of a route other than checks, boxed because it is rarely used.
type OtherRoute = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Handler of this listener.
#[derive(Clone)]
struct HttpApi {
    forward_auth: Arc<ForwardAuth>,
    envoy: Arc<Envoy>,
}

impl Handler for HttpApi {
    const ANSWERS_HALF_CLOSED: bool = true;

    /// No longer than a check needs; the others are in a box.
    fn answer(
        &self,
        server: Arc<ServerState>,
        call: HttpCall,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        let elsewhere: fn(OtherRoute) -> Either<_, OtherRoute> = Either::Right;
        let posted = call.request.method() == Method::POST;
        let Some(asks) = CheckKind::at(call.request.uri().path()).filter(|_| posted) else {
            let api = self.clone();
            let answer = async move { api.elsewhere(&server, call).await };
            return elsewhere(Box::pin(answer.map(|answered| answered.unwrap_or_else(Into::into))));
        };
        match allowed(&server, &call, TokenPolicy::Nothing) {
            Ok(()) => Either::Left(check::answer(server, call.request.into_body(), asks)),
            Err(problem) => elsewhere(Box::pin(future::ready(problem.into()))),
        }
    }

    async fn without_hyper<S: AsyncRead + AsyncWrite + Send + Unpin>(
        &self,
        connection: &mut RawConnection<'_, S>,
    ) -> io::Result<Handover> {
        without_hyper::serve(connection).await
    }
}

impl HttpApi {
    async fn elsewhere(
        &self,
        server: &Arc<ServerState>,
        call: HttpCall,
    ) -> Result<Response<Body>, Problem> {
        let path = call.request.uri().path();
        match (call.request.method(), path) {
            (&Method::GET | &Method::HEAD, "/healthz") => Ok(Response::new("ok\n".into())),
            (&Method::GET | &Method::HEAD, "/readyz") => Ok(ready(server)),
            (&Method::GET, "/openapi.json") => Ok(openapi::response()),
            (_, "/v1/auth") => {
                allowed(server, &call, TokenPolicy::Nothing)?;
                self.forward_auth.answer(server, call).await
            }
            (&Method::POST, "/json") => {
                allowed(server, &call, TokenPolicy::Nothing)?;
                json::answer(server, &self.envoy, call).await
            }
            (&Method::POST, "/v1/commit" | "/v1/refund") => {
                allowed(server, &call, TokenPolicy::TokenOffLoopback)?;
                reserve::settle(server, call).await
            }
            (_, path)
                if matches!(path, "/v1/commit" | "/v1/refund" | "/json")
                    || CheckKind::at(path).is_some() =>
            {
                Err(Problem::new(405, "this path needs POST"))
            }
            (method, path) => {
                let page = openapi::page(path).filter(|_| method == Method::GET);
                page.ok_or_else(|| Problem::new(404, "no such path; see /docs"))
            }
        }
    }
}

/// Token that a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenPolicy {
    Nothing,
    /// For refunds, which undo charges.
    TokenOffLoopback,
}

fn allowed(server: &ServerState, call: &HttpCall, needs: TokenPolicy) -> Result<(), Problem> {
    match &server.settings.api_token {
        Some(token) => {
            let said = bearer(call.request.headers()).unwrap_or_default();
            if token.matches(said) {
                return Ok(());
            }
            server.failed_logins.record(Listener::Http, Some(call.peer), Some(&call.id));
            Err(Problem::new(401, "missing or wrong bearer token"))
        }
        None if needs == TokenPolicy::TokenOffLoopback && !call.local => {
            Err(Problem::new(403, "refunds off loopback need --api-token"))
        }
        None => Ok(()),
    }
}

/// The token of a request.
pub(crate) fn bearer(headers: &http::HeaderMap) -> Option<&[u8]> {
    token(headers.get(http::header::AUTHORIZATION)?.as_bytes())
}

/// The same, of the field alone.
fn token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

/// `/readyz`, here and at the admin listener.
pub(crate) fn ready(server: &ServerState) -> Response<Body> {
    let store = server.limiter.store();
    let readiness = server.readiness();
    let status = match readiness {
        Readiness::Ready => http::StatusCode::OK,
        Readiness::Draining | Readiness::NoRules => http::StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = serde_json::json!({
        "state": readiness.name(),
        "store": store.name(),
        "store_up": store.is_up(),
        "rules_version": server.limiter.rules().version(),
        "envoy_rules_version": server.limiter.envoy_rules().version(),
    });
    object(status, &body)
}
