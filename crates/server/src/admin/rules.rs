//! Rules over the admin API: read, replaced by compare-and-set, and checked without being applied.

use std::sync::Arc;

use http::header::{CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH};
use http::{Response, StatusCode};
use serde_json::json as object;
use tollgate::rules::{self, Format, Problems};

use crate::http::HttpCall;
use crate::http::body::{self, Body};
use crate::http::problem::{Problem, json, typed};
use crate::rules::{RulesChange, RulesError};
use crate::state::ServerState;

/// The longest rules that are taken over HTTP.
const MAX_RULES: usize = 8 * 1024 * 1024;

/// The longest name of an author that is kept.
const MAX_AUTHOR: usize = 128;

type Answer = Result<Response<Body>, Problem>;

pub(super) fn get(server: &ServerState, call: &HttpCall) -> Answer {
    let query = call.request.uri().query().unwrap_or_default();
    let (format, kind) = match query.split('&').find_map(|pair| pair.strip_prefix("format=")) {
        None | Some("yaml") => (Format::Yaml, "application/yaml"),
        Some("json") => (Format::Json, "application/json"),
        Some("toml") => (Format::Toml, "application/toml"),
        Some(_) => return Err(Problem::new(400, "`format` must be yaml, json or toml")),
    };
    let set = server.limiter.rules();
    let mut response = typed(kind, rules::write(set.declaration(), format));
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", set.version())) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

pub(super) async fn put(server: &Arc<ServerState>, call: HttpCall) -> Answer {
    let (peer, id) = (call.peer, call.id.clone());
    let headers = call.request.headers();
    let (by, expected, format) = (author(headers, peer), version(headers)?, format(headers)?);
    let text = text(call).await?;
    match crate::rules::put(server, expected, text, format, &by).await {
        Ok(RulesChange { from, to }) => {
            tracing::warn!(audit = true, %peer, by, request = id, from, version = to, "replaced the rules");
            Ok(json(StatusCode::OK, &object!({ "from": from, "to": to })))
        }
        Err(error) => {
            let applies = server.limiter.rules().version();
            tracing::warn!(audit = true, %peer, by, request = id, expected, version = applies, %error, "rejected new rules");
            Err(problem(&error))
        }
    }
}

pub(super) async fn check(call: HttpCall) -> Answer {
    let format = format(call.request.headers())?;
    let text = text(call).await?;
    let loaded = tokio::task::spawn_blocking(move || rules::load(&text, format)).await;
    let loaded = loaded.map_err(|_| Problem::new(500, "cannot check the rules"))?;
    let set = loaded.map_err(|problems| invalid(&problems))?;
    let found = object!({ "version": set.version(), "rules": set.rules().count() });
    Ok(json(StatusCode::OK, &found))
}

async fn text(call: HttpCall) -> Result<String, Problem> {
    let bytes = body::read(call.request.into_body(), MAX_RULES).await?;
    rules::decode(&bytes).map(str::to_owned).map_err(|problems| invalid(&problems))
}

/// The version that a writer believes to apply.
fn version(headers: &HeaderMap) -> Result<u64, Problem> {
    let why = "name the version to replace: If-Match: \"<version>\", the ETag of a GET";
    let said = headers.get(IF_MATCH).ok_or_else(|| Problem::new(428, why))?;
    let said = said.to_str().ok().map(|text| text.trim().trim_matches('"'));
    said.and_then(|text| text.parse().ok()).ok_or_else(|| Problem::new(400, why))
}

/// Author as stored with the rules: the name a client gives, and its address.
fn author(headers: &HeaderMap, peer: std::net::SocketAddr) -> String {
    let said = headers.get("x-tollgate-author").and_then(|said| said.to_str().ok());
    let said: String = said.unwrap_or_default().chars().take(MAX_AUTHOR).collect();
    let from = peer.ip().to_canonical();
    if said.trim().is_empty() { format!("{from}") } else { format!("{} at {from}", said.trim()) }
}

fn format(headers: &HeaderMap) -> Result<Format, Problem> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim() {
        "application/json" => Ok(Format::Json),
        "application/toml" => Ok(Format::Toml),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Format::Yaml),
        _ => Err(Problem::new(
            415,
            "Content-Type must be application/yaml, application/json or application/toml",
        )),
    }
}

fn problem(error: &RulesError) -> Problem {
    let (status, present) = match error {
        RulesError::Invalid(problems) => return invalid(problems),
        RulesError::Conflict { present } | RulesError::Damaged { present, .. } => {
            (409, Some(*present))
        }
        RulesError::Stale(stale) => (409, Some(stale.present)),
        RulesError::Taken(_) => (409, None),
        RulesError::NotOurs(_) => (405, None),
        RulesError::Unreadable(_)
        | RulesError::Unwritable(_)
        | RulesError::Unreachable(_)
        | RulesError::Message(_) => (503, None),
    };
    let problem = Problem::new(status, error.to_string());
    if let Some(present) = present { problem.with("present", present) } else { problem }
}

fn invalid(problems: &Problems) -> Problem {
    let places = problems.iter().map(|problem| {
        object!({
            "line": problem.line(),
            "column": problem.column(),
            "message": problem.message(),
            "hint": problem.hint(),
        })
    });
    let places: Vec<_> = places.collect();
    Problem::new(400, problems.to_string()).with("problems", places)
}
