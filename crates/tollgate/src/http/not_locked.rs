//! The response of a function under `#[lock]` that did not get its lock.

use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use super::problem;
use crate::{LockError, NotLocked, NotLockedKind};

impl NotLocked {
    /// A response with a problem (RFC 9457): 409 if another owner has the lock, 503 with `Retry-After` if
    /// the lock was lost or the store does not answer, 400 for a value that makes no valid name, 500 if the
    /// function has no locks to use. It does not name the lock, because names may be confidential.
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
        let (status, detail) = match (self.kind(), self.error()) {
            (NotLockedKind::Busy, _) => {
                (StatusCode::CONFLICT, "another request holds the lock: ask again later")
            }
            (NotLockedKind::Lost, _) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "stopped before it was done: check the state, and ask again",
            ),
            (NotLockedKind::Failed, Some(LockError::Name(_))) => {
                (StatusCode::BAD_REQUEST, "a value is empty or too long")
            }
            (NotLockedKind::Failed, _) => (StatusCode::SERVICE_UNAVAILABLE, "ask again later"),
            (NotLockedKind::Misconfigured, _) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "a function has no locks to use")
            }
        };
        let mut response = problem::response(status, None, detail, &[]);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
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
