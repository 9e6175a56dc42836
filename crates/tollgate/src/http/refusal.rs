//! A refusal, as an application that writes its own responses sees it. `refusal_report.rs` renders
//! the layer's default response.
//!
//! | Kind | HTTP | gRPC | Problem |
//! |---|---|---|---|
//! | a limit, a ban | 429 | `RESOURCE_EXHAUSTED` | `quota-exceeded`, `abnormal-usage-detected` |
//! | the store is away | 503 | `UNAVAILABLE` | `temporary-reduced-capacity` |
//! | blocked | 403 | `PERMISSION_DENIED` | none |
//! | malformed | 400 | `INVALID_ARGUMENT` | none |
//! | misconfigured | 500 | `INTERNAL` | none |

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tollgate_core::rule::AskError;

use super::client::TooManyHops;
use super::grpc;
use super::refusal_report::RefusalReport;
use crate::Ruling;
use crate::decision::Cause;

/// A request that does not pass, for an application that writes its own responses.
#[derive(Debug)]
pub struct Refusal<'a> {
    report: RefusalReport<'a>,
    request: &'a Parts,
}

/// The reason why a request does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalKind {
    /// A limit refuses it: 429.
    Limited,
    /// A ban after earlier refusals: 429.
    Banned,
    /// The store does not answer, and a rule says `on-outage: refuse`: 503.
    Unavailable,
    /// A list or a rule blocks it: 403.
    Blocked,
    /// An attribute that rules look at is malformed: 400.
    Malformed(MalformedRequest),
    /// More limits apply than one request may be charged on: 500.
    TooManyLimits,
    /// Rules look at the client's address, and the server does not provide the peer: 500. Letting
    /// the request pass would silently limit nobody.
    NoPeer,
}

impl RefusalKind {
    /// The reason of a ruling that refuses.
    pub(super) fn of(ruling: &Ruling) -> Self {
        ruling.cause().into()
    }
}

/// The error in a malformed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MalformedRequest {
    /// An attribute has no canonical form, or is too long.
    Attribute(AskError),
    /// The path has a segment that rules drop and routers may not: an empty one, `.`, `..`, or only
    /// `;parameters`.
    Segments,
    /// The request names two hosts.
    TwoHosts,
    /// The list of proxies is too long.
    Hops(TooManyHops),
}

impl fmt::Display for MalformedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attribute(AskError::Path(error)) => error.fmt(f),
            Self::Attribute(AskError::Host(error)) => error.fmt(f),
            Self::Attribute(error) => error.fmt(f),
            Self::Segments => {
                f.write_str("the path has a segment that is empty, `.`, `..` or only parameters")
            }
            Self::TwoHosts => f.write_str("the request names two hosts"),
            Self::Hops(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MalformedRequest {}

impl From<Cause> for RefusalKind {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Limited => Self::Limited,
            Cause::Banned => Self::Banned,
            Cause::Unavailable => Self::Unavailable,
            Cause::Blocked => Self::Blocked,
            Cause::TooManyLimits => Self::TooManyLimits,
        }
    }
}

impl From<AskError> for MalformedRequest {
    fn from(error: AskError) -> Self {
        Self::Attribute(error)
    }
}

impl From<TooManyHops> for MalformedRequest {
    fn from(error: TooManyHops) -> Self {
        Self::Hops(error)
    }
}

/// Writes the application's response to a refusal.
pub(super) type RespondFn = Arc<dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync>;

impl<'a> Refusal<'a> {
    pub(super) fn unjudged(kind: RefusalKind, request: &'a Parts) -> Self {
        Self {
            report: RefusalReport { kind, ruling: None, detail: None, later: Duration::ZERO },
            request,
        }
    }

    /// A refusal by a ruling. `later` is added to the time of the retry.
    pub(super) fn judged(ruling: &'a Ruling, later: Duration, request: &'a Parts) -> Self {
        let kind = RefusalKind::of(ruling);
        Self { report: RefusalReport { kind, ruling: Some(ruling), detail: None, later }, request }
    }

    /// The reason.
    pub const fn kind(&self) -> RefusalKind {
        self.report.kind
    }

    /// The status of the layer's own response.
    pub const fn status(&self) -> StatusCode {
        self.report.status()
    }

    /// Whole seconds after which asking again can help, at least 1; `None` if it never does. Includes
    /// the layer's jitter.
    pub fn retry_after(&self) -> Option<u64> {
        self.report.retry_after()
    }

    /// The names of the limits that refuse, as in `RateLimit-Policy`.
    pub fn policies(&self) -> Vec<String> {
        self.report.policies()
    }

    /// The ruling; `None` if the limiter could not be asked.
    pub const fn ruling(&self) -> Option<&'a Ruling> {
        self.report.ruling
    }

    /// The request.
    pub const fn request(&self) -> &'a Parts {
        self.request
    }

    /// The layer's own response, for an application that only observes refusals or adds to them.
    pub fn respond(&self) -> Response<Bytes> {
        if grpc::is_grpc(self.request) {
            return self.report.status_response(&self.request.headers);
        }
        self.report.problem_response()
    }
}
