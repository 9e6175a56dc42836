//! Why Redis could not be used, or did not answer. Never with a secret in it.

use std::error::Error;
use std::fmt;

use tollgate_core::{StoreError, StoreErrorKind};

/// Why no link to Redis could be made. [`ConnectError::kind`] tells what to do about it.
///
/// A server that cannot be reached is not among the reasons: the link then comes up without a
/// connection and keeps trying, so that a node restarted during an outage serves what it can.
#[derive(Debug)]
pub struct ConnectError {
    kind: ConnectErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What somebody has to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The settings contradict themselves or this build: a URL, a certificate file.
    Settings,
    /// The server does not accept the user name and password, or wants some.
    Authentication,
    /// The server is not one that the scripts run on.
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

    /// What somebody has to change.
    pub const fn kind(&self) -> ConnectErrorKind {
        self.kind
    }

    /// Whether trying again cannot help until a person changed something.
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
        match &self.source {
            Some(source) => Some(&**source),
            None => None,
        }
    }
}

/// What stood between a call and its answer: the source of a [`StoreError`].
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
    /// The error for a call that is certain not to have been executed.
    pub(crate) fn unavailable(self) -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable).with_source(self)
    }

    /// The error for a call that may have been executed.
    pub(crate) fn timeout(self) -> StoreError {
        StoreError::new(StoreErrorKind::Timeout).with_source(self)
    }

    /// The error for a call that met somebody else's bytes.
    pub(crate) fn corrupt(self) -> StoreError {
        StoreError::new(StoreErrorKind::Corrupt).with_source(self)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected => f.write_str("no connection to redis"),
            Self::BreakerOpen => f.write_str("redis does not answer; waiting for a PING to pass"),
            Self::TooManyInFlight => f.write_str("too many calls wait for redis already"),
            Self::DeadlinePassed => f.write_str("the deadline had passed before the call"),
            Self::NoReply => f.write_str("redis did not reply before the deadline"),
            Self::Lost => f.write_str("the connection to redis ended before the reply"),
            Self::Late => f.write_str("the call reached redis too late and was dropped there"),
            Self::Stopped => f.write_str("the thread of the store has ended"),
            Self::NoLock => f.write_str("what is kept under the name is no lock"),
            Self::MalformedReply => f.write_str("the reply of the script makes no sense"),
            Self::Answer { code, detail } => write!(f, "redis answered {code} {detail}"),
        }
    }
}

impl Error for Cause {}
