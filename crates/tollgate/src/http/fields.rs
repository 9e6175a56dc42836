//! The fields that tell a client where it stands: `RateLimit`, `RateLimit-Policy`, `Retry-After`,
//! and their `X-RateLimit-` forerunners.
//!
//! As draft-ietf-httpapi-ratelimit-headers-10 has them: lists of strings with parameters
//! (RFC 9651). Each limit that was looked at is a policy, named after its rule, or `rule/limit`
//! where a rule has several. Windows are whole seconds or not told; seconds are rounded up, and
//! never 0 on a refusal. A `t` is never later than `Retry-After`, which clients are to believe.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use smallvec::SmallVec;
use tollgate_core::rule::LimitKind;
use tollgate_core::{Algorithm, Basis, Retry, Verdict};

use crate::{Finding, Ruling};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The largest integer of a structured field: fifteen digits.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Who is told where they stand, by `RateLimit` and its kin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tell {
    /// Whoever a limit had a say about.
    #[default]
    Everybody,
    /// Only those who are refused.
    Refused,
    /// Nobody; refusals still say after how long to ask again.
    Nobody,
}

/// What `X-RateLimit-Reset` counts, which nobody ever agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legacy {
    /// Seconds from now.
    SecondsLeft,
    /// Seconds since 1970, by the store's clock.
    Epoch,
}

/// Where a field is written. Most of them need no heap before they are a value.
type Text = SmallVec<[u8; 160]>;

/// Fields of one ruling, ready to be added to a response.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    limit: Option<HeaderValue>,
    policy: Option<HeaderValue>,
    legacy: Option<Box<[Option<HeaderValue>; 3]>>,
}

impl Fields {
    /// What a ruling says, with every time so much later than it is.
    pub(super) fn new(ruling: &Ruling, legacy: Option<Legacy>, later: Duration) -> Self {
        let most = match ruling.verdict() {
            Verdict::Deny(Retry::After(retry)) => {
                Some(refusal_seconds(retry.saturating_add(later)))
            }
            Verdict::Deny(Retry::Never) => Some(0),
            Verdict::Allow | Verdict::Wait(_) => None,
        };
        let (mut limit, mut policy) = (Text::new(), Text::new());
        for finding in ruling.findings() {
            write_policy(&finding, &mut policy);
            if is_known(&finding) {
                write_limit(&finding, most, later, &mut limit);
            }
        }
        Self {
            limit: value(&limit),
            policy: value(&policy),
            legacy: legacy.and_then(|legacy| legacy_values(ruling, legacy, later)).map(Box::new),
        }
    }

    /// Adds the fields. Those of layers within come first; lists may have several lines.
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

/// Says after how long asking again can help; nothing if never.
pub(super) fn add_retry_after(retry: Option<u64>, headers: &mut HeaderMap) {
    if let Some(seconds) = retry {
        headers.insert(RETRY_AFTER, seconds.into());
    }
}

/// Whole seconds that are not earlier than this.
pub(super) fn seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// The same on a refusal, where 0 would be an invitation to ask again at once.
pub(super) fn refusal_seconds(retry: Duration) -> u64 {
    seconds(retry).max(1)
}

/// The name of a limit's policy: that of the rule, and that of the limit if it has several. What
/// is not ASCII is escaped as in a path, because a structured string holds nothing else.
pub(super) fn policy_name(finding: &Finding<'_>) -> Option<String> {
    let mut name = Text::new();
    write_name(finding, &mut name)?;
    String::from_utf8(name.into_vec()).ok()
}

fn write_name(finding: &Finding<'_>, out: &mut Text) -> Option<()> {
    let rule = finding.rule?;
    escape(rule.name(), out);
    match finding.limit {
        // A ban, which is not among the limits.
        None => out.extend_from_slice(b"/ban"),
        Some(limit) if rule.limits().len() > 1 => {
            out.push(b'/');
            escape(limit.name(), out);
        }
        Some(_) => {}
    }
    Some(())
}

fn escape(name: &str, out: &mut Text) {
    let stands = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'%';
    if name.bytes().all(stands) {
        return out.extend_from_slice(name.as_bytes());
    }
    for byte in name.bytes() {
        if stands(byte) {
            out.push(byte);
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0');
            out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 0xf)]);
        }
    }
}

/// Begins a member of a list: the name as a string.
fn begin(finding: &Finding<'_>, out: &mut Text) -> Option<()> {
    if !out.is_empty() {
        out.extend_from_slice(b", ");
    }
    out.push(b'"');
    let start = out.len();
    write_name(finding, out)?;
    // Few names have what needs a backslash.
    if out.get(start..).is_some_and(|name| name.iter().any(|byte| b"\"\\".contains(byte))) {
        let name: Text = out.drain(start..).collect();
        for byte in name {
            if b"\"\\".contains(&byte) {
                out.push(b'\\');
            }
            out.push(byte);
        }
    }
    out.push(b'"');
    Some(())
}

/// Whether a finding is a policy that clients are told of: bans are not.
fn is_policy(finding: &Finding<'_>) -> bool {
    finding.limit.is_some_and(|limit| limit.kind() == LimitKind::Limit)
}

/// Whether what is left of a counter is known. It is not where the store had no room for it, or
/// was not asked.
fn is_known(finding: &Finding<'_>) -> bool {
    finding.decision.basis == Basis::Counted
}

fn write_policy(finding: &Finding<'_>, out: &mut Text) {
    let Some(limit) = finding.limit.filter(|_| is_policy(finding)) else { return };
    let quota = limit.limit().quota();
    if begin(finding, out).is_none() {
        return;
    }
    parameter(b";q=", quota.count().get(), out);
    if is_concurrency(finding) {
        out.extend_from_slice(b";qu=\"concurrent-requests\"");
    } else if quota.period().subsec_nanos() == 0 {
        parameter(b";w=", quota.period().as_secs(), out);
    }
}

fn write_limit(finding: &Finding<'_>, most: Option<u64>, later: Duration, out: &mut Text) {
    let decision = &finding.decision;
    if !is_policy(finding) || begin(finding, out).is_none() {
        return;
    }
    parameter(b";r=", decision.remaining, out);
    let t = match decision.verdict {
        Verdict::Deny(Retry::After(retry)) => refusal_seconds(retry.saturating_add(later)),
        Verdict::Deny(Retry::Never) => 0,
        Verdict::Allow | Verdict::Wait(_) if decision.reset_after.is_zero() => 0,
        Verdict::Allow | Verdict::Wait(_) => seconds(decision.reset_after.saturating_add(later)),
    };
    // A permit comes back when its holder is done, which nobody knows either.
    if t > 0 && most.is_none_or(|most| t <= most) && !is_concurrency(finding) {
        parameter(b";t=", t, out);
    }
}

fn is_concurrency(finding: &Finding<'_>) -> bool {
    let algorithm = finding.limit.map(|limit| limit.limit().algorithm());
    matches!(algorithm, Some(Algorithm::Concurrency(_)))
}

fn parameter(name: &[u8], number: u64, out: &mut Text) {
    out.extend_from_slice(name);
    let mut digits = [0_u8; 20];
    let mut left = number.min(MAX_INTEGER);
    let mut start = 0;
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' | u8::try_from(left % 10).unwrap_or_default();
        start = place;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(start..).unwrap_or_default());
}

fn value(text: &Text) -> Option<HeaderValue> {
    if text.is_empty() { None } else { HeaderValue::from_bytes(text).ok() }
}

/// The values of the one limit that matters most: the one that refuses, else the one with the
/// least left.
fn legacy_values(
    ruling: &Ruling,
    legacy: Legacy,
    later: Duration,
) -> Option<[Option<HeaderValue>; 3]> {
    let told = |finding: &Finding<'_>| is_policy(finding) && is_known(finding);
    let refusing = ruling.refused_by().filter(told);
    let least = || ruling.findings().filter(told).min_by_key(|found| found.decision.remaining);
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
        Legacy::SecondsLeft => Some(seconds(left)),
        // Whoever was not asked told no time.
        Legacy::Epoch if ruling.at() == tollgate_core::Timestamp::EPOCH => None,
        Legacy::Epoch => {
            let at = Duration::from_micros(ruling.at().as_micros());
            Some(seconds(at.saturating_add(left)))
        }
    };
    let limit = quota.count().get();
    Some([Some(limit.into()), Some(finding.decision.remaining.into()), reset.map(Into::into)])
}
