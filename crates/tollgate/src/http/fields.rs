//! The RateLimit fields of a response: `RateLimit`, `RateLimit-Policy`, `Retry-After`, and the older
//! `X-RateLimit-` fields.
//!
//! They follow draft-ietf-httpapi-ratelimit-headers-10: lists of strings with parameters (RFC
//! 9651). Each limit of a ruling is a policy, named after its rule, or `rule/limit` if the rule has
//! several; `policies.rs` writes the parts that are the same for every request. The window `w` of a
//! policy is left out if it is not whole seconds. Seconds are rounded up, and never 0 on a refusal.
//! A `t` is never later than `Retry-After`, which clients go by.

use std::cell::Cell;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate_core::{Basis, Decision, Retry, Verdict};

use super::policies::{Policies, Policy};
use crate::{Finding, Ruling};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The largest integer of a structured field: fifteen digits.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// The responses that carry `RateLimit`, `RateLimit-Policy` and the legacy fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateLimitFields {
    /// Every response to a request that a limit applied to.
    #[default]
    Always,
    /// Only refusals.
    OnRefusal,
    /// None. Refusals still have `Retry-After`.
    Never,
}

impl RateLimitFields {
    /// True if responses after this verdict carry them.
    pub(super) const fn apply_to(self, verdict: Verdict) -> bool {
        match self {
            Self::Always => true,
            Self::OnRefusal => !verdict.passes(),
            Self::Never => false,
        }
    }
}

/// The meaning of `X-RateLimit-Reset`, on which servers never agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyReset {
    /// Seconds from now.
    SecondsLeft,
    /// Seconds since 1970, by the store's clock.
    Epoch,
}

thread_local! {
    /// The text of the field that is being written, so that only its value is allocated.
    static TEXT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The value of a field that a function writes; `None` if it writes nothing.
pub(super) fn value(write: impl FnOnce(&mut Vec<u8>)) -> Option<HeaderValue> {
    let mut text = TEXT.take();
    text.clear();
    write(&mut text);
    let value = if text.is_empty() { None } else { HeaderValue::from_bytes(&text).ok() };
    TEXT.set(text);
    value
}

/// Appends a parameter of a structured field. `name` includes the `;` and the `=`.
#[inline(always)]
pub(super) fn put_parameter(text: &mut Vec<u8>, name: &[u8], number: u64) {
    text.extend_from_slice(name);
    text.extend_from_slice(itoa::Buffer::new().format(number.min(MAX_INTEGER)).as_bytes());
}

/// The fields of one ruling, ready to be added to a response.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseFields {
    limit: Option<HeaderValue>,
    policy: Option<HeaderValue>,
    legacy: Option<Box<[Option<HeaderValue>; 3]>>,
}

impl ResponseFields {
    /// The fields of a ruling, whose policies these are. `later`, the jitter, is added to every
    /// time.
    #[inline]
    pub(super) fn new(
        ruling: &Ruling,
        policies: &Policies,
        legacy: Option<LegacyReset>,
        later: Duration,
    ) -> Self {
        let most = match ruling.verdict() {
            Verdict::Deny(Retry::After(retry)) => {
                Some(refusal_seconds(retry.saturating_add(later)))
            }
            Verdict::Deny(Retry::Never) => Some(0),
            Verdict::Allow | Verdict::Wait(_) => None,
        };
        let limit = value(|text| {
            for (policy, decision) in policies.each().zip(&ruling.answer.decisions) {
                if let Some(policy) = policy.filter(|_| is_known(decision)) {
                    write_limit(policy, decision, most, later, text);
                }
            }
        });
        Self {
            limit,
            policy: policies.value.clone(),
            legacy: legacy.and_then(|legacy| legacy_values(ruling, legacy, later)).map(Box::new),
        }
    }

    /// Adds the fields. Fields of inner layers come first: lists may have several lines.
    pub(super) fn add_to(self, headers: &mut HeaderMap) {
        if let Some(limit) = self.limit {
            headers.append(RATELIMIT, limit);
        }
        if let Some(policy) = self.policy {
            headers.append(RATELIMIT_POLICY, policy);
        }
        if let Some(values) = self.legacy {
            let names = [LEGACY_LIMIT, LEGACY_REMAINING, LEGACY_RESET];
            for (name, value) in names.into_iter().zip(*values) {
                if let Some(value) = value {
                    headers.entry(name).or_insert(value);
                }
            }
        }
    }
}

/// Sets `Retry-After`, unless asking again never helps.
pub(super) fn add_retry_after(retry: Option<u64>, headers: &mut HeaderMap) {
    if let Some(seconds) = retry {
        headers.insert(RETRY_AFTER, seconds.into());
    }
}

/// Whole seconds, rounded up.
pub(super) fn seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// Whole seconds until the retry, rounded up; never 0, which would invite clients to ask at once.
pub(super) fn refusal_seconds(retry: Duration) -> u64 {
    seconds(retry).max(1)
}

/// True if the decision says what is left of the counter. It does not if the store had no room for
/// the counter or was not asked.
fn is_known(decision: &Decision) -> bool {
    decision.basis == Basis::Counted
}

#[inline(always)]
fn write_limit(
    policy: &Policy,
    decision: &Decision,
    most: Option<u64>,
    later: Duration,
    out: &mut Vec<u8>,
) {
    if !out.is_empty() {
        out.extend_from_slice(b", ");
    }
    put_parameter(out, &policy.beginning, decision.remaining);
    let t = match decision.verdict {
        Verdict::Deny(Retry::After(retry)) => refusal_seconds(retry.saturating_add(later)),
        Verdict::Deny(Retry::Never) => 0,
        Verdict::Allow | Verdict::Wait(_) if decision.reset_after.is_zero() => 0,
        Verdict::Allow | Verdict::Wait(_) => seconds(decision.reset_after.saturating_add(later)),
    };
    // Nobody knows when the holder of a permit is done.
    if t > 0 && most.is_none_or(|most| t <= most) && !policy.is_concurrency {
        put_parameter(out, b";t=", t);
    }
}

/// The values of one limit: the one that refuses, else the one with the least left.
fn legacy_values(
    ruling: &Ruling,
    legacy: LegacyReset,
    later: Duration,
) -> Option<[Option<HeaderValue>; 3]> {
    let known = |finding: &Finding<'_>| finding.limit.is_some() && is_known(&finding.decision);
    let refusing = ruling.refusing().filter(known);
    let least = || ruling.findings().filter(known).min_by_key(|found| found.decision.remaining);
    let finding = refusing.or_else(least)?;
    let quota = finding.limit?.limit().quota();
    let left = match finding.decision.verdict {
        Verdict::Deny(Retry::After(retry)) => {
            Duration::from_secs(refusal_seconds(retry.saturating_add(later)))
        }
        _ if finding.decision.reset_after.is_zero() => Duration::ZERO,
        _ => finding.decision.reset_after.saturating_add(later),
    };
    let reset = match legacy {
        LegacyReset::SecondsLeft => Some(seconds(left)),
        // The store was not asked, so its time is unknown.
        LegacyReset::Epoch if ruling.at() == tollgate_core::Timestamp::EPOCH => None,
        LegacyReset::Epoch => {
            let at = Duration::from_micros(ruling.at().as_micros());
            Some(seconds(at.saturating_add(left)))
        }
    };
    let limit = quota.count().get();
    Some([Some(limit.into()), Some(finding.decision.remaining.into()), reset.map(Into::into)])
}
