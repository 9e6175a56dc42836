//! `local-guard` under attack: outages, refunds, edits, queues. Each test tells the bug that it is for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use tollgate::rules::declaration::{Declaration, Domain, OnOutage, Rule};
use tollgate::{Ask, RuleSet};
use tollgate::{LeakyQueue, SlidingLog};
use tollgate::{Limiter, Source};
use tollgate::{OnChange, Store};

/// A log by user with this guard, in thousandths.
fn guarded(quota: &str, thousandths: u32) -> Rule {
    let mut rule = log(rule("a", &["user"], &[quota]));
    rule.local_guard = Some(thousandths);
    rule
}

fn embedded(declared: impl IntoIterator<Item = Rule>) -> Limiter<Backend> {
    Limiter::builder(backend()).rules(rules(1, declared)).build()
}

async fn passing<S: Store + 'static>(limiter: &Limiter<S>, ask: &Ask<'_>, times: usize) -> usize {
    let mut passed = 0;
    for _ in 0..times {
        passed += usize::from(limiter.admit(ask).await.passes());
    }
    passed
}

/// Requests that an outage refused stayed spent in the guard: after it nobody passed, for an hour. And
/// from the thirteenth request on the guard refused in the outage itself, where a 503 was promised.
#[tokio::test(start_paused = true)]
async fn an_outage_spends_no_guard() {
    let connection = StoreConnection::to(&backend());
    let rule = Rule { on_outage: OnOutage::Refuse, ..guarded("10 per 1h", 1_200) };
    let limiter = node(&connection, [rule]).await;

    connection.set(ConnectionState::Closed);
    for _ in 0..20 {
        let refused = limiter.admit(&user("a")).await;
        assert!(!refused.passes());
        assert!(refused.outage().is_some_and(|outage| outage.unavailable), "{refused:?}");
    }
    connection.set(ConnectionState::Open);

    assert_eq!(passing(&limiter, &user("a"), 20).await, 10);
}

/// The guard stood in front of `on-outage: admit`, under which everything passes: 2 of 10 did.
#[tokio::test(start_paused = true)]
async fn a_guard_refuses_nobody_whom_an_outage_admits() {
    let connection = StoreConnection::to(&backend());
    let rule = Rule { on_outage: OnOutage::Admit, ..guarded("2 per 1h", 1_000) };
    let limiter = node(&connection, [rule]).await;
    assert_eq!(passing(&limiter, &user("a"), 5).await, 2, "of which the guard refuses three");
    assert_eq!(limiter.stats().local_guard_refusals, 3);

    connection.set(ConnectionState::Closed);
    // The guard refuses without asking, so the outage is noticed by the next heartbeat.
    tokio::time::sleep(Duration::from_secs(6)).await;

    assert_eq!(passing(&limiter, &user("a"), 10).await, 10);
    connection.set(ConnectionState::Open);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(limiter.admit(&user("a")).await.ruling().source(), Source::Guard, "it is back");
}

/// The guard of a leaky queue was credited for now instead of for the departure, which is worth
/// nothing there: one refusal by another rule used it up for half an hour.
#[tokio::test(start_paused = true)]
async fn the_guard_of_a_queue_is_given_back() {
    let mut all = with(rule("all", &[], &["10 per 1h"]), LeakyQueue);
    all.local_guard = Some(1_000);
    let mallory = on(log(rule("m", &[], &["1 per 7d"])), "user", "mallory");
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [all, mallory]).await;
    // Time passes between the guard and the store.
    connection.takes(1, 1);

    assert!(!limiter.admit(&user("mallory").cost(5)).await.passes(), "5 of 1");

    assert!(limiter.admit(&user("alice")).await.passes());
}

/// A refund gave back what the store had counted, and the guard went on refusing for an hour.
#[tokio::test(start_paused = true)]
async fn a_refund_reaches_the_guard() {
    let limiter = embedded([guarded("10 per 1h", 1_000)]);
    let (all, minute) = (user("a").cost(10), Duration::from_secs(60));
    let reserved = limiter.reserve(&all, minute).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;

    limiter.refund(&reserved).await.unwrap();
    assert!(limiter.admit(&all).await.passes());

    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let reserved = limiter.reserve(&all, minute).await.unwrap();
    limiter.commit(&limiter.redeem(&limiter.token(&reserved)).unwrap(), 4).await.unwrap();
    assert_eq!(passing(&limiter, &user("a"), 10).await, 6);
}

/// `peek` and `explain` asked the store only: they said that a request would pass which the guard
/// then refused.
#[tokio::test(start_paused = true)]
async fn peek_and_explain_know_the_guard() {
    let limiter = embedded([guarded("10 per 1h", 1_000)]);
    let other = Limiter::builder(Arc::clone(limiter.store()))
        .rules(rules(1, [log(rule("a", &["user"], &["10 per 1h"]))]))
        .build();
    let six = user("a").cost(6);
    let reserved = other.reserve(&user("a").cost(10), Duration::from_secs(60)).await.unwrap();
    assert_eq!(limiter.admit(&six).await.ruling().source(), Source::Store, "and refused");
    other.refund(&reserved).await.unwrap();

    let (peeked, explained) = (limiter.peek(&six).await, limiter.explain(&six).await);

    assert_eq!((peeked.passes(), peeked.ruling().source()), (false, Source::Guard));
    assert_eq!(explained.source, Source::Guard);
    assert!(!explained.counters[0].passes);
    assert_eq!(explained.counters[0].remaining, 4, "of the guard; the store has 10");
    assert_eq!(limiter.admit(&six).await.ruling().source(), Source::Guard);
    for _ in 0..10 {
        assert!(limiter.peek(&user("a").cost(4)).await.passes());
    }
    assert!(limiter.admit(&user("a").cost(4)).await.passes(), "asking spends nothing");
}

/// The guard kept what was used whatever `on-change` said: after a reset the counter was full, and the
/// guard let one of 20 pass.
#[tokio::test(start_paused = true)]
async fn a_guard_is_reset_with_its_counter() {
    let edit = |quota| Rule { on_change: OnChange::Reset, ..guarded(quota, 1_000) };
    let limiter = embedded([edit("10 per 1h")]);
    assert_eq!(passing(&limiter, &user("a"), 20).await, 10);

    limiter.set_rules(rules(2, [edit("11 per 1h")])).unwrap();

    assert_eq!(passing(&limiter, &user("a"), 20).await, 11);
}

/// A guard of twice a log of 60 000 cannot be built, as a log remembers 100 000 at most. Such a rule
/// was loaded, and had no guard.
#[test]
fn a_guard_that_cannot_be_built_is_refused_at_load() {
    let load = |rule: Rule| {
        let mut domain = Domain::new("shop");
        domain.rules = vec![rule];
        RuleSet::new(Declaration { version: 1, domains: vec![domain] })
    };
    assert!(load(guarded("50_000 per 1h", 2_000)).is_ok());

    let refused = load(guarded("60_000 per 1h", 2_000)).unwrap_err();

    let text = refused[0].to_string();
    assert!(text.contains("local-guard") && text.contains("120000"), "{text}");
    let log = with(rule("a", &[], &["100_000 per 1h"]), SlidingLog);
    assert!(load(log).is_ok(), "without a guard");
}
