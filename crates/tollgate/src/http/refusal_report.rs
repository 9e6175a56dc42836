//! A refusal in the words of HTTP and gRPC: a status and a problem (RFC 9457), or a status and its
//! details.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};

use super::fields::refusal_seconds;
use super::grpc::{self, Code};
use super::policies::policy_name;
use super::refusal::RefusalKind;
use crate::Ruling;

/// What is told of a refusal.
#[derive(Debug)]
pub(super) struct RefusalReport<'a> {
    pub(super) kind: RefusalKind,
    pub(super) ruling: Option<&'a Ruling>,
    /// In place of what the kind says.
    pub(super) detail: Option<Cow<'a, str>>,
    /// How much later than it might a client is to come back.
    pub(super) later: Duration,
}

impl RefusalReport<'_> {
    pub(super) const fn status(&self) -> StatusCode {
        match self.kind {
            RefusalKind::Limited | RefusalKind::Banned => StatusCode::TOO_MANY_REQUESTS,
            RefusalKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            RefusalKind::Blocked => StatusCode::FORBIDDEN,
            RefusalKind::Malformed(_) => StatusCode::BAD_REQUEST,
            RefusalKind::TooManyLimits | RefusalKind::NoPeer => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(super) fn retry_after(&self) -> Option<u64> {
        self.retry().map(refusal_seconds)
    }

    pub(super) fn policies(&self) -> Vec<String> {
        let Some(ruling) = self.ruling else { return Vec::new() };
        let refusing = ruling.findings().filter(|finding| !finding.decision.passes());
        refusing.filter_map(|finding| policy_name(&finding)).collect()
    }

    fn retry(&self) -> Option<Duration> {
        Some(self.ruling?.retry_after()?.saturating_add(self.later))
    }

    /// A response of trailers only, to a request with these headers.
    pub(super) fn status_response(&self, request: &HeaderMap) -> Response<Bytes> {
        let (code, detail, policies) = (self.code(), self.detail(), self.policies());
        grpc::response(request, code, &detail, self.retry(), &policies)
    }

    /// A problem.
    pub(super) fn problem_response(&self) -> Response<Bytes> {
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

    fn detail(&self) -> Cow<'_, str> {
        if let Some(detail) = &self.detail {
            return Cow::Borrowed(detail);
        }
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

/// A JSON string.
fn quote(text: &str, json: &mut String) {
    json.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => {
                json.push('\\');
                json.push(letter);
            }
            '\0'..='\u{1f}' => {
                // Writing into a string does not fail.
                let _ = write!(json, "\\u{:04x}", u32::from(letter));
            }
            _ => json.push(letter),
        }
    }
    json.push('"');
}
