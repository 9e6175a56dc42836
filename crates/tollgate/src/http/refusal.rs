//! What a client is told that may not pass: a status, a problem (RFC 9457), or whatever the
//! application says instead.
//!
//! | Kind | HTTP | gRPC | Problem |
//! |---|---|---|---|
//! | a limit, a ban | 429 | `RESOURCE_EXHAUSTED` | `quota-exceeded`, `abnormal-usage-detected` |
//! | the store is away | 503 | `UNAVAILABLE` | `temporary-reduced-capacity` |
//! | blocked | 403 | `PERMISSION_DENIED` | none |
//! | malformed | 400 | `INVALID_ARGUMENT` | none |
//! | misconfigured | 500 | `INTERNAL` | none |

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use tollgate_core::Retry;
use tollgate_core::Verdict;
use tollgate_core::rule::AskError;

use super::client::TooManyHops;
use super::fields::{policy_name, refusal_seconds};
use super::grpc::{self, Code};
use crate::{Finding, Outage, Reason, Ruling};

/// A request that does not pass, for an application that answers itself.
#[derive(Debug)]
pub struct Refusal<'a> {
    kind: RefusalKind,
    request: &'a Parts,
    ruling: Option<&'a Ruling>,
    later: Duration,
}

/// Why a request does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalKind {
    /// By a limit: 429.
    Limited,
    /// By a ban that earlier refusals led to: 429.
    Banned,
    /// Because the store is away, by a rule that refuses then: 503.
    Unavailable,
    /// By a list or a rule that blocks, whatever is counted: 403.
    Blocked,
    /// Because it cannot be judged: 400.
    Malformed(Malformed),
    /// Because more limits apply to it than one request may be charged on: 500.
    TooManyLimits,
    /// Because rules ask for the client's address and the server tells no peer: 500. Without
    /// that they would silently limit nobody.
    NoPeer,
}

impl RefusalKind {
    /// Why a ruling refuses.
    pub(super) fn of(ruling: &Ruling, outage: Option<Outage>) -> Self {
        let by_ban = |finding: Finding<'_>| finding.rule.is_some() && finding.limit.is_none();
        match ruling.reason() {
            Reason::Blocked => Self::Blocked,
            Reason::TooManyLimits => Self::TooManyLimits,
            _ if outage.is_some_and(|outage| outage.unavailable) => Self::Unavailable,
            _ if ruling.refused_by().is_some_and(by_ban) => Self::Banned,
            _ => Self::Limited,
        }
    }
}

/// What is wrong with a request that cannot be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// An attribute has no canonical form, or is too long.
    Attribute(AskError),
    /// It names two hosts.
    TwoHosts,
    /// It came over more hops than there can be.
    Hops(TooManyHops),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attribute(AskError::Path(error)) => error.fmt(f),
            Self::Attribute(AskError::Host(error)) => error.fmt(f),
            Self::Attribute(error) => error.fmt(f),
            Self::TwoHosts => f.write_str("the request names two hosts"),
            Self::Hops(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Malformed {}

impl From<AskError> for Malformed {
    fn from(error: AskError) -> Self {
        Self::Attribute(error)
    }
}

impl From<TooManyHops> for Malformed {
    fn from(error: TooManyHops) -> Self {
        Self::Hops(error)
    }
}

/// Answers in the application's words.
pub(super) type Respond = Arc<dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync>;

impl<'a> Refusal<'a> {
    pub(super) fn unjudged(kind: RefusalKind, request: &'a Parts) -> Self {
        Self { kind, request, ruling: None, later: Duration::ZERO }
    }

    /// A refusal by a ruling, whose client is to come back so much later than it might.
    pub(super) fn judged(
        ruling: &'a Ruling,
        outage: Option<Outage>,
        later: Duration,
        request: &'a Parts,
    ) -> Self {
        Self { kind: RefusalKind::of(ruling, outage), request, ruling: Some(ruling), later }
    }

    /// Why.
    pub const fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// The status that the layer would answer with.
    pub const fn status(&self) -> StatusCode {
        match self.kind {
            RefusalKind::Limited | RefusalKind::Banned => StatusCode::TOO_MANY_REQUESTS,
            RefusalKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            RefusalKind::Blocked => StatusCode::FORBIDDEN,
            RefusalKind::Malformed(_) => StatusCode::BAD_REQUEST,
            RefusalKind::TooManyLimits | RefusalKind::NoPeer => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whole seconds after which asking again can help, at least 1; `None` if it never does. With
    /// the layer's jitter, if it has one.
    pub fn retry_after(&self) -> Option<u64> {
        self.retry().map(refusal_seconds)
    }

    /// The names of the limits that refuse, as in `RateLimit-Policy`.
    pub fn policies(&self) -> Vec<String> {
        let Some(ruling) = self.ruling else { return Vec::new() };
        let refusing = ruling.findings().filter(|finding| !finding.decision.passes());
        refusing.filter_map(|finding| policy_name(&finding)).collect()
    }

    /// What was decided, rule by rule; `None` if nothing could be.
    pub const fn ruling(&self) -> Option<&'a Ruling> {
        self.ruling
    }

    /// The request.
    pub const fn request(&self) -> &'a Parts {
        self.request
    }

    fn retry(&self) -> Option<Duration> {
        match self.ruling.map(Ruling::verdict) {
            Some(Verdict::Deny(Retry::After(retry))) => Some(retry.saturating_add(self.later)),
            _ => None,
        }
    }

    /// The layer's own answer.
    pub(super) fn respond(&self) -> Response<Bytes> {
        if grpc::is_grpc(&self.request.headers) {
            let (code, detail, policies) = (self.code(), self.detail(), self.policies());
            return grpc::response(&self.request.headers, code, &detail, self.retry(), &policies);
        }
        let mut response = Response::new(Bytes::from(self.problem()));
        *response.status_mut() = self.status();
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, problem);
        response
    }

    const fn code(&self) -> Code {
        match self.kind {
            RefusalKind::Limited | RefusalKind::Banned => Code::ResourceExhausted,
            RefusalKind::Unavailable => Code::Unavailable,
            RefusalKind::Blocked => Code::PermissionDenied,
            RefusalKind::Malformed(_) => Code::InvalidArgument,
            RefusalKind::TooManyLimits | RefusalKind::NoPeer => Code::Internal,
        }
    }

    fn title(&self) -> (Option<&'static str>, &'static str) {
        match self.kind {
            RefusalKind::Limited => (Some("quota-exceeded"), "Quota exceeded"),
            RefusalKind::Banned => (Some("abnormal-usage-detected"), "Abnormal usage detected"),
            RefusalKind::Unavailable => {
                (Some("temporary-reduced-capacity"), "Temporarily reduced capacity")
            }
            RefusalKind::Blocked => (None, "Forbidden"),
            RefusalKind::Malformed(_) => (None, "Bad Request"),
            RefusalKind::TooManyLimits | RefusalKind::NoPeer => (None, "Internal Server Error"),
        }
    }

    fn detail(&self) -> Cow<'static, str> {
        let retry = self.retry_after();
        match (self.kind, retry) {
            (RefusalKind::Limited, Some(seconds)) => {
                Cow::Owned(format!("over the limit; ask again after {seconds} s"))
            }
            (RefusalKind::Limited, None) => Cow::Borrowed("more than can ever pass at once"),
            (RefusalKind::Banned, Some(seconds)) => {
                Cow::Owned(format!("refused too often; ask again after {seconds} s"))
            }
            (RefusalKind::Banned, None) => Cow::Borrowed("refused too often"),
            (RefusalKind::Unavailable, _) => Cow::Borrowed("limits cannot be checked at present"),
            (RefusalKind::Blocked, _) => Cow::Borrowed("not admitted here"),
            (RefusalKind::Malformed(what), _) => Cow::Owned(what.to_string()),
            (RefusalKind::TooManyLimits, _) => Cow::Borrowed("too many limits apply"),
            (RefusalKind::NoPeer, _) => {
                Cow::Borrowed("the server does not tell the limiter who its peer is")
            }
        }
    }

    /// The problem as JSON.
    fn problem(&self) -> String {
        let (name, title) = self.title();
        let mut json = String::with_capacity(256);
        json.push_str("{\"type\":\"");
        match name {
            Some(name) => {
                json.push_str("https://iana.org/assignments/http-problem-types#");
                json.push_str(name);
            }
            None => json.push_str("about:blank"),
        }
        json.push_str("\",\"title\":");
        quote(title, &mut json);
        // Writing into a string does not fail.
        let _ = write!(json, ",\"status\":{}", self.status().as_u16());
        json.push_str(",\"detail\":");
        quote(&self.detail(), &mut json);
        let policies = self.policies();
        if !policies.is_empty() {
            json.push_str(",\"violated-policies\":[");
            for (at, policy) in policies.iter().enumerate() {
                if at > 0 {
                    json.push(',');
                }
                quote(policy, &mut json);
            }
            json.push(']');
        }
        json.push('}');
        json
    }
}

/// A JSON string. Policies and details hold printable ASCII only.
fn quote(text: &str, json: &mut String) {
    json.push('"');
    for letter in text.chars() {
        if letter == '"' || letter == '\\' {
            json.push('\\');
        }
        json.push(letter);
    }
    json.push('"');
}
