//! An axum handler, bare and behind layers, called in this process without a socket.
//!
//! `bench-library` times these and `count-library` counts their instructions. Every layer knows the
//! client by the peer of the connection.

mod by_hand;

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use axum::routing::get;
use tollgate::EmbeddedStore;
use tollgate::http::LimitLayer;
use tollgate::rules::declaration::Rule;
use tower::Service;
use tower::layer::util::Identity;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::clock::Quanta;
use crate::rules::{self, AMPLE, rule};
use crate::{Random, at_once};

use by_hand::HandWrittenLayer;

/// The handler without a layer.
pub fn bare() -> Router {
    Router::new().route("/", get(|| async { "ok" }))
}

/// The handler behind a layer that does nothing: axum's own price of a layer.
pub fn empty() -> Router {
    bare().layer(Identity::new())
}

/// The handler behind the smallest layer that limits and says so.
pub fn by_hand() -> Router {
    bare().layer(HandWrittenLayer::new())
}

/// The handler behind the peer's layer, which checks one key and says nothing of it.
pub fn governor() -> Router {
    let config = GovernorConfigBuilder::default().per_second(1).burst_size(100_000_000).finish();
    bare().layer(GovernorLayer::new(Arc::new(config.expect("valid"))))
}

/// The same with the peer's header fields.
pub fn governor_with_headers() -> Router {
    let mut config = GovernorConfigBuilder::default();
    let config = config.per_second(1).burst_size(100_000_000).use_headers().finish();
    bare().layer(GovernorLayer::new(Arc::new(config.expect("valid"))))
}

/// Our layer with these rules.
pub fn limit(rules: &[Rule]) -> LimitLayer<EmbeddedStore<Quanta>> {
    LimitLayer::new(rules::limiter(rules, 100_000), "shop")
}

/// One rule that every request matches.
pub fn one_rule(quota: &str) -> [Rule; 1] {
    [rule("per-ip", &["ip"], quota)]
}

/// Three rules that every request matches; the first of them, one counter for all, has this quota.
pub fn three_rules(quota: &str) -> [Rule; 3] {
    [
        rule("all", &[], quota),
        rule("per-ip", &["ip"], AMPLE),
        rule("per-path", &["path", "ip"], AMPLE),
    ]
}

/// Sends so many requests from random addresses, all of which must get this status, but for those
/// that come before a quota is spent.
pub fn call(mut app: Router, requests: u64, addresses: u64, seed: u64, status: StatusCode) {
    let mut random = Random::new(seed);
    let mut others: u64 = 0;
    for _ in 0..requests {
        let ip = Ipv4Addr::from_bits(0x0a00_0000 | random.below(addresses) as u32);
        others += u64::from(send(&mut app, Request::new(Body::empty()), ip) != status);
    }
    let most = if status == StatusCode::OK { 0 } else { addresses };
    assert!(others <= most, "{others} of {requests} requests did not get {status}");
}

/// Sends one request from this address. The handlers and the layers answer at once.
pub fn send(app: &mut Router, mut request: Request<Body>, ip: Ipv4Addr) -> StatusCode {
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from((ip, 4711))));
    match at_once(Service::<Request<Body>>::call(app, request)) {
        Ok(response) => black_box(response).status(),
        Err(never) => match never {},
    }
}
