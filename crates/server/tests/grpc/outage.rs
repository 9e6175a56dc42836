//! On a real Redis, and when it is gone.

use std::time::Duration;

use tollgate::envoy::CallPolicy;
use tollgate::redis::{Config, RedisStore};
use tollgate::rules::declaration::OnOutage;
use tollgate_harness::RedisServer;
use tollgate_server::protocols::grpc::GrpcSettings;

use crate::support::{GrpcServer, d, limiter_on, shop, told};

const SHOP: &str = "
domain: shop
descriptors:
  - { key: two, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: ten, rate_limit: { unit: year, requests_per_unit: 10 } }
";

async fn connect(server: &RedisServer) -> RedisStore {
    // A busy machine must not look like an outage.
    let config = Config::new(&server.url()).unwrap().deadline(Duration::from_secs(10));
    RedisStore::connect(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_listeners_on_one_redis_share_their_counts() {
    let server = RedisServer::start().unwrap();
    let one =
        GrpcServer::open(limiter_on(connect(&server).await, SHOP), GrpcSettings::default()).await;
    let two =
        GrpcServer::open(limiter_on(connect(&server).await, SHOP), GrpcSettings::default()).await;
    let (mut one, mut two) = (one.client().await, two.client().await);
    let both = [d("two=a"), d("ten=a")];

    assert_eq!(told(&one.shop(&both).await), "OK: OK 1, OK 9");
    assert_eq!(told(&two.shop(&both).await), "OK: OK 0, OK 8");
    assert_eq!(told(&one.shop(&both).await), "OVER: OVER 0, OK 8");
    assert_eq!(told(&two.shop(&[d("ten=a")]).await), "OK: OK 7", "a refusal charged nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_the_share_answers_or_the_call_fails() {
    let server = RedisServer::start().unwrap();
    let limiter = limiter_on(connect(&server).await, SHOP);
    let local = GrpcServer::open(limiter.clone(), GrpcSettings::default()).await;
    let mut settings = GrpcSettings::default();
    settings.policy = CallPolicy::DEFAULT.in_outages(OnOutage::Refuse);
    let strict = GrpcServer::open(limiter.clone(), settings).await;
    let (mut local, mut strict) = (local.client().await, strict.client().await);
    assert_eq!(told(&local.shop(&[d("two=a")]).await), "OK: OK 1");

    drop(server);

    let status = strict.ask(shop(&[d("two=a")])).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "so that failure_mode_deny applies");
    assert_eq!(told(&strict.shop(&[d("none=a")]).await), "OK: OK 0", "it needs no store");
    assert_eq!(told(&local.shop(&[d("two=a")]).await), "OK: OK 0");
    assert_eq!(told(&local.shop(&[d("two=a")]).await), "OVER: OVER 0");
    assert_eq!(limiter.stats().degraded, 3);
}
