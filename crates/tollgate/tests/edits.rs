//! Reservations across edits of the rules. Each test tells the bug that it is for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::time::Duration;

use crate::common::*;
use tollgate::OnChange;
use tollgate::rules::declaration::Rule;
use tollgate::{Limiter, Reservation};

fn edit(quota: &str, on_change: OnChange) -> Rule {
    Rule { on_change, ..log(rule("a", &["user"], &[quota])) }
}

async fn reserved(limiter: &Limiter<Backend>, cost: u64) -> Reservation {
    limiter.reserve(&user("a").cost(cost), Duration::from_secs(60)).await.unwrap()
}

async fn used(limiter: &Limiter<Backend>, cost: u64) {
    assert!(limiter.admit(&user("a").cost(cost)).await.passes());
}

/// A refund of what was charged before a reset gave back what others had used since: 190 of 100 passed
/// within an hour. Under `scale` it gave back five times what the charge had become.
#[tokio::test(start_paused = true)]
async fn a_refund_across_a_reset_or_a_scaling_gives_back_nothing() {
    for (on_change, left) in [(OnChange::Reset, 10), (OnChange::Scale, 10)] {
        for by_token in [false, true] {
            let first = rules(1, [edit("500 per 1h", on_change)]);
            let limiter = Limiter::builder(backend()).rules(first).build();
            let mut reservation = reserved(&limiter, 250).await;
            let token = limiter.token(&reservation);
            let rest = if on_change == OnChange::Reset { 90 } else { 40 };
            limiter.set_rules(rules(2, [edit("100 per 1h", on_change)])).unwrap();
            used(&limiter, rest).await;
            if by_token {
                reservation = limiter.redeem(&token).unwrap();
            }

            limiter.refund(&reservation).await.unwrap();

            assert_eq!(crate::common::left(&limiter, "a").await, left, "{on_change:?} {by_token}");
        }
    }
}

/// The same there and back: the limit is what it was, and its counter is not.
#[tokio::test(start_paused = true)]
async fn a_refund_across_two_resets_gives_back_nothing() {
    let rule = |quota| edit(quota, OnChange::Reset);
    let limiter = Limiter::builder(backend()).rules(rules(1, [rule("100 per 1h")])).build();
    let reservation = reserved(&limiter, 50).await;
    limiter.set_rules(rules(2, [rule("200 per 1h")])).unwrap();
    used(&limiter, 1).await;
    limiter.set_rules(rules(3, [rule("100 per 1h")])).unwrap();
    used(&limiter, 90).await;

    limiter.refund(&reservation).await.unwrap();

    assert_eq!(left(&limiter, "a").await, 10);
}

/// Charges on a limit that an edit does not touch, or keeps, are refunded as ever.
#[tokio::test(start_paused = true)]
async fn a_refund_across_other_edits_gives_everything_back() {
    let unchanged = |version| {
        let other = log(rule("b", &["ip"], &[if version == 1 { "5 per 1h" } else { "6 per 1h" }]));
        rules(version, [edit("100 per 1h", OnChange::Reset), other])
    };
    let limiter = Limiter::builder(backend()).rules(unchanged(1)).build();
    let reservation = reserved(&limiter, 50).await;
    limiter.set_rules(unchanged(2)).unwrap();
    limiter.refund(&reservation).await.unwrap();
    assert_eq!(left(&limiter, "a").await, 100, "another rule was edited");

    let kept = |version, quota| rules(version, [edit(quota, OnChange::Keep)]);
    let limiter = Limiter::builder(backend()).rules(kept(1, "100 per 1h")).build();
    let reservation = reserved(&limiter, 50).await;
    limiter.set_rules(kept(2, "80 per 1h")).unwrap();
    used(&limiter, 20).await;
    limiter.refund(&reservation).await.unwrap();
    assert_eq!(left(&limiter, "a").await, 60, "what was used stays used, and can be given back");
}

/// Use beyond the estimate is debited across any edit: that lets nobody through.
#[tokio::test(start_paused = true)]
async fn what_was_used_beyond_the_estimate_is_debited_across_a_reset() {
    let rule = |quota| edit(quota, OnChange::Reset);
    let limiter = Limiter::builder(backend()).rules(rules(1, [rule("100 per 1h")])).build();
    let reservation = reserved(&limiter, 50).await;
    limiter.set_rules(rules(2, [rule("200 per 1h")])).unwrap();

    used(&limiter, 1).await;
    limiter.commit(&reservation, 70).await.unwrap();

    assert_eq!(left(&limiter, "a").await, 179);
}
