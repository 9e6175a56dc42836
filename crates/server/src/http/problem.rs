//! Problems (RFC 9457): errors for programs and for people.

use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use serde_json::{Map, Value};

use super::body::Body;

/// A response that reports an error.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    members: Map<String, Value>,
    retry_after: Option<u64>,
    closes: bool,
}

impl Problem {
    /// A problem with this status and reason.
    pub(crate) fn new(status: u16, detail: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let problem = Self { status, members: Map::new(), retry_after: None, closes: false };
        let title = status.canonical_reason().unwrap_or("Error");
        let problem = problem.with("type", "about:blank").with("title", title);
        problem.with("status", status.as_u16()).with("detail", detail.into())
    }

    /// The same with one more member.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// The same with `Retry-After` in seconds.
    pub(crate) const fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The same as the last response of its connection, because the bytes behind the faulty request cannot
    /// be read.
    pub(crate) const fn close(mut self) -> Self {
        self.closes = true;
        self
    }
}

impl From<Problem> for Response<Body> {
    fn from(problem: Problem) -> Self {
        let mut response = Self::new(Value::Object(problem.members).to_string().into());
        *response.status_mut() = problem.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if problem.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = problem.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if problem.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A response with this object.
pub(crate) fn json(status: StatusCode, value: &impl serde::Serialize) -> Response<Body> {
    let Ok(bytes) = serde_json::to_vec(value) else {
        return Problem::new(500, "cannot write the answer").into();
    };
    let mut response = typed("application/json", bytes);
    *response.status_mut() = status;
    response
}

/// A response with this body, of this type.
pub(crate) fn typed(kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
