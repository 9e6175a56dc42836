//! Layers within layers count once.

use axum::routing::get;
use axum::{Extension, Router};
use tollgate::RuleSet;
use tollgate::http::{LimitLayer, Rulings};
use tollgate::rules::declaration::{Declaration, Domain};

use crate::common::{rule, rules};
use crate::wire::{limiter, serve_app};

#[tokio::test]
async fn the_same_limiter_and_domain_count_a_request_once() {
    let limiter = limiter(rules(1, [rule("all", &[], &["3 per 1h"])]));
    let app = Router::new()
        .route("/", get(|| async { "ok" }).layer(LimitLayer::new(limiter.clone(), "shop")))
        .layer(LimitLayer::new(limiter.clone(), "shop"))
        .layer(LimitLayer::new(limiter, "shop"));
    let server = serve_app(app).await;

    let first = server.get(&[]).await;
    assert_eq!(first.field("ratelimit"), Some("\"all\";r=2;t=1200"), "told once, too");
    assert_eq!(server.statuses(3, &[]).await, [200, 200, 429]);
}

#[tokio::test]
async fn other_limiters_and_other_domains_count_for_themselves() {
    let two = ["shop", "billing"].map(|name| {
        let mut domain = Domain::new(name);
        domain.rules = vec![rule(name, &[], &["5 per 1h"])];
        domain
    });
    let set = || RuleSet::new(Declaration { version: 1, domains: two.to_vec() }).unwrap();
    let (one, other) = (limiter(set()), limiter(set()));
    let app = Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(LimitLayer::new(one.clone(), "shop"))
        .layer(LimitLayer::new(one, "billing"))
        .layer(LimitLayer::new(other, "shop"));
    let server = serve_app(app).await;

    let reply = server.get(&[]).await;

    let told = ["\"shop\";r=4;t=720", "\"billing\";r=4;t=720", "\"shop\";r=4;t=720"];
    assert_eq!(reply.lines("ratelimit"), told);
}

#[tokio::test]
async fn a_handler_sees_what_was_decided() {
    let limiter = limiter(rules(1, [rule("all", &[], &["3 per 1h"])]));
    let known = limiter.clone();
    let handler = move |Extension(rulings): Extension<Rulings>| async move {
        let ruling = rulings.ruling(&known, "shop").unwrap();
        assert!(rulings.ruling(&known, "billing").is_none());
        let rules: Vec<_> = ruling.findings().map(|found| found.rule.unwrap().name()).collect();
        rules.join(" ")
    };
    let layer = LimitLayer::new(limiter, "shop").with_rulings();
    let app = Router::new().route("/", get(handler)).layer(layer);

    assert_eq!(serve_app(app).await.get(&[]).await.body, "all");
}
