//! `count-macros CASE REQUESTS`: as `count-library`, for what needs the feature `macros`.
//!
//! A tool of its own, because that feature also makes layers dearer that provide no scope: beside
//! `layer-one` of `count-library`, `layer-one-macros` says by how much.
#![allow(
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    reason = "a tool that cannot go on shall stop"
)]

use std::hint::black_box;
use std::net::Ipv4Addr;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, Uri};
use axum::routing::post;
use tollgate::http::ScopeLayer;
use tollgate::{EmbeddedStore, Limiter, Refused, limit, scope};
use tollgate_bench::at_once;
use tollgate_bench::count::{Case, KEYS, counted, keys, run, store, users};
use tollgate_bench::layers::{self, bare};
use tollgate_bench::rules::AMPLE;

const CASES: [Case; 3] = [("layer-one-macros", layer), ("macro", attribute), ("readme", readme)];

fn main() {
    run(&CASES);
}

fn layer(requests: u64) {
    let app = bare().layer(layers::limit(&layers::one_rule(AMPLE)));
    counted(|| layers::call(app, requests, KEYS, 1, StatusCode::OK));
}

#[limit("1000000000 per 1h", by = user, algorithm = token-bucket)]
async fn greet(user: &str) -> Result<usize, Refused> {
    Ok(user.len())
}

/// A function under `#[limit]`, called in one scope.
fn attribute(requests: u64) {
    let limiter = Limiter::new(store());
    let users = users();
    let calls = scope::with(&limiter, async {
        for key in keys(requests) {
            black_box(greet(&users[key]).await.expect("the limit is not reached"));
        }
    });
    counted(|| at_once(calls));
}

#[limit("5 per 1m", "20 per 1h", by = ip)]
async fn login() -> Result<&'static str, Refused> {
    Ok("welcome\n")
}

/// The first program of the README, to the letter but for its socket. So that its limits are not
/// reached, an address comes four times, then another one.
fn readme(requests: u64) {
    let limiter = Limiter::new(EmbeddedStore::new());
    let layer = ScopeLayer::new(limiter);
    let mut app = Router::new().route("/login", post(login)).layer(layer);
    let mut passes = |number| {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("/login");
        let ip = Ipv4Addr::from_bits(0x0a00_0000 | (number / 4) as u32);
        layers::send(&mut app, request, ip) == StatusCode::OK
    };
    counted(|| assert!((0..requests).all(&mut passes)));
}
