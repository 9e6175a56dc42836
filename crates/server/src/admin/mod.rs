//! The admin listener: rules, explain, refusals, events, metrics, log level.
//!
//! | Path | Does |
//! |---|---|
//! | `GET /v1/rules` | the rules that apply; `?format=yaml`, `json` or `toml` |
//! | `PUT /v1/rules` | other rules, if `If-Match` is the version that applies |
//! | `POST /v1/rules/check` | checks rules without applying them |
//! | `POST /v1/explain` | the effect of every rule on a request, without charging |
//! | `GET /v1/refusals`, `/v1/refusals/top` | recent refusals, and the keys refused most |
//! | `GET /v1/events` | server-sent events |
//! | `GET /v1/status`, `/metrics`, `/healthz`, `/readyz` | |
//! | `GET`, `PUT /v1/log-level` | |
//!
//! `guard` is the access control.

mod events;
mod explain;
mod guard;
mod rules;

use std::sync::Arc;

use http::header::{CACHE_CONTROL, HeaderValue};
use http::{Method, Response, StatusCode};
use serde_json::{Value, json as object};
use tokio::sync::watch;

use crate::accept::BoundListener;
use crate::http::body::Body;
use crate::http::problem::{Problem, json, typed};
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
    /// Ends the event streams.
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
            let answered = route(&server, call, ending).await;
            let mut response = answered.unwrap_or_else(Into::into);
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
) -> Result<Response<Body>, Problem> {
    let path = call.request.uri().path().to_owned();
    match path.as_str() {
        "/healthz" => return Ok(Response::new("ok\n".into())),
        "/readyz" => return Ok(ready(server)),
        _ => guard::admit(server, &call)?,
    }
    let answer = match (call.request.method().clone(), path.as_str()) {
        (Method::GET, "/v1/rules") => return rules::get(server, &call),
        (Method::PUT, "/v1/rules") => return rules::put(server, call).await,
        (Method::POST, "/v1/rules/check") => return rules::check(call).await,
        (Method::POST, "/v1/explain") => return explain::answer(server, call).await,
        (Method::GET, "/v1/events") => return Ok(events::stream(server, ending)),
        (Method::GET, "/metrics") => {
            return Ok(typed("text/plain; version=0.0.4; charset=utf-8", metrics::text(server)));
        }
        (Method::GET, "/v1/refusals") => {
            object!({ "refusals": server.refusals.recent(most(&call)) })
        }
        (Method::GET, "/v1/refusals/top") => object!({ "keys": server.refusals.top(most(&call)) }),
        (Method::GET, "/v1/status") => status(server),
        (Method::GET, "/v1/log-level") => object!({ "level": server.level.get() }),
        (Method::PUT, "/v1/log-level") => set_level(server, call).await?,
        _ => return Err(Problem::new(404, "no such path, or not with this method")),
    };
    Ok(json(StatusCode::OK, &answer))
}

/// `?limit=`, at most as many as there are.
fn most(call: &HttpCall) -> usize {
    let query = call.request.uri().query().unwrap_or_default();
    let limit = query.split('&').find_map(|pair| pair.strip_prefix("limit="));
    limit.and_then(|limit| limit.parse().ok()).unwrap_or(100)
}

fn status(server: &ServerState) -> Value {
    let store = server.limiter.store();
    object!({
        "version": env!("CARGO_PKG_VERSION"),
        "store": store.name(),
        "store_up": store.is_up(),
        "rules_version": server.limiter.rules().version(),
        "rules_from": server.rules.source(),
        "rules_file": server.rules.file().map(|path| path.display().to_string()),
        "rules_trouble": server.rules.error(),
        "envoy_rules_version": server.limiter.envoy_rules().version(),
        "envoy_rules": server.limiter.envoy_rules().rules().len(),
        "envoy_files": server.envoy.files(),
        "envoy_trouble": server.envoy.error(),
        "state_trouble": server.save_error(),
        "readiness": server.readiness().name(),
    })
}

async fn set_level(server: &ServerState, call: HttpCall) -> Result<Value, Problem> {
    let (peer, id) = (call.peer, call.id);
    let bytes = crate::http::body::read(call.request.into_body(), 64).await?;
    let said = String::from_utf8_lossy(&bytes);
    // As `GET` says it, or the word alone.
    let given = serde_json::from_str::<Value>(&said).unwrap_or_default();
    let word = given["level"].as_str().unwrap_or_else(|| said.trim().trim_matches('"'));
    let level = word.parse().map_err(|error: String| Problem::new(400, error))?;
    if !server.level.set(level) {
        return Err(Problem::new(409, "this process has its own logger"));
    }
    tracing::warn!(audit = true, %peer, request = id, level = word, "changed the log level");
    Ok(object!({ "level": word }))
}
