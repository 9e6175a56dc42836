//! `make bench-library`: a request through the whole library, beside one check of a peer.
//!
//! The limiter judges by a set of rules, of which three match (one for all, one per address, one
//! per user), and charges the three counters as one atomic decision, on the embedded store. The
//! peer, governor, checks one key. Same users, same clock, one process; rounds interleaved.
//! `ratio` is the peer's time over ours. `layer.rs` does the same for the layers of HTTP, and
//! `bench-library count CASE REQUESTS` is for counting the instructions of one of them.
#![allow(
    missing_docs,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::float_arithmetic,
    reason = "a bench"
)]

mod by_hand;
mod layer;

use std::alloc::System;
use std::fmt::Write as _;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use governor::clock::QuantaClock;
use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota, RateLimiter};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tollgate::core::algorithm::TokenBucket;
use tollgate::core::rule::declaration::{Declaration, Domain, Limitation, Pattern, Rule, Value};
use tollgate::core::rule::{Ask, RuleSet};
use tollgate::{Admission, EmbeddedStore, Limiter};
use tollgate_bench::Random;
use tollgate_bench::clock::Quanta;
use tollgate_bench::report::{ROUNDS, Rounds, print, time};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const USERS: u64 = 1_000_000;
const OPERATIONS: u64 = 300_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, case, requests] = args.as_slice()
        && mode == "count"
    {
        return layer::count(case, requests.parse().expect("a number of requests"));
    }
    layer::run();
    let limiters = [100, 10_000].map(|rules| (rules, limiter(rules)));
    let peer = peer();
    for (_, limiter) in &limiters {
        fill(|ask| drop(black_box(admitted(limiter, ask))));
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
    let mut domain = Domain::new("shop");
    domain.rules = vec![rule("global", &[]), rule("per-ip", &["ip"]), rule("per-user", &["user"])];
    for i in 3..rules {
        let mut other = rule(&format!("rule-{i}"), &["user"]);
        let (attribute, value) = match i % 3 {
            0 => ("path", format!("/things/{i}/{{id}}")),
            1 => ("service", format!("service-{i}")),
            _ => ("tenant", format!("tenant-{i}")),
        };
        other.matches.push((attribute.to_owned(), Pattern::Any(vec![Value::Text(value)])));
        domain.rules.push(other);
    }
    let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).expect("valid");
    let store = EmbeddedStore::builder().max_keys(1_300_000).with_clock(Quanta::new());
    Limiter::builder(store).rules(set).build()
}

fn rule(name: &str, by: &[&str]) -> Rule {
    let mut rule = Rule::new(name);
    rule.by = by.iter().map(|by| (*by).to_owned()).collect();
    let quota = "1 per 1s burst 100000000".parse().expect("valid");
    rule.limits = vec![Limitation { name: None, quota, algorithm: Some(TokenBucket.into()) }];
    rule
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

/// The embedded store answers at once, so one poll is the whole request.
fn admitted(limiter: &Limiter<EmbeddedStore<Quanta>>, ask: &Ask<'_>) -> Admission {
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::pin!(limiter.admit(ask)).poll(&mut context) {
        Poll::Ready(admission) => admission,
        Poll::Pending => unreachable!("the embedded store answers at once"),
    }
}

fn with_ask<R>(name: &mut String, user: u64, ip: u64, act: impl FnOnce(&Ask<'_>) -> R) -> R {
    let name = set(name, user);
    let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | ip as u32));
    let mut ask = Ask::new("shop").ip(address);
    for (attribute, value) in
        [("service", "orders"), ("path", "/orders/17"), ("method", "GET"), ("user", name.as_str())]
    {
        ask.push(attribute, value.as_bytes()).expect("valid");
    }
    act(&ask)
}

fn fill(mut act: impl FnMut(&Ask<'_>)) {
    let mut name = String::new();
    for user in 0..USERS {
        with_ask(&mut name, user, user % 10_000, &mut act);
    }
}

fn ask(limiter: &Limiter<EmbeddedStore<Quanta>>, round: u64) {
    let mut random = Random::new(round);
    let mut name = String::with_capacity(32);
    for _ in 0..OPERATIONS {
        let (user, ip) = (random.below(USERS), random.below(10_000));
        let passes = with_ask(&mut name, user, ip, |ask| admitted(limiter, ask).passes());
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
