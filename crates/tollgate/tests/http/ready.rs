//! The contract of tower: what is called is what was found ready, and never a clone of it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use tollgate::Limiter;
use tollgate::RuleSet;
use tollgate::http::{LimitLayer, OutboundLayer, OutboundRulesLayer};
use tollgate::{LeakyQueue, TokenBucket};
use tollgate::{Limit, Store};
use tower::{Layer, Service, ServiceExt};

use crate::common::{StoreConnection, backend, rule, rules, with};
use crate::wire::limiter;

/// Panics when it is called without having been ready. A clone has not been, whatever it is of.
#[derive(Debug, Default)]
struct ReadinessChecker {
    is_ready: bool,
}

impl Clone for ReadinessChecker {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<Body>> for ReadinessChecker {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called before it was ready");
        ready(Ok(Response::new(Body::empty())))
    }
}

/// Calls one service again and again, as a connection does.
async fn call<Svc, R>(mut service: Svc) -> usize
where
    Svc: Service<Request<Body>, Response = Response<R>>,
{
    let mut passed = 0;
    for _ in 0..4 {
        let Ok(ready) = service.ready().await else { panic!("it is always ready") };
        let reply = ready.call(Request::new(Body::empty())).await;
        passed += usize::from(reply.is_ok_and(|reply| reply.status() == 200));
    }
    passed
}

fn queue() -> RuleSet {
    rules(1, [with(rule("queue", &[], &["1 per 1s burst 9"]), LeakyQueue)])
}

async fn calls_of<S: Store + 'static>(limiter: Limiter<S>) -> [usize; 5] {
    let layer = || LimitLayer::new(limiter.clone(), "shop");
    let patience = Duration::from_secs(9);
    let limit = Limit::new(TokenBucket, "1 per 1s burst 1".parse().unwrap()).unwrap();
    let gate = limiter.gate("bank", limit).unwrap();
    let rules = OutboundRulesLayer::new(limiter.clone(), "shop", patience, |ask, _| Ok(ask));
    [
        call(layer().patience(patience).layer(ReadinessChecker::default())).await,
        call(layer().layer(ReadinessChecker::default())).await,
        call(layer().layer(layer().layer(ReadinessChecker::default()))).await,
        call(OutboundLayer::new(gate, patience).layer(ReadinessChecker::default())).await,
        call(rules.layer(ReadinessChecker::default())).await,
    ]
}

#[tokio::test(start_paused = true)]
async fn every_layer_calls_the_service_that_was_ready() {
    let remote = Limiter::builder(StoreConnection::to(&backend())).rules(queue()).build();
    assert_eq!(calls_of(remote).await, [4, 0, 0, 4, 4], "who has no patience finds others in line");

    let embedded = limiter(rules(1, [rule("all", &[], &["3 per 1h"])]));
    let passed = call(LimitLayer::new(embedded, "shop").layer(ReadinessChecker::default())).await;
    assert_eq!(passed, 3);
}

/// Always busy, or broken.
#[derive(Clone, Debug)]
struct NeverReady(Poll<Result<(), &'static str>>);

impl Service<Request<Body>> for NeverReady {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Err("called all the same"))
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_not_ready_makes_the_layer_wait_and_charges_nothing() {
    let limiter = limiter(rules(1, [rule("all", &[], &["3 per 1h"])]));
    let layer = LimitLayer::new(limiter.clone(), "shop");

    let mut busy = layer.layer(NeverReady(Poll::Pending));
    assert!(tokio::time::timeout(Duration::from_secs(1), busy.ready()).await.is_err());
    let mut broken = layer.layer(NeverReady(Poll::Ready(Err("broken"))));
    assert_eq!(broken.ready().await.err(), Some("broken"));
    assert_eq!(limiter.stats().admitted, 0);
}
