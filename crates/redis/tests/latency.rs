//! Latency of callers when Redis hangs or is slow. Needs real time and a quiet machine:
//! `make faults`.

#![cfg(faults)]
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "a test stops there, and this one measures real time"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use tollgate_harness::{Direction, Fault, FaultProxy, RedisServer};
use tollgate_redis::core::Limit;
use tollgate_redis::{Config, RedisStore};

const CALLERS: usize = 64;
/// The longest time that the breaker may take to notice.
const NOTICE: Duration = Duration::from_millis(250);
const HANG: Duration = Duration::from_secs(5);
const MS: Duration = Duration::from_millis(1);

/// When a call was made, how long it took, and whether it was answered.
type Call = (Duration, Duration, bool);

/// Runs 64 tasks for so long, each charging every other millisecond, and returns their calls.
async fn load(store: &Arc<RedisStore>, limit: Limit, span: Duration) -> Vec<Call> {
    let start = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|i| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let key = format!("caller:{}", i % 8);
                let mut calls = Vec::new();
                while start.elapsed() < span {
                    let sent = Instant::now();
                    let answered = ask(&store, &[of(&key, &limit, 1)]).await.is_ok();
                    calls.push((sent - start, sent.elapsed(), answered));
                    tokio::time::sleep(2 * MS).await;
                }
                calls
            })
        })
        .collect();
    let mut calls = Vec::new();
    for caller in callers {
        calls.extend(caller.await.unwrap());
    }
    calls
}

/// Prints what they waited; the 99th of a hundred.
fn report(when: &str, calls: &[&Call]) -> Duration {
    let mut waits: Vec<Duration> = calls.iter().map(|(_, wait, _)| *wait).collect();
    let answered = calls.iter().filter(|(_, _, answered)| *answered).count();
    waits.sort_unstable();
    let rank = |percent: usize| waits[(waits.len() * percent / 100).min(waits.len() - 1)];
    let (p50, p99, max) = (rank(50), rank(99), rank(100));
    println!(
        "{when}: {} calls, {answered} answered, p50 {p50:?}, p99 {p99:?}, max {max:?}",
        waits.len()
    );
    p99
}

/// Before and after the breaker had its time to notice.
fn before_and_after(calls: &[Call]) -> (Duration, Duration) {
    let (early, late): (Vec<&Call>, Vec<&Call>) = calls.iter().partition(|(at, ..)| *at < NOTICE);
    (report("the first 250 ms", &early), report("afterwards", &late))
}

/// B2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_redis_costs_a_deadline_and_then_nothing() {
    let server = RedisServer::start().unwrap();
    let store = Arc::new(connect(Config::new(&server.url()).unwrap()).await);
    let limit = bucket(5_000);
    let _ = recovered(&store, "caller:0", &limit).await;
    let calm = load(&store, limit, Duration::from_secs(1)).await;
    report("before", &calm.iter().collect::<Vec<_>>());

    println!("stopped for {HANG:?}");
    server.stop().unwrap();
    let calls = load(&store, limit, HANG).await;
    server.resume().unwrap();
    let resumed = Instant::now();
    let _ = recovered(&store, "caller:0", &limit).await;
    println!("answers {:?} after it went on", resumed.elapsed());

    assert!(calls.iter().all(|(_, _, answered)| !answered));
    let (early, late) = before_and_after(&calls);
    println!("{:?}", store.stats());
    assert!(early <= 30 * MS, "{early:?}");
    assert!(late <= 2 * MS, "{late:?}");
    assert_eq!(store.stats().twin_mismatches, 0);
}

/// B3: 50 ms a reply is more than the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_redis_costs_a_deadline_at_most() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let store = Arc::new(connect(Config::new(&proxy.url()).unwrap()).await);
    let limit = bucket(5_000);
    let _ = recovered(&store, "caller:0", &limit).await;

    println!("50 ms a reply for {HANG:?}");
    proxy.set(Direction::ToClient, Fault::Latency(50 * MS));
    let calls = load(&store, limit, HANG).await;
    proxy.set(Direction::ToClient, Fault::Pass);
    let healed = Instant::now();
    let _ = recovered(&store, "caller:0", &limit).await;
    println!("answers {:?} after it is fast again", healed.elapsed());

    let (early, late) = before_and_after(&calls);
    println!("{:?}", store.stats());
    assert!(early <= 25 * MS, "{early:?}");
    assert!(late <= 25 * MS, "{late:?}");
    assert_eq!(store.stats().twin_mismatches, 0);
}
