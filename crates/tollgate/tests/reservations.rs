//! Reservations: charged first, settled once for what it cost, by any node of the fleet.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod common;

use std::time::Duration;

use common::{Way, backend, log, rule, rules, user};
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
    let node = |secret| Limiter::builder(Way::to(&store)).rules(set()).secret(secret).build();
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
