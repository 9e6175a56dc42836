//! The answer to a client that may not pass.

use serde_json::{Value, json};
use tollgate::RuleSet;
use tollgate::http::{LimitLayer, RefusalKind};
use tollgate::rules::declaration::{Ban, Declaration, Domain, OnOutage, Subject};
use tollgate::{DenyCacheMode, Limiter};

use crate::common::{ConnectionState, StoreConnection, backend, rule, rules, settle};
use crate::wire::{Reply, limiter, serve, until};

fn problem(reply: &Reply) -> Value {
    assert_eq!(reply.field("content-type"), Some("application/problem+json"));
    serde_json::from_str(&reply.body).unwrap()
}

#[tokio::test]
async fn a_refusal_is_a_problem_that_names_the_violated_policy() {
    let set = rules(1, [rule("per-ip", &["ip"], &["1 per 1h"]), rule("all", &[], &["9 per 1h"])]);
    let server = serve(LimitLayer::new(limiter(set), "shop")).await;
    assert_eq!(server.get(&[]).await.body, "ok");

    let refused = server.get(&[]).await;

    assert_eq!(refused.status, 429);
    assert_eq!(
        problem(&refused),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota exceeded",
            "status": 429,
            "detail": "over the limit; ask again after 3600 s",
            "violated-policies": ["per-ip"],
        })
    );
}

/// A refusal of gRPC has the status 200. Told to whoever writes its content type into a request for
/// a page, a cache would keep it, empty, as the page.
#[tokio::test]
async fn only_what_can_be_grpc_is_answered_as_grpc() {
    let server =
        serve(LimitLayer::new(limiter(rules(1, [rule("all", &[], &["1 per 1h"])])), "shop")).await;
    let grpc = ["Content-Type: application/grpc"];
    assert_eq!(server.get(&grpc).await.status, 200);

    for method in ["GET", "HEAD", "PUT"] {
        assert_eq!(server.ask(method, "/", &grpc).await.status, 429, "{method}");
    }
    let posted = server.ask("POST", "/", &grpc).await;
    assert_eq!((posted.status, posted.field("grpc-status")), (200, Some("8")));
}

#[tokio::test]
async fn the_application_may_answer_itself_and_the_fields_are_added() {
    let limiter = limiter(rules(1, [rule("per-ip", &["ip"], &["1 per 1h"])]));
    let layer = LimitLayer::new(limiter, "shop").refuse_with(|refusal| {
        assert_eq!(refusal.kind(), RefusalKind::Limited);
        assert_eq!(refusal.policies(), ["per-ip"]);
        let path = refusal.request().uri.path();
        let text = format!("{path}: in {} s", refusal.retry_after().unwrap());
        http::Response::builder().status(420).body(text.into()).unwrap()
    });
    let server = serve(layer).await;
    assert_eq!(server.get(&[]).await.status, 200);

    let refused = server.get(&[]).await;

    assert_eq!((refused.status, refused.body.as_str()), (420, "/: in 3600 s"));
    assert_eq!(refused.field("retry-after"), Some("3600"));
    assert_eq!(refused.field("ratelimit-policy"), Some("\"per-ip\";q=1;w=3600"));
}

#[tokio::test]
async fn who_is_blocked_is_forbidden() {
    let mut domain = Domain::new("shop");
    domain.block = vec![Subject::Network("127.0.0.1".parse().unwrap())];
    let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).unwrap();
    let server = serve(LimitLayer::new(limiter(set), "shop")).await;

    let refused = server.get(&[]).await;

    assert_eq!((refused.status, refused.field("retry-after")), (403, None));
    assert_eq!(problem(&refused)["type"], "about:blank");
}

#[tokio::test]
async fn a_ban_is_abnormal_usage_and_says_for_how_long() {
    let hour = std::time::Duration::from_secs(3600);
    let mut strict = rule("strict", &["ip"], &["1 per 1s"]);
    strict.ban = Some(Ban { after: 2, within: hour, lasts: hour });
    let server = serve(LimitLayer::new(limiter(rules(1, [strict])), "shop")).await;
    assert_eq!(server.statuses(3, &[]).await, [200, 429, 429]);
    until(|| async { server.get(&[]).await.field("retry-after") == Some("3600") }).await;

    let banned = server.get(&[]).await;

    assert_eq!(banned.status, 429);
    let problem = problem(&banned);
    let kind = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
    assert_eq!(problem["type"], kind);
    assert!(problem["violated-policies"].as_array().unwrap().contains(&json!("strict/ban")));
    assert_eq!(banned.field("ratelimit-policy"), Some("\"strict\";q=1;w=1"), "a ban is no policy");
}

#[tokio::test]
async fn an_outage_under_a_rule_that_refuses_is_unavailable() {
    let mut careful = rule("careful", &[], &["5 per 1h"]);
    careful.on_outage = OnOutage::Refuse;
    let connection = StoreConnection::to(&backend());
    let set = rules(1, [rule("local", &[], &["5 per 1h"]), careful]);
    let limiter =
        Limiter::builder(connection.clone()).rules(set).deny_cache(DenyCacheMode::Off).build();
    let server = serve(LimitLayer::new(limiter, "shop")).await;
    assert_eq!(server.get(&[]).await.status, 200, "through a store that takes a trip");

    connection.set(ConnectionState::Closed);
    settle().await;
    let refused = server.get(&[]).await;

    assert_eq!(refused.status, 503);
    assert!(refused.field("retry-after").is_some_and(|seconds| seconds != "0"));
    assert_eq!(refused.field("ratelimit"), None, "nobody knows");
    let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    let problem = problem(&refused);
    assert_eq!(
        (&problem["type"], &problem["violated-policies"]),
        (&json!(kind), &json!(["careful"]))
    );
}

#[tokio::test]
async fn what_is_left_of_a_limit_that_was_not_asked_is_not_told() {
    let mut open = rule("open", &[], &["5 per 1h"]);
    open.on_outage = OnOutage::Admit;
    let connection = StoreConnection::to(&backend());
    connection.set(ConnectionState::Closed);
    let limiter = Limiter::builder(connection).rules(rules(1, [open])).build();
    let server = serve(LimitLayer::new(limiter, "shop")).await;

    let passed = server.get(&[]).await;

    assert_eq!((passed.status, passed.field("ratelimit")), (200, None));
    assert_eq!(passed.field("ratelimit-policy"), Some("\"open\";q=5;w=3600"));
}

#[tokio::test]
async fn a_store_that_takes_a_trip_answers_alike() {
    let limiter = Limiter::builder(StoreConnection::to(&backend()))
        .rules(rules(1, [rule("per-ip", &["ip"], &["2 per 1h"])]))
        .build();
    let server = serve(LimitLayer::new(limiter, "shop")).await;

    assert_eq!(server.statuses(4, &[]).await, [200, 200, 429, 429]);
}
