//! Functions on a real Redis: several limiters share what one function has counted.

#![cfg(feature = "redis")]

use std::time::Duration;

use tollgate::redis::{Config, RedisStore};
use tollgate::{DenyCacheMode, Limiter, Refused, limit, scope};
use tollgate_harness::RedisServer;

use crate::common::{rule, rules};

#[limit("20 per 1h", by = user)]
#[limit(rule = "all", domain = "shop")]
#[limit("50 concurrent")]
async fn order(user: &str) -> Result<(), Refused> {
    tokio::task::yield_now().await;
    Ok(())
}

async fn limiter(url: &str) -> Limiter<RedisStore> {
    // A busy machine must not look like an outage.
    let config = Config::new(url).unwrap().deadline(Duration::from_secs(10));
    let store = RedisStore::connect(config).await.unwrap();
    let set = rules(1, [rule("all", &[], &["30 per 1h"])]);
    Limiter::builder(store).rules(set).deny_cache(DenyCacheMode::Off).build()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_limiters_on_one_redis_pass_exactly_what_all_limits_allow() {
    let server = RedisServer::start().unwrap();
    let url = server.url();
    let nodes = [limiter(&url).await, limiter(&url).await];
    let passed = async |user: &'static str, calls: usize| {
        let calls = (0..calls).map(|at| tokio::spawn(scope::with(&nodes[at % 2], order(user))));
        let mut passed = 0;
        for call in calls.collect::<Vec<_>>() {
            passed += usize::from(call.await.unwrap().is_ok());
        }
        passed
    };

    assert_eq!(passed("alice", 40).await, 20, "the function's own limit");
    assert_eq!(passed("bob", 40).await, 10, "the rule's, of which Alice's refusals took nothing");
}
