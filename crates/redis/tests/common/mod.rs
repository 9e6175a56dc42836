//! Helpers for the tests of the store: limits, short ways to charge, and a look at what is
//! really stored.

#![allow(clippy::unwrap_used, reason = "a test stops there")]
#![allow(dead_code, reason = "every test file uses another part")]

use std::time::Duration;

use tollgate_harness::{RedisServer, Reply, ServerClock};
use tollgate_redis::core::algorithm::{
    Algorithm, Anchor, Concurrency, FixedWindow, LeakyMeter, LeakyQueue, SlidingLog, SlidingWindow,
    Smooth, TokenBucket,
};
use tollgate_redis::core::{Answer, Charge, Holder, Key, Limit, Op, Request, Store, StoreError};
use tollgate_redis::{BreakerSettings, Config, RedisStore};

/// A deadline that no test reaches.
pub(crate) const LONG_DEADLINE: Duration = Duration::from_secs(60);
/// A deadline that a test means to miss.
pub(crate) const SHORT_DEADLINE: Duration = Duration::from_millis(30);
/// A lease and a period longer than any test.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
/// A moment to start a clock at, in microseconds.
pub(crate) const START: u64 = 1_700_000_000_000_000;

pub(crate) fn without_timeout(url: &str) -> Config {
    Config::new(url).unwrap().deadline(LONG_DEADLINE).connect_timeout(LONG_DEADLINE)
}

/// Times out soon; the breaker never opens.
pub(crate) fn breaker_stays_closed(url: &str) -> Config {
    let breaker = BreakerSettings::default().failures(u32::MAX).span(Duration::MAX);
    let breaker = breaker.probe(Duration::from_millis(1), Duration::from_millis(5));
    Config::new(url).unwrap().deadline(SHORT_DEADLINE).breaker(breaker)
}

pub(crate) async fn connect(config: Config) -> RedisStore {
    RedisStore::connect(config).await.unwrap()
}

/// A server whose clock stands still until it is moved, and which forgets keys only when they are
/// asked for.
pub(crate) fn clockwork() -> (RedisServer, ServerClock) {
    let clock = ServerClock::new().unwrap();
    clock.set(START).unwrap();
    let builder = RedisServer::builder().config("enable-debug-command yes");
    let server = builder.clock(&clock).start().unwrap();
    server.command(&[b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0"]).unwrap();
    (server, clock)
}

pub(crate) fn limit(algorithm: impl Into<Algorithm>, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap()
}

/// A bucket of which nothing comes back during a test.
pub(crate) fn bucket(burst: u64) -> Limit {
    limit(TokenBucket, &format!("1 per 1h burst {burst}"))
}

/// Every algorithm, with a capacity of ten in an hour.
pub(crate) fn every_algorithm() -> Vec<Limit> {
    let ten = "10 per 1h";
    vec![
        limit(FixedWindow { anchor: Anchor::FirstHit }, ten),
        limit(FixedWindow { anchor: Anchor::Epoch }, ten),
        limit(SlidingLog, ten),
        limit(SlidingWindow::conservative(), ten),
        limit(SlidingWindow::weighted(), ten),
        limit(TokenBucket, ten),
        limit(LeakyMeter, ten),
        limit(LeakyQueue, ten),
        limit(Smooth::bursty(), ten),
        limit(Smooth::warming_up(Duration::from_secs(60)), ten),
        limit(Concurrency, ten),
    ]
}

/// A charge of one: a permit, or of a concurrency limit the holder of this number.
pub(crate) fn one<'a>(key: &'a str, limit: &'a Limit, holder: u64) -> Charge<'a> {
    let op = match limit.algorithm() {
        Algorithm::Concurrency(_) => Op::Acquire { holder: Holder(holder.into()), lease: HOUR },
        _ => Op::Take(1),
    };
    Charge::new(Key::new(key).unwrap(), limit, op).unwrap()
}

pub(crate) fn of<'a>(key: &'a str, limit: &'a Limit, cost: u64) -> Charge<'a> {
    Charge::take(Key::new(key).unwrap(), limit, cost).unwrap()
}

pub(crate) async fn ask(store: &RedisStore, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
    let answers = store.charge(&[Request::new(charges).unwrap()]).await?;
    assert_eq!(answers.len(), 1);
    Ok(answers.into_iter().next().unwrap())
}

pub(crate) async fn take(store: &RedisStore, key: &str, limit: &Limit) -> Answer {
    ask(store, &[of(key, limit, 1)]).await.unwrap()
}

pub(crate) async fn remaining(store: &RedisStore, key: &str, limit: &Limit) -> u64 {
    let peek = Charge::new(Key::new(key).unwrap(), limit, Op::Peek(0)).unwrap();
    ask(store, &[peek]).await.unwrap().decisions[0].remaining
}

/// Waits for what happens in the background.
pub(crate) async fn until(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if happened() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within half a minute: {what}");
}

/// Waits until a charge of this counter is answered again.
pub(crate) async fn recovered(store: &RedisStore, key: &str, limit: &Limit) -> Answer {
    for _ in 0..6_000 {
        if let Ok(answer) = ask(store, &[of(key, limit, 1)]).await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not recovered within half a minute: {:?}", store.stats());
}

/// The names of all counters that are stored.
pub(crate) fn names(server: &RedisServer) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut cursor = b"0".to_vec();
    loop {
        let reply = server.command(&[b"SCAN", &cursor, b"MATCH", b"tg:*", b"COUNT", b"1000"]);
        let Reply::Array(parts) = reply.unwrap() else { panic!("SCAN answers an array") };
        let [Reply::Bulk(next), Reply::Array(found)] = &parts[..] else { panic!("{parts:?}") };
        names.extend(found.iter().map(|name| match name {
            Reply::Bulk(name) => name.clone(),
            other => panic!("{other:?}"),
        }));
        if next == b"0" {
            return names;
        }
        cursor.clone_from(next);
    }
}

/// The name of the only counter that is stored.
pub(crate) fn the_name(server: &RedisServer) -> Vec<u8> {
    let mut names = names(server);
    assert_eq!(names.len(), 1, "{names:?}");
    names.pop().unwrap()
}

/// Milliseconds to live: -1 for ever, -2 if it is gone.
pub(crate) fn pttl(server: &RedisServer, name: &[u8]) -> i64 {
    match server.command(&[b"PTTL", name]).unwrap() {
        Reply::Integer(ttl) => ttl,
        other => panic!("{other:?}"),
    }
}

/// A command of which nothing but success is expected.
pub(crate) fn run(server: &RedisServer, parts: &[&[u8]]) -> Reply {
    let reply = server.command(parts).unwrap();
    assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
    reply
}
