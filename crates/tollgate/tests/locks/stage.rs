//! Stores for the tests, which several processes share, and connections to them that fail.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::Lease;
use tollgate::redis::{Config, RedisStore};
use tollgate::{EmbeddedStore, Locks, LocksBuilder};
use tollgate::{StoreError, StoreErrorKind};
use tollgate_core::lock::{
    Acquire, AcquireOutcome, LockHolder, LockName, LockStore, Page, Release, ReleaseNotifier,
    ReleaseOutcome, Renew, RenewOutcome,
};
use tollgate_harness::RedisServer;

/// A store, and any number of processes on it.
pub(crate) trait Stage {
    type Store: LockStore;

    /// A connection of its own to the store.
    async fn connect(&self) -> Self::Store;

    /// Makes the store forget every lock.
    fn forget(&self);

    async fn process(&self) -> Locks<Self::Store> {
        Locks::new(self.connect().await)
    }

    async fn builder(&self) -> LocksBuilder<Self::Store> {
        Locks::builder(self.connect().await)
    }
}

pub(crate) struct Embedded(pub(crate) Arc<EmbeddedStore>);

impl Embedded {
    pub(crate) async fn new() -> Self {
        Self(Arc::new(EmbeddedStore::new()))
    }
}

impl Stage for Embedded {
    type Store = Arc<EmbeddedStore>;

    async fn connect(&self) -> Self::Store {
        Arc::clone(&self.0)
    }

    fn forget(&self) {
        let page = now(self.0.list(0)).unwrap();
        for holder in page.holders {
            now(self.0.force_release(&holder.name)).unwrap();
        }
    }
}

/// The output of a future that waits for nothing.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("the embedded store waits for nothing"),
    }
}

pub(crate) struct Redis {
    pub(crate) server: RedisServer,
}

impl Redis {
    pub(crate) async fn new() -> Self {
        Self { server: RedisServer::start().unwrap() }
    }
}

/// With deadlines that no test reaches, however slow the machine is.
pub(crate) fn without_timeout(url: &str) -> Config {
    let ages = Duration::from_secs(60);
    Config::new(url).unwrap().deadline(ages).connect_timeout(ages)
}

impl Stage for Redis {
    type Store = Arc<RedisStore>;

    async fn connect(&self) -> Self::Store {
        Arc::new(RedisStore::connect(without_timeout(&self.server.url())).await.unwrap())
    }

    fn forget(&self) {
        self.server.command(&[b"FLUSHALL"]).unwrap();
    }
}

/// A lease that is renewed every so often in real time, for tests that wait for a renewal to happen,
/// however late.
pub(crate) fn brisk() -> Lease {
    Lease::new(Duration::from_millis(1_500)).unwrap()
}

/// A connection to a store that loses answers, hears nothing, and counts.
pub(crate) struct Flaky<S> {
    pub(crate) inner: S,
    /// So many answers to acquisitions, and to releases, are lost after the step was made.
    pub(crate) lose_acquired: AtomicU64,
    pub(crate) lose_released: AtomicU64,
    /// Set, releases are not heard.
    pub(crate) deaf: AtomicBool,
    /// Done once while somebody begins to listen, before it hears anything.
    pub(crate) while_listening: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    pub(crate) acquisitions: AtomicU64,
    released: Mutex<HashSet<String>>,
    /// Renewals that began after a release of the same owner was answered, and found it held.
    pub(crate) revived: AtomicU64,
    pub(crate) renewed: AtomicU64,
}

impl<S> Flaky<S> {
    pub(crate) fn new(inner: S) -> Arc<Self> {
        Arc::new(Self {
            inner,
            lose_acquired: AtomicU64::new(0),
            lose_released: AtomicU64::new(0),
            deaf: AtomicBool::new(false),
            while_listening: Mutex::default(),
            acquisitions: AtomicU64::new(0),
            released: Mutex::default(),
            revived: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
        })
    }
}

fn lost(count: &AtomicU64) -> Result<(), StoreError> {
    let lose = count.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
    if lose { Err(StoreError::new(StoreErrorKind::Timeout)) } else { Ok(()) }
}

struct SilentNotifier;

impl ReleaseNotifier for SilentNotifier {
    fn notify(&self, _: &LockName) {}
}

impl<S: LockStore> LockStore for Flaky<S> {
    type Subscription = S::Subscription;

    async fn acquire(&self, ask: &Acquire<'_>) -> Result<AcquireOutcome, StoreError> {
        self.acquisitions.fetch_add(1, SeqCst);
        let acquired = self.inner.acquire(ask).await?;
        lost(&self.lose_acquired)?;
        Ok(acquired)
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Result<Vec<RenewOutcome>, StoreError> {
        let over: Vec<bool> = {
            let released = self.released.lock().unwrap();
            batch.iter().map(|ask| released.contains(ask.owner.as_str())).collect()
        };
        let renewed = self.inner.renew(batch).await?;
        for (over, renewed) in over.iter().zip(&renewed) {
            self.renewed.fetch_add(1, SeqCst);
            if *over && *renewed == RenewOutcome::Held {
                self.revived.fetch_add(1, SeqCst);
            }
        }
        Ok(renewed)
    }

    async fn release(&self, ask: &Release<'_>) -> Result<ReleaseOutcome, StoreError> {
        let released = self.inner.release(ask).await?;
        self.released.lock().unwrap().insert(ask.owner.as_str().to_owned());
        lost(&self.lose_released)?;
        Ok(released)
    }

    async fn force_release(&self, name: &LockName) -> Result<Option<LockHolder>, StoreError> {
        self.inner.force_release(name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<LockHolder>, StoreError> {
        self.inner.inspect(name).await
    }

    async fn list(&self, cursor: u64) -> Result<Page, StoreError> {
        self.inner.list(cursor).await
    }

    async fn subscribe(
        &self,
        name: &LockName,
        notifier: Arc<dyn ReleaseNotifier>,
    ) -> Result<Self::Subscription, StoreError> {
        let first = self.while_listening.lock().unwrap().take();
        if let Some(first) = first {
            first();
        }
        let notifier = if self.deaf.load(SeqCst) { Arc::new(SilentNotifier) } else { notifier };
        self.inner.subscribe(name, notifier).await
    }
}

/// Waits for what happens in the background.
pub(crate) async fn until(what: &str, mut happened: impl AsyncFnMut() -> bool) {
    for _ in 0..6_000 {
        if happened().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within half a minute: {what}");
}

/// Each of these functions as a test on each store.
macro_rules! on_both_stores {
    ($($name:ident),* $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::stage::Embedded::new().await).await;
            })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::stage::Redis::new().await).await;
            })*
        }
    };
}
pub(crate) use on_both_stores;
