//! Calls about a domain of Tollgate's own rules.
//!
//! Envoy's files have a limit for each descriptor. Our rules decide a request by its attributes, so all
//! entries of a call together are the attributes of one request (`remote_address` is its `ip`), which is one
//! decision regardless of `charge`. Every descriptor has the same status: of the limit that refuses, else of
//! the one with the least left.
//!
//! A client can make an entry malformed, and Envoy lets a request pass on an error. So a malformed request is
//! over the limit; only a mistake in the configuration of Envoy is an error.

use std::time::Duration;

use tollgate::envoy::{CallError, Code, Unit};
use tollgate::{Admission, Finding, Limiter};
use tollgate::{Ask, AskError};
use tollgate::{Cost, Store};

use super::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    DescriptorStatus, RateLimit, rate_limit,
};
use super::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::service::CallFailure;
use super::settings::GrpcSettings;
use super::wire::{self, LimitHeaders};

/// Answer by Tollgate's own rules.
#[derive(Debug)]
pub(crate) struct RuleAnswer {
    /// The admission, or the attribute that cannot be used and the reason.
    pub(crate) admission: Result<Admission, String>,
    pub(crate) version: u64,
}

/// Error of a descriptor that brings its own limit.
const LIMIT: &str = "the rules of this domain define its limits: a descriptor cannot bring one";

/// Error of a descriptor that refunds.
const GIVING_BACK: &str =
    "this domain refunds through /v1/reserve and /v1/refund, not by is_negative_hits";

/// Error of descriptors with several costs.
const COSTS: &str =
    "the descriptors of this domain describe one request and must have the same hits_addend";

/// True if our rules have this domain, and Envoy's do not.
pub(super) fn has_domain<S: Store + 'static>(limiter: &Limiter<S>, domain: &str) -> bool {
    // In this order, as most servers have Envoy's alone, and then there is nothing to look through.
    limiter.rules().has_domain(domain) && !limiter.envoy_rules().has_domain(domain)
}

/// Decides a call, and charges its cost.
pub(super) async fn decide<S: Store + 'static>(
    limiter: &Limiter<S>,
    asked: &RateLimitRequest,
) -> Result<Box<RuleAnswer>, CallFailure> {
    let cost = cost(asked)?;
    Ok(Box::new(match ask(asked) {
        Ok(ask) => {
            let admission = limiter.admit(&ask.cost(cost)).await;
            RuleAnswer { version: admission.ruling().version(), admission: Ok(admission) }
        }
        Err(unclear) => RuleAnswer { version: limiter.rules().version(), admission: Err(unclear) },
    }))
}

/// The ask of a call, with its cost.
pub(super) fn described(asked: &RateLimitRequest) -> Result<Ask<'_>, String> {
    let cost = cost(asked).map_err(|error| error.to_string())?;
    ask(asked).map(|ask| ask.cost(cost))
}

/// The request that the descriptors describe.
pub(super) fn ask(asked: &RateLimitRequest) -> Result<Ask<'_>, String> {
    let mut ask = Ask::new(&asked.domain);
    for entry in entries(asked) {
        let name = attribute(entry);
        match ask.push(name, entry.value.as_bytes()) {
            Ok(()) => {}
            // Several descriptors may say the same of it.
            Err(AskError::Twice)
                if entries(asked)
                    .find(|it| attribute(it) == name)
                    .is_some_and(|first| first.value == entry.value) => {}
            Err(why) => return Err(format!("invalid attribute `{}`: {why}", name.escape_debug())),
        }
    }
    Ok(ask)
}

/// Entries with a value. An empty value means no entry, as in Envoy's files.
fn entries(asked: &RateLimitRequest) -> impl Iterator<Item = &Entry> {
    asked.descriptors.iter().flat_map(|it| &it.entries).filter(|entry| !entry.value.is_empty())
}

fn attribute(entry: &Entry) -> &str {
    match entry.key.as_str() {
        "remote_address" => "ip",
        key => key,
    }
}

/// Cost of a call, if it has a form that these rules can answer.
fn cost(asked: &RateLimitRequest) -> Result<Cost, CallFailure> {
    if asked.descriptors.is_empty() {
        return Err(CallFailure::Call(CallError::NoDescriptors));
    }
    let usual = Cost::from(asked.hits_addend.max(1));
    let mut cost = None;
    for descriptor in &asked.descriptors {
        if descriptor.limit.is_some() {
            return Err(CallFailure::Misuse(LIMIT));
        }
        if descriptor.is_negative_hits {
            return Err(CallFailure::Misuse(GIVING_BACK));
        }
        let own = descriptor.hits_addend.unwrap_or(usual);
        if *cost.get_or_insert(own) != own {
            return Err(CallFailure::Misuse(COSTS));
        }
    }
    Ok(cost.unwrap_or(usual))
}

impl RuleAnswer {
    /// The message of this answer.
    ///
    /// # Errors
    ///
    /// When it is refused only because the store is unreachable: then Envoy decides.
    pub(super) fn response(
        &self,
        asked: &RateLimitRequest,
        settings: &GrpcSettings,
    ) -> Result<RateLimitResponse, CallFailure> {
        let admission = match &self.admission {
            Ok(admission) => admission,
            Err(unclear) => {
                let statuses = vec![status(Code::OverLimit, None, None); asked.descriptors.len()];
                let mut response = wire::frame(asked, Code::OverLimit, statuses, None, settings);
                response.raw_body = unclear.clone().into_bytes();
                return Ok(response);
            }
        };
        if let Some(outage) = admission.outage().filter(|outage| outage.unavailable) {
            return Err(CallFailure::Call(CallError::Unavailable(outage.cause)));
        }
        let code = if admission.passes() { Code::Ok } else { Code::OverLimit };
        let tightest = tightest(admission);
        // A refusal tells when it ends, an admission when all of the limit is back.
        let left = match admission.retry_after() {
            Some(after) => Some(after),
            None => tightest.as_ref().map(|finding| finding.decision.reset_after),
        };
        let left = left.map(whole_seconds);
        let state = tightest.as_ref().and_then(|finding| {
            let count = finding.limit?.limit().quota().count().get();
            let reset_s = left.unwrap_or_default().as_secs();
            Some(LimitHeaders { limit: count, remaining: finding.decision.remaining, reset_s })
        });
        let statuses = vec![status(code, tightest, left); asked.descriptors.len()];
        Ok(wire::frame(asked, code, statuses, state, settings))
    }
}

/// The limit that refuses, else the one with the least left.
fn tightest(admission: &Admission) -> Option<Finding<'_>> {
    let ruling = admission.ruling();
    let least = || {
        let limited = ruling.findings().filter(|finding| finding.limit.is_some());
        limited.min_by_key(|finding| finding.decision.remaining)
    };
    if admission.passes() { least() } else { ruling.refusing() }
}

fn status(code: Code, tightest: Option<Finding<'_>>, left: Option<Duration>) -> DescriptorStatus {
    let current_limit = tightest.as_ref().and_then(|finding| {
        let quota = finding.limit?.limit().quota();
        let unit = Unit::ALL.into_iter().find(|unit| unit.period() == quota.period());
        Some(RateLimit {
            requests_per_unit: u32::try_from(quota.count().get()).unwrap_or(u32::MAX),
            unit: unit.map_or(rate_limit::Unit::Unknown, wire::unit).into(),
            name: finding.rule.map(|rule| rule.name().to_owned()).unwrap_or_default(),
        })
    });
    let remaining = tightest.filter(|_| code == Code::Ok).map_or(0, |it| it.decision.remaining);
    DescriptorStatus {
        code: wire::code(code).into(),
        current_limit,
        limit_remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        duration_until_reset: left.map(wire::seconds),
        quota: None,
    }
}

/// Whole seconds that are not earlier than this.
fn whole_seconds(left: Duration) -> Duration {
    Duration::from_secs(u64::try_from(left.as_micros().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}
