//! Forward-auth.

use super::support::{Reply, Running, ask, metric, start, start_with};

async fn trusting() -> Running {
    start_with(|settings| {
        settings.trust = tollgate::http::Trust::proxies(["127.0.0.0/8"]).unwrap();
        settings.auth_attributes = vec!["user=x-user".parse().unwrap()];
    })
    .await
}

fn auth(running: &Running, lines: &[&str]) -> Reply {
    let head = std::iter::once("GET /v1/auth").chain(lines.iter().copied()).collect::<Vec<_>>();
    ask(running.http, &head.join("\r\n"), "")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_proxy_is_told_204_or_429_with_the_fields() {
    let running = trusting().await;
    let login = [
        "X-Forwarded-For: 203.0.113.9",
        "X-Forwarded-Method: POST",
        "X-Forwarded-Uri: /login?next=/",
    ];

    let first = auth(&running, &login);
    assert_eq!((first.status, first.body.as_str()), (204, ""));
    assert_eq!(first.header("ratelimit"), Some("\"login-per-ip\";r=1;t=60"));
    assert_eq!(first.header("ratelimit-policy"), Some("\"login-per-ip\";q=2;w=60"));
    assert_eq!(first.header("x-tollgate-rules-version"), Some("1"));
    assert_eq!(auth(&running, &login).status, 204);

    let refused = auth(&running, &login);
    assert_eq!(refused.status, 429);
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&retry));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.header("x-tollgate-rules-version"), Some("1"));
    assert_eq!(refused.json()["violated-policies"], serde_json::json!(["login-per-ip"]));

    let nginx =
        ["X-Forwarded-For: 203.0.113.10", "X-Original-Method: POST", "X-Original-URI: /login"];
    assert_eq!(auth(&running, &nginx).status, 204, "another client");
    let refusals = ask(running.admin, "GET /v1/refusals", "").json();
    assert_eq!(refusals["refusals"][0]["key"], "ip=203.0.113.9");
    assert_eq!(refusals["refusals"][0]["protocol"], "forward-auth");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_no_proxy_of_ours_may_not_ask() {
    let running = start().await;
    let said =
        ["X-Forwarded-For: 203.0.113.9", "X-Forwarded-Method: POST", "X-Forwarded-Uri: /login"];
    let reply = auth(&running, &said);
    assert_eq!(reply.status, 403);
    assert!(reply.json()["detail"].as_str().unwrap().contains("--trust"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_does_not_say_or_says_twice_is_an_error() {
    let running = trusting().await;
    for lines in [
        &[][..],
        &["X-Forwarded-Method: POST"],
        &["X-Forwarded-Uri: /login"],
        &["X-Forwarded-Method: POST", "X-Forwarded-Method: GET", "X-Forwarded-Uri: /"],
        &["X-Forwarded-Method: POST", "X-Forwarded-Uri: /a", "X-Forwarded-Uri: /b"],
        &["X-Forwarded-Method: POST", "X-Forwarded-Uri: /a", "X-Original-URI: /b"],
        &["X-Forwarded-Method: POST", "X-Original-Method: GET", "X-Forwarded-Uri: /a"],
        &["X-Forwarded-Method: P O", "X-Forwarded-Uri: /"],
        &["X-Forwarded-Method: POST", "X-Forwarded-Uri: /%00"],
        &["X-Forwarded-Method: GET", "X-Forwarded-Uri: /", "X-User: victim", "X-User: me"],
    ] {
        assert_eq!(auth(&running, lines).status, 400, "{lines:?}");
    }
    let errors = "tollgate_requests_total{protocol=\"forward-auth\",outcome=\"error\"}";
    assert_eq!(metric(running.admin, errors), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_users_and_domains_count_as_in_every_protocol() {
    let running = trusting().await;
    let as_user = |user: &str| {
        let lines = ["X-Forwarded-Method: GET", "X-Forwarded-Uri: /", &format!("X-User: {user}")];
        auth(&running, &lines).status
    };
    assert_eq!(
        [as_user("a"), as_user("a"), as_user("a"), as_user("a"), as_user("b")],
        [204, 204, 204, 429, 204]
    );

    let of = |line: &str| {
        auth(&running, &["X-Forwarded-Method: GET", "X-Forwarded-Uri: /", line]).status
    };
    assert_eq!(of("X-Forwarded-For: 203.0.113.66"), 403, "blocked");
    let elsewhere = "GET /v1/auth?domain=nowhere\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /";
    assert_eq!(ask(running.http, elsewhere, "").status, 204);
    let outcome = |outcome: &str| {
        metric(
            running.admin,
            &format!("tollgate_requests_total{{protocol=\"forward-auth\",outcome=\"{outcome}\"}}"),
        )
    };
    assert_eq!([outcome("allowed"), outcome("refused"), outcome("error")], [5, 2, 0]);
}
