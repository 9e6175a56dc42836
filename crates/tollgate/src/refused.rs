//! The error of a function under `#[limit]` that may not run.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::decision::Cause;
use crate::{Finding, Ruling};

/// The error for a call that was refused, with the reason.
///
/// A function under `#[limit]` returns it as its error, by `From`. With the feature `axum` it
/// converts into a response: that of the layer, with the message as its detail.
///
/// ```
/// use tollgate::{EmbeddedStore, Limiter, Refused, RefusedKind, limit, scope};
///
/// #[derive(Debug)]
/// enum LoginError { TooFast(Refused), WrongPassword }
///
/// impl From<Refused> for LoginError {
///     fn from(refused: Refused) -> Self { Self::TooFast(refused) }
/// }
///
/// #[limit("1 per 1m", message = "too many attempts, try again later")]
/// fn login() -> Result<(), LoginError> { Err(LoginError::WrongPassword) }
///
/// let limiter = Limiter::new(EmbeddedStore::new());
/// scope::call(&limiter, || {
///     assert!(matches!(login(), Err(LoginError::WrongPassword)));
///     let Err(LoginError::TooFast(refused)) = login() else { panic!() };
///     assert_eq!(refused.kind(), RefusedKind::Limited);
///     assert_eq!(refused.message(), Some("too many attempts, try again later"));
///     assert!(refused.retry_after().is_some());
///     assert_eq!(refused.refusing().unwrap().limit.unwrap().name(), "1m");
/// });
/// ```
#[derive(Debug)]
pub struct Refused {
    // Boxed, as it is the error of whatever a function returns.
    inner: Box<RefusedInner>,
}

#[derive(Debug)]
struct RefusedInner {
    kind: RefusedKind,
    function: Cow<'static, str>,
    message: Option<&'static str>,
    ruling: Option<Ruling>,
    problem: Cow<'static, str>,
}

/// The reason why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusedKind {
    /// A limit refuses it.
    Limited,
    /// A ban refuses it, because of earlier refusals.
    Banned,
    /// The store does not answer, and a rule refuses in an outage.
    Unavailable,
    /// A list or a rule blocks it, whatever the counters say.
    Blocked,
    /// An attribute of the request that is part of a counter's key is malformed.
    Malformed,
    /// The program is wrong: there is no limiter in scope, no such rule, or no such attribute. The
    /// text of [`Refused`] says how to fix it.
    Misconfigured,
}

impl Refused {
    pub(crate) fn judged(function: &str, message: Option<&'static str>, ruling: Ruling) -> Self {
        let (kind, problem) = match ruling.cause() {
            Cause::Limited => (RefusedKind::Limited, ""),
            Cause::Banned => (RefusedKind::Banned, ""),
            Cause::Unavailable => (RefusedKind::Unavailable, ""),
            Cause::Blocked => (RefusedKind::Blocked, ""),
            Cause::TooManyLimits => (RefusedKind::Misconfigured, "more than 64 limits apply"),
        };
        let function = function.to_owned().into();
        let problem = problem.into();
        Self {
            inner: Box::new(RefusedInner {
                kind,
                function,
                message,
                ruling: Some(ruling),
                problem,
            }),
        }
    }

    pub(crate) fn unjudged(
        function: &str,
        kind: RefusedKind,
        problem: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (function, problem) = (function.to_owned().into(), problem.into());
        let inner = RefusedInner { kind, function, message: None, ruling: None, problem };
        Self { inner: Box::new(inner) }
    }

    /// The kind of reason.
    pub const fn kind(&self) -> RefusedKind {
        self.inner.kind
    }

    /// The path of the function, such as `shop::orders::Orders::create`.
    pub fn function(&self) -> &str {
        &self.inner.function
    }

    /// The `message` of the attribute whose limit refuses, if it has one.
    pub const fn message(&self) -> Option<&'static str> {
        self.inner.message
    }

    /// The time after which calling again can help, never zero; `None` if it never helps.
    pub fn retry_after(&self) -> Option<Duration> {
        self.ruling().and_then(Ruling::retry_after)
    }

    /// The name of the rule that refuses: one of the limiter's, or that of the function if one of
    /// the function's limits refuses.
    pub fn refused_by(&self) -> Option<&str> {
        self.ruling().and_then(Ruling::refused_by)
    }

    /// The limit that refuses; of several, the one with the longest retry.
    pub fn refusing(&self) -> Option<Finding<'_>> {
        self.ruling().and_then(Ruling::refusing)
    }

    /// The decision, limit by limit; `None` if there is none.
    pub const fn ruling(&self) -> Option<&Ruling> {
        self.inner.ruling.as_ref()
    }

    /// The problem, if no limit refuses.
    pub(crate) fn problem(&self) -> &str {
        &self.inner.problem
    }
}

/// Prints the message if there is one, else the event and the function.
impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(message) = self.message() {
            return f.write_str(message);
        }
        write!(f, "`{}` ", self.function())?;
        match self.kind() {
            RefusedKind::Limited => f.write_str("is over its limit")?,
            RefusedKind::Banned => f.write_str("was refused too often")?,
            RefusedKind::Unavailable => f.write_str("cannot be checked at present")?,
            RefusedKind::Blocked => f.write_str("is blocked")?,
            RefusedKind::Malformed | RefusedKind::Misconfigured => {
                write!(f, "cannot be limited: {}", self.problem())?;
            }
        }
        if let Some(limit) = self.refusing().and_then(|finding| finding.limit) {
            write!(f, " of {}", limit.text())?;
        }
        match self.retry_after() {
            Some(retry) => write!(f, ": call again after {retry:?}"),
            None => Ok(()),
        }
    }
}

impl Error for Refused {}
