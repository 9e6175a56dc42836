//! B15: a server whose clock is set. Ahead costs one burst at most; back admits nothing more, and
//! refuses nobody for longer than a full refill takes.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test stops there")]

use std::time::Duration;

use crate::common::*;
use tollgate_core::testing::Rng;
use tollgate_harness::Reply;
use tollgate_redis::RedisStore;
use tollgate_redis::core::{Algorithm, Answer, Limit, Retry, Verdict};

const HOUR_US: u64 = 3_600_000_000;

/// Charges one after the other until two are refused: how many passed, and the last refusal.
async fn exhaust(store: &RedisStore, limit: &Limit, holder: &mut u64) -> (u64, Answer) {
    let mut passed = 0;
    loop {
        *holder += 1;
        let answer = ask(store, &[one("clock", limit, *holder)]).await.unwrap();
        if !answer.passes() {
            return (passed, answer);
        }
        passed += 1;
        assert!(passed < 1_000, "{limit} never refuses");
    }
}

fn retry(answer: &Answer) -> Duration {
    match answer.verdict {
        Verdict::Deny(Retry::After(after)) => after,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_ahead_costs_one_burst_at_most() {
    for limit in every_algorithm() {
        let (server, clock) = clockwork();
        let store = connect(without_timeout(&server.url())).await;
        let mut holder = 0;
        let (first, _) = exhaust(&store, &limit, &mut holder).await;

        clock.set(START + HOUR_US).unwrap();
        let (second, _) = exhaust(&store, &limit, &mut holder).await;

        assert!(first >= 1, "{limit}");
        assert!(second <= first.max(10), "{limit}: {first}, then {second}");
        assert_eq!(store.stats().twin_mismatches, 0);
    }
}

/// Counters that Redis expires while the clock is ahead do not come back with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ahead_and_back_again_costs_one_burst_at_most() {
    for limit in every_algorithm() {
        let (server, clock) = clockwork();
        let store = connect(without_timeout(&server.url())).await;
        let mut holder = 0;
        let (first, _) = exhaust(&store, &limit, &mut holder).await;

        let name = the_name(&server);
        clock.set(START + 3 * HOUR_US).unwrap();
        assert_eq!(run(&server, &[b"EXISTS", &name]), Reply::Integer(0), "{limit}");
        clock.set(START).unwrap();
        let (second, _) = exhaust(&store, &limit, &mut holder).await;

        assert_eq!(second, first, "{limit}");
        let (third, _) = exhaust(&store, &limit, &mut holder).await;
        assert_eq!(third, 0, "{limit}");
        assert_eq!(store.stats().twin_mismatches, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_back_admits_nothing_and_refuses_nobody_for_long() {
    for limit in every_algorithm() {
        let (server, clock) = clockwork();
        let store = connect(without_timeout(&server.url())).await;
        let mut holder = 0;
        let (first, _) = exhaust(&store, &limit, &mut holder).await;

        clock.set(START - HOUR_US).unwrap();
        let (over, refusal) = exhaust(&store, &limit, &mut holder).await;

        assert!(first >= 1 && over == 0, "{limit}: {first}, then {over}");
        let wait = retry(&refusal);
        let refill = match limit.algorithm() {
            // It forgets by the pane, and the weighted one only over the next window.
            Algorithm::SlidingWindow(_) => 2 * HOUR,
            // Ten places, and the one departing.
            Algorithm::LeakyQueue(_) => HOUR * 11 / 10,
            _ => HOUR,
        };
        assert!(wait <= refill, "{limit}: {wait:?}");
        assert_eq!(refusal.decisions[0].remaining, 0, "{limit}");
        let then = START - HOUR_US + u64::try_from(wait.as_micros()).unwrap();
        clock.set(then).unwrap();
        let (after, _) = exhaust(&store, &limit, &mut holder).await;
        assert!(after >= 1, "{limit}: told to come back after {wait:?}, and refused then");
        assert_eq!(store.stats().twin_mismatches, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jitter_admits_no_more_than_the_limit_and_one() {
    let (server, clock) = clockwork();
    let store = connect(without_timeout(&server.url())).await;
    for (i, limit) in every_algorithm().iter().enumerate() {
        let (mut rng, key) = (Rng::new(15), format!("jitter:{i}"));
        let mut passed = 0;
        for step in 0..100 {
            clock.set(START + step * 5_000 + rng.below(100_000)).unwrap();
            let answer = ask(&store, &[one(&key, limit, step)]).await.unwrap();
            passed += u64::from(answer.passes());
            assert!(answer.decisions[0].remaining <= 11, "{limit}: {answer:?}");
        }
        assert!((1..=11).contains(&passed), "{limit}: {passed} in less than a second");
    }
    assert_eq!(store.stats().twin_mismatches, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_counts_within_its_first_period_since_1970() {
    let (server, clock) = clockwork();
    clock.set(10_000_000).unwrap();
    let store = connect(without_timeout(&server.url())).await;
    let log = limit(tollgate_redis::core::algorithm::SlidingLog, "2 per 1m");
    let mut passed = 0;
    for _ in 0..5 {
        passed += u32::from(ask(&store, &[of("k", &log, 1)]).await.unwrap().passes());
    }

    assert_eq!((passed, store.stats().poisoned), (2, 0));
}
