//! Scopes of locks for functions under `#[lock]`.
//!
//! A scope of locks lasts while a future runs. Like that of a limiter, it is not inherited by tasks
//! that the future spawns. The two scopes are independent: either may be inside the other.

use std::pin::Pin;
use std::sync::Arc;

use tollgate_core::lock::LockStore;

use super::function::{FunctionLock, LockCall};
use super::{Locks, NotLocked};

tokio::task_local! {
    static CURRENT: LockScope;
}

/// Runs a future in which functions under `#[lock]` use these locks.
///
/// ```
/// use tollgate::{EmbeddedStore, Locks, NotLocked, lock, scope};
///
/// #[lock("order:{id}")]
/// async fn pay(id: u64) -> Result<u64, NotLocked> { Ok(id) }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let locks = Locks::new(EmbeddedStore::new());
/// assert_eq!(scope::with_locks(&locks, pay(42)).await.unwrap(), 42);
/// assert!(pay(42).await.unwrap_err().to_string().contains("no locks are in scope"));
/// # }
/// ```
pub fn with_locks<S: LockStore, F: Future>(
    locks: &Locks<S>,
    future: F,
) -> impl Future<Output = F::Output> + use<S, F> {
    LockScope::new(locks).run(future)
}

/// Locks for the functions that run in the scope. Clones are cheap.
#[derive(Clone)]
pub struct LockScope {
    locks: Arc<dyn AnyLocks>,
}

opaque_debug!(LockScope: |_it|);

impl LockScope {
    /// The scope of these locks.
    pub fn new<S: LockStore>(locks: &Locks<S>) -> Self {
        Self { locks: Arc::new(locks.clone()) }
    }

    /// The current scope, to pass to a task that you spawn.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Runs a future in this scope.
    pub fn run<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, future)
    }

    pub(super) async fn enter(&self, call: LockCall) -> Result<FunctionLock, NotLocked> {
        self.locks.enter(call).await
    }
}

type EnterFuture<'a> = Pin<Box<dyn Future<Output = Result<FunctionLock, NotLocked>> + Send + 'a>>;

/// Locks on any store.
trait AnyLocks: Send + Sync {
    fn enter(&self, call: LockCall) -> EnterFuture<'_>;
}

impl<S: LockStore> AnyLocks for Locks<S> {
    fn enter(&self, call: LockCall) -> EnterFuture<'_> {
        Box::pin(self.__enter(call))
    }
}
