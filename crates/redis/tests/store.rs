//! The promises that callers of the store rely on, through its public API and on real servers.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test stops there")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use tollgate_core::testing::suite::StoreModel;
use tollgate_harness::{RedisServer, Reply};
use tollgate_redis::core::algorithm::{Concurrency, FixedWindow, SlidingLog, TokenBucket};
use tollgate_redis::core::{
    Answer, Charge, Holder, Key, Limit, OnChange, Op, Request, Retry, Revision, Store,
    StoreErrorKind, Timestamp, Verdict,
};
use tollgate_redis::{Config, RedisStore};

fn sound(stores: &[&RedisStore]) {
    for store in stores {
        let stats = store.stats();
        assert_eq!((stats.twin_mismatches, stats.poisoned), (0, 0), "{stats:?}");
    }
}

/// E31, for each algorithm: every field of every answer is what a plain map of counters says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_algorithm_answers_as_in_memory() {
    let (server, clock) = clockwork();
    let store = connect(without_timeout(&server.url())).await;
    let mut model = StoreModel::default();
    for (i, limit) in every_algorithm().iter().enumerate() {
        let key = format!("each:{i}");
        for n in 0..14 {
            let charges = [one(&key, limit, n)];
            let now = Timestamp::from_micros(clock.micros().unwrap());

            let answer = ask(&store, &charges).await.unwrap();

            let expected = model.charge(&Request::new(&charges).unwrap(), now);
            assert_eq!(answer, expected, "{limit} charge {n}");
            clock.set(now.as_micros() + 7_000_001).unwrap();
        }
    }
    sound(&[&store]);
}

/// E23 over every algorithm at once: the last refuses, and nobody was charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_refusal_among_all_algorithms_charges_nobody() {
    let (server, _clock) = clockwork();
    let store = connect(without_timeout(&server.url())).await;
    let limits = every_algorithm();
    let keys: Vec<String> = (0..limits.len()).map(|i| format!("all:{i}")).collect();
    let full = bucket(1);
    assert!(take(&store, "full", &full).await.passes());
    let mut charges: Vec<Charge<'_>> =
        keys.iter().zip(&limits).map(|(key, limit)| one(key, limit, 1)).collect();
    let alone = charges.clone();
    charges.push(of("full", &full, 1));

    let refused = ask(&store, &charges).await.unwrap();

    assert_eq!(refused.refused_by, Some(limits.len()));
    assert_eq!(names(&server).len(), 1, "only the counter that was charged before exists");
    let passed = ask(&store, &alone).await.unwrap();
    assert!(passed.passes());
    for (decision, limit) in passed.decisions.iter().zip(&limits) {
        let expected = StoreModel::default().charge(
            &Request::new(&[one("fresh", limit, 1)]).unwrap(),
            Timestamp::from_micros(START),
        );
        assert_eq!(*decision, expected.decisions[0], "{limit} as if charged for the first time");
    }
    sound(&[&store]);
}

/// `tasks` tasks take `each` permits of one bucket, alternating between the stores.
async fn rush(stores: &[Arc<RedisStore>], limit: Limit, tasks: usize, each: usize) -> Vec<Answer> {
    let tasks: Vec<_> = (0..tasks)
        .map(|i| {
            let store = Arc::clone(&stores[i % stores.len()]);
            tokio::spawn(async move {
                let mut answers = Vec::new();
                for _ in 0..each {
                    answers.push(take(&store, "hot", &limit).await);
                }
                answers
            })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.extend(task.await.unwrap());
    }
    answers
}

/// Exactly the burst passes, and each place in it is told to one caller only.
fn exactly(burst: u64, answers: &[Answer]) {
    let (passed, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.passes());
    let mut left: Vec<u64> = passed.iter().map(|answer| answer.decisions[0].remaining).collect();
    left.sort_unstable();
    assert_eq!(left, (0..burst).collect::<Vec<_>>());
    assert!(refused.iter().all(|answer| answer.decisions[0].remaining == 0));
    assert!(refused.iter().all(|answer| matches!(answer.verdict, Verdict::Deny(Retry::After(_)))));
}

/// E1 under coalescing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rush_on_one_key_gets_exactly_the_burst() {
    let server = RedisServer::start().unwrap();
    let store = [Arc::new(connect(without_timeout(&server.url())).await)];

    let answers = rush(&store, bucket(900), 64, 25).await;

    assert_eq!(answers.len(), 1_600);
    exactly(900, &answers);
    let stats = store[0].stats();
    assert_eq!(stats.requests, 1_600);
    assert!(stats.runs < stats.requests, "they shared runs: {stats:?}");
    sound(&[&store[0]]);
}

/// Two stores share nothing but the server, as two processes would.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_admit_together_what_one_would() {
    let server = RedisServer::start().unwrap();
    let stores = [
        Arc::new(connect(without_timeout(&server.url())).await),
        Arc::new(connect(without_timeout(&server.url()).connections(3)).await),
    ];

    for limit in [bucket(700), limit(FixedWindow::default(), "700 per 1d"), {
        limit(SlidingLog, "700 per 1d")
    }] {
        let answers = rush(&stores, limit, 32, 40).await;
        exactly(700, &answers);
    }

    sound(&[&stores[0], &stores[1]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_decided_in_order_and_may_be_larger_than_a_run() {
    let server = RedisServer::start().unwrap();
    let store = connect(without_timeout(&server.url())).await;
    let limit = bucket(700);
    let charge = [of("long", &limit, 1)];
    let batch = vec![Request::new(&charge).unwrap(); 1_000];

    let answers = store.charge(&batch).await.unwrap();

    let left: Vec<u64> = answers.iter().map(|answer| answer.decisions[0].remaining).collect();
    let expected: Vec<u64> = (0..700).rev().chain([0; 300]).collect();
    assert_eq!(left, expected);
    assert!(answers[..700].iter().all(Answer::passes));
    assert!(!answers[700..].iter().any(Answer::passes));
    assert!(store.stats().runs >= 4, "a run is short: {:?}", store.stats());
    sound(&[&store]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_widest_requests_pass_in_batches_too() {
    let server = RedisServer::start().unwrap();
    let store = connect(without_timeout(&server.url())).await;
    let limit = bucket(7);
    let keys: Vec<String> = (0..Request::MAX_CHARGES).map(|i| format!("wide:{i}")).collect();
    let charges: Vec<Charge<'_>> = keys.iter().map(|key| of(key, &limit, 1)).collect();
    let batch = vec![Request::new(&charges).unwrap(); 10];

    let answers = store.charge(&batch).await.unwrap();

    let passed: Vec<bool> = answers.iter().map(Answer::passes).collect();
    assert_eq!(passed, [[true; 7].as_slice(), &[false; 3]].concat());
    let left: HashSet<u64> = answers[6].decisions.iter().map(|d| d.remaining).collect();
    assert_eq!(left, HashSet::from([0]));
    assert_eq!(names(&server).len(), Request::MAX_CHARGES);
    sound(&[&store]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_as_many_keys_as_fit_passes() {
    let server = RedisServer::start().unwrap();
    let store = connect(without_timeout(&server.url())).await;
    let limits = [bucket(1), limit(SlidingLog, "1 per 1d")];
    let keys: Vec<String> = (0..600).map(|i| format!("many:{i}")).collect();
    let charges: Vec<[Charge<'_>; 1]> =
        keys.iter().enumerate().map(|(i, key)| [of(key, &limits[i % 2], 1)]).collect();
    let batch: Vec<Request<'_>> = charges.iter().map(|c| Request::new(c).unwrap()).collect();

    let first = store.charge(&batch).await.unwrap();
    let second = store.charge(&batch).await.unwrap();

    assert!(first.iter().all(Answer::passes));
    assert!(!second.iter().any(Answer::passes));
    sound(&[&store]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_asked_is_answered_without_redis() {
    let server = RedisServer::start().unwrap();
    let store = connect(without_timeout(&server.url())).await;
    let limit = bucket(1);
    let charge = [of("k", &limit, 1)];
    let (empty, one) = (Request::new(&[]).unwrap(), Request::new(&charge).unwrap());

    assert_eq!(store.charge(&[]).await.unwrap(), []);
    let answers = store.charge(&[empty]).await.unwrap();
    assert_eq!((answers.len(), answers[0].verdict), (1, Verdict::Allow));
    assert_eq!(store.stats().runs, 0);

    let answers = store.charge(&[empty, one, empty, one, empty]).await.unwrap();
    let passed: Vec<bool> = answers.iter().map(Answer::passes).collect();
    assert_eq!(passed, [true, true, true, false, true]);
    sound(&[&store]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_get_one_place_each() {
    let (server, _clock) = clockwork();
    let store = connect(without_timeout(&server.url())).await;
    let limit = limit(TokenBucket, "10 per 1s burst 1");
    let waiting = of("queue", &limit, 1).with_patience(Duration::from_millis(350));

    let mut verdicts = Vec::new();
    for _ in 0..5 {
        verdicts.push(ask(&store, &[waiting]).await.unwrap().verdict);
    }

    let wait = |ms| Verdict::Wait(Duration::from_millis(ms));
    let refused = Verdict::Deny(Retry::After(Duration::from_millis(50)));
    assert_eq!(verdicts, [Verdict::Allow, wait(100), wait(200), wait(300), refused]);
    sound(&[&store]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_hold_until_they_release_or_their_lease_ends() {
    let (server, clock) = clockwork();
    let store = connect(without_timeout(&server.url())).await;
    let limit = limit(Concurrency, "2 per 1h");
    let key = Key::new("slots").unwrap();
    let lease = Duration::from_secs(10);
    let does = async |op| ask(&store, &[Charge::new(key, &limit, op).unwrap()]).await.unwrap();
    let acquire = async |id| does(Op::Acquire { holder: Holder(id), lease }).await.passes();

    assert!(acquire(1).await);
    assert!(acquire(2).await);
    assert!(!acquire(3).await);
    assert!(acquire(1).await, "who holds it already holds it still");

    assert!(does(Op::Release { holder: Holder(1) }).await.passes());
    assert!(acquire(3).await);
    assert!(!does(Op::Renew { holder: Holder(1), lease }).await.passes(), "it was given back");

    clock.set(START + 5_000_000).unwrap();
    assert!(does(Op::Renew { holder: Holder(2), lease }).await.passes());
    clock.set(START + 10_000_000).unwrap();
    assert!(acquire(4).await, "the lease of 3 has ended");
    assert!(!acquire(5).await, "the one of 2 was renewed");
    sound(&[&store]);
}

/// E38: a partition keeps the counters of a request in one slot, and their names tell the keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_is_one_slot_and_the_names_tell_the_keys() {
    let server = RedisServer::start().unwrap();
    let store = connect(without_timeout(&server.url())).await;
    let limit = bucket(5);
    let wanted: Vec<String> = (0..20).map(|i| format!("part:{i}")).collect();
    let charges: Vec<Charge<'_>> = wanted.iter().map(|key| of(key, &limit, 1)).collect();
    let request = Request::new(&charges).unwrap().within(b"tenant");

    store.charge(&[request]).await.unwrap();
    let again = store.charge(&[request]).await.unwrap();

    assert!(again[0].decisions.iter().all(|decision| decision.remaining == 3));
    let names = names(&server);
    let shard_tags: HashSet<&[u8]> = names.iter().map(|name| &name[..8]).collect();
    assert_eq!(shard_tags.len(), 1, "one shard tag: {shard_tags:?}");
    let told: HashSet<&[u8]> =
        names.iter().map(|name| name.splitn(5, |byte| *byte == b':').nth(4).unwrap()).collect();
    assert_eq!(told, wanted.iter().map(|key| key.as_bytes()).collect());
    sound(&[&store]);
}

/// During a roll-out, nodes with the old and the new rule do not refill each other. E28
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_revisions_that_alternate_admit_what_the_newer_allows() {
    let server = RedisServer::start().unwrap();
    let stores = [
        connect(without_timeout(&server.url())).await,
        connect(without_timeout(&server.url())).await,
    ];
    let stores = stores.map(Arc::new);
    let edited = |limit: Limit, revision| {
        limit.with_revision(Revision(revision)).with_on_change(OnChange::Keep)
    };
    let pairs = [
        (bucket(100), bucket(150)),
        (limit(FixedWindow::default(), "100 per 1d"), limit(FixedWindow::default(), "150 per 1d")),
        (limit(SlidingLog, "100 per 1d"), limit(SlidingLog, "150 per 1d")),
    ];
    for (old, new) in pairs {
        let limits = [edited(old, 1), edited(new, 2)];
        let tasks: Vec<_> = (0..16)
            .map(|i| {
                let (store, limit) = (Arc::clone(&stores[i % 2]), limits[i / 2 % 2]);
                tokio::spawn(async move {
                    let mut passed = 0;
                    for _ in 0..25 {
                        passed += u64::from(take(&store, "rolled", &limit).await.passes());
                    }
                    passed
                })
            })
            .collect();
        let mut passed = 0;
        for task in tasks {
            passed += task.await.unwrap();
        }
        assert_eq!(passed, 150, "{old} and {new}");
    }
    sound(&[&stores[0], &stores[1]]);
    assert!(stores[0].stats().converted + stores[1].stats().converted >= 3);
}

/// A deadline without end once made every call `Unavailable`: the moment could not be represented.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_deadline_there_is_answers() {
    let server = RedisServer::start().unwrap();
    let config = Config::new(&server.url()).unwrap().deadline(Duration::MAX);
    let store = connect(config.connect_timeout(Duration::MAX)).await;

    assert!(take(&store, "k", &bucket(1)).await.passes());
    assert!(!take(&store, "k", &bucket(1)).await.passes());
}

/// Counts were once added after callers were told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_told_finds_it_counted() {
    let server = RedisServer::start().unwrap();
    let store = connect(without_timeout(&server.url())).await;
    let limit = bucket(1);
    assert!(take(&store, "k", &limit).await.passes());
    let name = the_name(&server);

    for poisoned in 1..=200 {
        run(&server, &[b"SET", &name, b"somebody else's", b"PX", b"100000"]);
        assert!(take(&store, "k", &limit).await.passes());
        assert_eq!(store.stats().poisoned, poisoned);
    }
}

#[tokio::test]
async fn three_runs_are_under_way_and_the_rest_waits() {
    let server = RedisServer::start().unwrap();
    let store = Arc::new(connect(without_timeout(&server.url())).await);
    let limit = bucket(1);
    server.stop().unwrap();

    let calls: Vec<_> = (0..2_000)
        .map(|i| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { take(&store, &format!("k{i}"), &limit).await.passes() })
        })
        .collect();
    until("three runs", || store.stats().runs == 3).await;
    tokio::time::sleep(SHORT_DEADLINE).await;
    assert_eq!(store.stats().runs, 3, "no fourth while none is back");
    server.resume().unwrap();

    for call in calls {
        assert!(call.await.unwrap());
    }
    assert_eq!(store.stats().requests, 2_000);
    sound(&[&store]);
}

/// A call of more than a run goes in parts, so a later part may fail when an earlier one is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_second_part_fails_says_that_it_may_have_been_charged() {
    let server = RedisServer::start().unwrap();
    let rights: [&[u8]; 7] = [b"ACL", b"SETUSER", b"some", b"on", b">pw", b"+@all", b"~*mine*"];
    run(&server, &rights);
    let store = connect(without_timeout(&server.url()).user("some").password("pw")).await;
    let limit = bucket(1_000);
    let (mine, other) = ([of("mine", &limit, 1)], [of("other", &limit, 1)]);
    let batch = |first: usize| {
        let mut batch = vec![Request::new(&mine).unwrap(); first];
        batch.push(Request::new(&other).unwrap());
        batch
    };

    let in_one_part = store.charge(&batch(255)).await.unwrap_err();
    assert_eq!(in_one_part.kind(), StoreErrorKind::Unavailable);
    assert_eq!(remaining(&store, "mine", &limit).await, 1_000, "nothing was charged");

    let in_two_parts = store.charge(&batch(256)).await.unwrap_err();
    assert_eq!(in_two_parts.kind(), StoreErrorKind::Timeout);
    assert_eq!(remaining(&store, "mine", &limit).await, 744, "the first part was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_dropped_leaves_no_connection() {
    let server = RedisServer::start().unwrap();
    let store = connect(without_timeout(&server.url()).connections(4)).await;
    assert!(take(&store, "k", &bucket(1)).await.passes());
    let clients = || {
        let Reply::Bulk(list) = run(&server, &[b"CLIENT", b"LIST"]) else { panic!("a list") };
        String::from_utf8(list).unwrap().matches("laddr=127.0.0.1:").count()
    };
    until("four connections", || clients() == 4).await;

    drop(store);

    until("none", || clients() == 0).await;
}
