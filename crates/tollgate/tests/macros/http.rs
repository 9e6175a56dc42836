//! Handlers of axum, on real sockets.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tollgate::RuleSet;
use tollgate::http::{LimitLayer, Trust};
use tollgate::rules::declaration;
use tollgate::rules::declaration::{Subject, Value};
use tollgate::{Limiter, Refused, limit};

use crate::common::{rule, rules};
use crate::wire::{ManualClockStore, Server, limiter, serve_app};

#[limit("2 per 1h", "1 per 1m", by = ip, message = "too many \"attempts\",\ttry again later — später")]
async fn login() -> Result<&'static str, Refused> {
    Ok("welcome")
}

#[limit("1 per 1h", by = header("x-api-key"))]
async fn by_key() -> Result<&'static str, Refused> {
    Ok("hello")
}

#[limit("1 per 1h", by = (attribute("tenant"), id), limiter = limiter)]
async fn order(
    State(limiter): State<Limiter<ManualClockStore>>,
    Path(id): Path<u64>,
) -> Result<String, Refused> {
    Ok(id.to_string())
}

#[limit(rule = "guarded")]
async fn guarded() -> Result<&'static str, Refused> {
    Ok("in")
}

fn empty() -> Limiter<ManualClockStore> {
    limiter(rules(1, [rule("guarded", &["ip"], &["1 per 1h"])]))
}

async fn server(layer: LimitLayer<ManualClockStore>, state: Limiter<ManualClockStore>) -> Server {
    let app = Router::new()
        .route("/login", post(login))
        .route("/key", get(by_key))
        .route("/orders/{id}", get(order))
        .route("/guarded", get(guarded))
        .with_state(state);
    serve_app(app.layer(layer.only_scope())).await
}

#[tokio::test]
async fn a_refusal_is_the_layers_response_with_the_message() {
    let limiter = empty();
    let server = server(LimitLayer::new(limiter.clone(), "shop"), limiter).await;
    assert_eq!(server.ask("POST", "/login", &[]).await.body, "welcome");

    let refused = server.ask("POST", "/login", &[]).await;

    assert_eq!(refused.status, 429);
    assert_eq!(refused.field("content-type"), Some("application/problem+json"));
    assert_eq!(refused.field("retry-after"), Some("60"));
    let told = "\"login/1h\";r=1, \"login/1m\";r=0;t=60";
    assert_eq!(refused.field("ratelimit"), Some(told));
    let policies = "\"login/1h\";q=2;w=3600, \"login/1m\";q=1;w=60";
    assert_eq!(refused.field("ratelimit-policy"), Some(policies));
    let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota exceeded",
        "status": 429,
        "detail": "too many \"attempts\",\ttry again later — später",
        "violated-policies": ["login/1m"],
    });
    assert_eq!(problem, expected);
}

#[tokio::test]
async fn the_address_is_walked_out_of_trusted_hops_as_the_layer_does() {
    let limiter = empty();
    let stranger = LimitLayer::new(limiter.clone(), "shop");
    let trusted = stranger.clone().trust(Trust::proxies(["127.0.0.0/8"]).unwrap());
    let ask = async |server: &Server, from: &str| {
        let header = format!("X-Forwarded-For: {from}");
        server.ask("POST", "/login", &[&header]).await.status
    };

    let alone = server(stranger, empty()).await;
    assert_eq!(ask(&alone, "203.0.113.1").await, 200);
    assert_eq!(ask(&alone, "203.0.113.2").await, 429, "anybody can write that");

    let behind = server(trusted, limiter).await;
    assert_eq!(ask(&behind, "203.0.113.1").await, 200);
    assert_eq!(ask(&behind, "9.9.9.9, 203.0.113.2").await, 200);
    assert_eq!(
        ask(&behind, "8.8.8.8, 203.0.113.2").await,
        429,
        "what the client wrote changes nothing"
    );
    let hops = ",".repeat(60);
    assert_eq!(ask(&behind, &hops).await, 400);
}

#[tokio::test]
async fn headers_attributes_and_arguments_tell_counters_apart() {
    let limiter = empty();
    let layer = LimitLayer::new(limiter.clone(), "shop");
    let layer = layer.attribute("tenant", |request| {
        Some(request.headers.get("x-tenant")?.to_str().ok()?.into())
    });
    let server = server(layer, limiter).await;
    let status = async |path: &str, header: &str| server.ask("GET", path, &[header]).await.status;

    assert_eq!(status("/key", "X-Api-Key: a").await, 200);
    assert_eq!(status("/key", "X-Api-Key: a").await, 429);
    assert_eq!(status("/key", "X-Api-Key: b").await, 200);
    assert_eq!(status("/key", "X-Other: 1").await, 200);
    assert_eq!(status("/key", "X-Other: 2").await, 429, "who has none shares one counter");

    assert_eq!(status("/orders/7", "X-Tenant: a").await, 200);
    assert_eq!(status("/orders/7", "X-Tenant: a").await, 429);
    assert_eq!(status("/orders/8", "X-Tenant: a").await, 200);
    assert_eq!(status("/orders/7", "X-Tenant: b").await, 200);
}

#[tokio::test]
async fn who_is_blocked_gets_403_and_what_is_misconfigured_500() {
    let mut domain = declaration::Domain::new("shop");
    domain.rules.push(rule("guarded", &["ip"], &["1 per 1h"]));
    let value = Value::Text("mallory".to_owned());
    domain.block.push(Subject::Attribute { name: "header.x-user".to_owned(), value });
    let set = RuleSet::new(declaration::Declaration { version: 1, domains: vec![domain] }).unwrap();
    let limiter = limiter(set);
    let shop = server(LimitLayer::new(limiter.clone(), "shop"), limiter.clone()).await;

    let blocked = shop.ask("GET", "/guarded", &["X-User: mallory"]).await;
    assert_eq!((blocked.status, blocked.field("retry-after")), (403, None));
    assert_eq!(shop.ask("GET", "/guarded", &[]).await.status, 200);
    assert_eq!(shop.ask("GET", "/guarded", &[]).await.status, 429);

    let bank = server(LimitLayer::new(limiter.clone(), "bank"), limiter.clone()).await;
    let wrong = bank.ask("GET", "/guarded", &[]).await;
    assert_eq!(wrong.status, 500);
    assert!(wrong.body.contains("the limiter's rules have no domain `bank`"), "{}", wrong.body);
    let untold = shop.ask("GET", "/orders/7", &[]).await;
    assert_eq!(untold.status, 500);
    assert!(untold.body.contains("nothing provides the request's `tenant`"), "{}", untold.body);
}

#[limit("1 per 1h", by = body)]
async fn sign_up(body: String) -> Result<&'static str, Failure> {
    Ok("done")
}

struct Failure(Refused);

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self(refused)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = self.0.into_response();
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    }
}

#[tokio::test]
async fn an_application_answers_in_its_own_way() {
    let layer = LimitLayer::new(empty(), "shop").only_scope();
    let server = serve_app(Router::new().route("/", get(sign_up)).layer(layer)).await;

    assert_eq!(server.statuses(2, &[]).await, [200, 418]);
}
