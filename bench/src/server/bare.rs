//! The peers: hyper and tonic with a handler that decides nothing.
//!
//! Each reads the whole request, as any service that answers it must, and says what Tollgate says to
//! a request that passes, byte for byte as long.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tollgate_server::protocols::grpc::proto::envoy::service::ratelimit::v3 as rls;
use tonic::transport::server::TcpIncoming;

use rls::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use rls::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

/// Serves HTTP/1.1 until killed: a JSON body of so many bytes.
pub fn http(length: usize) {
    run(async move |listener: TcpListener| {
        let body = Bytes::from(vec![b' '; length]);
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let body = body.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(|request: Request<Incoming>| {
                    let body = body.clone();
                    async move {
                        request.into_body().collect().await?;
                        let mut response = Response::new(Full::new(body));
                        let json = hyper::header::HeaderValue::from_static("application/json");
                        response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
                        Ok::<_, hyper::Error>(response)
                    }
                });
                let io = TokioIo::new(stream);
                // The load tool leaves when its time is over.
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            });
        }
    });
}

/// Serves Envoy's rate limit service until killed: two descriptors within their limits.
pub fn grpc() {
    run(async |listener: TcpListener| {
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let service = RateLimitServiceServer::new(FixedAnswer(answer()));
        let server = tonic::transport::Server::builder().add_service(service);
        server.serve_with_incoming(incoming).await.unwrap();
    });
}

struct FixedAnswer(rls::RateLimitResponse);

#[tonic::async_trait]
impl RateLimitService for FixedAnswer {
    async fn should_rate_limit(
        &self,
        _: tonic::Request<rls::RateLimitRequest>,
    ) -> Result<tonic::Response<rls::RateLimitResponse>, tonic::Status> {
        Ok(tonic::Response::new(self.0.clone()))
    }
}

fn answer() -> rls::RateLimitResponse {
    let status = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: 4_000_000_000,
            unit: 3,
            name: "per-user".to_owned(),
        }),
        limit_remaining: 3_999_999_999,
        duration_until_reset: Some(prost_types::Duration { seconds: 3_599, nanos: 0 }),
        quota: None,
    };
    rls::RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![status.clone(), status],
        ..rls::RateLimitResponse::default()
    }
}

/// On as many threads as the server has, at a free port.
fn run<F: Future<Output = ()>>(serve: impl FnOnce(TcpListener) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        super::announce(listener.local_addr().unwrap());
        serve(listener).await;
    });
}
