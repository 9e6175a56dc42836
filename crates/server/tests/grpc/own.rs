//! Envoy's calls about a domain of Tollgate's own rules: one rule set behind every protocol.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use serde_json::json;
use tollgate_harness::RedisServer;
use tollgate_server::protocols::grpc::{HeaderNames, Metadata};
use tollgate_server::settings::value::WithoutRules;
use tonic::Code;

use crate::answers::{hits, over};
use crate::server::{Running, ask, check, outcomes, start, start_with};
use crate::support::{Client, RateLimitRequest, d, grpc, shop, told};

const LOGIN: &str =
    r#"{"domain":"shop","attributes":{"path":"/login","method":"POST","ip":"203.0.113.9"}}"#;

async fn client(running: &Running) -> Client {
    Client::at(grpc(running)).await
}

/// The two descriptors of a login route of Envoy's, which have the address in common.
fn login() -> [RateLimitDescriptor; 2] {
    [
        d("remote_address=203.0.113.9"),
        d("path=/login?next=/ method=POST remote_address=203.0.113.9"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_protocol_charges_the_same_counters() {
    let running = start().await;
    let mut client = client(&running).await;

    let first = client.shop(&login()).await;
    assert_eq!(told(&first), "OK: OK 1, OK 1");
    let limit = first.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit), ("login-per-ip", 2));
    assert_eq!(limit.unit(), Unit::Minute);
    assert_eq!(first.statuses[1].duration_until_reset.unwrap().seconds, 60);
    assert_eq!(check(running.http, LOGIN).json()["limits"][0]["remaining"], 0);
    let refused = client.shop(&login()).await;
    assert_eq!(told(&refused), "OVER: OVER 0, OVER 0");
    let left = refused.statuses[0].duration_until_reset.unwrap().seconds;
    assert!((1..=60).contains(&left), "{left}");
    let json = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"u"}]}]}"#;
    let by_json = ask(running.http, "POST /json", json);
    assert_eq!(
        (by_json.status, &by_json.json()["statuses"][0]["limitRemaining"]),
        (200, &json!(2))
    );
    assert_eq!(by_json.header("x-tollgate-rules-version"), Some("1"));

    let refusals = ask(running.admin, "GET /v1/refusals", "").json();
    assert_eq!(refusals["refusals"][0]["protocol"], "grpc");
    assert_eq!(refusals["refusals"][0]["rule"], "login-per-ip");
}

/// A request that one rule refuses charges none, whatever Envoy's own files would do.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_one_request_and_one_decision() {
    let running = start_with(|settings| {
        let policy = settings.envoy.calls.policy;
        settings.envoy.calls.policy = policy.charging(tollgate::envoy::ChargeMode::All);
    })
    .await;
    let mut client = client(&running).await;
    let of = |user: &str| [login().as_slice(), &[d(&format!("user={user}"))]].concat();
    let told_user = async |client: &mut Client, user| told(&client.shop(&[d(user)]).await);

    for _ in 0..4 {
        client.shop(&of("u")).await;
    }

    assert_eq!(told_user(&mut client, "user=u").await, "OK: OK 0", "charged twice before");
    assert_eq!(told_user(&mut client, "user=v").await, "OK: OK 2");
    let cost = RateLimitRequest { hits_addend: 3, ..shop(&[d("user=w")]) };
    assert_eq!(told(&client.ask(cost.clone()).await.unwrap()), "OK: OK 0");
    assert_eq!(told(&client.ask(cost).await.unwrap()), "OVER: OVER 0");
    let each = [hits(d("user=x"), 2), hits(d("path=/"), 2)];
    assert_eq!(told(&client.shop(&each).await), "OK: OK 1, OK 1");
    let peek = [hits(d("user=x"), 0)];
    assert_eq!(told(&client.shop(&peek).await), "OK: OK 1", "asked without charging");
    assert_eq!(told(&client.shop(&peek).await), "OK: OK 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_requests_that_no_rule_matches_are_answered() {
    let running = start().await;
    let mut client = client(&running).await;

    let blocked = client.shop(&[d("remote_address=203.0.113.66")]).await;
    assert_eq!(told(&blocked), "OVER: OVER 0");
    assert_eq!(blocked.statuses[0].current_limit, None);
    assert_eq!(
        told(&client.shop(&[d("remote_address=10.9.1.1"), d("user=u")]).await),
        "OK: OK 0, OK 0"
    );
    assert_eq!(told(&client.shop(&[d("path=/other")]).await), "OK: OK 0");
}

/// Malformed input of a client must not be an error, which Envoy would let pass.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_judged_is_over_the_limit() {
    let running = start().await;
    let mut client = client(&running).await;
    let mut said = async |descriptors: &[RateLimitDescriptor]| {
        let response: RateLimitResponse = client.shop(descriptors).await;
        (told(&response), String::from_utf8(response.raw_body).unwrap())
    };

    for (entries, what) in [
        ("remote_address=nobody", "`ip`"),
        ("path=/a%2Fb", "`path`"),
        ("method=a/b", "`method`"),
        ("path.id=7", "`path.id`"),
    ] {
        let (code, why) = said(&[d(entries)]).await;
        assert_eq!(code, "OVER: OVER 0", "{entries}");
        assert!(why.contains(what), "{why}");
    }
    let two = [d("user=alice"), d("user=eve")];
    let (code, why) = said(&two).await;
    assert_eq!(code, "OVER: OVER 0, OVER 0");
    assert!(why.contains("twice") && !why.contains("alice") && !why.contains("eve"), "{why}");

    assert_eq!(outcomes(running.admin, "grpc"), [0, 0, 0, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_these_rules_cannot_hear_is_an_error_of_the_configuration() {
    let running = start().await;
    let mut client = client(&running).await;
    let back = RateLimitDescriptor { is_negative_hits: true, ..d("user=u") };
    for (descriptors, why) in [
        (vec![over(d("user=u"), 5, 2)], "cannot bring one"),
        (vec![back], "/v1/refund"),
        (vec![hits(d("user=u"), 2), d("path=/")], "the same hits_addend"),
    ] {
        let status = client.ask(shop(&descriptors)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{why}");
        assert!(status.message().contains(why), "{status}");
    }
    assert_eq!(client.ask(shop(&[])).await.unwrap_err().code(), Code::Unknown, "as the reference");
    let many = vec![d("user=u"); 65];
    assert_eq!(client.ask(shop(&many)).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_and_metadata_are_there_if_wanted() {
    let running = start_with(|settings| {
        settings.envoy.calls.headers = Some(HeaderNames::default());
        settings.envoy.calls.metadata = Metadata::Include;
    })
    .await;

    let response = client(&running).await.shop(&[d("user=u")]).await;

    let headers = response.response_headers_to_add.iter();
    let headers: Vec<(&str, &str)> = headers.map(|it| (&*it.key, &*it.value)).collect();
    assert_eq!(
        headers,
        [("RateLimit-Limit", "3"), ("RateLimit-Remaining", "2"), ("RateLimit-Reset", "3600")]
    );
    assert!(response.dynamic_metadata.unwrap().fields.contains_key("domain"));
}

/// A rule that refuses in outages makes Envoy's own setting decide.
#[tokio::test(flavor = "multi_thread")]
async fn without_redis_the_rule_says_what_is_answered() {
    let redis = RedisServer::start().unwrap();
    let running = start_with(|settings| {
        settings.store = redis.url().parse().unwrap();
        settings.store_deadline = std::time::Duration::from_secs(10);
        let rules = settings.rules.as_ref().unwrap();
        let text = std::fs::read_to_string(rules).unwrap();
        let text = text
            .replace("    scenario: payment\n", "    scenario: payment\n    on-outage: refuse\n");
        std::fs::write(rules, text).unwrap();
    })
    .await;
    let mut client = client(&running).await;
    assert_eq!(told(&client.shop(&[d("user=u")]).await), "OK: OK 2");

    drop(redis);

    let status = client.ask(shop(&[d("user=u")])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(told(&client.shop(&login()).await), "OK: OK 1, OK 1", "by this node's share");
    assert_eq!(outcomes(running.admin, "grpc"), [1, 0, 2, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_rules_calls_are_refused_if_told_to() {
    let running = start_with(|settings| {
        let rules = settings.rules.as_ref().unwrap();
        std::fs::remove_file(rules).unwrap();
        settings.without_rules = WithoutRules::Refuse;
        // That Envoy has rules of its own is no answer for domains of ours.
        let envoy = rules.with_file_name("envoy.yaml");
        std::fs::write(&envoy, "domain: edge\ndescriptors: [{ key: user }]\n").unwrap();
        settings.envoy.rules = vec![envoy];
    })
    .await;
    let edge = RateLimitRequest { domain: "edge".to_owned(), ..shop(&[d("user=u")]) };
    assert_eq!(told(&client(&running).await.ask(edge).await.unwrap()), "OK: OK 0");

    let status = client(&running).await.ask(shop(&[d("user=u")])).await.unwrap_err();

    assert_eq!(status.code(), Code::Unavailable);
    let json = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"u"}]}]}"#;
    assert_eq!(ask(running.http, "POST /json", json).status, 503);
}
