//! `count-library CASE REQUESTS`: so many requests through one case and nothing else, for tools that count.
//!
//! Wall time on a busy machine says little; instructions can be counted again and get the same. Run it
//! twice with different numbers of requests: the difference is theirs alone, and what it takes to start
//! falls out. `make count` does that for every case, `count-library` alone lists them.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*counted*' count-library layer-one 12000
//! valgrind --tool=callgrind count-library throttle-redis 12000
//! ```
//!
//! The clock that most cases share is calibrated at the start, by some million instructions more or
//! less, so there only `counted` is to be counted. The store of `throttle-redis` has a thread of its
//! own, which that would miss; it starts a server, and needs no such clock.
//!
//! Requests come one after the other from one thread. The asker's own work, such as making a request
//! for axum, is part of a case: for a layer, subtract `bare`.
//!
//! Not here: times, which are `bench-library`'s, Redis under load, which is `count-redis`'s, and
//! functions under `#[limit]`, which are `count-macros`'s: the feature they need makes layers dearer.
#![allow(
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    reason = "a tool that cannot go on shall stop"
)]

use std::hint::black_box;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use tollgate::Limit;
use tollgate::Limiter;
use tollgate::TokenBucket;
use tollgate::envoy::{Call, CallPolicy, Code, Descriptor, Entry, EnvoyRules};
use tollgate::rules::declaration::Rule;
use tollgate_bench::at_once;
use tollgate_bench::count::{Case, KEYS, counted, keys, run, store, users};
use tollgate_bench::layers::{self, bare};
use tollgate_bench::rules::{self, AMPLE, SPENT, rule, three_rules, with_ask};
use tollgate_harness::RedisServer;
use tollgate_redis::{Config, RedisStore};

const CASES: [Case; 15] = [
    ("bare", |requests| call(bare(), requests, StatusCode::OK)),
    ("empty-layer", |requests| call(layers::empty(), requests, StatusCode::OK)),
    ("by-hand", |requests| call(layers::by_hand(), requests, StatusCode::OK)),
    ("governor", |requests| call(layers::governor_with_headers(), requests, StatusCode::OK)),
    ("layer-one", |requests| layer(&layers::one_rule(AMPLE), requests, StatusCode::OK)),
    ("layer-three", |requests| layer(&layers::three_rules(AMPLE), requests, StatusCode::OK)),
    ("layer-one-refused", |requests| layer(&layers::one_rule(SPENT), requests, REFUSED)),
    ("layer-three-refused", |requests| layer(&layers::three_rules(SPENT), requests, REFUSED)),
    ("admit-one", |requests| admit(&[rule("per-user", &["user"], AMPLE)], requests)),
    ("admit-three", |requests| admit(&three_rules(AMPLE), requests)),
    ("admit-three-refused", |requests| refuse(&three_rules(SPENT), requests)),
    ("admit-three-refused-seen", refuse_seen),
    ("check", check),
    ("envoy", envoy),
    ("throttle-redis", throttle),
];

const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

fn main() {
    run(&CASES);
}

fn call(app: Router, requests: u64, status: StatusCode) {
    counted(|| layers::call(app, requests, KEYS, 1, status));
}

fn layer(rules: &[Rule], requests: u64, status: StatusCode) {
    call(bare().layer(layers::limit(rules)), requests, status);
}

/// The number of requests, of so many, that pass these rules.
fn passed(rules: &[Rule], requests: u64) -> u64 {
    let limiter = rules::limiter(rules, 100_000);
    let users = users();
    let ask =
        |key: usize| with_ask(&users[key], key as u64, |ask| at_once(limiter.admit(ask)).passes());
    counted(|| keys(requests).map(|key| u64::from(black_box(ask(key)))).sum())
}

fn admit(rules: &[Rule], requests: u64) {
    assert_eq!(passed(rules, requests), requests);
}

/// Refused by the one counter for all, once it is spent. As nothing is charged, the store has never
/// seen the keys of the other rules.
fn refuse(rules: &[Rule], requests: u64) {
    assert_eq!(passed(rules, requests), 1);
}

/// Refused by the counter of the address, once it is spent. The store has seen all three keys.
fn refuse_seen(requests: u64) {
    let [all, mut address, user] = three_rules(AMPLE);
    address.limits = rule("per-ip", &["ip"], SPENT).limits;
    assert!(passed(&[all, address, user], requests) <= KEYS);
}

fn check(requests: u64) {
    let limiter = Limiter::new(store());
    let users = users();
    let limit = Limit::new(TokenBucket, AMPLE.parse().expect("valid")).expect("valid");
    counted(|| {
        for key in keys(requests) {
            let admission = at_once(limiter.check(&users[key], &limit, 1)).expect("a key");
            assert!(black_box(admission).passes());
        }
    });
}

const ENVOY_RULES: &str = "
domain: shop
descriptors:
  - { key: path, value: '/api/*/orders', rate_limit: { unit: hour, requests_per_unit: 1000000000 } }
  - key: tenant
    descriptors: [{ key: user, rate_limit: { unit: hour, requests_per_unit: 1000000000 } }]
";

fn envoy(requests: u64) {
    let rules = EnvoyRules::load(1, [("shop.yaml", ENVOY_RULES)]).expect("valid");
    let limiter = Limiter::builder(store()).envoy_rules(rules).build();
    let users = users();
    let passes = |user| {
        let path = [Entry { key: "path", value: "/api/v1/orders" }];
        let user = [Entry { key: "tenant", value: "acme" }, Entry { key: "user", value: user }];
        let descriptors = [Descriptor::new(&path), Descriptor::new(&user)];
        let call = Call::new("shop", &descriptors);
        let answer = at_once(limiter.should_rate_limit(&call, CallPolicy::DEFAULT));
        black_box(answer).expect("a call").code() == Code::Ok
    };
    counted(|| assert!(keys(requests).all(|key| passes(&users[key]))));
}

/// Runs the decisions of `CL.THROTTLE` on a limiter whose store is Redis, one command after the other.
fn throttle(requests: u64) {
    let server = RedisServer::start().expect("a server to ask");
    let limit = Limit::new(TokenBucket, AMPLE.parse().expect("valid")).expect("valid");
    let users = users();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        // Under a tool that counts, Redis answers at once and this program reads it late.
        let config = Config::new(&server.url()).expect("valid").deadline(Duration::from_secs(60));
        let limiter = Limiter::new(RedisStore::connect(config).await.expect("a server"));
        for key in keys(requests) {
            let asked = limiter.throttle(users[key].as_bytes(), &limit, 1).await;
            assert!(black_box(asked).expect("a key").passes());
        }
    });
}
