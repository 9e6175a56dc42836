//! The admin listener: rules, explain, refusals, events, metrics, log level.
//!
//! | Path | Does |
//! |---|---|
//! | `GET /v1/rules` | the rules that apply; `?format=yaml`, `json` or `toml` |
//! | `PUT /v1/rules` | other rules, if `If-Match` is the version that applies |
//! | `POST /v1/rules/check` | says what is wrong with rules |
//! | `POST /v1/explain` | every rule's say about a request, without charging |
//! | `GET /v1/refusals`, `/v1/refusals/top` | who was refused, and who most |
//! | `GET /v1/events` | what happens, as server-sent events |
//! | `GET /v1/status`, `/metrics`, `/healthz`, `/readyz` | |
//! | `GET`, `PUT /v1/log-level` | |
//!
//! `guard` says who may ask. A console would be served here too, from a directory of its own.

mod events;
mod explain;
mod guard;
mod rules;

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use tokio::sync::watch;

use crate::accept::BoundListener;
use crate::http::body::Body;
use crate::http::problem::{Problem, json};
use crate::http::{self as common, Handler, HttpCall};
use crate::listener::ListenerTask;
use crate::protocols::http::ready;
use crate::state::ServerState;
use crate::telemetry::metrics;

/// Starts the admin listener.
pub(crate) async fn start(bound: BoundListener) -> std::io::Result<ListenerTask> {
    let ending = bound.stop.clone();
    Ok(common::serving(bound, AdminApi { ending }))
}

/// Handler of this listener.
#[derive(Clone)]
struct AdminApi {
    /// Ends what is streamed.
    ending: watch::Receiver<bool>,
}

impl Handler for AdminApi {
    const ANSWERS_HALF_CLOSED: bool = false;

    fn answer(
        &self,
        server: Arc<ServerState>,
        call: HttpCall,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        let ending = self.ending.clone();
        async move {
            let mut response = route(&server, call, ending).await;
            let headers = response.headers_mut();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
            response
        }
    }
}

async fn route(
    server: &Arc<ServerState>,
    call: HttpCall,
    ending: watch::Receiver<bool>,
) -> Response<Body> {
    let path = call.request.uri().path().to_owned();
    match path.as_str() {
        "/healthz" => return Response::new("ok\n".into()),
        "/readyz" => return ready(server),
        _ => {}
    }
    if let Err(problem) = guard::admit(server, &call) {
        return problem.into();
    }
    match (call.request.method().clone(), path.as_str()) {
        (Method::GET, "/v1/rules") => rules::get(server, &call),
        (Method::PUT, "/v1/rules") => rules::put(server, call).await,
        (Method::POST, "/v1/rules/check") => rules::check(call).await,
        (Method::POST, "/v1/explain") => explain::answer(server, call).await,
        (Method::GET, "/v1/refusals") => json(
            StatusCode::OK,
            &serde_json::json!({ "refusals": server.refusals.recent(most(&call)) }),
        ),
        (Method::GET, "/v1/refusals/top") => {
            json(StatusCode::OK, &serde_json::json!({ "keys": server.refusals.top(most(&call)) }))
        }
        (Method::GET, "/v1/events") => events::stream(server, ending),
        (Method::GET, "/v1/status") => status(server),
        (Method::GET, "/metrics") => {
            let mut response = Response::new(metrics::text(server).into());
            let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, text);
            response
        }
        (Method::GET, "/v1/log-level") => {
            json(StatusCode::OK, &serde_json::json!({ "level": server.level.get() }))
        }
        (Method::PUT, "/v1/log-level") => level(server, call).await,
        _ => Problem::new(404, "no such path, or not with this method").into(),
    }
}

/// `?limit=`, at most as many as there are.
fn most(call: &HttpCall) -> usize {
    let query = call.request.uri().query().unwrap_or_default();
    let limit = query.split('&').find_map(|pair| pair.strip_prefix("limit="));
    limit.and_then(|limit| limit.parse().ok()).unwrap_or(100)
}

fn status(server: &ServerState) -> Response<Body> {
    let store = server.limiter.store();
    json(
        StatusCode::OK,
        &serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "store": store.name(),
            "store_up": store.is_up(),
            "rules_version": server.limiter.rules().version(),
            "rules_from": server.rules.source(),
            "rules_file": server.rules.file().map(|path| path.display().to_string()),
            "rules_trouble": server.rules.trouble(),
            "envoy_rules_version": server.limiter.envoy_rules().version(),
            "envoy_rules": server.limiter.envoy_rules().rules().len(),
            "envoy_files": server.envoy.files(),
            "envoy_trouble": server.envoy.trouble(),
            "state_trouble": server.state_trouble(),
            "readiness": server.readiness().name(),
        }),
    )
}

async fn level(server: &ServerState, call: HttpCall) -> Response<Body> {
    let (peer, id) = (call.peer, call.id);
    let bytes = match crate::http::body::read(call.request.into_body(), 64).await {
        Ok(bytes) => bytes,
        Err(problem) => return problem.into(),
    };
    let said = String::from_utf8_lossy(&bytes);
    // As `GET` says it, or the word alone.
    let object = serde_json::from_str::<serde_json::Value>(&said).unwrap_or_default();
    let word = object["level"].as_str().unwrap_or_else(|| said.trim().trim_matches('"'));
    match word.parse() {
        Ok(level) if server.level.set(level) => {
            tracing::warn!(audit = true, %peer, request = id, level = word, "changed the log level");
            json(StatusCode::OK, &serde_json::json!({ "level": word }))
        }
        Ok(_) => Problem::new(409, "this process has its own logger").into(),
        Err(error) => Problem::new(400, error).into(),
    }
}
