//! The least that a layer does which tells where its client stands: one limit on the peer's address, known
//! when the program is written, and two fields. It has no rules, trusts nobody, holds no permit, and
//! leaves the body alone. What [`LimitLayer`](tollgate::http::LimitLayer) takes beyond this is the price
//! of those.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, Response};
use tollgate::EmbeddedStore;
use tollgate::Limit;
use tollgate::TokenBucket;
use tollgate::store::{Charge, Key};
use tower::{Layer, Service};

use crate::clock::Quanta;

#[derive(Clone)]
pub(super) struct HandWrittenLayer {
    store: Arc<EmbeddedStore<Quanta>>,
    limit: Limit,
}

impl HandWrittenLayer {
    pub(super) fn new() -> Self {
        let store = EmbeddedStore::builder().max_keys(100_000).with_clock(Quanta::new());
        let quota = "1_000_000_000 per 1h".parse().expect("a quota");
        let limit = Limit::new(TokenBucket, quota).expect("a limit");
        Self { store: Arc::new(store), limit }
    }
}

impl<S> Layer<S> for HandWrittenLayer {
    type Service = HandWrittenService<S>;

    fn layer(&self, inner: S) -> HandWrittenService<S> {
        HandWrittenService { inner, by: self.clone() }
    }
}

#[derive(Clone)]
pub(super) struct HandWrittenService<S> {
    inner: S,
    by: HandWrittenLayer,
}

impl<S> Service<Request<Body>> for HandWrittenService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let peer: Option<&ConnectInfo<SocketAddr>> = request.extensions().get();
        let Some(IpAddr::V4(ip)) = peer.map(|peer| peer.0.ip()) else {
            unreachable!("every request of the bench has one")
        };
        let octets = ip.octets();
        let key = Key::new(&octets).expect("not empty");
        let charge = Charge::take(key, &self.by.limit, 1).expect("valid");
        let decision = self.by.store.charge_one(&charge);
        assert!(decision.passes(), "the bench stays below its limit");
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            let headers = response.headers_mut();
            let left =
                format!("\"per-ip\";r={};t={}", decision.remaining, decision.reset_after.as_secs());
            headers.insert("ratelimit", HeaderValue::try_from(left).expect("text"));
            let policy = HeaderValue::from_static("\"per-ip\";q=1000000000;w=3600");
            headers.insert("ratelimit-policy", policy);
            Ok(response)
        })
    }
}
