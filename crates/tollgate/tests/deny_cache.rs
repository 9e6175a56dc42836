//! The deny cache changes nothing about who is admitted: a node that has one and a node that asks
//! every time go through the same history on stores of their own, and agree.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Way, backend, rule, rules, user, with};
use tollgate::core::algorithm::{
    FixedWindow, LeakyMeter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tollgate::core::rule::RuleSet;
use tollgate::core::testing::Rng;
use tollgate::core::{Algorithm, Retry, Verdict};
use tollgate::{DenyCache, Limiter, Reservation, Source};

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
            Limiter::builder(Way::to(&backend())).rules(first.clone()).deny_cache(cache).build()
        };
        let (cached, asking) = (node(DenyCache::On), node(DenyCache::Off));
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
        assert!(stats.cached > 300, "{algorithm}: {stats:?} would prove nothing");
        assert_eq!(asking.stats().cached, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn another_nodes_credit_is_seen_within_fifty_milliseconds() {
    let store = backend();
    let set = || rules(1, [with(rule("r", &["user"], &["10 per 1h"]), SlidingLog)]);
    let node = || Limiter::builder(Way::to(&store)).rules(set()).build();
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
    let way = Way::to(&backend());
    let set = rules(1, [with(rule("r", &["user"], &["1 per 1h"]), SlidingLog)]);
    let limiter = Limiter::builder(way.clone()).rules(set).build();
    assert!(limiter.admit(&user("mallory")).await.passes());
    let before = way.reached.load(Ordering::SeqCst);

    for _ in 0..10_000 {
        assert!(!limiter.admit(&user("mallory")).await.passes());
        tokio::time::advance(Duration::from_micros(100)).await;
    }

    let asked = way.reached.load(Ordering::SeqCst) - before;
    assert!(asked <= 21, "{asked} questions in a second");
    // A lower cost than the refused one is still asked for, and a higher one is not.
    let limiter = Limiter::builder(Way::to(&backend()))
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
