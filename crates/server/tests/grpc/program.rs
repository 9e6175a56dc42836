//! The program's own listener, asked by Envoy's client.

use tokio_stream::StreamExt as _;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::answers::{hits, over};
use crate::process::Program;
use crate::server::{TempDir, ask, metric};
use crate::support::{Client, channel, d, shop, told};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;

/// Windows that no test outlives.
pub(crate) const SHOP: &str = "
domain: shop
descriptors:
  - { key: two, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: ten, metadata: { tier: 1 }, rate_limit: { unit: year, requests_per_unit: 10, name: ten-a-year } }
  - { key: free, rate_limit: { unlimited: true } }
";

pub(crate) fn file(dir: &TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_answers_envoy() {
    let dir = TempDir::new();
    let program = Program::serve(&["--envoy-rules", &file(&dir, "shop.yaml", SHOP)], 7);
    assert!(program.said.contains("try: grpcurl -plaintext -d '{\"domain\":\"shop\""));
    let mut client = Client::at(program.grpc).await;

    let response = client.shop(&[d("two=a"), d("ten=a")]).await;
    assert_eq!(told(&response), "OK: OK 1, OK 9");
    assert_eq!(response.statuses[1].current_limit.as_ref().unwrap().name, "ten-a-year");
    let mut ask = async |descriptors: &[RateLimitDescriptor]| told(&client.shop(descriptors).await);
    assert_eq!(ask(&[hits(d("two=a"), 1), hits(d("ten=a"), 5)]).await, "OK: OK 0, OK 4");
    assert_eq!(ask(&[hits(d("two=a"), 0), hits(d("ten=a"), 0)]).await, "OK: OK 0, OK 4", "peeks");
    assert_eq!(ask(&[d("two=a"), d("ten=a")]).await, "OVER: OVER 0, OK 4", "nothing charged");
    let back = RateLimitDescriptor { is_negative_hits: true, ..hits(d("ten=a"), 3) };
    assert_eq!(ask(&[back]).await, "OK: OK 7");
    assert_eq!(ask(&[d("free=a"), d("none=a")]).await, "OK: OK 4294967295, OK 0");
    assert_eq!(ask(&[over(d("any=a"), 5, 6)]).await, "OK: OK 4", "a limit of the call's own");
    for unit in [0, 7, 99] {
        let status = client.ask(shop(&[over(d("any=a"), 5, unit)])).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{unit}");
    }
    assert_eq!(client.ask(shop(&[])).await.unwrap_err().code(), tonic::Code::Unknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_setting_of_the_listener_is_a_flag() {
    let dir = TempDir::new();
    let one = file(&dir, "one.yaml", SHOP);
    let more = "domain: shop\ndescriptors: [{ key: more, rate_limit: { unit: year, requests_per_unit: 1 } }]";
    let two = file(&dir, "two.yaml", more);
    let program = Program::serve(
        &[
            "--envoy-rules",
            &format!("{one},{two}"),
            "--envoy-domains=merge",
            "--envoy-charge=all",
            "--envoy-mode=shadow",
            "--envoy-headers=X-L,X-Rem,X-Res",
            "--envoy-metadata=include",
            "--envoy-on-outage=refuse",
        ],
        7,
    );
    let mut client = Client::at(program.grpc).await;
    client.shop(&[d("more=a"), d("ten=a")]).await;

    let response = client.shop(&[d("more=a"), d("ten=a")]).await;

    assert_eq!(told(&response), "OK: OVER 0, OK 8", "all are charged, and nobody is refused");
    let header = &response.response_headers_to_add[0];
    assert_eq!((header.key.as_str(), header.value.as_str()), ("X-L", "1"));
    assert!(response.dynamic_metadata.unwrap().fields.contains_key("metadata"));
    let refused = "tollgate_requests_total{protocol=\"grpc\",outcome=\"refused\"}";
    assert_eq!(metric(program.admin, refused), 1, "the statistics say what would have been");
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_says_not_serving_and_ends_well() {
    let dir = TempDir::new();
    let program = Program::serve(&["--envoy-rules", &file(&dir, "shop.yaml", SHOP)], 7);
    let mut client = Client::at(program.grpc).await;
    let mut health = HealthClient::new(channel(program.grpc).await);
    let mut watched = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert_eq!(told(&client.shop(&[d("two=a")]).await), "OK: OK 1");

    program.terminate();

    assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(watched.next().await.is_none(), "nobody is kept");
    let (code, log) = program.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("were cut"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_logged_and_no_value_of_a_client_is() {
    let dir = TempDir::new();
    let rules = file(&dir, "shop.yaml", SHOP);
    let args = ["--envoy-rules", &rules, "--log-level=trace", "--api-token=canary-77-token"];
    let program = Program::serve(&args, 7);
    let mut client = Client::at(program.grpc).await;
    let asked = |token: &str| {
        let mut request = tonic::Request::new(shop(&[d("two=canary-77-value")]));
        let metadata = request.metadata_mut();
        metadata.insert("authorization", format!("Bearer {token}").parse().unwrap());
        metadata.insert("x-request-id", "mine-1".parse().unwrap());
        request
    };

    let refused = client.raw(asked("canary-77-wrong")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    let response = client.raw(asked("canary-77-token")).await.unwrap();
    assert_eq!(response.metadata().get("x-request-id").unwrap(), "mine-1");
    assert_eq!(response.metadata().get("x-tollgate-rules-version").unwrap(), "1");
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"two","value":"canary-77-value"}]}]}"#;
    let json = ask(program.http, "POST /json\r\nAuthorization: Bearer canary-77-token", body);
    assert_eq!(json.status, 200);
    let metrics = ask(program.admin, "GET /metrics", "").body;

    program.terminate();

    let (_, log) = program.ended();
    assert!(log.contains("\"request\":\"mine-1\""), "{log}");
    assert!(!log.contains("canary-77"), "{log}");
    assert!(!metrics.contains("canary-77"), "{metrics}");
}
