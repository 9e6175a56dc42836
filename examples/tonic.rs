//! A tonic server with limits. Its client is told by gRPC's own means when to come back.
//!
//! ```console
//! $ cargo run -p tollgate-examples --bin example-tonic
//! ```

use std::error::Error;

use tokio::net::TcpListener;
use tollgate::http::LimitLayer;
use tollgate::{EmbeddedStore, Limiter, rules};
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

const RULES: &str = "
version: 1
domain: grpc
rules:
  - name: checks
    match: { path: /grpc.health.v1.Health/Check } # a method is a path
    by: [ip]
    limits: [2 per 1h]
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(EmbeddedStore::new());
    limiter.set_rules(rules::load(RULES, rules::Format::Yaml)?)?;
    // tonic leaves the peer in a type of its own.
    let layer = LimitLayer::new(limiter, "grpc")
        .peer(|extensions| Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));

    // The service is tonic's own for health; yours is added alike.
    let (_, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for _ in 0..3 {
        match client.check(HealthCheckRequest::default()).await {
            Ok(answer) => {
                let left = answer.metadata().get("ratelimit").map(|value| value.to_str());
                println!("answered; ratelimit: {}", left.transpose()?.unwrap_or("none"));
            }
            Err(status) => {
                println!("{:?}: {}", status.code(), status.message());
                let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
                println!("RetryInfo: {:?}", retry.ok_or("none")?);
            }
        }
    }
    Ok(())
}
