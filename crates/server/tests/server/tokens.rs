//! Wrong tokens at the listeners: counted, logged within bounds, and in the way of nobody else.

use super::program::{rules, serve};
use super::support::{TempDir, Wire, ask};

const BODY: &str = r#"{"domain":"shop"}"#;

#[test]
fn wrong_tokens_at_the_listeners_are_counted_and_logged_without_them() {
    let dir = TempDir::new();
    let program = serve(&["--rules", &rules(&dir)], &[("TOLLGATE_API_TOKEN", "canary-31-right")]);
    let (http, resp, admin) = (program.at[0], program.at[1], program.at[2]);
    let with = |token: &str, id: &str| {
        let head = format!("POST /v1/check\r\nAuthorization: {token}\r\nX-Request-Id: {id}");
        ask(http, &head, BODY).status
    };

    assert_eq!(with("Bearer canary-31-wrong", "first"), 401);
    let challenge = ask(http, "POST /v1/check", BODY);
    assert_eq!(challenge.header("www-authenticate"), Some("Bearer"));
    assert_eq!(with("Basic canary-31-right", "second"), 401);
    assert_eq!(ask(http, "POST /v1/commit", "{}").status, 401, "none at all");
    for _ in 0..20 {
        assert_eq!(with("Bearer canary-31-wrong", "many"), 401);
    }
    assert_eq!(with("Bearer canary-31-right", "right"), 200, "nobody is made to wait");
    let mut client = Wire::new(resp);
    for command in [
        &["AUTH", "canary-31-wrong"][..],
        &["AUTH", "default", "canary-31-wrong"],
        &["HELLO", "3", "AUTH", "default", "canary-31-wrong"],
    ] {
        assert!(client.line(command).starts_with("-WRONGPASS"));
    }
    client.asks(&["AUTH", "canary-31-right"], b"+OK\r\n");

    let count = |listener: &str| {
        let name = format!("tollgate_wrong_tokens_total{{listener=\"{listener}\"}}");
        super::support::metric(admin, &name)
    };
    assert_eq!(["http", "resp", "admin", "grpc"].map(count), [24, 3, 0, 0]);
    let (_, log) = program.end();
    let told: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &serde_json::Value| line["message"] == "wrong token")
        .collect();
    assert_eq!(told.len(), 10, "of one address, whichever listener it is at: {log}");
    let first = &told[0];
    assert_eq!((&first["audit"], &first["level"]), (&true.into(), &"WARN".into()));
    assert_eq!((&first["listener"], &first["request"]), (&"http".into(), &"first".into()));
    assert!(first["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{first}");
    assert!(!log.contains("canary-31"), "{log}");
}

/// C27, at the program: only wrong tokens at the admin listener make an address wait there.
#[test]
fn wrong_tokens_of_admins_are_counted_apart_from_those_of_clients() {
    let dir = TempDir::new();
    let variables = [("TOLLGATE_API_TOKEN", "api"), ("TOLLGATE_ADMIN_TOKEN", "admin")];
    let program = serve(&["--rules", &rules(&dir)], &variables);
    let (http, admin) = (program.at[0], program.at[2]);
    let sign = "Authorization: Bearer admin";
    for _ in 0..15 {
        assert_eq!(ask(http, "POST /v1/check\r\nAuthorization: Bearer x", BODY).status, 401);
    }
    assert_eq!(ask(admin, &format!("GET /v1/status\r\n{sign}"), "").status, 200);
    assert_eq!(ask(admin, "GET /v1/status\r\nAuthorization: Bearer x", "").status, 401);
    let page = ask(admin, &format!("GET /metrics\r\n{sign}"), "").body;
    for row in ["{listener=\"http\"} 15\n", "{listener=\"admin\"} 1\n"] {
        assert!(page.contains(&format!("tollgate_wrong_tokens_total{row}")), "{page}");
    }
}
