//! What a layer adds to an axum handler, called in this process without a socket.
//!
//! The bare handler, the handler behind our layer with one rule and with three, and behind the
//! peer's, tower_governor, which checks one key, without and with its headers. All know the client
//! by the peer of the connection. Beside them the least that a layer does, see `by_hand.rs`. What is printed
//! is what each adds to the bare handler; `ratio` is the peer's over ours.
//!
//! Time on a busy machine says little; instructions can be counted again and get the same. So there is
//! a mode that sends requests to one contender, after as many of them that are not counted:
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*counted*' bench-library count one-rule 20000
//! ```

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::routing::get;
use tollgate::core::rule::RuleSet;
use tollgate::core::rule::declaration::{Declaration, Domain};
use tollgate::http::{LimitLayer, Tell};
use tollgate::{EmbeddedStore, Limiter};
use tollgate_bench::Random;
use tollgate_bench::clock::Quanta;
use tollgate_bench::report::{ROUNDS, Rounds, time};
use tower::Service;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use super::by_hand::ByHand;
use super::rule;

const OPERATIONS: u64 = 200_000;
const ADDRESSES: u64 = 10_000;

/// Where instructions are counted, which takes so long that of many keys most would be idle, and be
/// dropped, before they come again.
const FEW_ADDRESSES: u64 = 400;

/// The handlers, by name: the bare one first.
fn contenders() -> [(&'static str, Router); 7] {
    let bare = || Router::new().route("/", get(|| async { "ok" }));
    let one = [rule("per-ip", &["ip"])];
    let three = [rule("all", &[]), rule("per-ip", &["ip"]), rule("per-path", &["path", "ip"])];
    let config = || {
        let mut config = GovernorConfigBuilder::default();
        config.per_second(1).burst_size(100_000_000);
        config
    };
    let plain = Arc::new(config().finish().expect("valid"));
    let told = Arc::new(config().use_headers().finish().expect("valid"));
    [
        ("bare", bare()),
        ("one-rule", bare().layer(layer(&one))),
        ("one-rule-quiet", bare().layer(layer(&one).tell(Tell::Refused))),
        ("three-rules", bare().layer(layer(&three))),
        ("tower_governor", bare().layer(GovernorLayer::new(plain))),
        ("tower_governor-headers", bare().layer(GovernorLayer::new(told))),
        ("by-hand", bare().layer(ByHand::new())),
    ]
}

/// Sends so many requests to one of the handlers, twice: the second time they are counted.
pub(super) fn count(case: &str, requests: u64) {
    let found = contenders().into_iter().find(|(name, _)| *name == case);
    let (_, app) = found.expect("a case, such as one-rule");
    call(app.clone(), requests, FEW_ADDRESSES, 1);
    counted(app, requests);
}

/// What callgrind is told to count.
#[inline(never)]
fn counted(app: Router, requests: u64) {
    call(app, requests, FEW_ADDRESSES, 2);
}

pub(super) fn run() {
    let contenders = contenders();
    let mut rounds: [Rounds; 7] = Default::default();
    // One round uncounted.
    for round in 0..=ROUNDS as u64 {
        for ((_, app), rounds) in contenders.iter().zip(&mut rounds) {
            let nanos = time(1, OPERATIONS, |_| call(app.clone(), OPERATIONS, ADDRESSES, round));
            if round > 0 {
                rounds.add(nanos);
            }
        }
    }
    let bare = rounds[0].median();
    println!("case=layer/bare-handler each={bare:.0} spread={}", rounds[0].spread());
    let added = |at: usize| rounds[at].median() - bare;
    for (ours, peer) in [(1, 5), (1, 6), (2, 4), (3, 5)] {
        let (name, peer_name) = (contenders[ours].0, contenders[peer].0);
        println!(
            "case=layer/{name} adds={:.0} peer={peer_name}:{:.0} ratio={:.2} spread={} peer-spread={}",
            added(ours),
            added(peer),
            added(peer) / added(ours),
            rounds[ours].spread(),
            rounds[peer].spread(),
        );
    }
}

fn layer(rules: &[tollgate::core::rule::declaration::Rule]) -> LimitLayer<EmbeddedStore<Quanta>> {
    let mut domain = Domain::new("shop");
    domain.rules = rules.to_vec();
    let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).expect("valid");
    let store = EmbeddedStore::builder().max_keys(100_000).with_clock(Quanta::new());
    LimitLayer::new(Limiter::builder(store).rules(set).build(), "shop")
}

/// The handler is ready at once, so one poll is the whole request.
fn call(mut app: Router, requests: u64, addresses: u64, round: u64) {
    let mut random = Random::new(round);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..requests {
        let ip = Ipv4Addr::from_bits(0x0a00_0000 | random.below(addresses) as u32);
        let peer = ConnectInfo(SocketAddr::from((ip, 4711)));
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(peer);
        let future = std::pin::pin!(Service::<Request<Body>>::call(&mut app, request));
        match future.poll(&mut context) {
            Poll::Ready(Ok(response)) => assert!(black_box(response).status().is_success()),
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => unreachable!("the handler answers at once"),
        }
    }
}
