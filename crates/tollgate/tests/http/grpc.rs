//! tonic behind the layer, on a real socket, read by its own client.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tollgate::RuleSet;
use tollgate::http::LimitLayer;
use tollgate::rules::declaration::{Declaration, Domain, Subject};
use tonic::Code;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use crate::common::{on, rule, rules};
use crate::wire::{ManualClockStore, limiter};

/// tonic's own peer: a type of the transport, found by what the application says.
fn layer(set: RuleSet) -> LimitLayer<ManualClockStore> {
    LimitLayer::new(limiter(set), "shop")
        .peer(|extensions| Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()))
}

async fn client(layer: LimitLayer<ManualClockStore>) -> HealthClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

fn check() -> HealthCheckRequest {
    HealthCheckRequest { service: String::new() }
}

#[tokio::test]
async fn a_refusal_is_resource_exhausted_with_retry_info() {
    let method = "/grpc.health.v1.Health/Check";
    let set = rules(1, [on(rule("checks", &["ip"], &["2 per 1h"]), "path", method)]);
    let mut client = client(layer(set)).await;

    let passed = client.check(check()).await.unwrap();
    assert_eq!(passed.metadata().get("ratelimit").unwrap(), "\"checks\";r=1;t=3600");
    client.check(check()).await.unwrap();
    let status = client.check(check()).await.unwrap_err();

    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "over the limit; ask again after 3600 s");
    let details = status.get_error_details();
    let delay = details.retry_info().unwrap().retry_delay.unwrap();
    assert_eq!(delay, std::time::Duration::from_secs(3600));
    let violations = &details.quota_failure().unwrap().violations;
    assert_eq!(violations.iter().map(|it| it.subject.as_str()).collect::<Vec<_>>(), ["checks"]);
    assert_eq!(status.metadata().get("retry-after").unwrap(), "3600");
}

#[tokio::test]
async fn who_is_blocked_has_no_permission() {
    let mut domain = Domain::new("shop");
    domain.block = vec![Subject::Network("127.0.0.0/8".parse().unwrap())];
    let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).unwrap();

    let status = client(layer(set)).await.check(check()).await.unwrap_err();

    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.get_error_details().retry_info().is_none());
}

#[tokio::test]
async fn a_stream_holds_its_permit_until_it_is_dropped() {
    let slots = rule("slots", &[], &["1 per 1h"]);
    let set = rules(1, [crate::common::with(slots, tollgate::Concurrency)]);
    let limiter = limiter(set);
    let mut client = client(LimitLayer::new(limiter.clone(), "shop")).await;

    let watch = client.watch(check()).await.unwrap();
    assert_eq!(client.check(check()).await.unwrap_err().code(), Code::ResourceExhausted);
    drop(watch);

    let ask = tollgate::Ask::new("shop");
    crate::wire::until(|| async { limiter.peek(&ask).await.passes() }).await;
    client.check(check()).await.unwrap();
}
