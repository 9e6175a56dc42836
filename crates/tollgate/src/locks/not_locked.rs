//! The error of a function under `#[lock]` that could not run under its lock.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tollgate_core::lock::LockName;

use super::LockError;

/// The error for a call that did not run under its lock from beginning to end, with the reason.
///
/// A function under `#[lock]` returns it as its error, by `From`.
///
/// ```
/// use tollgate::{EmbeddedStore, Locks, NotLocked, NotLockedKind, lock};
///
/// #[lock("order:{id}", wait = "0s", locks = locks)]
/// async fn pay(locks: &Locks<EmbeddedStore>, id: u64) -> Result<u64, NotLocked> { Ok(id) }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let locks = Locks::new(EmbeddedStore::new());
/// let guard = locks.lock("order:42").await.unwrap();
/// let busy = pay(&locks, 42).await.unwrap_err();
/// assert_eq!(busy.kind(), NotLockedKind::Busy);
/// assert_eq!(busy.name().unwrap().as_str(), "order:42");
///
/// guard.release().await.unwrap();
/// assert_eq!(pay(&locks, 42).await.unwrap(), 42);
/// # }
/// ```
#[derive(Debug)]
pub struct NotLocked {
    // Boxed, as it is the error of whatever a function returns.
    inner: Box<NotLockedInner>,
}

#[derive(Debug)]
struct NotLockedInner {
    function: &'static str,
    name: Option<LockName>,
    why: NotLockedReason,
}

#[derive(Debug)]
pub(super) enum NotLockedReason {
    Busy { waited: Duration },
    Stopped,
    FoundOut,
    Failed(LockError),
    NoScope,
    NoText,
}

/// The reason why a call did not run under its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotLockedKind {
    /// Another owner held the lock for longer than the call waits. The function did not run.
    Busy,
    /// The lock was lost while the function ran. [`NotLocked::finished`] says if the function ran
    /// to its end.
    Lost,
    /// The lock could not be acquired: the store does not answer, or the name is empty or too long.
    /// The function did not run; the source has the reason.
    Failed,
    /// The program is wrong: no locks are in scope, or a value cannot be displayed. The function
    /// did not run.
    Misconfigured,
}

impl NotLocked {
    pub(super) fn new(
        function: &'static str,
        name: Option<LockName>,
        why: NotLockedReason,
    ) -> Self {
        Self { inner: Box::new(NotLockedInner { function, name, why }) }
    }

    /// The kind of reason.
    pub const fn kind(&self) -> NotLockedKind {
        match self.inner.why {
            NotLockedReason::Busy { .. } => NotLockedKind::Busy,
            NotLockedReason::Stopped | NotLockedReason::FoundOut => NotLockedKind::Lost,
            NotLockedReason::Failed(_) => NotLockedKind::Failed,
            NotLockedReason::NoScope | NotLockedReason::NoText => NotLockedKind::Misconfigured,
        }
    }

    /// The path of the function, such as `shop::orders::Orders::pay`.
    pub const fn function(&self) -> &'static str {
        self.inner.function
    }

    /// The lock; `None` if its name is empty or too long.
    pub const fn name(&self) -> Option<&LockName> {
        self.inner.name.as_ref()
    }

    /// True if the function ran to its end although the lock was lost: the loss was found out at
    /// the end, or the function could not be stopped before. Its output is dropped, since another
    /// owner may have had the lock meanwhile. The fence lets the resource judge its effects.
    pub const fn finished(&self) -> bool {
        matches!(self.inner.why, NotLockedReason::FoundOut)
    }

    /// The error behind [`NotLockedKind::Failed`].
    pub const fn error(&self) -> Option<&LockError> {
        match &self.inner.why {
            NotLockedReason::Failed(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for NotLocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ", self.function())?;
        let name = self.name().map_or("", LockName::as_str);
        match &self.inner.why {
            NotLockedReason::Busy { waited } if waited.is_zero() => {
                write!(f, "did not run: another owner holds the lock {name:?}")
            }
            NotLockedReason::Busy { waited } => {
                write!(f, "did not run: another owner held the lock {name:?} for {waited:?}")
            }
            NotLockedReason::Stopped => write!(f, "was stopped: its lock {name:?} was lost"),
            NotLockedReason::FoundOut => write!(
                f,
                "came to its end, but its lock {name:?} was lost before: somebody else may have \
                 had it"
            ),
            NotLockedReason::Failed(_) => f.write_str("did not run: its lock could not be taken"),
            NotLockedReason::NoScope => f.write_str(
                "did not run: no locks are in scope: write `locks = …` in its `#[lock]`, or run it \
                 in `scope::with_locks`",
            ),
            NotLockedReason::NoText => {
                f.write_str("did not run: a value in the name of its lock cannot be displayed")
            }
        }
    }
}

impl Error for NotLocked {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error().map(|error| -> &(dyn Error + 'static) { error })
    }
}
