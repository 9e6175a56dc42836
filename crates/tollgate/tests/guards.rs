//! `local-guard` under attack: outages, refunds, edits, queues. Each test tells the bug that it is for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod common;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use tollgate::core::algorithm::{LeakyQueue, SlidingLog};
use tollgate::core::rule::declaration::{Declaration, Domain, OnOutage, Rule};
use tollgate::core::rule::{Ask, RuleSet};
use tollgate::core::{OnChange, Store};
use tollgate::{Limiter, Source};

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
