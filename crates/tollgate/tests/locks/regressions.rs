//! Each of these went wrong in somebody's lock.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tollgate::locks::{LockName, LockStore};
use tollgate::{EmbeddedStore, LockError, LockState, Locks, ReleaseResult};
use tollgate_harness::{Direction, Fault, FaultProxy, RedisServer, Reply};

use crate::stage::{Embedded, Flaky, Redis, Stage, brisk, now, until, without_timeout};

/// Redisson schedules the renewal after the answer, so that an unlock may come before it and the lock
/// is renewed for ever (its issue 7272). Here: whatever renewal begins after a release was answered
/// finds nothing to renew.
async fn nothing_is_renewed_once_it_is_released(stage: impl Stage) {
    let flaky = Flaky::new(stage.connect().await);
    let locks = Locks::builder(Arc::clone(&flaky)).lease(brisk()).build();
    let mut tasks = Vec::new();
    for i in 0..40_u64 {
        let locks = locks.clone();
        tasks.push(tokio::spawn(async move {
            let name = format!("lock {i}");
            for round in 0..4 {
                let guard = locks.lock(&name).await.unwrap();
                // About when it is renewed, sooner or later.
                tokio::time::sleep(brisk().duration() / 3 + Duration::from_micros(i * 200)).await;
                if round % 2 == 0 {
                    let _ = guard.release().await.unwrap();
                } else {
                    drop(guard);
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }

    assert!(flaky.renewed.load(SeqCst) > 0, "some were renewed");
    assert_eq!(flaky.revived.load(SeqCst), 0);
    until("all are free", async || locks.holders(0).await.unwrap().holders.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_renewed_once_it_is_released_embedded() {
    nothing_is_renewed_once_it_is_released(Embedded::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_renewed_once_it_is_released_redis() {
    nothing_is_renewed_once_it_is_released(Redis::new().await).await;
}

/// A retried acquisition counts twice, and the lock is never free again. E43
async fn lost_answers_count_once(stage: impl Stage) {
    let flaky = Flaky::new(stage.connect().await);
    let locks = Locks::new(Arc::clone(&flaky));
    let owner = locks.owner();
    let lock = locks.named("a").unwrap().by(&owner);
    flaky.lose_acquired.store(2, SeqCst);
    let outer = lock.lock().await.unwrap();
    flaky.lose_acquired.store(2, SeqCst);
    let inner = lock.try_lock().await.unwrap().unwrap();
    assert_eq!(locks.inspect("a").await.unwrap().unwrap().depth, 2);

    flaky.lose_released.store(3, SeqCst);
    assert_eq!(
        inner.release().await.unwrap(),
        ReleaseResult::Released,
        "answered alike when asked again"
    );

    assert_eq!(locks.inspect("a").await.unwrap().unwrap().depth, 1);
    flaky.lose_released.store(1, SeqCst);
    assert_eq!(outer.release().await.unwrap(), ReleaseResult::Released);
    assert!(locks.inspect("a").await.unwrap().is_none());
    // A caller that gives up releases the lock that it may have been granted.
    flaky.lose_acquired.store(3, SeqCst);
    assert!(matches!(lock.try_lock().await, Err(LockError::Store(_))));
    until("it is given back", async || locks.inspect("a").await.unwrap().is_none()).await;
    flaky.lose_acquired.store(u64::MAX, SeqCst);
    let waiting = lock.lock_within(Duration::from_millis(30)).await;
    assert!(matches!(waiting, Err(LockError::Store(_))), "nobody is known to have it");
    until("that too", async || locks.inspect("a").await.unwrap().is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_count_once_embedded() {
    lost_answers_count_once(Embedded::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_count_once_redis() {
    lost_answers_count_once(Redis::new().await).await;
}

/// The same with a real connection that ends before the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_lost_on_the_wire_counts_once() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let store = tollgate::redis::RedisStore::connect(without_timeout(&proxy.url())).await.unwrap();
    let locks = Locks::new(store);
    let warm = locks.lock("warm").await.unwrap();
    assert_eq!(warm.release().await.unwrap(), ReleaseResult::Released);
    let depth = || server.command(&[b"HVALS", b"a"]).unwrap();
    let once = Reply::Array(vec![Reply::Bulk(b"1".to_vec())]);

    // A grant has more bytes than the answers to a PING and to what is sent besides. That to a release has
    // as many: should one of those be taken for it, the release is lost all the same.
    let received = || proxy.traffic(Direction::ToClient).received;
    let swallow = async || {
        until("it is connected", async || locks.inspect("a").await.is_ok()).await;
        proxy.set(Direction::ToClient, Fault::BlackHole);
        received()
    };
    let lose = || {
        proxy.set(Direction::ToClient, Fault::Pass);
        proxy.reset_open();
    };
    for _ in 0..5 {
        let answered = swallow().await;
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("a").await }
        });
        until("its answer is lost", async || depth() == once && received() > answered + 20).await;
        lose();
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(depth(), once);

        let answered = swallow().await;
        let releasing = tokio::spawn(guard.release());
        let free = Reply::Array(vec![]);
        until("its answer is lost", async || depth() == free && received() > answered).await;
        lose();
        assert_eq!(releasing.await.unwrap().unwrap(), ReleaseResult::Released);
    }
}

/// The lock is released while the waiter subscribes: nobody tells it, so it must ask once more when
/// the subscription is live. It neither sleeps nor is rung for.
#[tokio::test(start_paused = true)]
async fn a_release_before_the_subscription_is_live_is_not_missed() {
    let store = Arc::new(EmbeddedStore::new());
    let flaky = Flaky::new(Arc::clone(&store));
    flaky.deaf.store(true, SeqCst);
    let (holder, locks) = (Locks::new(Arc::clone(&store)), Locks::new(Arc::clone(&flaky)));
    let _held = holder.lock("a").await.unwrap();
    let name = LockName::new("a").unwrap();
    *flaky.while_listening.lock().unwrap() =
        Some(Box::new(move || drop(now(store.force_release(&name)).unwrap())));
    let before = tokio::time::Instant::now();

    let guard = locks.lock("a").await.unwrap();

    assert_eq!(before.elapsed(), Duration::ZERO, "no poll was waited for");
    assert_eq!(flaky.acquisitions.load(SeqCst), 2);
    drop(guard);
}

/// A message is lost, and the waiter sleeps until the lease that it saw has ended. Here it costs a
/// poll.
#[tokio::test(start_paused = true)]
async fn a_lost_message_costs_at_most_two_hundred_milliseconds() {
    for _ in 0..50 {
        let store = Arc::new(EmbeddedStore::new());
        let flaky = Flaky::new(Arc::clone(&store));
        flaky.deaf.store(true, SeqCst);
        let (holder, locks) = (Locks::new(store), Locks::new(flaky));
        let held = holder.lock("a").await.unwrap();
        let waiting = tokio::spawn(async move { locks.lock("a").await.unwrap() });
        tokio::time::sleep(Duration::from_secs(3)).await;
        held.release().await.unwrap();
        let released = tokio::time::Instant::now();

        let guard = waiting.await.unwrap();

        assert!(released.elapsed() <= Duration::from_millis(200), "{:?}", released.elapsed());
        drop(guard);
    }
}

/// Every release wakes everybody, and all but one ask in vain. Here one of a process does.
#[tokio::test(start_paused = true)]
async fn a_release_wakes_one_waiter_of_a_process() {
    let store = Arc::new(EmbeddedStore::new());
    let flaky = Flaky::new(Arc::clone(&store));
    let (holder, locks) = (Locks::new(store), Locks::new(Arc::clone(&flaky)));
    let held = holder.lock("a").await.unwrap();
    let (got, mut turns) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..50 {
        let (locks, got) = (locks.clone(), got.clone());
        tokio::spawn(async move { got.send(locks.lock("a").await.unwrap()).unwrap() });
    }
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(locks.waiters().len(), 50);
    let before = flaky.acquisitions.load(SeqCst);

    held.release().await.unwrap();
    let mut last = turns.recv().await.unwrap();
    for _ in 1..50 {
        last.release().await.unwrap();
        last = turns.recv().await.unwrap();
    }

    assert_eq!(flaky.acquisitions.load(SeqCst) - before, 50, "one for each hand-over");
}

/// C40: a hundred thousand wait, and are served, each once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_wait_in_one_process() {
    let locks = Locks::new(EmbeddedStore::new());
    let held = locks.lock("a").await.unwrap();
    let mut tasks = Vec::with_capacity(100_000);
    for _ in 0..100_000 {
        let locks = locks.clone();
        tasks.push(tokio::spawn(async move {
            let guard = locks.lock("a").await.unwrap();
            guard.release().await.unwrap()
        }));
    }
    until("all wait", async || locks.inspect("a").await.unwrap().unwrap().waiting == 1).await;
    held.release().await.unwrap();

    for task in tasks {
        assert_eq!(task.await.unwrap(), ReleaseResult::Released);
    }
}

/// The same on Redis: one connection more and one subscription, however many wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_need_one_subscription() {
    let stage = Redis::new().await;
    let locks = stage.process().await;
    let held = locks.lock("a").await.unwrap();
    let tasks: Vec<_> = (0..20_000)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { drop(locks.lock("a").await) })
        })
        .collect();
    let waiting = async || locks.inspect("a").await.unwrap().unwrap().waiting;
    until("it is subscribed", async || waiting().await == 1).await;

    let Reply::Bulk(info) = stage.server.command(&[b"INFO", b"clients"]).unwrap() else { panic!() };
    let info = String::from_utf8(info).unwrap();
    assert!(info.contains("connected_clients:3\r\n"), "ours, its subscription, the test's: {info}");
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    until("nobody waits", async || waiting().await == 0).await;
    assert_eq!(held.release().await.unwrap(), ReleaseResult::Released);
}

/// A holder dies between the grant and the first renewal; nobody publishes anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_died_before_its_first_renewal_is_outlived() {
    let stage = Redis::new().await;
    let dead = stage.connect().await;
    let (name, owner) = (LockName::new("a").unwrap(), Locks::new(stage.connect().await).owner());
    let ask = tollgate_core::lock::Acquire {
        name: &name,
        kind: tollgate::locks::LockKind::Reentrant,
        owner: &owner,
        hold: tollgate_core::lock::HoldId::new(1),
        lease: brisk(),
        delay: Duration::ZERO,
        label: "dead",
        durability: tollgate::locks::Durability::Primary,
    };
    dead.acquire(&ask).await.unwrap();
    drop(dead);

    let guard = stage.process().await.lock("a").await.unwrap();

    assert_eq!(guard.state(), LockState::Sure);
}

/// Dropping everything at once still gives the locks back: the thread ends after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_dropped_with_their_locks_are_given_back() {
    let stage = Redis::new().await;
    let locks = stage.process().await;
    let guards = [locks.lock("a").await.unwrap(), locks.lock("b").await.unwrap()];
    drop((locks, guards));

    let locks = stage.process().await;
    until("both are free", async || {
        locks.inspect("a").await.unwrap().is_none() && locks.inspect("b").await.unwrap().is_none()
    })
    .await;
}

/// The number of times that Redis ran this command.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let Reply::Bulk(info) = server.command(&[b"INFO", b"commandstats"]).unwrap() else { panic!() };
    let info = String::from_utf8(info).unwrap();
    let line =
        info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |rest| rest.split_once(',').unwrap().0.parse().unwrap())
}

/// An uncontended lock is one round trip and its release one, besides a command for many releases that
/// nobody waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_and_its_release_are_one_round_trip_each() {
    let stage = Redis::new().await;
    let locks = stage.process().await;
    let _ = locks.lock("warm").await.unwrap().release().await.unwrap();
    let records = || stage.server.command(&[b"KEYS", b"redisson_unlock_latch:*"]).unwrap();
    until("its release record is gone", async || records() == Reply::Array(vec![])).await;
    let (evals, unlinks) = (calls(&stage.server, "evalsha"), calls(&stage.server, "unlink"));

    for i in 0..100 {
        let guard = locks.lock(&format!("lock {}", i % 10)).await.unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseResult::Released);
    }

    assert_eq!(calls(&stage.server, "evalsha") - evals, 200);
    until("every release record is gone", async || records() == Reply::Array(vec![])).await;
    assert!(calls(&stage.server, "unlink") - unlinks <= 100, "one each at most");
    assert_eq!(calls(&stage.server, "subscribe"), 0);
}

/// A lock that is handed over costs Redis one try of each process that waits, and a poll now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_one_try_of_each_process() {
    let stage = Redis::new().await;
    let processes = [stage.process().await, stage.process().await, stage.process().await];
    let held = processes[0].lock("a").await.unwrap();
    let mut tasks = Vec::new();
    for locks in &processes {
        for _ in 0..50 {
            let locks = locks.clone();
            tasks.push(tokio::spawn(async move {
                locks.lock("a").await.unwrap().release().await.unwrap()
            }));
        }
    }
    until("all wait", async || processes.iter().all(|locks| locks.waiters().len() == 50)).await;
    let (before, evals) = (held.remaining(), calls(&stage.server, "evalsha"));
    held.release().await.unwrap();
    for task in tasks {
        assert_eq!(task.await.unwrap(), ReleaseResult::Released);
    }

    let polls = u64::try_from(before.as_millis() / 100).unwrap() * 3;
    let cost = calls(&stage.server, "evalsha") - evals;
    println!("{cost} calls for 150 hand-overs");
    assert!(cost <= 150 * (1 + 3) + polls, "{cost}");
}
