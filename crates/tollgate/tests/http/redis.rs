//! The layer on a real Redis: what it counts, what it tells, and what it does when Redis is gone.

use std::time::Duration;

use tollgate::http::LimitLayer;
use tollgate::redis::{Config, RedisStore};
use tollgate::rules::{self, Format};
use tollgate::{DenyCacheMode, Limiter};
use tollgate_harness::{RedisServer, ServerClock};

use crate::wire::serve;

const RULES: &str = "
version: 1
domain: shop
rules:
  - { name: login, match: { path: /login }, by: [ip], limits: [2 per 1h] }
  - { name: careful, match: { path: /careful }, on-outage: refuse, limits: [9 per 1h] }
  - { name: open, match: { path: /open }, on-outage: admit, limits: [1 per 1h] }
  - { name: share, match: { path: /share }, limits: [2 per 1h] }
";

/// Some moment in 2023.
const START: u64 = 1_700_000_000_000_000;

async fn limiter(server: &RedisServer) -> Limiter<RedisStore> {
    // A busy machine must not look like an outage.
    let config = Config::new(&server.url()).unwrap().deadline(Duration::from_secs(10));
    let store = RedisStore::connect(config).await.unwrap();
    let set = rules::load(RULES, Format::Yaml).unwrap();
    Limiter::builder(store).rules(set).deny_cache(DenyCacheMode::Off).build()
}

/// A server whose time stands still.
fn redis() -> (RedisServer, ServerClock) {
    let clock = ServerClock::new().unwrap();
    clock.set(START).unwrap();
    (RedisServer::builder().clock(&clock).start().unwrap(), clock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_on_one_redis_are_one_limit() {
    let (redis, clock) = redis();
    let one = serve(LimitLayer::new(limiter(&redis).await, "shop")).await;
    let two = serve(LimitLayer::new(limiter(&redis).await, "shop")).await;

    let passed = one.ask("POST", "/login", &[]).await;
    assert_eq!(passed.field("ratelimit"), Some("\"login\";r=1;t=3600"));
    let passed = two.ask("POST", "/login", &[]).await;
    assert_eq!((passed.status, passed.field("ratelimit")), (200, Some("\"login\";r=0;t=3600")));
    clock.set(START + 600_000_000).unwrap();
    let refused = one.ask("POST", "/login", &[]).await;

    assert_eq!((refused.status, refused.field("retry-after")), (429, Some("3000")));
    assert_eq!(refused.field("ratelimit"), Some("\"login\";r=0;t=3000"));
    assert_eq!(refused.field("ratelimit-policy"), Some("\"login\";q=2;w=3600"));
    assert!(refused.body.contains("\"violated-policies\":[\"login\"]"), "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_redis_is_gone_each_rule_answers_as_it_says() {
    let (redis, _clock) = redis();
    let limiter = limiter(&redis).await;
    let server = serve(LimitLayer::new(limiter.clone(), "shop")).await;
    for path in ["/careful", "/open", "/share"] {
        assert_eq!(server.ask("GET", path, &[]).await.status, 200);
    }
    assert_eq!(server.ask("GET", "/open", &[]).await.status, 429, "while it is there");

    redis.kill().unwrap();

    let refused = server.ask("GET", "/careful", &[]).await;
    assert_eq!(refused.status, 503);
    assert!(refused.field("retry-after").is_some_and(|seconds| seconds != "0"));
    assert_eq!(refused.field("ratelimit"), None, "nobody knows");
    assert!(refused.body.contains("#temporary-reduced-capacity"), "{}", refused.body);
    assert!(refused.body.contains("\"violated-policies\":[\"careful\"]"), "{}", refused.body);
    let open = server.ask("GET", "/open", &[]).await;
    assert_eq!((open.status, open.field("ratelimit")), (200, None));
    let mut shared = Vec::new();
    for _ in 0..3 {
        shared.push(server.ask("GET", "/share", &[]).await.status);
    }
    assert_eq!(shared, [200, 429, 429], "one of two was left");
    assert!(limiter.stats().degraded >= 5);
}
