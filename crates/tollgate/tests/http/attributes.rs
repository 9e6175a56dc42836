//! The attributes of a request that rules see.

use axum::Router;
use axum::routing::get;
use tollgate::RuleSet;
use tollgate::http::LimitLayer;

use crate::common::{on, rule, rules};
use crate::wire::{Server, limiter, serve, serve_app};

async fn server(set: RuleSet) -> Server {
    serve(LimitLayer::new(limiter(set), "shop")).await
}

#[tokio::test]
async fn every_spelling_of_a_path_is_one_path_and_what_has_none_is_a_bad_request() {
    let server = server(rules(1, [on(rule("login", &[], &["2 per 1h"]), "path", "/login")])).await;

    for (at, path) in ["/login", "/%6Cogin?a=b", "/Login/", "/login;a=b"].iter().enumerate() {
        let status = server.ask("GET", path, &[]).await.status;
        assert_eq!(status, if at < 2 { 200 } else { 429 }, "{path}");
    }
    assert_eq!(server.ask("GET", "/other", &[]).await.status, 200);
    for path in ["/a%2flogin", "/a%00", "/%25%32%65", "/..;/login", "/../login"] {
        let reply = server.ask("GET", path, &[]).await;
        assert_eq!(reply.status, 400, "{path}");
        assert!(reply.body.contains("\"detail\":\"the path "), "{}", reply.body);
    }
    assert_eq!(server.ask("OPTIONS", "*", &[]).await.status, 400);
}

/// A router reads the path as it was sent: `/users/..` is the user `..` to axum, and was `/` to the
/// rules, so that the limit of a route could be got around by whoever left a segment away in this
/// manner.
#[tokio::test]
async fn a_path_that_the_router_reads_otherwise_reaches_nobody() {
    let templates = ["/users/{id}", "/files/{*rest}", "/pairs/{one}/{other}"];
    let limited = |template| on(rule(template, &[], &["1 per 1h"]), "path", template);
    let mut app = Router::new();
    for template in templates {
        app = app.route(template, get(|| async { "served" }));
    }
    let layer = LimitLayer::new(limiter(rules(1, templates.map(limited))), "shop");
    let server = serve_app(app.layer(layer)).await;
    for path in ["/users/7", "/files/a/b", "/pairs/a/b"] {
        assert_eq!(server.ask("GET", path, &[]).await.status, 200, "{path}");
        assert_eq!(server.ask("GET", path, &[]).await.status, 429, "{path}");
    }

    let around = [
        "/users/..",
        "/users/.",
        "/users/%2e%2E",
        "/users/;x",
        "/files/../other",
        "/files/a/../../other",
        "/pairs/./b",
        "/pairs//b",
        "/pairs/;/b",
        "/pairs/a/;",
    ];
    for path in around {
        let reply = server.ask("GET", path, &[]).await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        assert!(reply.body.contains("\"detail\":\"the path has a segment "), "{}", reply.body);
    }
}

#[tokio::test]
async fn every_spelling_of_a_host_is_one_host_and_two_are_a_bad_request() {
    let server = server(rules(1, [rule("per-host", &["host"], &["2 per 1h"])])).await;

    for (at, host) in ["A.com", "a.com.", "a.com:80", "a.COM.:443"].iter().enumerate() {
        let reply = server.get(&[&format!("Host: {host}")]).await;
        assert_eq!(reply.status, if at < 2 { 200 } else { 429 }, "{host}");
    }
    assert_eq!(server.get(&["Host: b.com"]).await.status, 200);
    assert_eq!(server.get(&["Host: b.com", "Host: b.com"]).await.status, 400, "two");
    assert_eq!(server.get(&["Host: b.com/x"]).await.status, 400);
    let absolute = server.ask("GET", "http://evil.example/", &["Host: b.com"]).await;
    assert_eq!(absolute.status, 400, "the target names another");
    assert_eq!(server.ask("GET", "http://B.com:80/", &["Host: b.com"]).await.status, 200);
}

#[tokio::test]
async fn hosts_that_no_rule_looks_at_are_nobodys_business() {
    let server = server(rules(1, [rule("all", &[], &["2 per 1h"])])).await;
    assert_eq!(server.get(&["Host: b.com", "Host: c.com"]).await.status, 200);
}

#[tokio::test]
async fn the_real_method_counts() {
    let server = server(rules(1, [on(rule("posts", &[], &["1 per 1h"]), "method", "POST")])).await;

    let lied = ["X-HTTP-Method-Override: GET"];
    assert_eq!(server.ask("POST", "/", &lied).await.status, 200);
    assert_eq!(server.ask("POST", "/", &lied).await.status, 429);
    assert_eq!(server.ask("GET", "/", &[]).await.status, 200);
}

#[tokio::test]
async fn lines_of_one_header_are_one_value() {
    let server = server(rules(1, [rule("per-key", &["header.X-Key"], &["1 per 1h"])])).await;

    assert_eq!(server.get(&["x-key: a", "X-KEY: b"]).await.status, 200);
    assert_eq!(server.get(&["X-Key: a, b"]).await.status, 429);
    assert_eq!(server.get(&["X-Key: a"]).await.status, 200);
}

#[tokio::test]
async fn a_route_is_axums_template_and_a_path_is_what_the_client_sent() {
    let by_route = rule("per-route", &["route"], &["2 per 1h"]);
    let by_path = on(rule("admin", &[], &["1 per 1h"]), "path", "/api/admin/{*rest}");
    let layer = LimitLayer::new(limiter(rules(1, [by_route, by_path])), "shop");
    let inner = Router::new()
        .route("/orders/{id}", get(|| async { "order" }))
        .route("/carts/{id}", get(|| async { "cart" }))
        .route("/admin/{what}", get(|| async { "admin" }))
        .layer(layer);
    let server = serve_app(Router::new().nest("/api", inner)).await;
    let ask = async |path: &str| server.ask("GET", path, &[]).await.status;

    assert_eq!([ask("/api/orders/1").await, ask("/api/orders/2").await], [200, 200]);
    assert_eq!(ask("/api/orders/3").await, 429, "one route, however the path rotates");
    assert_eq!(ask("/api/carts/1").await, 200, "another route");
    assert_eq!([ask("/api/admin/a").await, ask("/api/admin/b").await], [200, 429], "by whole path");
}

#[tokio::test]
async fn the_application_is_asked_only_for_what_rules_want_and_goes_before_the_layer() {
    let limiter = limiter(rules(1, [rule("per-host", &["host"], &["1 per 1h"])]));
    let layer = LimitLayer::new(limiter.clone(), "shop")
        .attribute("user", |_| panic!("nobody wants to know"))
        .attribute("host", |_| Some("one.example".into()));
    let server = serve(layer).await;
    assert_eq!(server.get(&["Host: a.com"]).await.status, 200);
    assert_eq!(server.get(&["Host: b.com"]).await.status, 429);

    // Rules that want more are followed at once.
    limiter.set_rules(rules(2, [rule("per-method", &["method"], &["1 per 1h"])])).unwrap();
    assert_eq!(server.get(&[]).await.status, 200);
    assert_eq!(server.ask("PUT", "/", &[]).await.status, 200);
    assert_eq!(server.get(&[]).await.status, 429);
}
