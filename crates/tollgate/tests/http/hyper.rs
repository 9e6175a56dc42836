//! hyper alone behind the layer: no router, and the peer told by hand.

use std::convert::Infallible;

use axum::body::Bytes;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tollgate::http::{LimitLayer, Peer};
use tower::{Layer, ServiceExt, service_fn};

use crate::common::{rule, rules};
use crate::wire::{Server, limiter};

#[tokio::test]
async fn hyper_limits_by_the_peer_that_it_is_told() {
    let limiter = limiter(rules(1, [rule("per-ip", &["ip"], &["2 per 1h"])]));
    let layer = LimitLayer::new(limiter, "shop");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server { address: listener.local_addr().unwrap() };
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let hello = service_fn(|_: http::Request<::hyper::body::Incoming>| async {
                Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from_static(b"hello"))))
            });
            let limited = layer.layer(hello).map_request(move |mut request: http::Request<_>| {
                request.extensions_mut().insert(Peer(peer));
                request
            });
            let service = TowerToHyperService::new(limited);
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                builder.serve_connection(TokioIo::new(stream), service).await.unwrap();
            });
        }
    });

    let first = server.get(&["X-Forwarded-For: 6.6.6.6"]).await;
    assert_eq!((first.status, first.body.as_str()), (200, "hello"));
    assert_eq!(server.statuses(2, &[]).await, [200, 429]);
}
