//! Reservations: charged first, settled once for what it cost, by any node of the fleet.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::time::Duration;

use crate::common::{
    ConnectionState, StoreConnection, TokioClock, backend, backend_on, left, log, node, rule,
    rules, user,
};
use tollgate::rules::declaration::Rule;
use tollgate::{FixedWindow, StoreErrorKind};
use tollgate::{Limiter, ReservationError, TokenError};

#[tokio::test(start_paused = true)]
async fn a_reservation_is_settled_once_for_what_it_cost() {
    let set = rules(1, [log(rule("tokens", &["user"], &["100 per 1h"]))]);
    let limiter = Limiter::builder(backend()).rules(set).build();
    let remaining = || async { limiter.explain(&user("alice")).await.counters[0].remaining };
    let minute = Duration::from_secs(60);

    let cheap = limiter.reserve(&user("alice").cost(40), minute).await.unwrap();
    assert_eq!(remaining().await, 60);
    limiter.commit(&cheap, 10).await.unwrap();
    assert_eq!(remaining().await, 90, "thirty were not used");
    let again = limiter.commit(&cheap, 0).await;
    assert!(matches!(again, Err(ReservationError::AlreadyUsed)), "{again:?}");
    assert!(matches!(limiter.refund(&cheap).await, Err(ReservationError::AlreadyUsed)));

    let dear = limiter.reserve(&user("alice").cost(40), minute).await.unwrap();
    limiter.commit(&dear, 60).await.unwrap();
    assert_eq!(remaining().await, 30, "twenty more were used");

    let vain = limiter.reserve(&user("alice").cost(30), minute).await.unwrap();
    assert!(!limiter.admit(&user("alice")).await.passes());
    limiter.refund(&vain).await.unwrap();
    assert_eq!(remaining().await, 30);

    let late = limiter.reserve(&user("alice").cost(30), minute).await.unwrap();
    tokio::time::advance(minute + Duration::from_millis(1)).await;
    assert!(matches!(limiter.refund(&late).await, Err(ReservationError::Expired)));
    assert_eq!(remaining().await, 0, "what expires stays charged");

    let refused = limiter.reserve(&user("alice").cost(1), minute).await;
    assert!(!refused.unwrap_err().passes());
}

#[tokio::test(start_paused = true)]
async fn a_reservation_can_be_settled_by_another_node_and_by_no_forger() {
    let (store, set) = (backend(), || rules(1, [log(rule("r", &["user"], &["10 per 1h"]))]));
    let node =
        |secret| Limiter::builder(StoreConnection::to(&store)).rules(set()).secret(secret).build();
    let (one, two, stranger) = (node([1; 16]), node([1; 16]), node([2; 16]));
    let reserved = one.reserve(&user("alice").cost(10), Duration::from_secs(60)).await.unwrap();
    let token = one.token(&reserved);

    assert_eq!(stranger.redeem(&token).unwrap_err(), TokenError::NotOurs);
    for i in 0..token.len() {
        let mut forged = token.clone().into_bytes();
        forged[i] = if forged[i] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).unwrap();
        // The last character of base64 has bits that mean nothing; whatever it is, it is checked.
        if let Ok(read) = two.redeem(&forged) {
            assert_eq!(two.token(&read), token, "only the same reservation may be read");
        }
    }
    two.refund(&two.redeem(&token).unwrap()).await.unwrap();

    assert!(matches!(one.refund(&reserved).await, Err(ReservationError::AlreadyUsed)));
    assert!(one.admit(&user("alice").cost(10)).await.passes());
}

const HOUR: Duration = Duration::from_secs(3_600);

fn tokens() -> Rule {
    log(rule("tokens", &["user"], &["100 per 30d"]))
}

#[tokio::test(start_paused = true)]
async fn a_reservation_lives_for_twelve_hours_at_most() {
    let limiter = Limiter::builder(backend()).rules(rules(1, [tokens()])).build();
    let in_time = limiter.reserve(&user("alice").cost(40), 24 * HOUR).await.unwrap();
    let late = limiter.reserve(&user("alice").cost(40), 24 * HOUR).await.unwrap();

    tokio::time::advance(12 * HOUR).await;
    limiter.refund(&in_time).await.unwrap();
    tokio::time::advance(Duration::from_millis(1)).await;

    assert!(matches!(limiter.refund(&late).await, Err(ReservationError::Expired)));
    assert_eq!(left(&limiter, "alice").await, 60, "one came back, the other stays charged");
}

#[tokio::test(start_paused = true)]
async fn that_a_reservation_was_used_is_known_for_a_minute_longer_than_it_could_be() {
    for (lifetime, longest) in [(60, 60), (24 * 3_600, 12 * 3_600)] {
        let clock = TokioClock::new();
        let limiter = Limiter::builder(StoreConnection::to(&backend_on(clock.clone())))
            .rules(rules(1, [tokens()]))
            .build();
        let lifetime = Duration::from_secs(lifetime);
        let reserved = limiter.reserve(&user("alice").cost(40), lifetime).await.unwrap();
        limiter.commit(&reserved, 10).await.unwrap();

        // The store's clock is a minute ahead of what this node takes it for.
        clock.jump(Duration::from_secs(longest + 59));

        let again = limiter.commit(&reserved, 10).await;
        assert!(matches!(again, Err(ReservationError::AlreadyUsed)), "{again:?}");
        assert_eq!(left(&limiter, "alice").await, 90);
    }
}

#[tokio::test(start_paused = true)]
async fn a_settling_whose_answer_was_lost_can_be_sent_again_and_counts_once() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [tokens()]).await;
    for actual in [10, 70] {
        let before = left(&limiter, "alice").await;
        let reserved = limiter.reserve(&user("alice").cost(20), HOUR).await.unwrap();

        connection.set(ConnectionState::LosesReplies);
        for _ in 0..3 {
            let lost = limiter.commit(&reserved, actual).await;
            let Err(ReservationError::Store(error)) = lost else { panic!("{lost:?}") };
            assert_eq!(error.kind(), StoreErrorKind::Timeout);
        }
        connection.set(ConnectionState::Open);
        let again = limiter.commit(&reserved, actual).await;

        assert!(matches!(again, Err(ReservationError::AlreadyUsed)), "{again:?}");
        assert_eq!(before - left(&limiter, "alice").await, actual, "four times sent");
    }
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_a_reservation_is_an_admission_that_stays_charged() {
    let connection = StoreConnection::to(&backend());
    let window =
        crate::common::with(rule("tokens", &["user"], &["100 per 30d"]), FixedWindow::default());
    let limiter = node(&connection, [window]).await;
    connection.set(ConnectionState::Closed);

    let passed = limiter.reserve(&user("alice").cost(40), HOUR).await.unwrap_err();
    let refused = limiter.reserve(&user("alice").cost(90), HOUR).await.unwrap_err();
    connection.set(ConnectionState::Open);
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert!(passed.passes() && passed.outage().is_some());
    assert!(!refused.passes() && refused.outage().is_some());
    assert_eq!(left(&limiter, "alice").await, 60, "what passed is owed as it was");
}
