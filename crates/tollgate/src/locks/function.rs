//! The code that `#[lock]` expands to: a call, the lock it holds, and the result of its work.
//!
//! `crates/macros/src/lock` generates code against `tollgate::__private`, which contains this
//! module and is not part of the API: change them together.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use tollgate_core::lock::{Lease, LockName, LockNameError, LockStore, Owner};

use super::guard::{LockGuard, ProtectedOutput, ReleaseResult};
use super::not_locked::{NotLocked, NotLockedReason};
use super::scope::LockScope;
use super::{LockError, Locks};

/// The longest time that a call waits for its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// Until it has the lock.
    Forever,
    /// This long at most; not at all for zero.
    For(Duration),
}

/// One call of a function under `#[lock]`.
#[derive(Debug)]
pub struct LockCall {
    function: fn() -> &'static str,
    wait: LockWait,
    lease: Option<Duration>,
    owner: Option<Owner>,
    name: BoundedText,
}

impl LockCall {
    /// A call of the function with this path.
    pub const fn new(
        function: fn() -> &'static str,
        wait: LockWait,
        lease: Option<Duration>,
    ) -> Self {
        Self { function, wait, lease, owner: None, name: BoundedText::new() }
    }

    /// Adds literal text to the name.
    pub fn text(&mut self, text: &str) {
        self.value(text);
    }

    /// Adds a displayed value to the name.
    pub fn value<V: Display + ?Sized>(&mut self, value: &V) {
        if write!(self.name, "{value}").is_err() {
            self.name.broken = true;
        }
    }

    /// Adds a displayed value, preceded by its length: no other values make the same name.
    pub fn part<V: Display + ?Sized>(&mut self, value: &V) {
        let mut text = BoundedText::new();
        if write!(text, "{value}").is_err() {
            self.name.broken = true;
        }
        self.value(&format_args!(":{}:", text.len));
        self.value(text.kept.as_str());
        // What was not kept makes the name too long, by as much as it was.
        self.name.len = self.name.len.saturating_add(text.len.saturating_sub(text.kept.len()));
    }

    /// Sets the owner that holds the lock, in place of a new one.
    pub fn owner(&mut self, owner: &Owner) {
        self.owner = Some(owner.clone());
    }

    fn not(&self, name: Option<LockName>, why: NotLockedReason) -> NotLocked {
        NotLocked::new((self.function)(), name, why)
    }

    fn named(&self) -> Result<LockName, NotLocked> {
        if self.name.broken {
            return Err(self.not(None, NotLockedReason::NoText));
        }
        let len = self.name.len;
        let name = if len > self.name.kept.len() {
            Err(LockNameError::TooLong { len })
        } else {
            LockName::new(&self.name.kept)
        };
        name.map_err(|error| self.not(None, NotLockedReason::Failed(error.into())))
    }
}

/// Acquires the lock of a call, from the locks in scope.
///
/// # Errors
///
/// When no locks are in scope, and as [`Locks::__enter`].
pub async fn enter_lock(call: LockCall) -> Result<FunctionLock, NotLocked> {
    match LockScope::current() {
        Some(scope) => scope.enter(call).await,
        None => Err(call.not(None, NotLockedReason::NoScope)),
    }
}

impl<S: LockStore> Locks<S> {
    /// Acquires the lock of a call. Not part of the API.
    ///
    /// # Errors
    ///
    /// When the name is empty or too long, another owner holds the lock, or the store does not
    /// answer.
    #[doc(hidden)]
    pub async fn __enter(&self, call: LockCall) -> Result<FunctionLock, NotLocked> {
        let name = call.named()?;
        match self.taken(&call, &name).await {
            Ok(Some(guard)) => Ok(FunctionLock { guard, function: (call.function)() }),
            Ok(None) => {
                let waited = match call.wait {
                    LockWait::For(waited) => waited,
                    LockWait::Forever => Duration::ZERO,
                };
                Err(call.not(Some(name), NotLockedReason::Busy { waited }))
            }
            Err(error) => Err(call.not(Some(name), NotLockedReason::Failed(error))),
        }
    }

    async fn taken(
        &self,
        call: &LockCall,
        name: &LockName,
    ) -> Result<Option<LockGuard>, LockError> {
        let mut lock = self.named(name.as_str())?;
        if let Some(owner) = &call.owner {
            lock = lock.by(owner);
        }
        if let Some(lease) = call.lease {
            lock = lock.lease(Lease::new(lease)?);
        }
        match call.wait {
            LockWait::Forever => lock.lock().await.map(Some),
            LockWait::For(wait) if wait.is_zero() => lock.try_lock().await,
            LockWait::For(wait) => lock.lock_within(wait).await,
        }
    }
}

/// The lock of a call that runs.
#[derive(Debug)]
#[must_use = "the lock is given back as soon as this is dropped"]
pub struct FunctionLock {
    guard: LockGuard,
    function: &'static str,
}

impl FunctionLock {
    /// The lock itself.
    pub const fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Gives the lock back, and fails unless the work was done under it.
    ///
    /// The function's own error is returned unchanged. A store that does not answer now is no loss:
    /// the lock was held until the work was done, and ends with its lease.
    ///
    /// # Errors
    ///
    /// When the lock was lost.
    pub async fn end<R: Outcome>(self, work: ProtectedOutput<R>) -> Result<R, NotLocked> {
        let Self { guard, function } = self;
        let name = guard.name().clone();
        let held = !matches!(work, ProtectedOutput::Lost(_));
        let output = match work {
            ProtectedOutput::Sure(output) | ProtectedOutput::Unsure(output) => Some(output),
            ProtectedOutput::Lost(output) => output,
        };
        let released = guard.release().await;
        let held = held && !matches!(released, Ok(ReleaseResult::AlreadyLost));
        match output {
            None => Err(NotLocked::new(function, Some(name), NotLockedReason::Stopped)),
            Some(output) if held || output.is_failure() => Ok(output),
            Some(_) => Err(NotLocked::new(function, Some(name), NotLockedReason::FoundOut)),
        }
    }
}

/// The output of a function under `#[lock]`.
#[diagnostic::on_unimplemented(
    message = "a function under `#[lock]` cannot return `{Self}`: there may be no lock",
    label = "is no `Result`",
    note = "return a `Result<_, E>` where `E: From<tollgate::NotLocked>`, such as `NotLocked` itself"
)]
pub trait Outcome {
    /// True if the function itself failed.
    fn is_failure(&self) -> bool;
}

impl<T, E> Outcome for Result<T, E> {
    fn is_failure(&self) -> bool {
        self.is_err()
    }
}

/// A return type that can express a lock that was not acquired or was lost.
#[diagnostic::on_unimplemented(
    message = "a function under `#[lock]` cannot return `{Self}`: there may be no lock",
    label = "is no `Result`",
    note = "return a `Result<_, E>` where `E: From<tollgate::NotLocked>`, such as `NotLocked` itself"
)]
pub trait FromNotLocked: Outcome {
    /// Converts the failure.
    fn not_locked(not: NotLocked) -> Self;
}

impl<T, E: From<NotLocked>> FromNotLocked for Result<T, E> {
    fn not_locked(not: NotLocked) -> Self {
        Err(not.into())
    }
}

/// Converts the failure into the return type of the function.
pub fn not_locked<R: FromNotLocked>(not: NotLocked) -> R {
    R::not_locked(not)
}

/// A text that keeps at most as many bytes as the longest name, and counts its full length.
#[derive(Debug)]
struct BoundedText {
    kept: String,
    len: usize,
    broken: bool,
}

impl BoundedText {
    const fn new() -> Self {
        Self { kept: String::new(), len: 0, broken: false }
    }
}

impl Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.len = self.len.saturating_add(text.len());
        if self.len <= LockName::MAX_LEN {
            self.kept.push_str(text);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken;

    impl Display for Broken {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Err(fmt::Error)
        }
    }

    fn call() -> LockCall {
        LockCall::new(|| "f", LockWait::Forever, None)
    }

    #[test]
    fn values_behind_their_length_make_names_of_their_own() {
        let name = |values: [&str; 2]| {
            let mut call = call();
            call.text("pair");
            values.iter().for_each(|value| call.part(value));
            call.named().unwrap().as_str().to_owned()
        };

        assert_eq!(name(["1", "23"]), "pair:1:1:2:23");
        let pairs = [["1", "23"], ["12", "3"], ["", "123"], ["1:2:3", ""], ["1", "2:3"]];
        let mut names: Vec<String> = pairs.into_iter().map(name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), pairs.len());
    }

    #[test]
    fn a_name_too_long_is_told_with_its_length_and_not_kept() {
        let long = "x".repeat(LockName::MAX_LEN);
        let mut fits = call();
        fits.value(&long);
        assert_eq!(fits.named().unwrap().as_str(), long);

        for add in [LockCall::value::<str>, LockCall::part::<str>] {
            let mut call = call();
            add(&mut call, &"x".repeat(1 << 20));
            call.text("y");
            assert!(call.name.kept.len() <= LockName::MAX_LEN);
            let error = call.named().unwrap_err();
            let Some(LockError::Name(LockNameError::TooLong { len })) = error.error() else {
                panic!("{error:?}");
            };
            assert!(*len > 1 << 20, "{len}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_displayed_makes_no_name() {
        for add in [LockCall::value::<Broken>, LockCall::part::<Broken>] {
            let mut call = call();
            call.text("order:");
            add(&mut call, &Broken);
            let error = call.named().unwrap_err();
            assert_eq!(error.kind(), super::super::NotLockedKind::Misconfigured);
        }
    }
}
