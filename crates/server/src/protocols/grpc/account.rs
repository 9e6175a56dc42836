//! Accounting of Envoy's calls: counts, refusals, events.
//!
//! A call is counted once, when it is answered; one that never is, as it was malformed or its client
//! left, is an error when its [`InFlightCall`] is dropped.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;
use tollgate::envoy::{CallError, Code, EnvoyAnswer, Status};

use super::own_rules;
use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use super::service::{CallAnswer, CallFailure};
use crate::state::{ServerState, ceil_millis};
use crate::telemetry::counts::{Outcome, Protocol};
use crate::telemetry::refusals::{RefusalRecord, cut};

/// A call over gRPC that is under way. Travels with the request, to where it is decoded and judged.
#[derive(Debug)]
pub(crate) struct InFlightCall {
    server: Arc<ServerState>,
    may_give_back: bool,
    began: Instant,
    ended: AtomicBool,
}

impl InFlightCall {
    pub(super) fn new(server: Arc<ServerState>, may_give_back: bool) -> Self {
        Self { server, may_give_back, began: Instant::now(), ended: AtomicBool::new(false) }
    }

    /// True if this client may refund hits.
    pub(super) const fn may_give_back(&self) -> bool {
        self.may_give_back
    }

    /// True if calls about this domain are refused because no rules were ever loaded.
    pub(super) fn refuses(&self, domain: &str) -> bool {
        self.server.refuses_envoy_in(domain)
    }

    /// Counts the call by its answer.
    pub(super) fn count_answer(
        &self,
        asked: &RateLimitRequest,
        answered: &Result<CallAnswer, CallFailure>,
    ) {
        self.ended.store(true, Ordering::Relaxed);
        record(&self.server, Protocol::Grpc, asked, answered);
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        self.server.counts.record_latency(Protocol::Grpc, self.began, 1);
        if !*self.ended.get_mut() {
            self.server.counts.add(Protocol::Grpc, Outcome::Error, 1);
        }
    }
}

/// Counts and remembers how a call was answered.
pub(crate) fn record(
    server: &ServerState,
    protocol: Protocol,
    asked: &RateLimitRequest,
    answered: &Result<CallAnswer, CallFailure>,
) {
    let answer = match answered {
        Ok(CallAnswer::Envoy(answer)) => answer,
        Ok(CallAnswer::Rules(own)) => match (&own.admission, own_rules::ask(asked)) {
            (Ok(admission), Ok(ask)) => return server.record(protocol, &ask, admission),
            _ => return server.counts.add(protocol, Outcome::Error, 1),
        },
        // As a check that is refused for want of a store: it was answered without one.
        Err(CallFailure::Call(CallError::Unavailable(_))) => {
            return server.counts.add(protocol, Outcome::Degraded, 1);
        }
        Err(_) => return server.counts.add(protocol, Outcome::Error, 1),
    };
    server.counts.count_envoy_answer(protocol, answer);
    if !answer.knows_domain() {
        server.envoy.unknown_domain.fetch_add(1, Ordering::Relaxed);
    }
    if answer.code() == Code::OverLimit {
        server.record_refusal(refusal(protocol, asked, answer), 1);
    }
}

fn refusal(protocol: Protocol, asked: &RateLimitRequest, answer: &EnvoyAnswer) -> RefusalRecord {
    let by = answer.tightest();
    let place = |status: &Status| answer.statuses().iter().position(|it| std::ptr::eq(it, status));
    let descriptor = by.and_then(place).and_then(|place| asked.descriptors.get(place));
    let limit = by.and_then(|status| status.limit);
    let blocks = limit.is_some_and(|limit| limit.requests_per_unit() == 0);
    RefusalRecord {
        at_us: answer.at().as_micros(),
        protocol: protocol.name(),
        domain: cut(&asked.domain),
        reason: if blocks { "blocked" } else { "limits" },
        rule: by.and_then(|status| answer.rule(status)).map(|rule| cut(rule.path())),
        limit: limit.map(|limit| limit.to_string()),
        key: descriptor.map(key).unwrap_or_default(),
        retry_after_ms: by.filter(|_| !blocks).and_then(|it| it.reset_after).map(ceil_millis),
        rules_version: answer.version(),
    }
}

/// `remote_address=203.0.113.9 path=/login`, cut short.
fn key(descriptor: &RateLimitDescriptor) -> String {
    let mut text = String::new();
    for entry in &descriptor.entries {
        let between = if text.is_empty() { "" } else { " " };
        let (key, value) = (cut(&entry.key), cut(&entry.value));
        // Writing into a string does not fail.
        let _ = write!(text, "{between}{}={}", key.escape_debug(), value.escape_debug());
    }
    cut(&text)
}
