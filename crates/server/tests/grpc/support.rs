//! A server and its client.

use std::net::SocketAddr;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
pub(crate) use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::net::TcpListener;
use tollgate::envoy::EnvoyRules;
use tollgate::{EmbeddedStore, Limiter};
use tollgate::{Store, Timestamp};
use tollgate_core::testing::ManualClock;
use tollgate_server::protocols::grpc::{GrpcSettings, routes};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_health::server::HealthReporter;

/// 2023-11-14T22:13:20Z: 20 s into a minute.
pub(crate) const NOW: u64 = 1_700_000_000;

pub(crate) fn limiter_on<S: Store + 'static>(store: S, file: &str) -> Limiter<S> {
    let rules = EnvoyRules::load(1, [("shop.yaml", file)]).unwrap();
    Limiter::builder(store).envoy_rules(rules).build()
}

/// A limiter whose time stands still.
pub(crate) fn limiter(file: &str) -> Limiter<EmbeddedStore<ManualClock>> {
    let clock = ManualClock::at(Timestamp::from_micros(NOW * 1_000_000));
    limiter_on(EmbeddedStore::builder().with_clock(clock), file)
}

/// A listener of its own on a free port.
pub(crate) struct GrpcServer {
    pub(crate) address: SocketAddr,
    pub(crate) health: HealthReporter,
    task: tokio::task::JoinHandle<()>,
}

impl GrpcServer {
    pub(crate) async fn open<S: Store + 'static>(
        limiter: Limiter<S>,
        settings: GrpcSettings,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (routes, health) = routes(limiter, settings).await.unwrap();
        let serve = Server::builder().add_routes(routes);
        let task = tokio::spawn(async move {
            serve.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { address, health, task }
    }

    pub(crate) async fn channel(&self) -> Channel {
        channel(self.address).await
    }

    pub(crate) async fn client(&self) -> Client {
        Client(RateLimitServiceClient::new(self.channel().await))
    }
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect().await.unwrap()
}

/// Envoy's side.
#[derive(Clone)]
pub(crate) struct Client(RateLimitServiceClient<Channel>);

impl Client {
    pub(crate) async fn at(address: SocketAddr) -> Self {
        Self(RateLimitServiceClient::new(channel(address).await))
    }

    /// Asks, with everything around the question and the answer.
    pub(crate) async fn raw(
        &mut self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.0.should_rate_limit(request).await
    }

    pub(crate) async fn ask(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        self.0.should_rate_limit(request).await.map(Response::into_inner)
    }

    /// Asks about these in the domain `shop`.
    pub(crate) async fn shop(&mut self, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
        self.ask(shop(descriptors)).await.unwrap()
    }
}

pub(crate) fn shop(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: descriptors.to_vec(),
        hits_addend: 0,
    }
}

/// A descriptor as a test writes it: `path=/login user=alice`.
pub(crate) fn d(entries: &str) -> RateLimitDescriptor {
    let entry = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Entry { key: key.to_owned(), value: value.to_owned() }
    };
    RateLimitDescriptor {
        entries: entries.split_whitespace().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

/// The code of all, and `code remaining` of each.
pub(crate) fn told(response: &RateLimitResponse) -> String {
    let code = |code: i32| ["UNKNOWN", "OK", "OVER"][usize::try_from(code).unwrap()];
    let each: Vec<String> = response
        .statuses
        .iter()
        .map(|status| format!("{} {}", code(status.code), status.limit_remaining))
        .collect();
    format!("{}: {}", code(response.overall_code), each.join(", "))
}

/// Where a server in this process listens for gRPC.
pub(crate) fn grpc(running: &crate::server::Running) -> SocketAddr {
    running.server.address(tollgate_server::Listener::Grpc).unwrap()
}

/// Waits for an event of this name, past others.
pub(crate) async fn event(
    listener: &mut tollgate_server::telemetry::events::Subscriber,
    name: &str,
) -> String {
    loop {
        let told = listener.receiver.recv().await.unwrap();
        if told.name == name {
            return told.data.to_string();
        }
    }
}
