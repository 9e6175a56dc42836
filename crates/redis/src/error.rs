//! Errors: failed connections, and the causes of failed calls. None contains a secret.

use std::error::Error;
use std::fmt;

use tollgate_core::{StoreError, StoreErrorKind};

/// The error of [`RedisStore::connect`](crate::RedisStore::connect). [`ConnectError::kind`] says what
/// to do about it.
///
/// A server that cannot be reached is not among the reasons there: the store starts without a
/// connection and keeps trying, so that a node restarted during an outage serves what it can.
#[derive(Debug)]
pub struct ConnectError {
    kind: ConnectErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// The thing that someone has to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The settings contradict themselves or this build: a URL, a certificate file.
    Settings,
    /// The server does not accept the user name and password, or requires some.
    Authentication,
    /// The scripts do not run on this server.
    Unsupported,
    /// The server cannot be reached or does not answer; waiting may help.
    Unreachable,
}

impl ConnectError {
    pub(crate) fn new(kind: ConnectErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn settings(message: impl Into<String>) -> Self {
        Self::new(ConnectErrorKind::Settings, message)
    }

    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self::new(ConnectErrorKind::Unreachable, message)
    }

    pub(crate) fn with_source(self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// Returns the thing that someone has to change.
    pub const fn kind(&self) -> ConnectErrorKind {
        self.kind
    }

    /// Returns whether a retry cannot help until someone changed something.
    pub(crate) fn is_permanent(&self) -> bool {
        self.kind != ConnectErrorKind::Unreachable
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&**self.source.as_ref()?)
    }
}

/// The cause of a failed call, the source of its [`StoreError`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    NotConnected,
    BreakerOpen,
    TooManyInFlight,
    DeadlinePassed,
    NoReply,
    Lost,
    Late,
    MalformedReply,
    Stopped,
    NoLock,
    Answer { code: String, detail: String },
}

impl Cause {
    /// The error of a call that was certainly not executed.
    pub(crate) fn unavailable(self) -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable).with_source(self)
    }

    /// The error of a call that may have been executed.
    pub(crate) fn timeout(self) -> StoreError {
        StoreError::new(StoreErrorKind::Timeout).with_source(self)
    }

    /// The error of a call whose key holds the data of another program.
    pub(crate) fn corrupt(self) -> StoreError {
        StoreError::new(StoreErrorKind::Corrupt).with_source(self)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NotConnected => "no connection to redis",
            Self::BreakerOpen => {
                "redis does not answer; the breaker is open until it answers a PING"
            }
            Self::TooManyInFlight => "too many calls are waiting for redis",
            Self::DeadlinePassed => "the deadline passed before the call was sent",
            Self::NoReply => "redis did not reply before the deadline",
            Self::Lost => "the connection to redis ended before the reply",
            Self::Late => "the call reached redis too late and was dropped there",
            Self::Stopped => "the thread of the store has ended",
            Self::NoLock => "the key holds no lock",
            Self::MalformedReply => "the reply of the script is malformed",
            Self::Answer { code, detail } => return write!(f, "redis answered {code} {detail}"),
        };
        f.write_str(text)
    }
}

impl Error for Cause {}
