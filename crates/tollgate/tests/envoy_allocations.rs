//! A call that passes allocates nothing on the embedded store: counted, not guessed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::alloc::System;
use std::task::{Context, Poll, Waker};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tollgate::envoy::{Call, CallPolicy, Code, Descriptor, Entry, EnvoyRules};
use tollgate::{EmbeddedStore, Limiter};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const FILE: &str = "
domain: shop
descriptors:
  - { key: path, value: '/api/*/orders', rate_limit: { unit: second, requests_per_unit: 1000000 } }
  - key: tenant
    descriptors: [{ key: user, rate_limit: { unit: second, requests_per_unit: 1000000 } }]
";

#[test]
fn a_call_that_passes_allocates_nothing() {
    let rules = EnvoyRules::load(1, [("shop.yaml", FILE)]).unwrap();
    let limiter = Limiter::builder(EmbeddedStore::new()).envoy_rules(rules).build();
    let path = [Entry { key: "path", value: "/api/v1/orders" }];
    let user = [Entry { key: "tenant", value: "acme" }, Entry { key: "user", value: "alice" }];
    let descriptors = [Descriptor::new(&path), Descriptor::new(&user)];
    let call = Call::new("shop", &descriptors);
    let passes = || {
        let mut context = Context::from_waker(Waker::noop());
        let answer = std::pin::pin!(limiter.should_rate_limit(&call, CallPolicy::DEFAULT));
        match answer.poll(&mut context) {
            Poll::Ready(answer) => answer.unwrap().code() == Code::Ok,
            Poll::Pending => unreachable!("the embedded store answers at once"),
        }
    };
    // The table grows for new keys, and threads start.
    for _ in 0..100 {
        assert!(passes());
    }

    let least = (0..20).map(|_| {
        let before = ALLOCATOR.stats();
        for _ in 0..1_000 {
            assert!(passes());
        }
        let change = ALLOCATOR.stats() - before;
        change.allocations + change.reallocations
    });

    // Other threads of the process may allocate meanwhile, but not in every one of twenty rounds.
    assert_eq!(least.min(), Some(0));
}
