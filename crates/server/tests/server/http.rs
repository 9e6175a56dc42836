//! HTTP: checks, batches, reservations.

use serde_json::{Value, json};

use super::support::{ask, check, raw, start, start_with};

const LOGIN: &str =
    r#"{"domain":"shop","attributes":{"path":"/login","method":"POST","ip":"203.0.113.9"}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_check_is_charged_and_a_refusal_names_its_rule() {
    let running = start().await;

    let first = check(running.http, LOGIN);
    assert_eq!((first.status, first.header("content-type")), (200, Some("application/json")));
    assert_eq!(
        first.json(),
        json!({
            "allowed": true, "reason": "limits", "rules_version": 1, "degraded": false, "source": "store",
            "limits": [{
                "rule": "login-per-ip", "limit": "1m", "allows": "2 per 1m (sliding-log)",
                "allowed": true, "remaining": 1, "reset_after_ms": 60_000,
            }],
        })
    );
    assert!(check(running.http, LOGIN).json()["allowed"].as_bool().unwrap());
    let refused = check(running.http, LOGIN).json();
    assert_eq!(refused["allowed"], false);
    assert_eq!(refused["refused_by"], json!({ "rule": "login-per-ip", "limit": "1m" }));
    let retry = refused["retry_after_ms"].as_u64().unwrap();
    assert!((1..=60_000).contains(&retry), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_unknown_domains_and_costs_are_answers_too() {
    let running = start().await;
    let of = |body: &str| check(running.http, body).json();

    let blocked = of(r#"{"domain":"shop","attributes":{"ip":"203.0.113.66"}}"#);
    assert_eq!((&blocked["allowed"], &blocked["reason"]), (&json!(false), &json!("blocked")));
    assert_eq!(blocked["refused_by"], json!({ "list": "203.0.113.66" }));
    assert_eq!(blocked["retry_after_ms"], Value::Null);
    assert_eq!(of(r#"{"domain":"shop","attributes":{"ip":"10.9.1.1"}}"#)["reason"], "exempt");
    assert_eq!(of(r#"{"domain":"nowhere"}"#)["reason"], "unknown-domain");
    let never = of(r#"{"domain":"shop","cost":4,"attributes":{"user":"a"}}"#);
    assert_eq!((&never["allowed"], &never["retry_after_ms"]), (&json!(false), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peek_charges_nothing() {
    let running = start().await;
    for _ in 0..5 {
        let peeked = ask(running.http, "POST /v1/peek", LOGIN).json();
        assert_eq!(
            (&peeked["allowed"], &peeked["limits"][0]["remaining"]),
            (&json!(true), &json!(2))
        );
    }
}

/// C34
#[tokio::test(flavor = "multi_thread")]
async fn json_that_can_be_read_in_two_ways_is_refused_with_its_place() {
    let running = start().await;
    let deep = format!(r#"{{"domain":{}"a"{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let many: String = (0..65).map(|number| format!(r#""a{number}":"","#)).collect();
    let many = format!(r#"{{"domain":"shop","attributes":{{{}"z":""}}}}"#, many);
    for body in [
        r#"{"domain":"shop","domain":"shop"}"#,
        r#"{"domain":"shop","attributes":{"user":"a","user":"b"}}"#,
        r#"{"domain":"shop","cost":1e400}"#,
        r#"{"domain":"shop","cost":-0}"#,
        r#"{"domain":"shop","cost":-1}"#,
        r#"{"domain":"shop","cost":1.5}"#,
        r#"{"domain":"shop","cost":NaN}"#,
        r#"{"domain":"shop","cost":18446744073709551616}"#,
        r#"{"domain":"shop","cost":"1"}"#,
        r#"{"domain":"shop","attributes":{"user":1}}"#,
        r#"{"domain":"shop","unknown":1}"#,
        r#"{"domain":"shop"} {}"#,
        r#"{"domain":"shop""#,
        r#"{"cost":1}"#,
        "",
        "[]",
        "null",
        "{\"domain\":\"\u{0}\"}",
        &deep,
        &many,
    ] {
        let reply = check(running.http, body);
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        assert_eq!(reply.header("content-type"), Some("application/problem+json"));
        let problem = reply.json();
        assert_eq!((&problem["status"], &problem["title"]), (&json!(400), &json!("Bad Request")));
        assert!(problem["line"].is_u64() && problem["column"].is_u64(), "{body}: {problem}");
    }
    assert_eq!(
        check(
            running.http,
            r#"{"domain":"shop","cost":18446744073709551615,"attributes":{"user":"a"}}"#
        )
        .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_without_a_meaning_are_refused_by_name() {
    let running = start().await;
    for (name, value) in
        [("path", "/%00"), ("ip", "1.2.3"), ("host", "a b"), ("method", ""), ("path.id", "7")]
    {
        let body = json!({ "domain": "shop", "attributes": { name: value } }).to_string();
        let reply = check(running.http, &body);
        assert_eq!((reply.status, &reply.json()["attribute"]), (400, &json!(name)), "{reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_decided_in_order_or_not_at_all() {
    let running = start().await;
    let one = r#"{"domain":"shop","attributes":{"user":"batch"}}"#;
    let batch = |checks: &[&str]| {
        ask(
            running.http,
            "POST /v1/check/batch",
            &format!(r#"{{"checks":[{}]}}"#, checks.join(",")),
        )
    };

    let spoilt = batch(&[one, one, r#"{"domain":"shop","attributes":{"ip":"x"}}"#]);
    assert_eq!((spoilt.status, &spoilt.json()["check"]), (400, &json!(2)));

    let results = batch(&[one; 5]).json();
    let allowed: Vec<bool> = results["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["allowed"].as_bool().unwrap())
        .collect();
    assert_eq!(allowed, [true, true, true, false, false]);
    assert_eq!(batch(&[one; 65]).status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_is_settled_once() {
    let running = start().await;
    let reserve = || {
        ask(
            running.http,
            "POST /v1/reserve",
            r#"{"domain":"shop","cost":3,"attributes":{"user":"r"}}"#,
        )
        .json()
    };
    let post =
        |path: &str, body: &Value| ask(running.http, &format!("POST {path}"), &body.to_string());
    let left = || {
        let peek =
            ask(running.http, "POST /v1/peek", r#"{"domain":"shop","attributes":{"user":"r"}}"#);
        peek.json()["limits"][0]["remaining"].as_u64().unwrap()
    };

    let token = reserve()["reservation"].clone();
    assert_eq!(reserve()["allowed"], false);
    assert_eq!(left(), 0);
    assert_eq!(post("/v1/commit", &json!({ "reservation": token })).status, 400);
    assert_eq!(
        post("/v1/commit", &json!({ "reservation": token, "actual": 1 })).json(),
        json!({ "settled": true })
    );
    assert_eq!(left(), 2);
    assert_eq!(post("/v1/commit", &json!({ "reservation": token, "actual": 1 })).status, 409);
    assert_eq!(post("/v1/refund", &json!({ "reservation": token })).status, 409);
    assert_eq!(left(), 2);

    let mut forged = token.as_str().unwrap().to_owned();
    let last = forged.pop().unwrap();
    forged.push(if last == 'A' { 'B' } else { 'A' });
    assert_eq!(post("/v1/refund", &json!({ "reservation": forged })).status, 400);
    assert_eq!(post("/v1/refund", &json!({ "reservation": "" })).status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_token_every_verb_needs_it() {
    let running = start_with(|settings| settings.api_token = Some("hush".parse().unwrap())).await;
    for said in ["", "\r\nAuthorization: Bearer hus", "\r\nAuthorization: Basic hush"] {
        assert_eq!(
            ask(running.http, &format!("POST /v1/check{said}"), LOGIN).status,
            401,
            "{said}"
        );
        assert_eq!(ask(running.http, &format!("GET /v1/auth{said}"), "").status, 401, "{said}");
    }
    assert_eq!(
        ask(running.http, "POST /v1/check\r\nAuthorization: bearer hush", LOGIN).status,
        200
    );
    assert_eq!(ask(running.http, "GET /readyz", "").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_described_is_there_and_has_an_id() {
    let running = start().await;
    let described = ask(running.http, "GET /openapi.json", "").json();
    for (path, verbs) in described["paths"].as_object().unwrap() {
        for verb in verbs.as_object().unwrap().keys() {
            let reply = ask(running.http, &format!("{} {path}", verb.to_uppercase()), "");
            assert!(![404, 405].contains(&reply.status), "{verb} {path}: {reply:?}");
            assert_eq!(reply.header("x-request-id").map(str::len), Some(16));
        }
    }
    let named = ask(running.http, "GET /healthz\r\nX-Request-Id: mine-1", "");
    assert_eq!(named.header("x-request-id"), Some("mine-1"));
    let bad = ask(running.http, "GET /healthz\r\nX-Request-Id: <script>", "");
    assert_ne!(bad.header("x-request-id"), Some("<script>"));
    assert_eq!(ask(running.http, "GET /nothing", "").status, 404);
    assert_eq!(ask(running.http, "GET /v1/check", "").status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_serves_many_requests() {
    let running = start().await;
    let one = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    let last = "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let reply = raw(running.http, [one.repeat(9).as_bytes(), last.as_bytes()].concat().as_slice());
    let reply = String::from_utf8(reply).unwrap();
    assert_eq!(reply.matches("HTTP/1.1 200 OK").count(), 10, "{reply}");
}
