//! Calls to others that rules limit.

use std::convert::Infallible;
use std::error::Error as _;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::any;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tollgate::Store;
use tollgate::http::{OutboundError, OutboundRulesLayer, RefusalKind};
use tollgate::rules::declaration::{OnOutage, Rule};
use tollgate::{Concurrency, LeakyQueue};
use tollgate::{DenyCacheMode, Limiter};
use tower::{Layer, ServiceExt, service_fn};

use crate::common::{ConnectionState, StoreConnection, backend, rule, rules, settle, with};
use crate::wire::{serve_app, until};

fn limiter(rule: Rule) -> (Limiter<StoreConnection>, StoreConnection) {
    let connection = StoreConnection::to(&backend());
    let builder = Limiter::builder(connection.clone()).rules(rules(1, [rule]));
    (builder.deny_cache(DenyCacheMode::Off).build(), connection)
}

fn layer<S: Store + 'static>(limiter: &Limiter<S>) -> OutboundRulesLayer<S> {
    let patience = Duration::from_millis(1_500);
    OutboundRulesLayer::new(limiter.clone(), "shop", patience, |ask, call| {
        ask.with("host", call.uri.host().unwrap_or_default())
    })
}

fn call(host: &str) -> Request<()> {
    Request::get(format!("https://{host}/")).body(()).unwrap()
}

/// A third party that says when it was called.
macro_rules! third_party {
    () => {
        service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Instant::now())) })
    };
}

/// One a second to each host, and up to nine in line.
fn queue() -> Rule {
    with(rule("per-host", &["host"], &["1 per 1s burst 9"]), LeakyQueue)
}

#[tokio::test(start_paused = true)]
async fn calls_wait_within_the_patience_and_fail_with_a_reason_beyond_it() {
    let (limiter, _) = limiter(queue());
    let client = layer(&limiter).layer(third_party!());
    let start = Instant::now();
    client.clone().oneshot(call("bank.example")).await.unwrap();

    let waits = tokio::spawn(client.clone().oneshot(call("bank.example")));
    settle().await;
    let error = client.clone().oneshot(call("bank.example")).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_millis(5), "nobody waits for a refusal");
    client.oneshot(call("other.example")).await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(5), "another host has its own line");

    let late = error.source().unwrap().to_string();
    assert_eq!(error.to_string(), "the call was not made, because rules refuse it");
    assert_eq!(late, "over the limit of per-host; ask again after 500ms");
    let OutboundError::Refused(refusal) = error else { panic!("{error:?}") };
    assert_eq!((refusal.kind(), refusal.policies().len()), (RefusalKind::Limited, 1));
    waits.await.unwrap().unwrap();
    let took = start.elapsed().as_millis();
    assert!((1_000..1_005).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_gives_its_place_back() {
    let (limiter, _) = limiter(queue());
    let client = layer(&limiter).layer(third_party!());
    client.clone().oneshot(call("bank.example")).await.unwrap();
    let leaves = tokio::spawn(client.clone().oneshot(call("bank.example")));
    settle().await;

    leaves.abort();
    settle().await;

    client.oneshot(call("bank.example")).await.expect("the place that was left");
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may() {
    let (limiter, _) = limiter(queue());
    let client = layer(&limiter).max_waiting(1).layer(third_party!());
    client.clone().oneshot(call("bank.example")).await.unwrap();
    let waits = tokio::spawn(client.clone().oneshot(call("bank.example")));
    settle().await;

    let error = client.clone().oneshot(call("other.example")).await.unwrap_err();
    assert_eq!(error, OutboundError::TooManyWaiting);

    waits.abort();
    settle().await;
    client.oneshot(call("other.example")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_asked_is_not_called() {
    let (limiter, _) = limiter(queue());
    let client = layer(&limiter).layer(third_party!());

    let error = client.oneshot(Request::get("/no-host").body(()).unwrap()).await.unwrap_err();

    let OutboundError::Refused(refusal) = error else { panic!("{error:?}") };
    assert!(matches!(refusal.kind(), RefusalKind::Malformed(_)), "{refusal:?}");
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_the_rule_says_whether_calls_go_out() {
    let careful = Rule { on_outage: OnOutage::Refuse, ..queue() };
    let (limiter, connection) = limiter(careful);
    let client = layer(&limiter).layer(third_party!());
    connection.set(ConnectionState::Closed);

    let error = client.oneshot(call("bank.example")).await.unwrap_err();

    let OutboundError::Refused(refusal) = error else { panic!("{error:?}") };
    assert_eq!(refusal.kind(), RefusalKind::Unavailable);
    let said = refusal.to_string();
    assert!(
        said.starts_with("the store does not answer, and per-host refuses meanwhile"),
        "{said}"
    );
}

/// A client of hyper's: a connection for each call.
async fn over_http(call: Request<Empty<Bytes>>) -> Result<Response<Incoming>, String> {
    let address = call.uri().authority().unwrap().to_string();
    let stream = TcpStream::connect(&address).await.map_err(|error| error.to_string())?;
    let io = TokioIo::new(stream);
    let (mut sender, connection) = ::hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    sender.send_request(call).await.map_err(|error| error.to_string())
}

type Incoming = ::hyper::body::Incoming;

#[tokio::test]
async fn a_permit_is_held_until_the_body_of_the_response_ends() {
    let server = serve_app(Router::new().fallback(any(|| async { "ok" }))).await;
    let slots = with(rule("slots", &["host"], &["1 per 1h"]), Concurrency);
    let (limiter, _) = limiter(slots);
    let client = layer(&limiter).layer(service_fn(over_http));
    let call = || {
        let call = Request::get(format!("http://{}/", server.address));
        call.header("host", "bank.example").body(Empty::new()).unwrap()
    };
    let is_free = || async {
        let host = server.address.ip().to_string();
        let ask = tollgate::Ask::new("shop").with("host", &host).unwrap();
        limiter.peek(&ask).await.passes()
    };

    let response = client.clone().oneshot(call()).await.unwrap();
    let error = client.clone().oneshot(call()).await.err().unwrap();
    assert!(matches!(error, OutboundError::Refused(_)), "{error:?}");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    until(is_free).await;

    let response = client.clone().oneshot(call()).await.unwrap();
    assert!(!is_free().await);
    drop(response);
    until(is_free).await;
    client.oneshot(call()).await.unwrap();
}
