//! Explain: what every rule says about a request, without charging it.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::json as object;
use tollgate::{Explanation, Fate};

use crate::doors::http::{Check, MAX_BODY, read};
use crate::http::Call;
use crate::http::body::{self, Body};
use crate::http::problem::{Problem, json};
use crate::room::{Room, millis_up};
use crate::telemetry::refusals::reason;

pub(super) async fn answer(room: &Arc<Room>, call: Call) -> Response<Body> {
    let explained = async {
        let bytes = body::read(call.request.into_body(), MAX_BODY).await?;
        let check: Check<'_> = read(&bytes)?;
        let explanation = room.limiter.explain(&check.ask()?).await;
        Ok::<_, Problem>(json(StatusCode::OK, &shown(&explanation)))
    };
    explained.await.unwrap_or_else(Into::into)
}

fn shown(explanation: &Explanation) -> serde_json::Value {
    let rules: Vec<_> = explanation
        .rules
        .iter()
        .map(|rule| {
            let (fate, because) = fate(&rule.fate);
            object!({ "rule": rule.rule, "fate": fate, "because": because })
        })
        .collect();
    let counters: Vec<_> = explanation
        .counters
        .iter()
        .map(|counter| {
            object!({
                "rule": counter.rule,
                "limit": counter.limit,
                "allows": counter.allows,
                "is_ban": counter.is_ban,
                "cost": counter.cost,
                "key": counter.key,
                "passes": counter.passes,
                "remaining": counter.remaining,
                "clears_after_ms": counter.clears_after.map(millis_up),
                "full_after_ms": millis_up(counter.full_after),
            })
        })
        .collect();
    object!({
        "rules_version": explanation.version,
        "allowed": explanation.verdict.passes(),
        "reason": reason(explanation.reason),
        "degraded": explanation.outage.is_some(),
        "rules": rules,
        "counters": counters,
    })
}

fn fate(fate: &Fate) -> (&'static str, Option<&str>) {
    match fate {
        Fate::Charged => ("charged", None),
        Fate::Shadow => ("shadow", None),
        Fate::Off => ("off", None),
        Fate::Unmatched { attribute } => ("unmatched", Some(attribute)),
        Fate::Skipped { attribute } => ("skipped", Some(attribute)),
        Fate::Replaced { by } => ("replaced", Some(by)),
        Fate::Blocks => ("blocks", None),
        _ => ("other", None),
    }
}
