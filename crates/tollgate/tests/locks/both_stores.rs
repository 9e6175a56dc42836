//! The same sentences on the embedded store and on a real Redis.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tollgate::locks::{Durability, LockNameError, Replicas};
use tollgate::{Event, LockError, LockEvent, LockState, Observer, ProtectedOutput, ReleaseResult};

use crate::stage::{Stage, brisk, on_both_stores, until};

on_both_stores! {
    one_holds_it_and_the_next_gets_it,
    an_owner_enters_again_past_those_who_wait,
    a_simple_lock_is_held_once,
    a_dropped_guard_gives_its_lock_back,
    whoever_gives_up_leaves_the_line,
    those_who_wait_here_are_served_in_order,
    no_more_wait_than_may,
    names_are_any_text_up_to_a_length,
    a_forgotten_lock_is_told_to_be_lost,
    a_lease_that_is_not_renewed_ends,
    a_lock_taken_by_force_is_audited,
    holders_and_waiters_are_listed,
    refused_when_not_replicated,
    a_sum_under_the_lock_is_exact,
    many_are_renewed_together,
}

/// E42
async fn one_holds_it_and_the_next_gets_it(stage: impl Stage) {
    let (here, there) = (stage.process().await, stage.process().await);

    let first = here.lock("order:1").await.unwrap();
    assert!(there.try_lock("order:1").await.unwrap().is_none());
    assert!(there.named("order:1").unwrap().lock_within(Duration::ZERO).await.unwrap().is_none());
    assert_eq!(first.state(), LockState::Sure);
    let (fence, waiting) = (first.fence(), there.lock("order:1"));
    let (second, released) = tokio::join!(waiting, first.release());

    assert_eq!(released.unwrap(), ReleaseResult::Released);
    let second = second.unwrap();
    assert!(second.fence() > fence);
    assert_eq!(second.protect(async { 7 }).await, ProtectedOutput::Sure(7));
    assert_eq!(second.release().await.unwrap(), ReleaseResult::Released);
    assert!(here.inspect("order:1").await.unwrap().is_none());
}

/// E47: the owner may be cloned into tasks, and does not wait behind those who wait for it.
async fn an_owner_enters_again_past_those_who_wait(stage: impl Stage) {
    let locks = stage.process().await;
    let owner = locks.owner();
    let mine = locks.named("a").unwrap().by(&owner);
    let outer = mine.lock().await.unwrap();
    let other = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("a").await.unwrap() }
    });
    until("another waits", async || !locks.waiters().is_empty()).await;

    let inner = tokio::spawn(async move { mine.lock().await.unwrap() }).await.unwrap();

    assert_eq!(inner.fence(), outer.fence(), "re-entry keeps the fence");
    assert_eq!(locks.inspect("a").await.unwrap().unwrap().depth, 2);
    assert_eq!(outer.release().await.unwrap(), ReleaseResult::Released);
    assert_eq!(inner.state(), LockState::Sure);
    assert_eq!(locks.waiters().len(), 1, "still held");
    let fence = inner.fence();
    drop(inner);
    assert!(other.await.unwrap().fence() > fence);
}

async fn a_simple_lock_is_held_once(stage: impl Stage) {
    let locks = stage.process().await;
    let owner = locks.owner();
    let lock = locks.named("job").unwrap().simple().by(&owner);

    let guard = lock.lock().await.unwrap();

    assert!(lock.try_lock().await.unwrap().is_none(), "not even for its owner");
    assert!(matches!(locks.try_lock("job").await, Err(LockError::Foreign(_))));
    guard.release().await.unwrap();
    assert!(locks.try_lock("job").await.unwrap().is_some());
}

/// Regression: the guard of another library releases nothing when dropped under tokio.
async fn a_dropped_guard_gives_its_lock_back(stage: impl Stage) {
    let (here, there) = (stage.process().await, stage.process().await);
    for _ in 0..20 {
        let guard = here.lock("dropped").await.unwrap();
        drop(guard);
        // Nobody would get it before the lease of thirty seconds ended.
        let lock = there.named("dropped").unwrap();
        let next = lock.lock_within(Duration::from_secs(20)).await.unwrap().unwrap();
        assert_eq!(next.release().await.unwrap(), ReleaseResult::Released);
    }
}

async fn whoever_gives_up_leaves_the_line(stage: impl Stage) {
    let locks = stage.process().await;
    let guard = locks.lock("a").await.unwrap();
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { drop(locks.lock("a").await) })
        })
        .collect();
    until("all wait", async || locks.waiters().len() == 5).await;

    for task in &waiting[..4] {
        task.abort();
    }
    until("one waits", async || locks.waiters().len() == 1).await;
    guard.release().await.unwrap();

    waiting.into_iter().next_back().unwrap().await.unwrap();
    until("it is free", async || locks.inspect("a").await.unwrap().is_none()).await;
    assert!(locks.waiters().is_empty());
}

/// E46, within a process.
async fn those_who_wait_here_are_served_in_order(stage: impl Stage) {
    let locks = stage.process().await;
    let guard = locks.lock("a").await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..20 {
        let (lock, order) = (locks.clone(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = lock.lock("a").await.unwrap();
            order.lock().unwrap().push(i);
            guard.release().await.unwrap();
        }));
        until("it waits", async || locks.waiters().len() == i + 1).await;
    }

    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }

    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
}

async fn no_more_wait_than_may(stage: impl Stage) {
    let locks = stage.builder().await.max_waiting(2).build();
    let guard = locks.lock("a").await.unwrap();
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { drop(locks.lock("a").await.unwrap()) })
        })
        .collect();
    until("two wait", async || locks.waiters().len() == 2).await;

    assert!(matches!(locks.lock("a").await, Err(LockError::TooManyWaiting)));

    drop(guard);
    for task in waiting {
        task.await.unwrap();
    }
    assert!(locks.lock("a").await.is_ok());
}

/// C40
async fn names_are_any_text_up_to_a_length(stage: impl Stage) {
    let (here, there) = (stage.process().await, stage.process().await);
    let longest = "x".repeat(1024);
    for name in ["{", "}", "{}", "a{b}c", "}{", "two words", " ", "a\r\nb\0c", "щ", &longest] {
        let guard = here.lock(name).await.unwrap();
        let (next, released) = tokio::join!(there.lock(name), guard.release());
        assert_eq!(released.unwrap(), ReleaseResult::Released, "{name:?}");
        assert_eq!(next.unwrap().release().await.unwrap(), ReleaseResult::Released, "{name:?}");
    }
    let one = here.lock("a").await.unwrap();
    assert!(here.try_lock("{a}").await.unwrap().is_some(), "these are two locks");
    drop(one);

    for len in [1025, 1 << 20] {
        let error = here.lock(&"x".repeat(len)).await.unwrap_err();
        assert!(matches!(error, LockError::Name(LockNameError::TooLong { len: l }) if l == len));
    }
    assert!(matches!(here.lock("").await, Err(LockError::Name(LockNameError::Empty))));
    for lease in [Duration::ZERO, Duration::MAX] {
        let error = here.lock_timeout("a", Duration::ZERO, lease).await.unwrap_err();
        assert!(matches!(error, LockError::Lease(_)));
    }
}

/// B30, E44: the store forgot it, and the holder is told by its next renewal; the work is dropped.
async fn a_forgotten_lock_is_told_to_be_lost(stage: impl Stage) {
    let locks = stage.builder().await.lease(brisk()).build();
    let guard = locks.lock("a").await.unwrap();
    let loss = guard.loss();
    assert!(!loss.is_lost());
    stage.forget();

    let outcome = guard.protect(std::future::pending::<()>()).await;

    assert_eq!(outcome, ProtectedOutput::Lost(None));
    assert!(loss.is_lost());
    loss.lost().await;
    assert_eq!(guard.state(), LockState::Lost);
    let next = locks.lock("a").await.unwrap();
    assert!(next.fence() > guard.fence(), "E42, over the loss of the store's state");
    assert_eq!(guard.release().await.unwrap(), ReleaseResult::AlreadyLost);
    assert_eq!(next.state(), LockState::Sure, "what is another's stays so");
    assert_eq!(next.release().await.unwrap(), ReleaseResult::Released);
}

/// E44: an explicit lease has no watchdog; its end is told, and the next one gets the lock without a
/// message. So it would after a holder that was killed before its first renewal.
async fn a_lease_that_is_not_renewed_ends(stage: impl Stage) {
    let (here, there) = (stage.process().await, stage.process().await);
    let lease = Duration::from_millis(300);
    let guard = here.lock_timeout("a", Duration::ZERO, lease).await.unwrap().unwrap();
    assert!(guard.remaining() <= lease);

    let next = tokio::spawn(async move { there.lock("a").await.unwrap() });
    guard.lost().await;

    assert_eq!(guard.state(), LockState::Lost);
    assert!(next.await.unwrap().fence() > guard.fence());
    assert_eq!(guard.release().await.unwrap(), ReleaseResult::AlreadyLost);
}

#[derive(Clone, Default)]
struct Audit(Arc<Mutex<Vec<String>>>);

impl Observer for Audit {
    fn observe(&self, event: &Event) {
        if let Event::Lock(event) = event {
            let line = match event {
                LockEvent::Granted { name, .. } => format!("granted {name}"),
                LockEvent::Released { name, .. } => format!("released {name}"),
                LockEvent::Lost { name, .. } => format!("lost {name}"),
                LockEvent::ForceReleased { holder, reason } => {
                    format!("forced {} of {}: {reason}", holder.name, holder.label)
                }
                _ => return,
            };
            self.0.lock().unwrap().push(line);
        }
    }
}

async fn a_lock_taken_by_force_is_audited(stage: impl Stage) {
    let audit = Audit::default();
    let builder = stage.builder().await.lease(brisk()).label("node 7").observer(audit.clone());
    let locks = builder.build();
    let guard = locks.lock("a").await.unwrap();

    let holder = locks.force_release("a", "its node is gone").await.unwrap().unwrap();
    assert_eq!((holder.label.as_str(), holder.fence), ("node 7", Some(guard.fence())));
    guard.lost().await;
    drop(guard);
    assert!(locks.force_release("a", "again").await.unwrap().is_none());
    locks.lock("b").await.unwrap().release().await.unwrap();

    let expected =
        ["granted a", "forced a of node 7: its node is gone", "lost a", "granted b", "released b"];
    until("all is audited", async || audit.0.lock().unwrap().len() == expected.len()).await;
    assert_eq!(*audit.0.lock().unwrap(), expected);
}

async fn holders_and_waiters_are_listed(stage: impl Stage) {
    let locks = stage.builder().await.label("node 7").build();
    let guards = [locks.lock("a").await.unwrap(), locks.lock("b {c}").await.unwrap()];
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { drop(locks.lock("a").await) }
    });
    until("somebody listens", async || {
        locks.inspect("a").await.unwrap().unwrap().waiting == 1 && locks.waiters().len() == 1
    })
    .await;

    let (mut cursor, mut found) = (Some(0), Vec::new());
    while let Some(from) = cursor {
        let page = locks.holders(from).await.unwrap();
        found.extend(page.holders);
        cursor = page.next;
    }

    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.dedup_by(|a, b| a.name == b.name);
    let names: Vec<_> = found.iter().map(|holder| holder.name.as_str()).collect();
    assert_eq!(names, ["a", "b {c}"]);
    for (holder, guard) in found.iter().zip(&guards) {
        assert_eq!(holder.owner, guard.owner().as_str());
        assert_eq!((holder.depth, holder.label.as_str()), (1, "node 7"));
        assert!(holder.age.is_some() && holder.left <= Some(Duration::from_secs(30)));
    }
    assert_eq!(locks.waiters()[0].name.as_str(), "a");
    drop(guards);
    waiting.await.unwrap();
}

async fn refused_when_not_replicated(stage: impl Stage) {
    let replicas = Replicas { count: 3.try_into().unwrap(), patience: Duration::from_millis(10) };
    assert_eq!(replicas.majority(), 2);
    let strict = stage.builder().await.durability(Durability::Required(replicas)).build();
    let lax = stage.builder().await.durability(Durability::Majority(replicas)).build();

    let error = strict.try_lock("a").await.unwrap_err();

    assert!(matches!(error, LockError::NotReplicated { copies: 0 }), "{error}");
    let guard = lax.lock("a").await.unwrap();
    assert_eq!(guard.copies(), 0, "held, and the caller may know that nobody else has it");
}

/// E48, among processes, with a sum that would lose additions if two were inside.
async fn a_sum_under_the_lock_is_exact(stage: impl Stage) {
    let sum = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let locks = stage.process().await;
        for _ in 0..8 {
            let (locks, sum) = (locks.clone(), Arc::clone(&sum));
            tasks.push(tokio::spawn(async move {
                for _ in 0..25 {
                    let guard = locks.lock("sum").await.unwrap();
                    let before = sum.load(SeqCst);
                    tokio::task::yield_now().await;
                    sum.store(before + 1, SeqCst);
                    assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }

    assert_eq!(sum.load(SeqCst), 3 * 8 * 25);
}

/// The watchdog keeps many locks, longer than their lease.
async fn many_are_renewed_together(stage: impl Stage) {
    let locks = stage.builder().await.lease(brisk()).build();
    let mut guards = Vec::new();
    for i in 0..300 {
        guards.push(locks.lock(&format!("lock {i}")).await.unwrap());
    }
    let first = guards[0].remaining();

    until("all were renewed twice", async || {
        let now: Vec<_> = guards.iter().map(|guard| guard.state()).collect();
        assert!(now.iter().all(|state| *state != LockState::Lost));
        tokio::time::sleep(first / 3).await;
        locks.inspect("lock 0").await.unwrap().unwrap().age.unwrap() > 2 * brisk().duration()
    })
    .await;

    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
    }
}
