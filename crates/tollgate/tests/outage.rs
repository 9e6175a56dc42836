//! The outage fallback with several nodes, in virtual time. E37, B2, B3, B16

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::time::Duration;

use crate::common::{
    Backend, ConnectionState, StoreConnection, backend, rule, rules, settle, user, with,
};
use tollgate::Limiter;
use tollgate::{Algorithm, Retry, Verdict};
use tollgate::{Concurrency, FixedWindow, LeakyMeter, SlidingLog, SlidingWindow, TokenBucket};
use tollgate_core::testing::Rng;

struct Node {
    connection: StoreConnection,
    limiter: Limiter<StoreConnection>,
}

/// So many nodes on one store, which have counted each other.
async fn fleet(store: &Backend, nodes: usize, quota: &str, algorithm: Algorithm) -> Vec<Node> {
    let mut fleet = Vec::new();
    for _ in 0..nodes {
        let connection = StoreConnection::to(store);
        let set = rules(1, [with(rule("r", &["user"], &[quota]), algorithm)]);
        fleet.push(Node {
            limiter: Limiter::builder(connection.clone()).rules(set).build(),
            connection,
        });
        settle().await;
    }
    // The first to come have not seen the last, until the next heartbeat.
    tokio::time::sleep(Duration::from_secs(6)).await;
    settle().await;
    for node in &fleet {
        assert_eq!(node.limiter.stats().nodes, nodes as u64);
    }
    fleet
}

fn all(nodes: &[Node], state: ConnectionState) {
    for node in nodes {
        node.connection.set(state);
    }
}

/// Asks until nobody passes any more; how many did.
async fn exhaust(nodes: &[Node], who: &str) -> u64 {
    let mut passed = 0;
    loop {
        let before = passed;
        for node in nodes {
            passed += u64::from(node.limiter.admit(&user(who)).await.passes());
        }
        if passed == before {
            return passed;
        }
    }
}

fn algorithms() -> Vec<Algorithm> {
    vec![
        TokenBucket.into(),
        LeakyMeter.into(),
        FixedWindow::default().into(),
        SlidingLog.into(),
        SlidingWindow::conservative().into(),
    ]
}

#[tokio::test(start_paused = true)]
async fn across_both_switches_no_more_pass_than_the_limit_and_all_shares() {
    // E37. Nobody has seen the counter when the store goes, so every node has its whole share.
    let cases = algorithms().into_iter().flat_map(|algorithm| [(algorithm, 0), (algorithm, 1)]);
    for (algorithm, pause) in cases {
        let store = backend();
        let nodes = fleet(&store, 4, "10 per 1h", algorithm).await;

        all(&nodes, ConnectionState::Closed);
        let during = exhaust(&nodes, "alice").await;
        assert_eq!(during, 12, "{algorithm}: four shares of three");
        all(&nodes, ConnectionState::Open);
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let after = exhaust(&nodes, "alice").await;

        // A node that asks at once tells what it owes, but not what the others do.
        let most = if pause == 0 { 10 - 3 } else { 0 };
        assert!(after <= most, "{algorithm}: {after} although twelve of ten are owed");
        all(&nodes, ConnectionState::Closed);
        let again = exhaust(&nodes, "alice").await;
        assert!(during + after + again <= 10 + 4 * 3, "{algorithm}");
        assert_eq!(again, 0, "{algorithm}: a flapping store gives no new shares");
    }
}

#[tokio::test(start_paused = true)]
async fn a_counter_that_was_seen_starts_with_what_was_left() {
    for algorithm in algorithms() {
        let store = backend();
        let nodes = fleet(&store, 4, "1000 per 1h", algorithm).await;
        // Uniform traffic: each node has charged a quarter of 600, the last within 100 ms.
        for _ in 0..150 {
            for node in &nodes {
                assert!(node.limiter.admit(&user("alice")).await.passes());
            }
        }

        all(&nodes, ConnectionState::Closed);
        let during = exhaust(&nodes, "alice").await;
        all(&nodes, ConnectionState::Open);
        let after = exhaust(&nodes, "alice").await;

        let sum = 600 + during + after;
        assert!(sum <= 1100, "{algorithm}: {sum} of 1000 passed");
        assert!(sum >= 990, "{algorithm}: {sum} of 1000 passed");
    }
}

#[tokio::test(start_paused = true)]
async fn uniform_traffic_through_an_outage_stays_within_a_tenth() {
    // B2, B3 in virtual time: the store hangs for five seconds under steady traffic.
    for limit in [1_000_u64, 10_000] {
        for algorithm in algorithms() {
            let store = backend();
            let quota = format!("{limit} per 10s");
            let nodes = fleet(&store, 4, &quota, algorithm).await;
            let mut rng = Rng::new(7);
            let mut passed = Vec::new();
            let start = tokio::time::Instant::now();
            // Twice the limit is asked for, for 30 s; from 10 s to 15 s the store hangs.
            for step in 0..3_000_u64 {
                match step {
                    1_000 => all(&nodes, ConnectionState::Closed),
                    1_500 => all(&nodes, ConnectionState::Open),
                    _ => {}
                }
                for node in &nodes {
                    for _ in 0..limit / 2_000 {
                        passed.push((start.elapsed(), ask(node).await));
                    }
                    if rng.below(2_000) < limit % 2_000 {
                        passed.push((start.elapsed(), ask(node).await));
                    }
                }
                tokio::time::advance(Duration::from_millis(10)).await;
                settle().await;
            }
            let admitted: Vec<Duration> =
                passed.iter().filter(|(_, passes)| *passes).map(|(at, _)| *at).collect();
            let most = busiest(&admitted, Duration::from_secs(10));
            // The algorithm's own bound for any window, without a fault.
            let own = match algorithm {
                Algorithm::TokenBucket(_)
                | Algorithm::LeakyMeter(_)
                | Algorithm::FixedWindow(_) => 2 * limit,
                _ => limit,
            };
            let bound = own + limit / 10;
            assert!(most <= bound, "{algorithm}, {limit}: {most} in ten seconds, above {bound}");
        }
    }
}

async fn ask(node: &Node) -> bool {
    node.limiter.admit(&user("alice")).await.passes()
}

/// The most that passed in any window.
fn busiest(admitted: &[Duration], window: Duration) -> u64 {
    let (mut first, mut most) = (0, 0);
    for (last, at) in admitted.iter().enumerate() {
        while admitted[first] + window <= *at {
            first += 1;
        }
        most = most.max(last - first + 1);
    }
    most as u64
}

#[tokio::test(start_paused = true)]
async fn debts_count_once_even_if_replies_are_lost() {
    for algorithm in algorithms() {
        let store = backend();
        let nodes = fleet(&store, 1, "100 per 1h", algorithm).await;
        all(&nodes, ConnectionState::Closed);
        for _ in 0..10 {
            assert!(ask(&nodes[0]).await);
        }

        // The store executes every charge, and every reply is lost; the background job tries on.
        all(&nodes, ConnectionState::LosesReplies);
        tokio::time::sleep(Duration::from_secs(5)).await;
        all(&nodes, ConnectionState::Open);
        tokio::time::sleep(Duration::from_secs(1)).await;

        let explained = nodes[0].limiter.explain(&user("alice")).await;
        assert_eq!(explained.counters[0].remaining, 90, "{algorithm}: ten, told many times");
        assert_eq!(nodes[0].limiter.stats().counters_in_debt, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn debts_are_settled_also_where_nobody_asks() {
    let store = backend();
    let nodes = fleet(&store, 2, "100 per 1h", SlidingLog.into()).await;
    all(&nodes, ConnectionState::Closed);
    for i in 0..500 {
        assert!(nodes[0].limiter.admit(&user(&format!("user-{i}"))).await.passes());
    }
    assert_eq!(nodes[0].limiter.stats().counters_in_debt, 500);

    all(&nodes, ConnectionState::Open);
    tokio::time::sleep(Duration::from_secs(3)).await;

    assert_eq!(nodes[0].limiter.stats().counters_in_debt, 0);
    let explained = nodes[1].limiter.explain(&user("user-123")).await;
    assert_eq!(explained.counters[0].remaining, 99, "the other node sees it");
}

#[tokio::test(start_paused = true)]
async fn in_a_long_outage_the_share_is_a_rate_and_not_an_amount() {
    let store = backend();
    let nodes = fleet(&store, 4, "100 per 1s", TokenBucket.into()).await;
    all(&nodes, ConnectionState::Closed);
    let _ = exhaust(&nodes, "alice").await;

    let mut passed = 0;
    for _ in 0..100 {
        tokio::time::advance(Duration::from_millis(100)).await;
        passed += exhaust(&nodes, "alice").await;
    }

    assert!((990..=1_010).contains(&passed), "{passed} in ten seconds at 100 a second");
    all(&nodes, ConnectionState::Open);
    let after = exhaust(&nodes, "alice").await;
    assert!(after <= 4, "{after}: what is owed is what a full bucket owes, not ten seconds of it");
    tokio::time::advance(Duration::from_secs(1)).await;
    let later = exhaust(&nodes, "alice").await;
    assert!(later >= 95, "{later}: and it is over after a second");
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_share_may_be_tried_again() {
    let store = backend();
    let nodes = fleet(&store, 4, "8 per 1h", SlidingLog.into()).await;
    all(&nodes, ConnectionState::Closed);

    let refused = nodes[0].limiter.admit(&user("alice").cost(5)).await;

    assert!(matches!(refused.verdict(), Verdict::Deny(Retry::After(_))), "five of eight exist");
    assert!(!refused.outage().unwrap().unavailable, "by the limit, not by the outage alone");
}

#[tokio::test(start_paused = true)]
async fn holders_have_a_share_too() {
    let store = backend();
    let nodes = fleet(&store, 2, "4 per 30s", Concurrency.into()).await;
    all(&nodes, ConnectionState::Closed);

    let first = nodes[0].limiter.admit(&user("alice")).await;
    let second = nodes[0].limiter.admit(&user("alice")).await;
    assert!(first.passes() && second.passes());
    assert!(!ask(&nodes[0]).await, "two of four");
    drop(first);
    settle().await;
    let third = nodes[0].limiter.admit(&user("alice")).await;
    assert!(third.passes(), "released where it was taken");

    // Back again, the store learns of those who hold on.
    all(&nodes, ConnectionState::Open);
    tokio::time::sleep(Duration::from_secs(15)).await;
    let explained = nodes[1].limiter.explain(&user("alice")).await;
    assert_eq!(explained.counters[0].remaining, 2);
    drop((second, third));
}

#[tokio::test(start_paused = true)]
async fn nodes_that_leave_are_no_longer_counted() {
    let store = backend();
    let mut nodes = fleet(&store, 3, "9 per 1h", TokenBucket.into()).await;

    drop(nodes.pop());
    settle().await;
    nodes[1].connection.set(ConnectionState::Closed);
    tokio::time::sleep(Duration::from_secs(25)).await;
    settle().await;

    assert_eq!(nodes[0].limiter.stats().nodes, 1, "one said farewell, one is taken for dead");
}

#[tokio::test(start_paused = true)]
async fn nothing_local_follows_the_wall_clock() {
    // B16: virtual time stands still while the wall clock moves on; nothing is refilled by it.
    let store = backend();
    let nodes = fleet(&store, 1, "1 per 1ms", TokenBucket.into()).await;
    all(&nodes, ConnectionState::Closed);
    assert!(ask(&nodes[0]).await);

    std::thread::sleep(Duration::from_millis(20));

    assert!(!ask(&nodes[0]).await);
    tokio::time::advance(Duration::from_millis(2)).await;
    assert!(ask(&nodes[0]).await);
}
