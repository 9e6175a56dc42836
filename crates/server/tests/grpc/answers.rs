//! Answers to Envoy, field by field; and every strange request that C33 names.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Duration, UInt64Value, Value};
use tollgate::envoy::{CallPolicy, ChargeMode};
use tollgate_server::protocols::grpc::{Enforcement, GrpcSettings, HeaderNames, Metadata};

use crate::support::{GrpcServer, NOW, d, limiter, shop, told};

const SHOP: &str = "
domain: shop
descriptors:
  - { key: ten, metadata: { team: pay, tier: 1 }, rate_limit: { unit: minute, requests_per_unit: 10, name: ten-a-minute } }
  - { key: two, rate_limit: { unit: week, requests_per_unit: 2 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: dark, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }
";

async fn serve(change: impl FnOnce(&mut GrpcSettings)) -> GrpcServer {
    let mut settings = GrpcSettings::default();
    change(&mut settings);
    GrpcServer::open(limiter(SHOP), settings).await
}

pub(crate) fn hits(mut descriptor: RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    descriptor.hits_addend = Some(UInt64Value { value: hits });
    descriptor
}

pub(crate) fn over(
    mut descriptor: RateLimitDescriptor,
    requests: u32,
    unit: i32,
) -> RateLimitDescriptor {
    descriptor.limit = Some(RateLimitOverride { requests_per_unit: requests, unit });
    descriptor
}

#[tokio::test]
async fn statuses_are_one_to_one_and_whole() {
    let server = serve(|_| {}).await;
    let mut client = server.client().await;

    let response = client.shop(&[d("ten=a"), d("none=a"), hits(d("two=a"), 3), d("free=a")]).await;

    let over = DescriptorStatus {
        code: Code::OverLimit.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: 2,
            unit: Unit::Week.into(),
            name: String::new(),
        }),
        limit_remaining: 0,
        duration_until_reset: Some(Duration {
            seconds: (604_800 - NOW % 604_800) as i64,
            nanos: 0,
        }),
        quota: None,
    };
    let ok = |remaining| DescriptorStatus {
        code: Code::Ok.into(),
        limit_remaining: remaining,
        ..DescriptorStatus::default()
    };
    let ten = DescriptorStatus {
        current_limit: Some(RateLimit {
            requests_per_unit: 10,
            unit: Unit::Minute.into(),
            name: "ten-a-minute".to_owned(),
        }),
        duration_until_reset: Some(Duration { seconds: 40, nanos: 0 }),
        ..ok(10)
    };
    assert_eq!(response.statuses, [ten, ok(0), over, ok(u32::MAX)]);
    assert_eq!(response.overall_code, i32::from(Code::OverLimit));
    assert_eq!(response.response_headers_to_add, [], "not unless they are named");
    assert_eq!((response.dynamic_metadata, response.raw_body.len()), (None, 0));
}

#[tokio::test]
async fn costs_go_over_the_wire() {
    let server = serve(|_| {}).await;
    let mut client = server.client().await;
    let mut ask = async |descriptor: RateLimitDescriptor, all: u32| {
        let request = RateLimitRequest { hits_addend: all, ..shop(&[descriptor]) };
        told(&client.ask(request).await.unwrap())
    };

    assert_eq!(ask(d("ten=a"), 0).await, "OK: OK 9", "request-wide 0 is 1");
    assert_eq!(ask(d("ten=a"), 3).await, "OK: OK 6");
    assert_eq!(ask(hits(d("ten=a"), 0), 3).await, "OK: OK 6", "a descriptor's 0 asks");
    assert_eq!(ask(hits(d("ten=a"), 2), 3).await, "OK: OK 4");
    assert_eq!(ask(d("ten=a"), u32::MAX).await, "OVER: OVER 0");
    assert_eq!(ask(hits(d("ten=a"), u64::MAX), 0).await, "OVER: OVER 0");
    assert_eq!(ask(d("ten=a"), 0).await, "OK: OK 3", "nothing overflowed, nothing was burnt");
    let back = RateLimitDescriptor { is_negative_hits: true, ..hits(d("ten=a"), u64::MAX) };
    assert_eq!(ask(back, 0).await, "OK: OK 10", "a refund ends at nothing used");
    assert_eq!(ask(d("dark=a"), 5).await, "OK: OK 0", "a shadow rule is over and says OK");
}

#[tokio::test]
async fn limits_go_over_the_wire() {
    let server = serve(|_| {}).await;
    let mut client = server.client().await;
    for (unit, answered) in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)] {
        let response = client.shop(&[over(d("any=a"), 5, unit)]).await;
        let limit = response.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit, limit.name), (5, answered, String::new()));
    }
    for unit in [0, 7, -1, 99] {
        let status = client.ask(shop(&[over(d("any=a"), 5, unit)])).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{unit}");
        let mut elsewhere = shop(&[over(d("any=a"), 5, unit)]);
        elsewhere.domain = "elsewhere".to_owned();
        assert_eq!(told(&client.ask(elsewhere).await.unwrap()), "OK: OK 0", "ignored there");
    }
    assert_eq!(told(&client.shop(&[over(d("any=b"), 0, 1)]).await), "OVER: OVER 0");
}

#[tokio::test]
async fn strange_requests_have_defined_answers() {
    let server = serve(|_| {}).await;
    let mut client = server.client().await;

    let status = client.ask(shop(&[])).await.unwrap_err();
    assert_eq!(status.message(), "rate limit descriptor list must not be empty");
    assert_eq!(status.code(), tonic::Code::Unknown);
    let nowhere = RateLimitRequest { domain: String::new(), ..shop(&[d("ten=a")]) };
    let status = client.ask(nowhere).await.unwrap_err();
    assert_eq!(status.message(), "rate limit domain must not be empty");
    assert_eq!(status.code(), tonic::Code::Unknown);

    let status = client.ask(shop(&vec![d("ten=a"); 10_000])).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert_eq!(status.message(), "10000 descriptors in one request, above 64");
    let many = vec!["k=v"; 17].join(" ");
    let status = client.ask(shop(&[d(&many)])).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    let huge = format!("ten={}", "x".repeat(2 << 20));
    assert!(client.ask(shop(&[d(&huge)])).await.is_err(), "longer than any message");

    assert_eq!(told(&client.shop(&[d("=")]).await), "OK: OK 0", "an empty key has no rule");
    assert_eq!(told(&client.shop(&[d("ten=")]).await), "OK: OK 9", "an empty value has one");
    assert_eq!(told(&client.shop(&[d("")]).await), "OK: OK 0", "no entries");
    let long = format!("ten={}", "x".repeat(100_000));
    assert_eq!(told(&client.shop(&[d(&long)]).await), "OK: OK 9", "a long value is no error");
    let elsewhere =
        RateLimitRequest { domain: "elsewhere".to_owned(), ..shop(&[d("ten=a"), d("x=y")]) };
    assert_eq!(told(&client.ask(elsewhere).await.unwrap()), "OK: OK 0, OK 0");
    assert_eq!(told(&client.shop(&vec![d("free=a"); 64]).await).matches("OK").count(), 65);
}

#[tokio::test]
async fn headers_tell_of_the_tightest_limit() {
    let server = serve(|settings| settings.headers = Some(HeaderNames::default())).await;
    let mut client = server.client().await;
    let header = |key: &str, value: &str| HeaderValue {
        key: key.to_owned(),
        value: value.to_owned(),
        ..HeaderValue::default()
    };

    let response = client.shop(&[d("free=a"), d("two=a"), hits(d("ten=a"), 9), d("none=a")]).await;

    assert_eq!(
        response.response_headers_to_add,
        [
            header("RateLimit-Limit", "2"),
            header("RateLimit-Remaining", "1"),
            header("RateLimit-Reset", &(604_800 - NOW % 604_800).to_string())
        ],
        "of equals the first"
    );
    let response = client.shop(&[d("two=a"), d("ten=a")]).await;
    assert_eq!(response.response_headers_to_add[1], header("RateLimit-Remaining", "0"));
    let response = client.shop(&[d("free=a"), d("none=a")]).await;
    assert_eq!(response.response_headers_to_add, []);
}

#[tokio::test]
async fn dynamic_metadata_has_the_call_and_what_passing_rules_say() {
    let server = serve(|settings| settings.metadata = Metadata::Include).await;
    let mut client = server.client().await;
    let request = RateLimitRequest {
        hits_addend: 2,
        ..shop(&[d("ten=a user=b"), hits(over(d("two=a"), 5, 2), 1), d("ten=a")])
    };

    let metadata = client.ask(request).await.unwrap().dynamic_metadata.unwrap();

    assert_eq!(
        plain(&Value { kind: Some(Kind::StructValue(metadata)) }),
        "{descriptors: [{entries: [ten=a, user=b]}, {entries: [two=a], hitsAddend: 1, \
         limit: requests_per_unit:5 unit:MINUTE}, {entries: [ten=a]}], domain: shop, \
         hitsAddend: 2, metadata: {team: pay, tier: 1}}"
    );
}

/// A value on one line, fields in order.
fn plain(value: &Value) -> String {
    match value.kind.as_ref().unwrap() {
        Kind::StringValue(text) => text.clone(),
        Kind::NumberValue(number) => number.to_string(),
        Kind::ListValue(list) => {
            format!("[{}]", list.values.iter().map(plain).collect::<Vec<_>>().join(", "))
        }
        Kind::StructValue(fields) => {
            let mut fields: Vec<String> = fields
                .fields
                .iter()
                .map(|(key, value)| format!("{key}: {}", plain(value)))
                .collect();
            fields.sort();
            format!("{{{}}}", fields.join(", "))
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn under_global_shadow_the_whole_is_ok_and_statuses_are_not() {
    let server = serve(|settings| settings.enforcement = Enforcement::Shadow).await;
    let mut client = server.client().await;

    assert_eq!(told(&client.shop(&[hits(d("two=a"), 3)]).await), "OK: OVER 0");
}

#[tokio::test]
async fn one_descriptor_over_charges_none_unless_all_are_charged() {
    for (charge, left) in
        [(ChargeMode::AllOrNone, "OVER: OK 10, OVER 0"), (ChargeMode::All, "OVER: OK 8, OVER 0")]
    {
        let server = serve(|settings| settings.policy = CallPolicy::DEFAULT.charging(charge)).await;
        let mut client = server.client().await;
        client.shop(&[d("ten=a"), hits(d("two=a"), 3)]).await;

        assert_eq!(told(&client.shop(&[d("ten=a"), hits(d("two=a"), 3)]).await), left);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_at_once_get_exactly_the_limit() {
    let server = serve(|_| {}).await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let mut client = server.client().await;
        tasks.push(tokio::spawn(async move {
            let mut passed = 0;
            for _ in 0..20 {
                let response = client.shop(&[d("ten=shared"), d("free=a")]).await;
                passed += u32::from(response.overall_code == i32::from(Code::Ok));
            }
            passed
        }));
    }
    let mut passed = 0;
    for task in tasks {
        passed += task.await.unwrap();
    }
    assert_eq!(passed, 10);
}
