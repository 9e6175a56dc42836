//! The suite of locks on the embedded store, and its bounds.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test stops there")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::lock::{
    Acquire, AcquireOutcome, LockKind, LockName, LockStore, Owner, Release, ReleaseNotifier,
    ReleaseOutcome, Renew, RenewOutcome,
};
use tollgate_core::testing::ManualClock;
use tollgate_core::testing::locks::{self, LockStoreUnderTest, end, granted, plain};
use tollgate_core::{StoreErrorKind, Timestamp};
use tollgate_embedded::EmbeddedStore;

struct EmbeddedLocks {
    store: EmbeddedStore<ManualClock>,
    clock: ManualClock,
}

impl EmbeddedLocks {
    fn new() -> Self {
        let clock = ManualClock::default();
        Self { store: EmbeddedStore::builder().with_clock(clock.clone()), clock }
    }
}

/// The store is never waited for.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("the embedded store waits for nothing"),
    }
}

impl LockStoreUnderTest for EmbeddedLocks {
    fn acquire(&self, ask: &Acquire<'_>) -> AcquireOutcome {
        now(self.store.acquire(ask)).unwrap()
    }

    fn renew(&self, batch: &[Renew<'_>]) -> Vec<RenewOutcome> {
        now(self.store.renew(batch)).unwrap()
    }

    fn release(&self, ask: &Release<'_>) -> ReleaseOutcome {
        now(self.store.release(ask)).unwrap()
    }

    fn force_release(&self, name: &LockName) -> Option<(String, u32)> {
        let holder = now(self.store.force_release(name)).unwrap()?;
        Some((holder.owner, holder.depth))
    }

    fn holder(&self, name: &LockName) -> Option<(String, u32)> {
        let holder = now(self.store.inspect(name)).unwrap()?;
        Some((holder.owner, holder.depth))
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
    }
}

/// E42, E43, E45
#[test]
fn the_embedded_store_keeps_locks_as_a_map_of_records_would() {
    for seed in 0..20 {
        locks::all(&EmbeddedLocks::new(), seed, 5_000);
    }
}

#[derive(Default)]
struct CountingNotifier(AtomicU64);

impl ReleaseNotifier for CountingNotifier {
    fn notify(&self, _: &LockName) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_notifier_is_called_for_each_release_until_its_subscription_is_dropped() {
    let subject = EmbeddedLocks::new();
    let (name, me) = (LockName::new("order").unwrap(), Owner::new(1, 1));
    let count = Arc::new(CountingNotifier::default());
    let notifier = Arc::clone(&count);
    let subscription = now(subject.store.subscribe(&name, notifier)).unwrap();
    let (outer, inner) =
        (plain(&name, LockKind::Reentrant, &me, 1), plain(&name, LockKind::Reentrant, &me, 2));

    granted(subject.acquire(&outer));
    granted(subject.acquire(&inner));
    subject.release(&end(&inner));
    assert_eq!(count.0.load(Ordering::SeqCst), 0, "it is still held");
    subject.release(&end(&outer));
    assert_eq!(count.0.load(Ordering::SeqCst), 1);

    granted(subject.acquire(&plain(&name, LockKind::Reentrant, &me, 3)));
    assert_eq!(now(subject.store.inspect(&name)).unwrap().unwrap().waiting, 1);
    subject.force_release(&name);
    assert_eq!(count.0.load(Ordering::SeqCst), 2);

    drop(subscription);
    granted(subject.acquire(&plain(&name, LockKind::Reentrant, &me, 4)));
    assert_eq!(now(subject.store.inspect(&name)).unwrap().unwrap().waiting, 0);
    subject.force_release(&name);
    assert_eq!(count.0.load(Ordering::SeqCst), 2);
}

#[test]
fn at_most_a_hundred_thousand_locks_are_held_and_idle_ones_make_room() {
    let subject = EmbeddedLocks::new();
    let me = Owner::new(1, 1);
    let acquire = |i: u128| {
        let name = LockName::new(&format!("lock {i}")).unwrap();
        now(subject.store.acquire(&plain(&name, LockKind::Reentrant, &me, i)))
    };
    for i in 0..100_000 {
        granted(acquire(i).unwrap());
    }

    let full = acquire(100_000).unwrap_err();
    assert_eq!(full.kind(), StoreErrorKind::Unavailable);
    granted(acquire(7).unwrap());

    let mut listed = 0;
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let page = now(subject.store.list(from)).unwrap();
        listed += page.holders.len();
        cursor = if listed > 1_000 { None } else { page.next };
    }
    assert_eq!(listed, 1_024, "256 at a time");

    subject.clock.advance(Duration::from_secs(31));
    granted(acquire(100_000).unwrap());
}
