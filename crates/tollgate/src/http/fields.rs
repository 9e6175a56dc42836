//! The fields that tell a client where it stands: `RateLimit`, `RateLimit-Policy`, `Retry-After`,
//! and their `X-RateLimit-` forerunners.
//!
//! As draft-ietf-httpapi-ratelimit-headers-10 has them: lists of strings with parameters
//! (RFC 9651). Each limit that was looked at is a policy, named after its rule, or `rule/limit`
//! where a rule has several; `policies.rs` writes what does not depend on the request. Windows are whole seconds or not told; seconds are rounded up, and
//! never 0 on a refusal. A `t` is never later than `Retry-After`, which clients are to believe.

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

/// Who is told where they stand, by `RateLimit` and its kin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateLimitFields {
    /// Whoever a limit had a say about.
    #[default]
    Always,
    /// Only those who are refused.
    OnRefusal,
    /// Nobody; refusals still say after how long to ask again.
    Never,
}

impl RateLimitFields {
    /// Whether those of this verdict are report.
    pub(super) const fn tells(self, verdict: Verdict) -> bool {
        match self {
            Self::Always => true,
            Self::OnRefusal => !verdict.passes(),
            Self::Never => false,
        }
    }
}

/// What `X-RateLimit-Reset` counts, which nobody ever agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyReset {
    /// Seconds from now.
    SecondsLeft,
    /// Seconds since 1970, by the store's clock.
    Epoch,
}

/// FieldText before it is a value: on the stack, if it is no more than what three limits say.
pub(super) struct FieldText {
    room: [u8; Self::ROOM],
    used: usize,
    /// All of it, once it is longer.
    long: Vec<u8>,
}

impl FieldText {
    const ROOM: usize = 160;

    pub(super) const fn new() -> Self {
        Self { room: [0; Self::ROOM], used: 0, long: Vec::new() }
    }

    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let end = self.used.saturating_add(bytes.len());
        match self.room.get_mut(self.used..end) {
            Some(room) if self.long.is_empty() => {
                room.copy_from_slice(bytes);
                self.used = end;
            }
            _ => self.put_long(bytes),
        }
    }

    #[cold]
    fn put_long(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(self.room.get(..self.used).unwrap_or_default());
        }
        self.long.extend_from_slice(bytes);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.long.is_empty() {
            return self.room.get(..self.used).unwrap_or_default();
        }
        &self.long
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0 && self.long.is_empty()
    }

    #[inline(always)]
    pub(super) fn parameter<const N: usize>(&mut self, name: &[u8; N], number: u64) {
        self.put(name);
        self.put(itoa::Buffer::new().format(number.min(MAX_INTEGER)).as_bytes());
    }

    /// The value of a field, unless it would be empty.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        if self.is_empty() { None } else { HeaderValue::from_bytes(self.bytes()).ok() }
    }
}

/// Fields of one ruling, ready to be added to a response.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    limit: Option<HeaderValue>,
    policy: Option<HeaderValue>,
    legacy: Option<Box<[Option<HeaderValue>; 3]>>,
}

impl Fields {
    /// What a ruling says by these policies of its own, with every time so much later than it is.
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
        let mut limit = FieldText::new();
        for (policy, decision) in policies.each().zip(&ruling.answer.decisions) {
            if let Some(policy) = policy.filter(|_| is_known(decision)) {
                write_limit(policy, decision, most, later, &mut limit);
            }
        }
        Self {
            limit: limit.value(),
            policy: policies.value.clone(),
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

/// ForwardedBy after how long asking again can help; nothing if never.
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

/// Whether what is left of a counter is known. It is not where the store had no room for it, or
/// was not asked.
fn is_known(decision: &Decision) -> bool {
    decision.basis == Basis::Counted
}

fn write_limit(
    policy: &Policy,
    decision: &Decision,
    most: Option<u64>,
    later: Duration,
    out: &mut FieldText,
) {
    if !out.is_empty() {
        out.put(b", ");
    }
    out.put(&policy.name);
    out.parameter(b";r=", decision.remaining);
    let t = match decision.verdict {
        Verdict::Deny(Retry::After(retry)) => refusal_seconds(retry.saturating_add(later)),
        Verdict::Deny(Retry::Never) => 0,
        Verdict::Allow | Verdict::Wait(_) if decision.reset_after.is_zero() => 0,
        Verdict::Allow | Verdict::Wait(_) => seconds(decision.reset_after.saturating_add(later)),
    };
    // A permit comes back when its holder is done, which nobody knows either.
    if t > 0 && most.is_none_or(|most| t <= most) && !policy.is_concurrency {
        out.parameter(b";t=", t);
    }
}

/// The values of the one limit that matters most: the one that refuses, else the one with the
/// least left.
fn legacy_values(
    ruling: &Ruling,
    legacy: LegacyReset,
    later: Duration,
) -> Option<[Option<HeaderValue>; 3]> {
    let told = |finding: &Finding<'_>| finding.limit.is_some() && is_known(&finding.decision);
    let refusing = ruling.refusing().filter(told);
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
        LegacyReset::SecondsLeft => Some(seconds(left)),
        // Whoever was not asked told no time.
        LegacyReset::Epoch if ruling.at() == tollgate_core::Timestamp::EPOCH => None,
        LegacyReset::Epoch => {
            let at = Duration::from_micros(ruling.at().as_micros());
            Some(seconds(at.saturating_add(left)))
        }
    };
    let limit = quota.count().get();
    Some([Some(limit.into()), Some(finding.decision.remaining.into()), reset.map(Into::into)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_whole_on_either_side_of_its_room() {
        for len in
            [0, 1, FieldText::ROOM - 1, FieldText::ROOM, FieldText::ROOM + 1, 5 * FieldText::ROOM]
        {
            for piece in [1, 7, len.max(1)] {
                let whole: Vec<u8> = (b'a'..=b'z').cycle().take(len).collect();
                let mut text = FieldText::new();

                whole.chunks(piece).for_each(|bytes| text.put(bytes));

                assert_eq!(text.bytes(), whole, "{len} bytes, {piece} at a time");
                assert_eq!(text.is_empty(), len == 0);
            }
        }
    }
}
