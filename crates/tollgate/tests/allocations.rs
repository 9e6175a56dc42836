//! An admitted request allocates nothing on the embedded store: counted, not guessed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::alloc::System;
use std::task::{Context, Poll, Waker};

use common::{rule, rules, with};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tollgate::Ask;
use tollgate::TokenBucket;
use tollgate::{EmbeddedStore, Limiter};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn an_admitted_request_allocates_nothing() {
    let bucket = |name, by: &[&str]| with(rule(name, by, &["1000000 per 1s"]), TokenBucket);
    let set = rules(1, [bucket("all", &[]), bucket("ip", &["ip"]), bucket("user", &["user"])]);
    let limiter = Limiter::builder(EmbeddedStore::new()).rules(set).build();
    let admit = |name: &str| {
        let mut ask = Ask::new("shop").ip([192, 0, 2, 1].into());
        ask.push("user", name.as_bytes()).unwrap();
        ask.push("path", b"/orders/17").unwrap();
        let mut context = Context::from_waker(Waker::noop());
        match std::pin::pin!(limiter.admit(&ask)).poll(&mut context) {
            Poll::Ready(admission) => admission.passes(),
            Poll::Pending => unreachable!("the embedded store answers at once"),
        }
    };
    // The table grows for new keys, and threads start.
    for _ in 0..100 {
        assert!(admit("alice") && admit("bob"));
    }

    let least = (0..20).map(|_| {
        let before = ALLOCATOR.stats();
        for _ in 0..1_000 {
            assert!(admit("alice") && admit("bob"));
        }
        let change = ALLOCATOR.stats() - before;
        change.allocations + change.reallocations
    });

    // Other threads of the process may allocate meanwhile, but not in every one of twenty rounds.
    assert_eq!(least.min(), Some(0));
}

#[cfg(feature = "macros")]
#[tollgate::limit("1000000 per 1s", by = (user, ip), algorithm = token-bucket)]
#[tollgate::limit("1000000 per 1s", algorithm = token-bucket)]
async fn limited(user: u64) -> Result<(), tollgate::Refused> {
    Ok(())
}

#[cfg(feature = "macros")]
#[test]
fn a_call_under_the_attribute_allocates_nothing() {
    let limiter = Limiter::new(EmbeddedStore::new());
    let scope = tollgate::scope::Scope::new(&limiter).ip([192, 0, 2, 1].into());
    let call = |user| {
        let mut context = Context::from_waker(Waker::noop());
        let called = std::pin::pin!(scope.clone().run(limited(user))).poll(&mut context);
        matches!(called, Poll::Ready(Ok(())))
    };
    for _ in 0..100 {
        assert!(call(1) && call(2));
    }

    let least = (0..20).map(|_| {
        let before = ALLOCATOR.stats();
        for _ in 0..1_000 {
            assert!(call(1) && call(2));
        }
        let change = ALLOCATOR.stats() - before;
        change.allocations + change.reallocations
    });

    assert_eq!(least.min(), Some(0));
}
