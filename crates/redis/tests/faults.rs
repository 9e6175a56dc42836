//! Charges when Redis, or the way to it, fails: the number, the kind of failure, and who was charged.
//! Latency is tested in `latency.rs`.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test stops there")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::common::*;
use tollgate_harness::{Client, Direction, Fault, FaultProxy, RedisServer, Reply};
use tollgate_redis::core::algorithm::{FixedWindow, SlidingLog};
use tollgate_redis::core::{Answer, Limit, Request, Store, StoreError, StoreErrorKind};
use tollgate_redis::{BreakerSettings, Config, RedisStore, RetryPolicy};

/// The outcomes of charges of one permit each.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcomes {
    passed: u64,
    refused: u64,
    /// May have been charged.
    timeouts: u64,
    /// Were not charged.
    unavailable: u64,
}

impl Outcomes {
    fn add(&mut self, outcome: Result<Answer, StoreError>) {
        match outcome {
            Ok(answer) if answer.passes() => self.passed += 1,
            Ok(_) => self.refused += 1,
            Err(error) => match error.kind() {
                StoreErrorKind::Timeout => self.timeouts += 1,
                StoreErrorKind::Unavailable => self.unavailable += 1,
                other => panic!("{other:?}"),
            },
        }
    }
}

async fn charged(store: &RedisStore, key: &str, limit: &Limit) -> u64 {
    limit.quota().burst().get() - remaining(store, key, limit).await
}

/// B11, E33
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushing_scripts_all_the_time_changes_no_answer() {
    let server = Arc::new(RedisServer::start().unwrap());
    let store = Arc::new(connect(without_timeout(&server.url())).await);
    let stop = Arc::new(AtomicBool::new(false));
    let flusher = {
        let (server, stop) = (Arc::clone(&server), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                run(&server, &[b"SCRIPT", b"FLUSH", b"SYNC"]);
            }
        })
    };

    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut left = Vec::new();
                for _ in 0..200 {
                    let answer = take(&store, "flushed", &bucket(1_000)).await;
                    left.extend(answer.passes().then_some(answer.decisions[0].remaining));
                }
                left
            })
        })
        .collect();
    let mut left = Vec::new();
    for task in tasks {
        left.extend(task.await.unwrap());
    }
    stop.store(true, Relaxed);
    flusher.join().unwrap();

    left.sort_unstable();
    assert_eq!(left, (0..1_000).collect::<Vec<_>>());
    let stats = store.stats();
    assert!(stats.noscript > 1, "{stats:?}");
    assert_eq!((stats.twin_mismatches, stats.lost, stats.timeouts), (0, 0, 0), "{stats:?}");
}

/// B1: one error each for those under way, then clear refusals, then answers; one burst too many at
/// most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_comes_back_empty_costs_one_burst_at_most() {
    let server = RedisServer::start().unwrap();
    let store = Arc::new(connect(without_timeout(&server.url())).await);
    let limit = bucket(500);
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut outcomes = Outcomes::default();
                while outcomes.refused == 0 {
                    let outcome = ask(&store, &[of("killed", &limit, 1)]).await;
                    // While Redis is away a call ends at once, and must not starve the others.
                    if outcome.is_err() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    outcomes.add(outcome);
                    assert!(outcomes.unavailable < 30_000, "it never comes back: {outcomes:?}");
                }
                outcomes
            })
        })
        .collect();
    until("some charges", || store.stats().requests > 50).await;

    server.kill().unwrap();
    until("the loss is noticed", || store.stats().connected == 0).await;
    server.restart().unwrap();
    let mut passed = 0;
    for task in tasks {
        let outcomes = task.await.unwrap();
        assert!(outcomes.timeouts <= 1, "one was under way: {outcomes:?}");
        passed += outcomes.passed;
    }

    assert!((500..=1_000).contains(&passed), "{passed}");
    assert_eq!(store.stats().twin_mismatches, 0);
}

/// A batch of three whose reply is lost, and then the connection.
async fn lose_the_reply(retry: RetryPolicy) -> (Result<Vec<Answer>, StoreError>, u64, RedisStore) {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let store = Arc::new(connect(without_timeout(&proxy.url()).retry(retry)).await);
    let limit = bucket(10);
    assert!(take(&store, "lost", &limit).await.passes());

    proxy.set(Direction::ToClient, Fault::BlackHole);
    let waiting = Arc::clone(&store);
    let waiting = tokio::spawn(async move {
        let charge = [of("lost", &limit, 1)];
        waiting.charge(&[Request::new(&charge).unwrap(); 3]).await
    });
    until("the reply has vanished", || {
        let traffic = proxy.traffic(Direction::ToClient);
        traffic.received > traffic.delivered
    })
    .await;
    // Executed, and now it stands still while the client comes back.
    server.stop().unwrap();
    proxy.set(Direction::ToClient, Fault::Pass);
    let before = proxy.connections();
    proxy.reset_open();
    until("the client connects again", || proxy.connections() > before).await;
    server.resume().unwrap();

    let outcome = waiting.await.unwrap();
    let direct = connect(without_timeout(&server.url())).await;
    let charged = charged(&direct, "lost", &limit).await - 1;
    (outcome, charged, Arc::into_inner(store).unwrap())
}

/// B4, E34: Redis is stopped after it executed, the client sends it again, Redis goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_fetched_again_and_charged_once() {
    let (outcome, charged, store) = lose_the_reply(RetryPolicy::Once).await;

    let left: Vec<u64> = outcome.unwrap().iter().map(|a| a.decisions[0].remaining).collect();
    assert_eq!((left, charged), (vec![8, 7, 6], 3), "the answers of the first time");
    let stats = store.stats();
    assert_eq!((stats.retried, stats.lost, stats.twin_mismatches), (1, 1, 0), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_retry_a_lost_reply_says_that_it_may_have_happened() {
    let (outcome, charged, store) = lose_the_reply(RetryPolicy::Never).await;

    assert_eq!(outcome.unwrap_err().kind(), StoreErrorKind::Timeout);
    assert_eq!(charged, 3, "once");
    assert_eq!(store.stats().retried, 0);
}

/// B5: whatever ends or garbles connections, what was told explains what was charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connections_charge_what_they_say() {
    let server = RedisServer::start().unwrap();
    let direct = connect(without_timeout(&server.url())).await;
    let faults = [
        (Direction::ToClient, Fault::Reset),
        (Direction::ToServer, Fault::Reset),
        (Direction::ToClient, Fault::CutAfter(0)),
        (Direction::ToClient, Fault::CutAfter(40)),
        (Direction::ToClient, Fault::CutAfter(400)),
        (Direction::ToServer, Fault::CutAfter(100)),
        (Direction::ToServer, Fault::CutAfter(1_000)),
        (Direction::ToClient, Fault::Slice(3)),
        (Direction::ToClient, Fault::Corrupt),
        (Direction::ToServer, Fault::Corrupt),
        (Direction::ToClient, Fault::BlackHole),
        (Direction::ToServer, Fault::BlackHole),
    ];
    for retry in [RetryPolicy::Never, RetryPolicy::Once] {
        for (i, (direction, fault)) in faults.into_iter().enumerate() {
            let proxy = FaultProxy::start(server.address()).unwrap();
            // Enough for a reconnection, and what is silent for so long is no answer.
            let config = breaker_stays_closed(&proxy.url())
                .deadline(Duration::from_millis(100))
                .retry(retry);
            let store = connect(config).await;
            let (key, limit) = (format!("broken:{retry:?}:{i}"), bucket(1_000));
            let mut outcomes = Outcomes::default();
            let _ = recovered(&store, &key, &limit).await;
            outcomes.passed = charged(&direct, &key, &limit).await;

            proxy.set(direction, fault);
            for _ in 0..4 {
                outcomes.add(ask(&store, &[of(&key, &limit, 1)]).await);
            }
            proxy.set(direction, Fault::Pass);
            proxy.reset_open();
            outcomes.add(Ok(recovered(&store, &key, &limit).await));

            let context = format!("{retry:?} {direction:?} {fault:?} {:?}", store.stats());
            assert_eq!(outcomes.refused, 0, "{context}");
            // Waiting for the recovery may have charged more, and then it was not answered.
            let charged = charged(&direct, &key, &limit).await;
            assert!(charged >= outcomes.passed, "{context}: {outcomes:?}, {charged} charged");
            let stats = store.stats();
            let unsure = stats.timeouts + stats.lost;
            assert!(charged <= outcomes.passed + unsure, "{context}: {charged} charged");
            assert_eq!(stats.twin_mismatches, 0);
        }
    }
}

/// B13: what cannot be written is not charged, not even in part; who is refused is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_charges_nothing_in_part_and_recovers() {
    let server = RedisServer::builder().config("maxmemory-policy noeviction").start().unwrap();
    let full = |yes: bool| {
        run(&server, &[b"CONFIG", b"SET", b"maxmemory", if yes { b"1" } else { b"0" }]);
    };
    for retry in [RetryPolicy::Never, RetryPolicy::Once] {
        let store = connect(without_timeout(&server.url()).retry(retry)).await;
        let (spent, live) = (bucket(1), bucket(10));
        let log = limit(SlidingLog, "10 per 1h");
        let window = limit(FixedWindow::default(), "10 per 1h");
        let name = |key: &str| format!("{key}:{retry:?}");
        let keys = ["spent", "live", "log", "new"].map(name);
        assert!(take(&store, &keys[0], &spent).await.passes());
        assert!(take(&store, &keys[1], &live).await.passes());
        assert!(take(&store, &keys[2], &log).await.passes());

        full(true);
        let refusal = ask(&store, &[of(&keys[0], &spent, 1)]).await;
        let all = [of(&keys[1], &live, 1), of(&keys[2], &log, 1), of(&keys[3], &window, 1)];
        let error = ask(&store, &all).await.unwrap_err();
        let one = ask(&store, &all[..1]).await.unwrap_err();
        full(false);

        if retry == RetryPolicy::Never {
            assert!(!refusal.unwrap().passes(), "a refusal writes nothing");
        }
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert_eq!(one.kind(), StoreErrorKind::Unavailable);
        let passed = ask(&store, &all).await.unwrap();
        let left: Vec<u64> = passed.decisions.iter().map(|d| d.remaining).collect();
        assert_eq!(left, [8, 8, 9], "nothing was charged before");
        let stats = store.stats();
        assert_eq!((stats.breaker_opens, stats.twin_mismatches), (0, 0), "{stats:?}");
    }
}

/// B12
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_busy_with_a_script_is_unavailable_until_it_is_done() {
    let server = RedisServer::builder().config("lua-time-limit 1").start().unwrap();
    let breaker = BreakerSettings::default().failures(1).span(Duration::ZERO);
    let breaker = breaker.probe(Duration::from_millis(1), Duration::from_millis(5));
    let store = connect(without_timeout(&server.url()).breaker(breaker)).await;
    let limit = bucket(10);
    assert!(take(&store, "busy", &limit).await.passes());
    let mut other = Client::tcp(server.address()).unwrap();
    let endless = std::thread::spawn(move || other.command(&[b"EVAL", b"while true do end", b"0"]));
    let busy = |reply: Reply| matches!(reply, Reply::Error(text) if text.starts_with("BUSY"));
    until("a busy server", || busy(server.command(&[b"PING"]).unwrap())).await;

    for _ in 0..5 {
        let error = ask(&store, &[of("busy", &limit, 1)]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    }

    server.command(&[b"SCRIPT", b"KILL"]).unwrap();
    endless.join().unwrap().unwrap();
    let answer = recovered(&store, "busy", &limit).await;
    assert_eq!(answer.decisions[0].remaining, 8, "nothing was charged meanwhile");
    assert_eq!(store.stats().twin_mismatches, 0);
}

/// A batch that Redis reads long after its callers were answered otherwise is dropped there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_too_late_is_not_charged() {
    for retry in [RetryPolicy::Never, RetryPolicy::Once] {
        let (server, clock) = clockwork();
        let store = connect(breaker_stays_closed(&server.url()).retry(retry)).await;
        let limit = bucket(10);
        let first = recovered(&store, "late", &limit).await.decisions[0].remaining;

        server.stop().unwrap();
        let error = ask(&store, &[of("late", &limit, 1)]).await.unwrap_err();
        clock.set(START + 10_000_000).unwrap();
        server.resume().unwrap();

        assert_eq!(error.kind(), StoreErrorKind::Timeout);
        let direct = connect(without_timeout(&server.url())).await;
        assert_eq!(remaining(&direct, "late", &limit).await, first, "{retry:?}");
    }
}

/// The same, when Redis goes on in time: the caller was told that it may have happened, and it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_within_two_deadlines_is_charged_once() {
    let (server, _clock) = clockwork();
    let store = connect(breaker_stays_closed(&server.url())).await;
    let limit = bucket(10);
    let first = recovered(&store, "late", &limit).await.decisions[0].remaining;

    server.stop().unwrap();
    let error = ask(&store, &[of("late", &limit, 1)]).await.unwrap_err();
    // The server's clock stands still, so this is in time.
    server.resume().unwrap();

    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    let direct = connect(without_timeout(&server.url())).await;
    assert_eq!(remaining(&direct, "late", &limit).await, first - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_nothing_was_charged_and_it_is_found_when_it_comes() {
    let server = RedisServer::start().unwrap();
    server.kill().unwrap();
    let config = Config::new(&server.url()).unwrap();
    let store = connect(config.deadline(LONG_DEADLINE)).await;
    let limit = bucket(10);

    let error = ask(&store, &[of("later", &limit, 1)]).await.unwrap_err();
    server.restart().unwrap();
    let answer = recovered(&store, "later", &limit).await;

    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(answer.decisions[0].remaining, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_takes_no_new_log_either() {
    // A script that has written may go on, so nothing that Redis never refuses may come first.
    let server = RedisServer::builder().config("maxmemory-policy noeviction").start().unwrap();
    let store = connect(without_timeout(&server.url())).await;
    let log = limit(SlidingLog, "10 per 1h");
    assert!(ask(&store, &[of("before", &log, 1)]).await.unwrap().passes());
    server.command(&[b"CONFIG", b"SET", b"maxmemory", b"1"]).unwrap();

    for key in ["new", "before"] {
        let error = ask(&store, &[of(key, &log, 1)]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{key}");
    }

    server.command(&[b"CONFIG", b"SET", b"maxmemory", b"0"]).unwrap();
    let answer = ask(&store, &[of("before", &log, 1)]).await.unwrap();
    assert_eq!(answer.decisions[0].remaining, 8, "what was refused was not charged");
}
