//! Counters as large as they get: what they cost Redis, and that nobody waits for them.
//!
//! Time is measured by Redis itself (`SLOWLOG`), with much room for a busy machine; what a script does
//! is counted in commands and bytes.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a test stops there"
)]

use std::time::Duration;

use crate::common::*;
use tokio::sync::Mutex;
use tollgate_harness::{RedisServer, Reply};
use tollgate_redis::core::algorithm::{Concurrency, SlidingLog};
use tollgate_redis::core::{
    Answer, Charge, Holder, Key, Limit, OnChange, Op, Request, Revision, Store,
};
use tollgate_redis::{Config, RedisStore};

/// As many entries as a log may have.
const ENTRIES: u64 = 100_000;
/// The deadline that everybody has.
const MOST: Duration = Duration::from_millis(20);
/// No script may take longer, in microseconds: a tenth of that is normal, the rest is for a machine
/// that does other things as well.
const LONGEST: i64 = 50_000;
/// Calls that may time out before one is answered: none where there is nothing else to do.
const FAILED: u32 = 3;

fn now(server: &RedisServer) -> u64 {
    let Reply::Array(parts) = run(server, &[b"TIME"]) else { panic!("TIME is two numbers") };
    let numbers = parts.iter().map(|part| match part {
        Reply::Bulk(digits) => std::str::from_utf8(digits).unwrap().parse::<u64>().unwrap(),
        other => panic!("{other:?}"),
    });
    numbers.reduce(|seconds, micros| seconds * 1_000_000 + micros).unwrap()
}

/// A log of `entries` charges of 1 under this limit, 20 µs apart, the first of them `age` µs ago.
async fn long_log(server: &RedisServer, limit: &Limit, entries: u64, age: u64) -> Vec<u8> {
    let store = connect(without_timeout(&server.url())).await;
    run(server, &[b"FLUSHALL"]);
    assert!(take(&store, "log", limit).await.passes());
    let name = the_name(server);
    run(server, &[b"ZREMRANGEBYRANK", &name, b"1", b"-1"]);
    let first = now(server) - age;
    for chunk in (1..=entries).collect::<Vec<_>>().chunks(1_000) {
        let mut parts = vec![b"ZADD".to_vec(), name.clone()];
        for total in chunk {
            parts.push((first + total * 20).to_string().into_bytes());
            parts.push([total.to_le_bytes(), 1_u64.to_le_bytes()].concat());
        }
        run(server, &parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    name
}

/// Begins to watch what scripts cost.
fn watch(server: &RedisServer) {
    run(server, &[b"CONFIG", b"SET", b"slowlog-log-slower-than", b"0"]);
    run(server, &[b"SLOWLOG", b"RESET"]);
    run(server, &[b"CONFIG", b"RESETSTAT"]);
}

/// The cost of the scripts since: the longest in microseconds, commands called, and bytes sent.
fn cost(server: &RedisServer) -> (i64, u64, u64) {
    let info = |section: &[u8]| match run(server, &[b"INFO", section]) {
        Reply::Bulk(text) => String::from_utf8(text).unwrap(),
        other => panic!("{other:?}"),
    };
    let field = |text: &str, name: &str| text.split(name).nth(1).map(digits);
    let bytes = field(&info(b"stats"), "total_net_output_bytes:").unwrap();
    let calls = info(b"commandstats").lines().filter_map(|line| field(line, "calls=")).sum();
    let Reply::Array(entries) = run(server, &[b"SLOWLOG", b"GET", b"-1"]) else { panic!() };
    let longest = entries.iter().map(|entry| match entry {
        Reply::Array(parts) => match &parts[2] {
            Reply::Integer(micros) => *micros,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    });
    (longest.max().unwrap(), calls, bytes)
}

fn digits(text: &str) -> u64 {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().unwrap()
}

fn log_limit(quota: &str, revision: u64) -> Limit {
    limit(SlidingLog, quota).with_revision(Revision(revision))
}

/// A store with the default deadline.
async fn with_default_deadline(server: &RedisServer) -> RedisStore {
    connect(Config::new(&server.url()).unwrap().deadline(MOST)).await
}

/// One at a time: they measure.
static TURN: Mutex<()> = Mutex::const_new(());

/// Counts the calls that fail before one is answered, and returns what that one has left.
async fn failures(store: &RedisStore, limit: &Limit) -> (u32, u64) {
    for failed in 0..20 {
        if let Ok(answer) = ask(store, &[of("log", limit, 1)]).await {
            return (failed, answer.decisions[0].remaining);
        }
    }
    panic!("never answered: {:?}", store.stats());
}

/// A conversion used to send every entry to the client and back: longer than the deadline, so at each
/// charge again, and Redis stood still meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_log_comes_under_another_limit_within_the_deadline() {
    let _turn = TURN.lock().await;
    let server = RedisServer::start().unwrap();
    let old = log_limit("100_000 per 1h", 1);
    let scaled = log_limit("50_000 per 1h", 2).with_on_change(OnChange::Scale);
    let edits = [
        ("a longer period", log_limit("100_000 per 2h", 2), 9_999),
        ("a shorter one", log_limit("100_000 per 30m", 2), 9_999),
        ("the same revision", log_limit("100_000 per 2h", 1), 9_999),
        ("a lower count", log_limit("91_000 per 1h", 2), 999),
        ("a count lower than what is used", log_limit("60_000 per 1h", 2), 0),
        ("a low one", log_limit("10 per 1h", 2), 0),
        ("half of it", scaled, 4_999),
        ("anew", log_limit("100_000 per 2h", 2).with_on_change(OnChange::Reset), 99_999),
        ("so short that all have left", log_limit("100_000 per 1s", 2), 99_999),
    ];
    for (what, new, left) in edits {
        let name = long_log(&server, &old, 90_000, 60_000_000).await;
        let store = with_default_deadline(&server).await;
        watch(&server);

        let (failed, remaining) = failures(&store, &new).await;

        let (longest, calls, bytes) = cost(&server);
        println!("{what}: {failed} failed, {longest} µs, {calls} commands, {bytes} bytes");
        assert!(failed <= FAILED, "{what}: {failed} calls failed");
        // A call that timed out may have been charged.
        let least = u64::saturating_sub(left, failed.into());
        assert!((least..=left).contains(&remaining), "{what}: {remaining} left");
        let most = i64::try_from(new.quota().count().get()).unwrap();
        let Reply::Integer(members) = run(&server, &[b"ZCARD", &name]) else { panic!() };
        assert!(members <= most + 1, "{what}: {members} members");
        assert!(longest < LONGEST, "{what}: {longest} µs");
        assert!(calls < 3_000 && bytes < 10_000, "{what}: {calls} commands, {bytes} bytes");
        assert!(pttl(&server, &name) > 0, "{what}");
        assert_eq!(store.stats().twin_mismatches, 0, "{what}");
    }
}

/// Several charges of one request on one log used to have all of it sent: a second and more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_that_share_a_long_log_do_not_have_it_sent() {
    let _turn = TURN.lock().await;
    let server = RedisServer::start().unwrap();
    let limit = log_limit("100_000 per 1h", 1);
    long_log(&server, &limit, 99_000, 60_000_000).await;
    let store = with_default_deadline(&server).await;
    watch(&server);

    for (charges, cost, passes) in [(2, 1, true), (64, 5, true), (2, 400, false), (8, 1, true)] {
        let charges = vec![of("log", &limit, cost); charges];
        let answer = ask(&store, &charges).await.unwrap();
        assert_eq!(answer.passes(), passes, "{cost}: {answer:?}");
    }

    let (longest, calls, bytes) = cost(&server);
    println!("shared: {longest} µs, {calls} commands, {bytes} bytes");
    assert!(longest < LONGEST, "{longest} µs");
    assert!(bytes < 10_000, "{bytes} bytes");
    assert_eq!(store.stats().twin_mismatches, 0);
}

/// So many permits of one limit, of the holder that each number names.
async fn held_by(server: &RedisServer, limit: &Limit, holders: impl Iterator<Item = u128>) {
    let store = connect(without_timeout(&server.url())).await;
    run(server, &[b"FLUSHALL"]);
    assert!(ask(&store, &[one("held", limit, 1)]).await.unwrap().passes());
    let name = the_name(server);
    let Reply::Bulk(mut value) = run(server, &[b"GET", &name]) else { panic!("not a string") };
    value.truncate(value.len() - 24);
    for (i, holder) in (0..).zip(holders) {
        value.extend(holder.to_le_bytes());
        value.extend((now(server) + 3_000_000_000 + i * 50).to_le_bytes());
    }
    run(server, &[b"SET", &name, &value, b"PX", b"3000000"]);
}

/// Every permit used to be read for every charge, a millisecond each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_beside_thousands_of_holders_does_not_hold_redis_up() {
    let _turn = TURN.lock().await;
    let server = RedisServer::start().unwrap();
    let limit = limit(Concurrency, "10_000 per 1h");
    let random = |i: u64| u128::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let numbers = |i: u64| u128::from(i) + 1_000_000;
    for (what, holder) in [("numbers", &numbers as &dyn Fn(u64) -> u128), ("any", &random)] {
        held_by(&server, &limit, (0..9_000).map(holder)).await;
        // The client too has something to do for each.
        let store = connect(Config::new(&server.url()).unwrap().deadline(10 * MOST)).await;
        let lease = Duration::from_secs(3_500);
        let charges: Vec<_> = (9_000..9_250)
            .map(|i| Op::Acquire { holder: Holder(holder(i)), lease })
            .map(|op| [Charge::new(Key::new("held").unwrap(), &limit, op).unwrap()])
            .collect();
        let batch: Vec<_> = charges.iter().map(|charge| Request::new(charge).unwrap()).collect();
        watch(&server);

        let answers = store.charge(&batch).await.unwrap();

        let (longest, ..) = cost(&server);
        println!("{what}: {longest} µs");
        assert!(answers.iter().all(Answer::passes), "{what}");
        assert_eq!(answers[249].decisions[0].remaining, 750, "{what}");
        assert!(longest < 2 * LONGEST, "{what}: {longest} µs");
        assert_eq!(store.stats().twin_mismatches, 0, "{what}");
    }
}

/// Each of them used to be taken out of the rest, one after the other: seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_of_every_permit_does_not_hold_redis_up() {
    let _turn = TURN.lock().await;
    let server = RedisServer::start().unwrap();
    let limit = limit(Concurrency, "10_000 per 1h");
    held_by(&server, &limit, (0..10_000).map(|_| 7)).await;
    let store = with_default_deadline(&server).await;
    watch(&server);

    let answer = ask(&store, &[one("held", &limit, 7)]).await.unwrap();

    let (longest, ..) = cost(&server);
    println!("one holder: {longest} µs");
    assert!(answer.passes());
    assert!(longest < LONGEST, "{longest} µs");
    assert_eq!(store.stats().twin_mismatches, 0);
}

/// Most of a log may leave between two charges. What has left is removed by and by.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_log_that_has_left_does_not_hold_redis_up() {
    let _turn = TURN.lock().await;
    let server = RedisServer::start().unwrap();
    let limit = log_limit("100_000 per 1h", 1);
    // They are two seconds apart, the first and the last.
    for (what, age) in [("all of it", 3_700_000_000), ("half of it", 3_601_000_000)] {
        let name = long_log(&server, &limit, ENTRIES, age).await;
        let store = with_default_deadline(&server).await;
        watch(&server);

        let (failed, _) = failures(&store, &limit).await;
        for _ in 0..60 {
            let (again, _) = failures(&store, &limit).await;
            assert!(again <= FAILED, "{what}: {again} calls failed");
        }

        let (longest, ..) = cost(&server);
        println!("{what} has left: {longest} µs");
        assert!(failed <= FAILED, "{what}: {failed} calls failed");
        assert!(longest < LONGEST, "{what}: {longest} µs");
        assert!(pttl(&server, &name) > 0, "{what}");
        assert_eq!(store.stats().twin_mismatches, 0, "{what}");
    }
}
