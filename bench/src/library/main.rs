//! `make bench-library`: a request through the whole library, beside one check of a peer.
//!
//! The limiter judges by a set of rules, of which three match (one for all, one per address, one
//! per user), and charges the three counters as one atomic decision, on the embedded store. The
//! peer, governor, checks one key. Same users, same clock, one process; rounds interleaved.
//! `ratio` is the peer's time over ours. `layer.rs` does the same for the layers of HTTP.
#![allow(
    missing_docs,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::float_arithmetic,
    reason = "a bench"
)]

mod layer;

use std::alloc::System;
use std::fmt::Write as _;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::QuantaClock;
use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota, RateLimiter};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tollgate::Ask;
use tollgate::rules::declaration::{Pattern, Value};
use tollgate::{EmbeddedStore, Limiter};
use tollgate_bench::clock::Quanta;
use tollgate_bench::report::{ROUNDS, Rounds, print, time};
use tollgate_bench::rules::{AMPLE, rule, three_rules, with_ask};
use tollgate_bench::{Random, at_once, rules};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const USERS: u64 = 1_000_000;
const OPERATIONS: u64 = 300_000;

fn main() {
    layer::run();
    let limiters = [100, 10_000].map(|rules| (rules, limiter(rules)));
    let peer = peer();
    for (_, limiter) in &limiters {
        fill(|ask| drop(black_box(at_once(limiter.admit(ask)))));
    }
    let mut name = String::new();
    for user in 0..USERS {
        drop(black_box(peer.check_key(set(&mut name, user))));
    }
    let mut rounds: [Rounds; 3] = Default::default();
    // One round uncounted.
    for round in 0..=ROUNDS as u64 {
        let mut times = Vec::new();
        for (_, limiter) in &limiters {
            times.push(time(1, OPERATIONS, |_| ask(limiter, round)));
        }
        times.push(time(1, OPERATIONS, |_| check(&peer, round)));
        for (rounds, time) in rounds.iter_mut().zip(times).filter(|_| round > 0) {
            rounds.add(time);
        }
    }
    for (rounds_of, (rules, _)) in rounds.iter().zip(&limiters) {
        print(&format!("admit/3-of-{rules}-rules"), rounds_of, "governor-one-key", &rounds[2]);
    }
    let growth = rounds[1].median() / rounds[0].median();
    println!("case=admit/10000-rules-over-100 ratio={growth:.2}");
    for (rules, limiter) in &limiters {
        let before = ALLOCATOR.stats();
        ask(limiter, 99);
        let change = ALLOCATOR.stats() - before;
        // The text of the asks is written into one buffer, so all that is left is the limiter's.
        println!(
            "case=allocations/{rules}-rules each={}",
            change.allocations as f64 / OPERATIONS as f64
        );
    }
}

/// So many rules, three of which match everything that is asked.
fn limiter(rules: usize) -> Limiter<EmbeddedStore<Quanta>> {
    let mut all = three_rules(AMPLE).to_vec();
    for i in 3..rules {
        let mut other = rule(&format!("rule-{i}"), &["user"], AMPLE);
        let (attribute, value) = match i % 3 {
            0 => ("path", format!("/things/{i}/{{id}}")),
            1 => ("service", format!("service-{i}")),
            _ => ("tenant", format!("tenant-{i}")),
        };
        other.matches.push((attribute.to_owned(), Pattern::Any(vec![Value::Text(value)])));
        all.push(other);
    }
    rules::limiter(&all, 1_300_000)
}

fn peer() -> DefaultKeyedRateLimiter<String> {
    let burst = NonZeroU32::new(100_000_000).expect("not zero");
    let quota = GovernorQuota::with_period(Duration::from_secs(1)).expect("not zero");
    RateLimiter::dashmap_with_clock(quota.allow_burst(burst), QuantaClock::default())
}

fn set(name: &mut String, user: u64) -> &String {
    name.clear();
    write!(name, "user:{user}").expect("text");
    name
}

fn fill(mut act: impl FnMut(&Ask<'_>)) {
    let mut name = String::new();
    for user in 0..USERS {
        with_ask(set(&mut name, user), user % 10_000, &mut act);
    }
}

fn ask(limiter: &Limiter<EmbeddedStore<Quanta>>, round: u64) {
    let mut random = Random::new(round);
    let mut name = String::with_capacity(32);
    for _ in 0..OPERATIONS {
        let (user, ip) = (random.below(USERS), random.below(10_000));
        let user = set(&mut name, user);
        let passes = with_ask(user, ip, |ask| at_once(limiter.admit(ask)).passes());
        assert!(black_box(passes));
    }
}

fn check(peer: &DefaultKeyedRateLimiter<String>, round: u64) {
    let mut random = Random::new(round);
    let mut name = String::with_capacity(32);
    for _ in 0..OPERATIONS {
        let (user, _) = (random.below(USERS), random.below(10_000));
        assert!(black_box(peer.check_key(set(&mut name, user)).is_ok()));
    }
}
