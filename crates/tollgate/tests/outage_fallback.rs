//! The outage fallback besides its shares: several rules at once, holders, debts whose answers are lost,
//! a memory that is full, and the nodes that are counted. Shares are in `outage.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::time::Duration;

use crate::common::{
    Backend, ConnectionState, StoreConnection, backend, left, log, node, on, rule, rules, settle,
    user, with,
};
use tollgate::rules::declaration::{OnOutage, Rule};
use tollgate::store::{Charge, Holder, Key, Op};
use tollgate::{Admission, Limiter};
use tollgate::{Algorithm, Limit, OnFull};
use tollgate::{Concurrency, FixedWindow, SlidingLog, TokenBucket};

/// The number of counters that an outage has places for.
const PLACES: u64 = 65_536;

fn hourly(name: &str, by: &[&str], count: u64) -> Rule {
    log(rule(name, by, &[&format!("{count} per 1h")]))
}

fn at_once(count: u64) -> Rule {
    with(rule("at-once", &["user"], &[&format!("{count} per 30s")]), Concurrency)
}

async fn hold(limiter: &Limiter<StoreConnection>, times: usize) -> Vec<Admission> {
    let mut held = Vec::new();
    for _ in 0..times {
        let admission = limiter.admit(&user("alice")).await;
        if admission.passes() {
            held.push(admission);
        }
    }
    held
}

#[tokio::test(start_paused = true)]
async fn of_several_rules_refuse_wins_and_shares_are_charged_all_or_none() {
    let mut strict = on(hourly("strict", &[], 1_000), "service", "pay");
    strict.on_outage = OnOutage::Refuse;
    let mut lax = hourly("lax", &[], 1);
    lax.on_outage = OnOutage::Admit;
    let connection = StoreConnection::to(&backend());
    let limiter =
        node(&connection, [lax, hourly("all", &[], 10), hourly("own", &["user"], 3), strict]).await;
    connection.set(ConnectionState::Closed);

    for _ in 0..20 {
        let refused = limiter.admit(&user("alice").with("service", "pay").unwrap()).await;
        assert!(!refused.passes() && refused.outage().unwrap().unavailable);
    }
    let mut passed = Vec::new();
    for who in ["alice", "bob", "carol", "dave"] {
        let mut own = 0;
        for _ in 0..20 {
            own += u64::from(limiter.admit(&user(who)).await.passes());
        }
        passed.push(own);
    }

    // Had a refused request spent anything, ten could not have passed.
    assert_eq!(passed, [3, 3, 3, 1], "three of their own and ten of all, whatever `admit` says");
}

#[tokio::test(start_paused = true)]
async fn under_admit_as_many_hold_as_were_let_through_until_they_are_done() {
    let mut rule = at_once(2);
    rule.on_outage = OnOutage::Admit;
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [rule]).await;
    let known = hold(&limiter, 3).await;
    assert_eq!(known.len(), 2);

    connection.set(ConnectionState::Closed);
    let more = hold(&limiter, 5).await;
    assert_eq!(more.len(), 5, "all pass");
    connection.set(ConnectionState::Open);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!limiter.admit(&user("alice")).await.passes());

    drop(known);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(left(&limiter, "alice").await, 0, "two of the five have the places now");
    drop(more);
    settle().await;
    assert_eq!(left(&limiter, "alice").await, 2, "and when they are done nobody has");
}

#[tokio::test(start_paused = true)]
async fn beside_those_whom_the_store_knows_a_share_may_hold_until_they_are_done() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [at_once(2)]).await;
    let known = hold(&limiter, 3).await;

    connection.set(ConnectionState::Closed);
    let beside = hold(&limiter, 5).await;
    assert_eq!((known.len(), beside.len()), (2, 2), "the limit, and a share of it, which is all");
    // And no more, however long it lasts.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(hold(&limiter, 5).await.len(), 0);

    connection.set(ConnectionState::Open);
    tokio::time::sleep(Duration::from_secs(60)).await;
    drop((known, beside));
    settle().await;
    assert_eq!(left(&limiter, "alice").await, 2);
}

#[tokio::test(start_paused = true)]
async fn what_passed_locally_after_a_lost_answer_counts_once_or_twice() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [hourly("r", &["user"], 100)]).await;

    connection.set(ConnectionState::LosesReplies);
    for _ in 0..10 {
        assert!(limiter.admit(&user("lost")).await.passes());
    }
    connection.set(ConnectionState::Hangs);
    for _ in 0..10 {
        assert!(limiter.admit(&user("hung")).await.passes());
    }
    connection.set(ConnectionState::Open);
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(left(&limiter, "lost").await, 80, "each arrived, and was told once more");
    assert_eq!(left(&limiter, "hung").await, 90, "none had arrived");
}

/// Asks for so many users in an outage; how many passed.
async fn flood(limiter: &Limiter<StoreConnection>, users: u64) -> u64 {
    let mut passed = 0;
    for i in 0..users {
        passed += u64::from(limiter.admit(&user(&format!("u{i}"))).await.passes());
    }
    passed
}

#[tokio::test(start_paused = true)]
async fn more_counters_than_have_shares_are_answered_as_on_full_says() {
    let (asked, mut passed) = (PLACES + 10_000, Vec::new());
    for on_full in [OnFull::Share, OnFull::Admit, OnFull::Refuse] {
        let connection = StoreConnection::to(&backend());
        let mut rule = hourly("r", &["user"], 1);
        rule.on_full = on_full;
        let limiter = node(&connection, [rule]).await;
        connection.set(ConnectionState::Closed);
        passed.push(flood(&limiter, asked).await);
    }

    let [share, admit, refuse] = passed[..] else { panic!("{passed:?}") };
    assert_eq!(admit, asked);
    // Keys fall unevenly upon the shards, so the last places are not found.
    assert!((PLACES * 9 / 10..=PLACES).contains(&refuse), "{refuse}");
    assert!((PLACES * 9 / 10..=PLACES + 1).contains(&share), "{share}: all others share one");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_remembered_as_owed_is_counted_as_lost() {
    let connection = StoreConnection::to(&backend());
    let mut rule = hourly("r", &["user"], 100);
    rule.on_full = OnFull::Admit;
    let limiter = node(&connection, [rule]).await;
    connection.set(ConnectionState::Closed);

    let passed = flood(&limiter, PLACES + 1_000).await;
    let before = limiter.stats();
    connection.set(ConnectionState::Open);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let after = limiter.stats();

    assert_eq!((passed, before.counters_in_debt as u64), (PLACES + 1_000, PLACES));
    assert!((1_000..PLACES / 10).contains(&before.lost_debt_cost), "{before:?}");
    assert_eq!(after.counters_in_debt, 0);
    assert_eq!(
        after.settled_debts + after.lost_debt_cost,
        passed,
        "settled, or counted as lost: {after:?}"
    );
}

/// The used part of a window was kept for a whole period more in an outage, so that a
/// window that was nearly over refused for as long as a new one.
#[tokio::test(start_paused = true)]
async fn what_was_seen_to_be_spent_comes_back_when_the_store_said_it_would() {
    for algorithm in [Algorithm::from(SlidingLog), FixedWindow::default().into()] {
        let connection = StoreConnection::to(&backend());
        let limiter =
            node(&connection, [with(rule("r", &["user"], &["5 per 1h"]), algorithm)]).await;
        assert_eq!(hold(&limiter, 9).await.len(), 5);
        tokio::time::sleep(Duration::from_secs(3_500)).await;
        let refused = limiter.admit(&user("alice")).await.retry_after().unwrap();

        // The store comes and goes: what is known is learnt anew, and not taken away twice.
        for _ in 0..2 {
            connection.set(ConnectionState::Closed);
            assert_eq!(hold(&limiter, 9).await.len(), 0, "{algorithm}");
            connection.set(ConnectionState::Open);
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(hold(&limiter, 9).await.len(), 0, "{algorithm}");
        }
        connection.set(ConnectionState::Closed);
        tokio::time::sleep(refused - Duration::from_secs(3)).await;
        assert_eq!(hold(&limiter, 9).await.len(), 0, "{algorithm}: a second is left");
        tokio::time::sleep(Duration::from_secs(1)).await;

        assert_eq!(hold(&limiter, 9).await.len(), 5, "{algorithm}");
    }
}

async fn fleet(
    store: &Backend,
    count: usize,
    quota: u64,
) -> Vec<(Limiter<StoreConnection>, StoreConnection)> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        let connection = StoreConnection::to(store);
        nodes.push((node(&connection, [hourly("r", &["user"], quota)]).await, connection));
    }
    nodes
}

fn counted(nodes: &[(Limiter<StoreConnection>, StoreConnection)]) -> Vec<u64> {
    nodes.iter().map(|(limiter, _)| limiter.stats().nodes).collect()
}

#[tokio::test(start_paused = true)]
async fn in_a_long_outage_the_count_of_nodes_stays_as_it_was_last_heard() {
    let nodes = fleet(&backend(), 4, 10).await;
    for (_, connection) in &nodes {
        connection.set(ConnectionState::Closed);
    }

    tokio::time::sleep(Duration::from_secs(3_600)).await;

    assert_eq!(counted(&nodes), [4; 4]);
    let mut passed = 0;
    for (limiter, _) in &nodes {
        passed += hold(limiter, 20).await.len();
    }
    assert_eq!(passed, 12, "four shares of three");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_just_started_is_counted_by_all_within_five_seconds() {
    // Whenever it starts between two heartbeats.
    for millis in (0..5_000).step_by(500) {
        let store = backend();
        let nodes = fleet(&store, 2, 10).await;
        tokio::time::sleep(Duration::from_millis(millis)).await;

        let third = Limiter::builder(StoreConnection::to(&store)).build();
        settle().await;

        assert_eq!(third.stats().nodes, 3, "it counts itself at once");
        assert!(counted(&nodes).contains(&2), "and not all of the others know it yet");
        tokio::time::sleep(Duration::from_secs(5)).await;
        settle().await;
        assert_eq!(counted(&nodes), [3, 3], "started {millis} ms later");
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_nodes_are_counted_and_no_more() {
    let store = backend();
    let limit = Limit::new(Concurrency, "10000 per 15s".parse().unwrap()).unwrap();
    let holds = |number: u128, seconds: u64| {
        let lease = Duration::from_secs(seconds);
        let op = Op::Acquire { holder: Holder(number), lease };
        // The counter of the nodes without a fleet's name.
        let charge = Charge::new(Key::new("n").unwrap(), &limit, op).unwrap();
        store.charge_one(&charge).passes()
    };
    assert!((0..9_999).all(|number| holds(number, 15)));

    let last = Limiter::builder(StoreConnection::to(&store)).build();
    settle().await;
    assert_eq!(last.stats().nodes, 10_000);
    assert!(!holds(10_000, 15), "it took the last place");
    let beyond = Limiter::builder(StoreConnection::to(&store)).build();
    settle().await;
    assert_eq!(beyond.stats().nodes, 10_000, "one that is not counted knows how many are");
}

#[tokio::test(start_paused = true)]
async fn every_limiter_of_a_fleet_counts_and_no_other() {
    let (store, elsewhere) = (backend(), backend());
    let start = |store: &Backend, fleet: &str| {
        Limiter::builder(StoreConnection::to(store))
            .fleet(fleet)
            .rules(rules(1, [with(rule("r", &[], &["1 per 1h"]), TokenBucket)]))
            .build()
    };
    let fleet = [start(&store, "shop"), start(&store, "shop"), start(&store, "shop")];
    let others = [start(&store, "mail"), start(&store, ""), start(&elsewhere, "shop")];

    let clone = fleet[0].clone();
    tokio::time::sleep(Duration::from_secs(6)).await;

    assert!(fleet.iter().all(|node| node.stats().nodes == 3), "three in one process, not a clone");
    assert!(others.iter().all(|node| node.stats().nodes == 1));
    drop(clone);
}
