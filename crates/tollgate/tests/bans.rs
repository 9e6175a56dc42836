//! Bans and shadow rules on a store that takes a trip: what happens off the caller's path, and what
//! comes of it when the store cannot be told.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{ConnectionState, StoreConnection, backend, log, node, on, rule, settle, user};
use tokio::time::Instant;
use tollgate::rules::declaration::{Ban, Mode, Rule};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One in 200 ms; after so many refusals within an hour, nothing for a quarter of one.
fn banning(after: u64) -> Rule {
    let mut rule = log(rule("login", &["user"], &["1 per 200ms"]));
    let (within, lasts) = (Duration::from_secs(3_600), Duration::from_secs(900));
    rule.ban = Some(Ban { after, within, lasts });
    rule
}

#[tokio::test(start_paused = true)]
async fn a_ban_begins_two_round_trips_after_the_refusal_and_delays_nobody() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [banning(1)]).await;
    connection.takes(50, 50);
    let start = Instant::now();
    assert!(limiter.admit(&user("mallory")).await.passes());
    let before = connection.trips.load(Ordering::SeqCst);
    assert!(!limiter.admit(&user("mallory")).await.passes());
    assert_eq!(start.elapsed(), ms(200), "nobody waits for the refusal to be counted");

    // At the store: the refusal at 150 ms, its count at 250, the ban at 350. Whoever asks between
    // them is judged by the limit alone.
    tokio::time::sleep(ms(10)).await;
    let meanwhile = limiter.admit(&user("mallory")).await;
    assert!(meanwhile.passes(), "{meanwhile:?}");
    tokio::time::sleep(ms(10)).await;
    let banned = limiter.admit(&user("mallory")).await;

    assert!(banned.retry_after() > Some(Duration::from_secs(800)), "{banned:?}");
    let trips = connection.trips.load(Ordering::SeqCst) - before;
    assert_eq!(trips, 5, "three questions, a count and a ban");
    assert!(!limiter.admit(&user("mallory").cost(0)).await.passes(), "not even a question");
}

#[tokio::test(start_paused = true)]
async fn refusals_that_the_store_could_not_be_told_of_do_not_count() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [banning(2)]).await;
    let refuse = async || {
        while limiter.admit(&user("mallory")).await.passes() {}
    };
    for lost in 1..=5 {
        refuse().await;
        connection.set(ConnectionState::Closed);
        settle().await;
        connection.set(ConnectionState::Open);
        assert_eq!(limiter.stats().lost_jobs, lost);
        tokio::time::sleep(ms(300)).await;
    }
    assert!(limiter.admit(&user("mallory")).await.passes(), "five refusals, and none counted");

    for _ in 0..2 {
        refuse().await;
        settle().await;
        tokio::time::sleep(ms(300)).await;
    }
    assert!(!limiter.admit(&user("mallory")).await.passes(), "two that were");
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_no_ban_begins_and_one_that_was_seen_goes_on() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [banning(1)]).await;
    for _ in 0..2 {
        let _ = limiter.admit(&user("mallory")).await;
    }
    settle().await;
    tokio::time::sleep(ms(300)).await;
    let seen = limiter.admit(&user("mallory")).await.retry_after().unwrap();
    assert!(seen > Duration::from_secs(800), "{seen:?}");

    connection.set(ConnectionState::Closed);
    for _ in 0..10 {
        let _ = limiter.admit(&user("trent")).await;
    }
    tokio::time::sleep(ms(300)).await;
    assert!(limiter.admit(&user("trent")).await.passes(), "refused nine times by the share");
    tokio::time::sleep(seen - Duration::from_secs(1)).await;
    assert!(!limiter.admit(&user("mallory")).await.passes(), "a second is left of it");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(limiter.admit(&user("mallory")).await.passes(), "and the outage does not prolong it");
}

#[tokio::test(start_paused = true)]
async fn a_shadow_rule_is_charged_off_the_callers_path_or_not_at_all() {
    let mut candidate = log(rule("candidate", &["user"], &["10 per 1h"]));
    candidate.mode = Mode::Shadow;
    let connection = StoreConnection::to(&backend());
    let enforced = on(log(rule("enforced", &["user"], &["100 per 1h"])), "user", "alice");
    let limiter = node(&connection, [enforced, candidate]).await;
    connection.takes(50, 50);

    let start = Instant::now();
    assert!(limiter.admit(&user("alice")).await.passes());
    assert_eq!(start.elapsed(), ms(100), "one trip");
    assert_eq!(limiter.stats().shadow_admitted, 0);
    tokio::time::sleep(ms(101)).await;
    assert_eq!(limiter.stats().shadow_admitted, 1, "and one more, which nobody waits for");

    assert!(limiter.admit(&user("alice")).await.passes());
    connection.set(ConnectionState::Closed);
    tokio::time::sleep(ms(500)).await;
    let stats = limiter.stats();
    assert_eq!((stats.shadow_admitted, stats.shadow_refused, stats.lost_jobs), (1, 0, 1));
}
