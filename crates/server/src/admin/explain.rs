//! Explain: the effect of every rule on a request, without charging it.
//!
//! The request is described as at the HTTP listener, by attributes, or as Envoy does, by descriptors.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json as object;
use tollgate::envoy::{Code, EnvoyAnswer, EnvoyMode, EnvoyRule};
use tollgate::{ExplainedOutcome, Explanation};

use crate::http::HttpCall;
use crate::http::body::{self, Body};
use crate::http::problem::{Problem, json};
use crate::protocols::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::protocols::grpc::{self, CallExplanation, explain};
use crate::protocols::http::{CheckRequest, MAX_BODY, read};
use crate::state::{ServerState, ceil_millis};
use crate::telemetry::refusals::reason;

pub(super) async fn answer(
    server: &Arc<ServerState>,
    call: HttpCall,
) -> Result<Response<Body>, Problem> {
    let bytes = body::read(call.request.into_body(), MAX_BODY).await?;
    let QuestionKind { descriptors } = read(&bytes)?;
    let explanation = if descriptors.is_some() {
        explain_call(server, &bytes).await?
    } else {
        let check: CheckRequest<'_> = read(&bytes)?;
        shown(&server.limiter.explain(&check.ask()?).await)
    };
    Ok(json(StatusCode::OK, &explanation))
}

/// Distinguishes the two kinds of request.
#[derive(Deserialize)]
struct QuestionKind {
    #[serde(default)]
    descriptors: Option<IgnoredAny>,
}

async fn explain_call(server: &ServerState, bytes: &[u8]) -> Result<serde_json::Value, Problem> {
    let malformed = |why: &dyn std::fmt::Display| Problem::new(400, why.to_string());
    let text = std::str::from_utf8(bytes).map_err(|_| malformed(&"the body is not UTF-8"))?;
    let asked = grpc::json::read(text).map_err(|error| malformed(&error))?;
    let explained = explain(&server.limiter, &asked).await.map_err(|why| malformed(&why))?;
    Ok(match &explained {
        CallExplanation::Envoy(answer) => shown_envoy(&asked, answer),
        CallExplanation::Rules(explanation) => shown(explanation),
    })
}

fn shown_envoy(asked: &RateLimitRequest, answer: &EnvoyAnswer) -> serde_json::Value {
    let each = asked.descriptors.iter().zip(answer.statuses()).map(|(descriptor, status)| {
        let entries = descriptor.entries.iter();
        let entries: Vec<_> = entries.map(|it| format!("{}={}", it.key, it.value)).collect();
        let rule = answer.rule(status);
        object!({
            "entries": entries,
            "rule": rule.map(EnvoyRule::path),
            "mode": rule.map(|rule| match rule.mode() {
                EnvoyMode::Enforce => "enforce",
                EnvoyMode::Quota => "quota",
                EnvoyMode::Shadow => "shadow",
            }),
            "allows": status.limit.map(|limit| limit.to_string()),
            "passes": status.code == Code::Ok,
            "remaining": status.limit.map(|_| status.remaining),
            "resets_after_ms": status.reset_after.map(ceil_millis),
        })
    });
    object!({
        "envoy_rules_version": answer.version(),
        "knows_domain": answer.knows_domain(),
        "allowed": answer.code() == Code::Ok,
        "degraded": answer.outage().is_some(),
        "descriptors": each.collect::<Vec<_>>(),
    })
}

fn shown(explanation: &Explanation) -> serde_json::Value {
    let rules = explanation.rules.iter().map(|rule| {
        let (fate, because) = fate(&rule.outcome);
        object!({ "rule": rule.rule, "fate": fate, "because": because })
    });
    let counters = explanation.counters.iter().map(|counter| {
        object!({
            "rule": counter.rule,
            "limit": counter.limit,
            "allows": counter.allows,
            "is_ban": counter.is_ban,
            "cost": counter.cost,
            "key": counter.key,
            "passes": counter.passes,
            "remaining": counter.remaining,
            "clears_after_ms": counter.clears_after.map(ceil_millis),
            "full_after_ms": ceil_millis(counter.full_after),
        })
    });
    object!({
        "rules_version": explanation.version,
        "allowed": explanation.verdict.passes(),
        "reason": reason(explanation.reason),
        "degraded": explanation.outage.is_some(),
        "rules": rules.collect::<Vec<_>>(),
        "counters": counters.collect::<Vec<_>>(),
    })
}

fn fate(outcome: &ExplainedOutcome) -> (&'static str, Option<&str>) {
    match outcome {
        ExplainedOutcome::Charged => ("charged", None),
        ExplainedOutcome::Shadow => ("shadow", None),
        ExplainedOutcome::Off => ("off", None),
        ExplainedOutcome::Unmatched { attribute } => ("unmatched", Some(attribute)),
        ExplainedOutcome::Skipped { attribute } => ("skipped", Some(attribute)),
        ExplainedOutcome::Replaced { by } => ("replaced", Some(by)),
        ExplainedOutcome::Blocks => ("blocks", None),
        _ => ("other", None),
    }
}
