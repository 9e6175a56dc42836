//! The response to a refusal by a function under `#[limit]`: the same as the layer's.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tollgate_core::rule::AskError;

use super::fields::{ResponseFields, add_retry_after};
use super::policies::Policies;
use super::refusal::{MalformedRequest, RefusalKind};
use super::refusal_report::RefusalReport;
use crate::{Refused, RefusedKind};

impl Refused {
    /// The response that the layer would give: 429 with `Retry-After`, `RateLimit` and
    /// `RateLimit-Policy`; 503 if the store does not answer; 403 if the request is blocked. The body is a
    /// problem (RFC 9457) whose `detail` is the attribute's `message`.
    ///
    /// ```
    /// use tollgate::{EmbeddedStore, Limiter, Refused, limit, scope};
    ///
    /// #[limit("1 per 1m", message = "slow down")]
    /// fn pay() -> Result<(), Refused> { Ok(()) }
    ///
    /// scope::call(&Limiter::new(EmbeddedStore::new()), || {
    ///     assert!(pay().is_ok());
    ///     let response = pay().unwrap_err().response();
    ///     assert_eq!(response.status(), 429);
    ///     assert_eq!(response.headers()["ratelimit-policy"], r#""pay";q=1;w=60"#);
    ///     assert!(String::from_utf8_lossy(response.body()).contains(r#""detail":"slow down""#));
    /// });
    /// ```
    pub fn response(&self) -> Response<Bytes> {
        // The detail names what is malformed or misconfigured.
        let kind = match self.kind() {
            RefusedKind::Limited => RefusalKind::Limited,
            RefusedKind::Banned => RefusalKind::Banned,
            RefusedKind::Unavailable => RefusalKind::Unavailable,
            RefusedKind::Blocked => RefusalKind::Blocked,
            RefusedKind::Malformed => {
                RefusalKind::Malformed(MalformedRequest::Attribute(AskError::Name))
            }
            RefusedKind::Misconfigured => RefusalKind::TooManyLimits,
        };
        let problem = Some(self.problem()).filter(|problem| !problem.is_empty());
        let detail = self.message().or(problem).map(Into::into);
        let report = RefusalReport { kind, ruling: self.ruling(), detail, later: Duration::ZERO };
        let mut response = report.problem_response();
        add_retry_after(report.retry_after(), response.headers_mut());
        if let Some(ruling) = self.ruling() {
            let policies = Policies::of(ruling);
            let fields = ResponseFields::new(ruling, &policies, None, Duration::ZERO);
            fields.add_to(response.headers_mut());
        }
        response
    }
}

impl From<Refused> for Response<Bytes> {
    fn from(refused: Refused) -> Self {
        refused.response()
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Refused {
    fn into_response(self) -> axum::response::Response {
        self.response().map(axum::body::Body::from)
    }
}
