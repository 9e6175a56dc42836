//! What a client is told by a function under `#[lock]` that had no lock.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::{LockError, NotLocked, NotLockedKind};

impl NotLocked {
    /// A response with a problem (RFC 9457): 409 if somebody else has the lock, 503 with `Retry-After` if
    /// it was lost or the store is away, 400 for a value that makes no name, 500 if the program is
    /// wrong. It does not name the lock, which may not be for clients to know.
    ///
    /// ```
    /// use tollgate::{EmbeddedStore, Locks, NotLocked, lock};
    ///
    /// #[lock("order:{id}", wait = "0s", locks = locks)]
    /// async fn pay(locks: &Locks<EmbeddedStore>, id: u64) -> Result<(), NotLocked> { Ok(()) }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let locks = Locks::new(EmbeddedStore::new());
    /// let _held = locks.lock("order:42").await.unwrap();
    /// let response = pay(&locks, 42).await.unwrap_err().response();
    /// assert_eq!(response.status(), 409);
    /// assert!(!String::from_utf8_lossy(response.body()).contains("order:42"));
    /// # }
    /// ```
    pub fn response(&self) -> Response<Bytes> {
        let (status, title, detail) = match (self.kind(), self.error()) {
            (NotLockedKind::Busy, _) => {
                (StatusCode::CONFLICT, "Conflict", "somebody else is at it: ask again later")
            }
            (NotLockedKind::Lost, _) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Service Unavailable",
                "stopped before its end: look what was done, and ask again",
            ),
            (NotLockedKind::Failed, Some(LockError::Name(_))) => {
                (StatusCode::BAD_REQUEST, "Bad Request", "a value is empty or too long")
            }
            (NotLockedKind::Failed, _) => {
                (StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable", "ask again later")
            }
            (NotLockedKind::Misconfigured, _) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "Internal Server Error",
                "a function has no locks to run under",
            ),
        };
        let number = status.as_u16();
        let body = format!(
            r#"{{"type":"about:blank","title":"{title}","status":{number},"detail":"{detail}"}}"#
        );
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<NotLocked> for Response<Bytes> {
    fn from(not: NotLocked) -> Self {
        not.response()
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for NotLocked {
    fn into_response(self) -> axum::response::Response {
        self.response().map(axum::body::Body::from)
    }
}
