//! Rules over the admin API: read, replaced by compare-and-set, and checked without being applied.

use std::sync::Arc;

use http::header::{CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH};
use http::{Response, StatusCode};
use serde_json::json as object;
use tollgate::rules::{self, Format, Problems};

use crate::http::HttpCall;
use crate::http::body::{self, Body};
use crate::http::problem::{Problem, json};
use crate::rules::RulesError;
use crate::state::ServerState;

/// The longest rules that are taken over HTTP.
const MAX_RULES: usize = 8 * 1024 * 1024;

/// The longest name of an author that is kept.
const MAX_AUTHOR: usize = 128;

pub(super) fn get(server: &ServerState, call: &HttpCall) -> Response<Body> {
    let query = call.request.uri().query().unwrap_or_default();
    let format = match query.split('&').find_map(|pair| pair.strip_prefix("format=")) {
        None | Some("yaml") => Format::Yaml,
        Some("json") => Format::Json,
        Some("toml") => Format::Toml,
        Some(_) => return Problem::new(400, "`format` must be yaml, json or toml").into(),
    };
    let set = server.limiter.rules();
    let mut response = Response::new(rules::write(set.declaration(), format).into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(type_of(format)));
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", set.version())) {
        headers.insert(ETAG, tag);
    }
    response
}

const fn type_of(format: Format) -> &'static str {
    match format {
        Format::Json => "application/json",
        Format::Toml => "application/toml",
        _ => "application/yaml",
    }
}

pub(super) async fn put(server: &Arc<ServerState>, call: HttpCall) -> Response<Body> {
    let (peer, id) = (call.peer, call.id.clone());
    let by = author(call.request.headers(), peer);
    let (expected, format) = match (version(call.request.headers()), format(call.request.headers()))
    {
        (Ok(expected), Ok(format)) => (expected, format),
        (Err(problem), _) | (_, Err(problem)) => return problem.into(),
    };
    let text = match text(call).await {
        Ok(text) => text,
        Err(problem) => return problem.into(),
    };
    match crate::rules::put(server, expected, text, format, &by).await {
        Ok(applied) => {
            let (from, to) = (applied.from, applied.to);
            tracing::warn!(audit = true, %peer, by, request = id, from, version = to, "replaced the rules");
            json(StatusCode::OK, &object!({ "from": from, "to": to }))
        }
        Err(error) => {
            let applies = server.limiter.rules().version();
            tracing::warn!(audit = true, %peer, by, request = id, expected, version = applies, %error, "rejected new rules");
            problem(&error).into()
        }
    }
}

pub(super) async fn check(call: HttpCall) -> Response<Body> {
    let format = match format(call.request.headers()) {
        Ok(format) => format,
        Err(problem) => return problem.into(),
    };
    let text = match text(call).await {
        Ok(text) => text,
        Err(problem) => return problem.into(),
    };
    let loaded = tokio::task::spawn_blocking(move || rules::load(&text, format)).await;
    match loaded {
        Ok(Ok(set)) => json(
            StatusCode::OK,
            &object!({ "version": set.version(), "rules": set.rules().count() }),
        ),
        Ok(Err(problems)) => invalid(&problems).into(),
        Err(_) => Problem::new(500, "cannot check the rules").into(),
    }
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
    match error {
        RulesError::Invalid(problems) => invalid(problems),
        RulesError::Conflict { present } | RulesError::Damaged { present, .. } => {
            Problem::new(409, &error.to_string()).with("present", *present)
        }
        RulesError::Stale(stale) => {
            Problem::new(409, &error.to_string()).with("present", stale.present)
        }
        RulesError::Taken(_) => Problem::new(409, &error.to_string()),
        RulesError::NotOurs(why) => Problem::new(405, why),
        RulesError::Unreadable(_)
        | RulesError::Unwritable(_)
        | RulesError::Unreachable(_)
        | RulesError::Message(_) => Problem::new(503, &error.to_string()),
    }
}

fn invalid(problems: &Problems) -> Problem {
    let places: Vec<_> = problems
        .iter()
        .map(|problem| {
            object!({
                "line": problem.line(),
                "column": problem.column(),
                "message": problem.message(),
                "hint": problem.hint(),
            })
        })
        .collect();
    Problem::new(400, &problems.to_string()).with("problems", places)
}
