//! Layer and attribute at one route count a request once.

use axum::Router;
use axum::routing::get;
use tollgate::Refused;
use tollgate::http::LimitLayer;
use tollgate::rules::declaration::{Declaration, Domain, Mode};
use tollgate::{Ask, RuleSet};
use tollgate::{EmbeddedStore, Limiter, limit};
use tollgate_core::testing::ManualClock;

use crate::common::{StoreConnection, backend, on, rule, rules};
use crate::wire::{limiter, serve_app};

#[limit(rule = "login")]
async fn login() -> Result<&'static str, Refused> {
    Ok("welcome")
}

#[limit(rule = "login")]
#[limit("2 per 1h")]
async fn own_limit_too() -> Result<&'static str, Refused> {
    Ok("welcome")
}

fn all() -> tollgate::rules::declaration::Rule {
    rule("login", &["ip"], &["3 per 1h"])
}

#[tokio::test]
async fn a_rule_that_the_layer_has_charged_is_not_charged_again() {
    let limiter = limiter(rules(1, [all()]));
    let layer = LimitLayer::new(limiter.clone(), "shop");
    let app = Router::new().route("/", get(login)).layer(layer.with_scope());
    let server = serve_app(app).await;

    let first = server.get(&[]).await;
    assert_eq!(first.field("ratelimit"), Some("\"login\";r=2;t=1200"));
    assert_eq!(server.statuses(3, &[]).await, [200, 200, 429]);
    assert_eq!(limiter.stats().admitted, 3);
}

#[tokio::test]
async fn wherever_the_scope_is_made() {
    for outside in [true, false] {
        let layer = LimitLayer::new(limiter(rules(1, [all()])), "shop");
        let scope = layer.clone().only_scope();
        let app = Router::new().route("/", get(login));
        let app =
            if outside { app.layer(layer).layer(scope) } else { app.layer(scope).layer(layer) };
        let server = serve_app(app).await;

        assert_eq!(server.statuses(4, &[]).await, [200, 200, 200, 429], "outside: {outside}");
    }
}

#[tokio::test]
async fn on_a_store_that_takes_a_trip_as_well() {
    let limiter =
        Limiter::builder(StoreConnection::to(&backend())).rules(rules(1, [all()])).build();
    let layer = LimitLayer::new(limiter, "shop");
    let scope = layer.clone().only_scope();
    let app = Router::new().route("/", get(login)).layer(layer).layer(scope);
    let server = serve_app(app).await;

    assert_eq!(server.statuses(4, &[]).await, [200, 200, 200, 429]);
}

#[tokio::test]
async fn what_the_layer_has_not_charged_is() {
    let set = || rules(1, [on(all(), "path", "/elsewhere")]);
    let judged = limiter(set());
    let other =
        Limiter::builder(EmbeddedStore::builder().with_clock(ManualClock::default())).rules(set());
    let layer = LimitLayer::new(judged, "shop");
    let app = Router::new()
        .route("/", get(login))
        .layer(layer.with_scope())
        .layer(LimitLayer::new(other.build(), "shop"));
    let server = serve_app(app).await;

    assert_eq!(server.statuses(4, &[]).await, [200, 200, 200, 429], "the rule matches no request");
}

#[limit(rule = "account", by = account)]
async fn open(account: String) -> Result<&'static str, Refused> {
    Ok("open")
}

/// The layer charged whom it knew, and so nobody was charged for the account that the function
/// meant: whoever had many names could try one account as often as they liked.
#[tokio::test]
async fn a_rule_is_charged_again_for_somebody_else() {
    let limiter = limiter(rules(1, [rule("account", &["user"], &["2 per 1h"])]));
    let layer = LimitLayer::new(limiter.clone(), "shop")
        .attribute("user", |request| Some(request.headers.get("x-user")?.as_bytes().into()));
    let app = Router::new()
        .route("/{account}", get(|axum::extract::Path(account)| open(account)))
        .layer(layer.with_scope());
    let server = serve_app(app).await;
    let mut statuses = Vec::new();
    for user in ["X-User: a", "X-User: b", "X-User: c"] {
        statuses.push(server.ask("GET", "/victim", &[user]).await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);

    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(server.ask("GET", "/d", &["X-User: d"]).await.status);
    }
    assert_eq!(statuses, [200, 200, 429], "the same is charged once");
}

#[tokio::test]
async fn another_limiters_ruling_says_nothing() {
    let (outer, inner) = (limiter(rules(1, [all()])), limiter(rules(1, [all()])));
    let app = Router::new()
        .route("/", get(login))
        .layer(LimitLayer::new(inner.clone(), "shop").only_scope())
        .layer(LimitLayer::new(outer, "shop"));
    let server = serve_app(app).await;

    assert_eq!(server.get(&[]).await.status, 200);
    assert_eq!(inner.stats().admitted, 1);
}

#[tokio::test]
async fn limits_of_the_function_count_beside_the_layers() {
    let limiter = limiter(rules(1, [all()]));
    let layer = LimitLayer::new(limiter, "shop");
    let app = Router::new().route("/", get(own_limit_too)).layer(layer.with_scope());
    let server = serve_app(app).await;

    assert_eq!(server.statuses(2, &[]).await, [200, 200]);
    let third = server.get(&[]).await;
    assert_eq!(third.status, 429);
    let told = ["\"own_limit_too\";r=0;t=3600", "\"login\";r=0;t=3600"];
    assert_eq!(third.lines("ratelimit"), told, "the function's, then the layer's");
}

#[tokio::test]
async fn a_shadow_rule_is_counted_once_too() {
    let mut shadow = all();
    shadow.mode = Mode::Shadow;
    let limiter = limiter(rules(1, [shadow]));
    let layer = LimitLayer::new(limiter.clone(), "shop");
    let app = Router::new().route("/", get(login)).layer(layer.with_scope());
    let server = serve_app(app).await;

    assert_eq!(server.statuses(2, &[]).await, [200, 200]);
    assert_eq!(limiter.stats().shadow_admitted, 2);
}

#[limit(rule = "login", domain = "d15")]
#[limit(rule = "login", domain = "d16")]
async fn in_two_domains() -> Result<&'static str, Refused> {
    Ok("welcome")
}

/// Of the layers within a scope sixteen are remembered. What a seventeenth has charged is charged
/// again, and not left out.
#[tokio::test]
async fn sixteen_layers_are_remembered() {
    let domains = (0..17).map(|at| {
        let mut domain = Domain::new(format!("d{at}"));
        domain.rules = vec![all()];
        domain
    });
    let set = Declaration { version: 1, domains: domains.collect() };
    let limiter = limiter(RuleSet::new(set).unwrap());
    let mut app = Router::new().route("/", get(in_two_domains));
    for at in (0..17).rev() {
        app = app.layer(LimitLayer::new(limiter.clone(), format!("d{at}")));
    }
    let app = app.layer(LimitLayer::new(limiter.clone(), "d0").only_scope());
    let server = serve_app(app).await;

    assert_eq!(server.get(&[]).await.status, 200);

    for (domain, left) in [("d15", 2), ("d16", 1)] {
        let explained = limiter.explain(&Ask::new(domain).ip([127, 0, 0, 1].into())).await;
        assert_eq!(explained.counters[0].remaining, left, "{domain}");
    }
}
