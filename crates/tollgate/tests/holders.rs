//! Permits of concurrency limits when the store, or what renews them, is away.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use crate::common::{
    ConnectionState, StoreConnection, backend, left, node, rule, rules, settle, user, with,
};
use tollgate::Concurrency;
use tollgate::rules::declaration::Rule;
use tollgate::{EmbeddedStore, Limiter};
use tollgate_core::testing::ManualClock;

/// One at a time, with a lease of thirty seconds.
fn alone() -> [Rule; 1] {
    [with(rule("alone", &["user"], &["1 per 30s"]), Concurrency)]
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Renewed each third of its lease, and each sixth once one has failed: at worst those after 10, 15
/// and 20 s fail, and that after 25 s arrives.
#[tokio::test(start_paused = true)]
async fn three_renewals_may_fail_and_an_outage_of_half_a_lease_costs_no_permit() {
    for begins_at in [1, 5_000, 9_000, 9_990, 10_020, 15_000] {
        let store = backend();
        let (connection, other) = (StoreConnection::to(&store), StoreConnection::to(&store));
        let (holder, rival) = (node(&connection, alone()).await, node(&other, alone()).await);
        connection.takes(5, 5);
        let held = holder.admit(&user("alice")).await;
        assert!(held.passes());
        tokio::time::sleep(Duration::from_millis(begins_at)).await;

        connection.set(ConnectionState::Closed);
        for step in 0..500 {
            if step == 150 {
                connection.set(ConnectionState::Open);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            let rivals = rival.peek(&user("alice")).await.passes();
            assert!(!rivals, "begun at {begins_at} ms: lost after {step} tenths of a second");
        }
        drop(held);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_could_not_be_told_is_counted_and_ends_with_its_lease() {
    let store = backend();
    let (connection, other) = (StoreConnection::to(&store), StoreConnection::to(&store));
    let (holder, rival) = (node(&connection, alone()).await, node(&other, alone()).await);
    let held = holder.admit(&user("alice")).await;
    assert!(held.passes());

    connection.set(ConnectionState::Closed);
    drop(held);
    settle().await;
    connection.set(ConnectionState::Open);
    assert_eq!(holder.stats().lost_jobs, 1);

    tokio::time::sleep(s(29)).await;
    assert_eq!(left(&rival, "alice").await, 0, "the store was not told");
    tokio::time::sleep(s(1)).await;
    assert!(rival.admit(&user("alice")).await.passes(), "and its lease is over");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ended_in_an_outage_is_asked_for_again_beside_whoever_has_the_place() {
    let store = backend();
    let (connection, other) = (StoreConnection::to(&store), StoreConnection::to(&store));
    let (holder, rival) = (node(&connection, alone()).await, node(&other, alone()).await);
    let held = holder.admit(&user("alice")).await;

    connection.set(ConnectionState::Closed);
    tokio::time::sleep(s(31)).await;
    let beside = rival.admit(&user("alice")).await;
    assert!(held.passes() && beside.passes(), "both are at work, and neither was told");
    connection.set(ConnectionState::Open);
    tokio::time::sleep(s(60)).await;
    assert_eq!(left(&rival, "alice").await, 0);

    drop(beside);
    settle().await;
    tokio::time::sleep(s(11)).await;
    assert_eq!(left(&rival, "alice").await, 0, "the first has asked for it again");
    drop(held);
    settle().await;
    assert_eq!(left(&rival, "alice").await, 1);
}

#[test]
fn permits_end_with_their_leases_when_the_runtime_that_renewed_them_has_ended() {
    let clock = ManualClock::default();
    let store = Arc::new(EmbeddedStore::builder().with_clock(clock.clone()));
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let start = || Limiter::builder(Arc::clone(&store)).rules(rules(1, alone())).build();
    let passes = |limiter: &Limiter<_>| second.block_on(limiter.admit(&user("alice"))).passes();
    let rival = second.block_on(async { start() });

    let held = first.block_on(async {
        let limiter = start();
        let held = limiter.admit(&user("alice")).await;
        for _ in 0..100 {
            clock.advance(s(1));
            tokio::time::sleep(s(1)).await;
            settle().await;
        }
        (limiter, held)
    });
    assert!(!passes(&rival), "renewed while the runtime lived");
    drop(first);
    clock.advance(s(19));
    assert!(!passes(&rival), "two thirds of the lease are left at least");
    clock.advance(s(11));

    assert!(passes(&rival), "nobody renews it any more");
    drop(held);
}
