//! The interface of stores that keep counters.

use std::fmt;
use std::slice;
use std::sync::Arc;

use crate::{Answer, Key, Request};

/// Keeps counters and executes requests on them, each all or none.
///
/// A store owns its clock. Every store must pass the suite of the `testing` feature.
pub trait Store: Send + Sync {
    /// True for a store that takes a round trip and can fail to answer. For a local store, callers
    /// skip the deny cache and the outage fallback. A local store answers when it is first polled.
    const REMOTE: bool = true;

    /// [`Store::REMOTE`] of this value, for a type that may be either, such as an enum of stores.
    fn is_remote(&self) -> bool {
        Self::REMOTE
    }

    /// Executes the requests in order. Each sees the charges of those before it.
    ///
    /// # Errors
    ///
    /// When the store could not answer in time, or at all. The error says if charges may have
    /// happened.
    fn charge(
        &self,
        batch: &[Request<'_>],
    ) -> impl Future<Output = Result<Vec<Answer>, StoreError>> + Send;

    /// Executes one request. A store that does not need a list of one overrides it.
    ///
    /// # Errors
    ///
    /// As [`Store::charge`].
    fn decide(
        &self,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        async {
            let mut answers = self.charge(slice::from_ref(request)).await?;
            // A store that returns no answer broke its contract; it may have charged.
            answers.pop().ok_or(StoreError::new(StoreErrorKind::Timeout))
        }
    }

    /// Decides as [`Store::decide`] does, without a future, if the store is in this process. A
    /// remote store returns false and charges nothing.
    fn decide_at_once(&self, request: &Request<'_>, answer: &mut Answer) -> bool {
        let _ = (request, answer);
        false
    }

    /// Reads the value under a name. Values configure counting, such as a rate that several
    /// processes share. A value is never a counter, whatever its name.
    ///
    /// # Errors
    ///
    /// When the store could not answer.
    fn read(
        &self,
        name: Key<'_>,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// Sets the value under a name if it is still `expected` (`None`: if there is none). Returns
    /// the value that is there now: `new`, or that of another process. A value has at most
    /// [`MAX_VALUE`] bytes.
    ///
    /// # Errors
    ///
    /// When the store could not answer: after a timeout the value may have been set, and you may
    /// try again. When the value is too long, or the store has no room for it.
    fn compare_and_set(
        &self,
        name: Key<'_>,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;
}

/// The longest value of [`Store::compare_and_set`]: far more than a setting needs.
pub const MAX_VALUE: usize = 64 * 1024;

impl<S: Store> Store for Arc<S> {
    const REMOTE: bool = S::REMOTE;

    fn is_remote(&self) -> bool {
        S::is_remote(self)
    }

    async fn charge(&self, batch: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        S::charge(self, batch).await
    }

    async fn decide(&self, request: &Request<'_>) -> Result<Answer, StoreError> {
        S::decide(self, request).await
    }

    fn decide_at_once(&self, request: &Request<'_>, answer: &mut Answer) -> bool {
        S::decide_at_once(self, request, answer)
    }

    async fn read(&self, name: Key<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        S::read(self, name).await
    }

    async fn compare_and_set(
        &self,
        name: Key<'_>,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        S::compare_and_set(self, name, expected, new).await
    }
}

/// The reason why a store did not answer. [`StoreError::kind`] says how to react.
///
/// It can be cloned, because one failure may answer many callers.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The kind of failure, by the possible reaction of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No answer in time. The charge may or may not have happened.
    Timeout,
    /// The backend refused or is gone. Nothing was charged.
    Unavailable,
    /// Tollgate did not write the stored bytes.
    Corrupt,
}

impl StoreError {
    /// An error of this kind.
    pub const fn new(kind: StoreErrorKind) -> Self {
        Self { kind, source: None }
    }

    /// Returns the error with its cause.
    pub fn with_source(self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: Some(Arc::from(source.into())), ..self }
    }

    /// Returns the failure for a case in which something has already been charged.
    pub fn after_a_charge(self) -> Self {
        Self { kind: StoreErrorKind::Timeout, ..self }
    }

    /// The kind of failure, by the possible reaction of a caller.
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            StoreErrorKind::Timeout => {
                "the store did not answer in time; the charge may have happened"
            }
            StoreErrorKind::Unavailable => "the store is unavailable; nothing was charged",
            StoreErrorKind::Corrupt => "the store holds bytes that Tollgate did not write",
        })
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&**self.source.as_ref()?)
    }
}
