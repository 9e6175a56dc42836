//! Renders refusals: for HTTP a status and a problem (RFC 9457), for gRPC a status with details.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};

use super::fields::refusal_seconds;
use super::grpc::{self, GrpcCode};
use super::policies::policy_name;
use super::problem;
use super::refusal::RefusalKind;
use crate::Ruling;

/// The content of a response to a refusal.
#[derive(Debug)]
pub(super) struct RefusalReport<'a> {
    pub(super) kind: RefusalKind,
    pub(super) ruling: Option<&'a Ruling>,
    /// Replaces the detail of the kind.
    pub(super) detail: Option<Cow<'a, str>>,
    /// Added to the time of the retry.
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

    /// A gRPC response of trailers only, to a request with these headers.
    pub(super) fn status_response(&self, request: &HeaderMap) -> Response<Bytes> {
        let (code, detail, policies) = (self.code(), self.detail(), self.policies());
        grpc::response(request, code, &detail, self.retry(), &policies)
    }

    /// An HTTP response with a problem as its body.
    pub(super) fn problem_response(&self) -> Response<Bytes> {
        let registered = match self.kind {
            RefusalKind::Limited => Some(("quota-exceeded", "Quota exceeded")),
            RefusalKind::Banned => Some(("abnormal-usage-detected", "Abnormal usage detected")),
            RefusalKind::Unavailable => {
                Some(("temporary-reduced-capacity", "Temporarily reduced capacity"))
            }
            _ => None,
        };
        problem::response(self.status(), registered, &self.detail(), &self.policies())
    }

    const fn code(&self) -> GrpcCode {
        match self.kind {
            RefusalKind::Limited | RefusalKind::Banned => GrpcCode::ResourceExhausted,
            RefusalKind::Unavailable => GrpcCode::Unavailable,
            RefusalKind::Blocked => GrpcCode::PermissionDenied,
            RefusalKind::Malformed(_) => GrpcCode::InvalidArgument,
            RefusalKind::TooManyLimits | RefusalKind::NoPeer => GrpcCode::Internal,
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
            (RefusalKind::Limited, None) => Cow::Borrowed("the cost is above the burst"),
            (RefusalKind::Banned, Some(seconds)) => {
                Cow::Owned(format!("refused too often; ask again after {seconds} s"))
            }
            (RefusalKind::Banned, None) => Cow::Borrowed("refused too often"),
            (RefusalKind::Unavailable, _) => Cow::Borrowed("limits cannot be checked at present"),
            (RefusalKind::Blocked, _) => Cow::Borrowed("not admitted here"),
            (RefusalKind::Malformed(what), _) => Cow::Owned(what.to_string()),
            (RefusalKind::TooManyLimits, _) => Cow::Borrowed("too many limits apply"),
            (RefusalKind::NoPeer, _) => Cow::Borrowed("the address of the peer is unknown"),
        }
    }
}
