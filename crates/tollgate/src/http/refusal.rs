//! Why a client may not pass, for the layer and for an application that answers itself.
//! `report.rs` says it in the layer's own words.
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

/// A request that does not pass, for an application that answers itself.
#[derive(Debug)]
pub struct Refusal<'a> {
    report: RefusalReport<'a>,
    request: &'a Parts,
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
    pub(super) fn of(ruling: &Ruling) -> Self {
        ruling.cause().into()
    }
}

/// What is wrong with a request that cannot be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// An attribute has no canonical form, or is too long.
    Attribute(AskError),
    /// Its path has a segment that rules would leave out and a router would not: an empty one,
    /// `.`, `..`, or only `;parameters`.
    Segments,
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
            Self::Segments => {
                f.write_str("the path has a segment that is empty, `.`, `..` or only parameters")
            }
            Self::TwoHosts => f.write_str("the request names two hosts"),
            Self::Hops(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Malformed {}

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
pub(super) type RespondFn = Arc<dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync>;

impl<'a> Refusal<'a> {
    pub(super) fn unjudged(kind: RefusalKind, request: &'a Parts) -> Self {
        Self {
            report: RefusalReport { kind, ruling: None, detail: None, later: Duration::ZERO },
            request,
        }
    }

    /// A refusal by a ruling, whose client is to come back so much later than it might.
    pub(super) fn judged(ruling: &'a Ruling, later: Duration, request: &'a Parts) -> Self {
        let kind = RefusalKind::of(ruling);
        Self { report: RefusalReport { kind, ruling: Some(ruling), detail: None, later }, request }
    }

    /// Why.
    pub const fn kind(&self) -> RefusalKind {
        self.report.kind
    }

    /// The status that the layer would answer with.
    pub const fn status(&self) -> StatusCode {
        self.report.status()
    }

    /// Whole seconds after which asking again can help, at least 1; `None` if it never does. With
    /// the layer's jitter, if it has one.
    pub fn retry_after(&self) -> Option<u64> {
        self.report.retry_after()
    }

    /// The names of the limits that refuse, as in `RateLimit-Policy`.
    pub fn policies(&self) -> Vec<String> {
        self.report.policies()
    }

    /// What was decided, rule by rule; `None` if nothing could be.
    pub const fn ruling(&self) -> Option<&'a Ruling> {
        self.report.ruling
    }

    /// The request.
    pub const fn request(&self) -> &'a Parts {
        self.request
    }

    /// The layer's own answer, for an application that only wants to look on, or to add to it.
    pub fn respond(&self) -> Response<Bytes> {
        if grpc::is_grpc(self.request) {
            return self.report.status_response(&self.request.headers);
        }
        self.report.problem_response()
    }
}
