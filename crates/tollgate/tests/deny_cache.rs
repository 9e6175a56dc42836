//! The deny cache changes nothing about who is admitted: a node that has one and a node that asks
//! every time go through the same history on stores of their own, and agree.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{
    StoreConnection, TokioClock, backend, backend_on, rule, rules, settle, user, with,
};
use tollgate::RuleSet;
use tollgate::rules::declaration::Mode;
use tollgate::{Algorithm, OnFull, Retry, Verdict};
use tollgate::{
    Concurrency, FixedWindow, LeakyMeter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tollgate::{DenyCacheMode, Limiter, Reservation, Source};
use tollgate_core::testing::Rng;

fn algorithms() -> Vec<Algorithm> {
    vec![
        TokenBucket.into(),
        LeakyMeter.into(),
        FixedWindow::default().into(),
        SlidingLog.into(),
        SlidingWindow::conservative().into(),
        SlidingWindow::weighted().into(),
        Smooth::bursty().into(),
    ]
}

fn set(version: u64, algorithm: Algorithm, rng: &mut Rng) -> RuleSet {
    let quota = format!("{} per {}ms", 1 + rng.below(20), 50 + rng.below(500));
    rules(
        version,
        [
            with(rule("per-user", &["user"], &[&quota]), algorithm),
            with(rule("all", &[], &["60 per 1s"]), algorithm),
        ],
    )
}

/// Every algorithm, differing costs, credits and rule changes of this node.
#[tokio::test(start_paused = true)]
async fn a_cached_refusal_is_what_the_store_would_say() {
    for (seed, algorithm) in (0_u64..).zip(algorithms()) {
        let mut rng = Rng::new(seed);
        let first = set(1, algorithm, &mut rng);
        let node = |cache| {
            Limiter::builder(StoreConnection::to(&backend()))
                .rules(first.clone())
                .deny_cache(cache)
                .build()
        };
        let (cached, asking) = (node(DenyCacheMode::On), node(DenyCacheMode::Off));
        let mut version = 1;
        let mut reserved: Vec<(Reservation, Reservation)> = Vec::new();
        for step in 0..6_000 {
            tokio::time::advance(Duration::from_micros(rng.below(20_000))).await;
            let who = ["a", "b", "c"][rng.below(3) as usize];
            let ask = || user(who).cost(1 + (step * 7) % 5);
            match rng.below(40) {
                0 => {
                    version += 1;
                    let next = set(version, algorithm, &mut rng);
                    cached.set_rules(next.clone()).unwrap();
                    asking.set_rules(next).unwrap();
                }
                1..6 => {
                    let minute = Duration::from_secs(60);
                    let a = cached.reserve(&ask(), minute).await;
                    let b = asking.reserve(&ask(), minute).await;
                    assert_eq!(a.is_ok(), b.is_ok(), "{algorithm}, step {step}");
                    reserved.extend(a.ok().zip(b.ok()));
                }
                6..9 if !reserved.is_empty() => {
                    let (a, b) = reserved.swap_remove(rng.below(reserved.len() as u64) as usize);
                    let actual = rng.below(6);
                    assert_eq!(
                        cached.commit(&a, actual).await.is_ok(),
                        asking.commit(&b, actual).await.is_ok()
                    );
                }
                _ => {
                    let (a, b) = (cached.admit(&ask()).await, asking.admit(&ask()).await);
                    assert_eq!(a.passes(), b.passes(), "{algorithm}, step {step}: {a:?} {b:?}");
                    if let (Verdict::Deny(a), Verdict::Deny(b)) = (a.verdict(), b.verdict()) {
                        assert!(
                            a <= b,
                            "{algorithm}: told to come back no later than the store says"
                        );
                    }
                }
            }
        }
        let stats = cached.stats();
        assert!(stats.deny_cache_refusals > 300, "{algorithm}: {stats:?} would prove nothing");
        assert_eq!(asking.stats().deny_cache_refusals, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn another_nodes_credit_is_seen_within_fifty_milliseconds() {
    let store = backend();
    let set = || rules(1, [with(rule("r", &["user"], &["10 per 1h"]), SlidingLog)]);
    let node = || Limiter::builder(StoreConnection::to(&store)).rules(set()).build();
    let (one, two) = (node(), node());
    let reserved = two.reserve(&user("alice").cost(10), Duration::from_secs(60)).await.unwrap();
    assert!(!one.admit(&user("alice")).await.passes());

    two.refund(&reserved).await.unwrap();

    assert_eq!(one.admit(&user("alice")).await.ruling().source(), Source::DenyCache);
    tokio::time::advance(Duration::from_millis(50)).await;
    assert!(one.admit(&user("alice")).await.passes());
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_refusals_costs_the_store_twenty_questions_a_second() {
    let connection = StoreConnection::to(&backend());
    let set = rules(1, [with(rule("r", &["user"], &["1 per 1h"]), SlidingLog)]);
    let limiter = Limiter::builder(connection.clone()).rules(set).build();
    assert!(limiter.admit(&user("mallory")).await.passes());
    let before = connection.reached.load(Ordering::SeqCst);

    for _ in 0..10_000 {
        assert!(!limiter.admit(&user("mallory")).await.passes());
        tokio::time::advance(Duration::from_micros(100)).await;
    }

    let asked = connection.reached.load(Ordering::SeqCst) - before;
    assert!(asked <= 21, "{asked} questions in a second");
    // A lower cost than the refused one is still asked for, and a higher one is not.
    let limiter = Limiter::builder(StoreConnection::to(&backend()))
        .rules(rules(1, [with(rule("r", &["user"], &["3 per 1h"]), SlidingLog)]))
        .build();
    assert!(limiter.admit(&user("bob").cost(2)).await.passes());
    assert!(!limiter.admit(&user("bob").cost(2)).await.passes());
    let higher = limiter.admit(&user("bob").cost(3)).await;
    assert_eq!(higher.ruling().source(), Source::DenyCache);
    let never = limiter.admit(&user("bob").cost(4)).await;
    assert_eq!(never.verdict(), Verdict::Deny(Retry::Never), "and four never pass");
    assert!(limiter.admit(&user("bob")).await.passes());
}

fn hourly(version: u64, count: u64) -> RuleSet {
    rules(version, [with(rule("r", &["user"], &[&format!("{count} per 1h")]), SlidingLog)])
}

#[tokio::test(start_paused = true)]
async fn another_nodes_newer_rules_are_seen_within_fifty_milliseconds() {
    let store = backend();
    let node = || Limiter::builder(StoreConnection::to(&store)).rules(hourly(1, 1)).build();
    let (one, two) = (node(), node());
    assert!(one.admit(&user("alice")).await.passes());
    assert!(!one.admit(&user("alice")).await.passes());

    two.set_rules(hourly(2, 10)).unwrap();
    assert!(two.admit(&user("alice")).await.passes());

    assert_eq!(one.admit(&user("alice")).await.ruling().source(), Source::DenyCache);
    tokio::time::advance(Duration::from_millis(50)).await;
    assert!(one.admit(&user("alice")).await.passes(), "judged by the newer rules of the other");
}

#[tokio::test(start_paused = true)]
async fn a_jump_of_the_stores_clock_is_seen_within_fifty_milliseconds() {
    let clock = TokioClock::new();
    let store = backend_on(clock.clone());
    let limiter = Limiter::builder(StoreConnection::to(&store)).rules(hourly(1, 1)).build();
    assert!(limiter.admit(&user("alice")).await.passes());
    assert!(!limiter.admit(&user("alice")).await.passes());

    clock.jump(Duration::from_secs(3_600));

    assert_eq!(limiter.admit(&user("alice")).await.ruling().source(), Source::DenyCache);
    tokio::time::advance(Duration::from_millis(50)).await;
    assert!(limiter.admit(&user("alice")).await.passes());
}

#[tokio::test(start_paused = true)]
async fn refusals_of_holders_shadow_rules_and_patient_callers_are_not_repeated() {
    let node = |set| Limiter::builder(StoreConnection::to(&backend())).rules(set).build();

    let alone = node(rules(1, [with(rule("c", &["user"], &["1 per 1h"]), Concurrency)]));
    let held = alone.admit(&user("alice")).await;
    assert!(!alone.admit(&user("alice")).await.passes());
    drop(held);
    settle().await;
    assert!(alone.admit(&user("alice")).await.passes(), "released within the 50 ms");

    let mut candidate = with(rule("s", &["user"], &["1 per 1h"]), SlidingLog);
    candidate.mode = Mode::Shadow;
    let lax = with(rule("r", &["user"], &["100 per 1h"]), SlidingLog);
    let shadow = node(rules(1, [candidate, lax]));
    for _ in 0..10 {
        assert!(shadow.admit(&user("alice")).await.passes());
        settle().await;
    }
    assert_eq!(shadow.stats().shadow_refused, 9, "each of them was counted");

    let bucket = node(rules(1, [with(rule("b", &["user"], &["10 per 1s burst 1"]), TokenBucket)]));
    assert!(bucket.admit(&user("alice")).await.passes());
    assert!(!bucket.admit(&user("alice")).await.passes());
    let patient = bucket.admit_within(&user("alice"), Duration::from_secs(1)).await;
    assert_eq!(patient.wait(), Duration::from_millis(100), "a place, where others are refused");
    for _ in 0..20 {
        let refused = bucket.admit_within(&user("alice"), Duration::from_millis(1)).await;
        assert_eq!((refused.passes(), refused.ruling().source()), (false, Source::Store));
    }
    assert_eq!(
        (
            alone.stats().deny_cache_refusals,
            shadow.stats().deny_cache_refusals,
            bucket.stats().deny_cache_refusals
        ),
        (0, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_repeated_while_the_store_has_not_met_a_counter_since_an_edit() {
    let set = |version, all: &str, own: &str| {
        let (all, own) = (rule("all", &[], &[all]), rule("own", &["user"], &[own]));
        rules(version, [with(all, SlidingLog), with(own, SlidingLog)])
    };
    let limiter = Limiter::builder(StoreConnection::to(&backend()))
        .rules(set(1, "9 per 1h", "5 per 1h"))
        .build();
    assert!(limiter.admit(&user("bob")).await.passes());
    limiter.set_rules(set(2, "1 per 1h", "4 per 1h")).unwrap();
    assert!(!limiter.admit(&user("alice")).await.passes());

    let asked = limiter.admit(&user("bob")).await;
    let repeated = limiter.admit(&user("bob")).await;

    // All are refused, and this node knows; but bob's own counter is still to be converted.
    assert_eq!((asked.passes(), asked.ruling().source()), (false, Source::Store));
    assert_eq!((repeated.passes(), repeated.ruling().source()), (false, Source::DenyCache));
}

#[tokio::test(start_paused = true)]
async fn more_counters_than_have_guards_are_answered_as_on_full_says() {
    const PLACES: u64 = 65_536;
    let (asked, mut refused) = (PLACES + 1_000, Vec::new());
    for on_full in [OnFull::Share, OnFull::Admit, OnFull::Refuse] {
        let mut guarded = with(rule("r", &["user"], &["1 per 1h"]), TokenBucket);
        (guarded.local_guard, guarded.on_full) = (Some(1_000), on_full);
        let limiter = Limiter::builder(backend()).rules(rules(1, [guarded])).build();
        for i in 0..asked {
            let _ = limiter.admit(&user(&format!("u{i}"))).await;
        }
        refused.push(limiter.stats().local_guard_refusals);
    }

    let [share, admit, refuse] = refused[..] else { panic!("{refused:?}") };
    assert_eq!(admit, 0, "the store is asked");
    // Keys fall unevenly upon the shards, so the last places are not found.
    assert!((1_000..PLACES / 10).contains(&refuse), "{refuse}");
    assert!((999..PLACES / 10).contains(&share), "{share}: all others share one guard");
}
