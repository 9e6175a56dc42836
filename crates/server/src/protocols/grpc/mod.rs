//! gRPC: Envoy's rate limit service, health and reflection.
//!
//! It turns bytes into a [`Call`](tollgate::envoy::Call) and an
//! [`EnvoyAnswer`](tollgate::envoy::EnvoyAnswer) into bytes; the library decides. JSON ([`json`]) has the same
//! answers, at `/json`. `docs/envoy.md` compares both with the reference service.
//!
//! | File | Holds |
//! |---|---|
//! | `service`, `wire`, `json`, `proto` | from a request to a response |
//! | `own_rules` | the same for domains of our own rules |
//! | `listen`, `calls`, `dispatch`, `account` | the listener of the server: access, accounting |
//! | `connection_health`, `metered`, `bodies` | bounds of memory and time for a client |
//!
//! [`routes`] are the same services, to be mounted on another listener.

mod account;
mod bodies;
mod calls;
mod connection_health;
mod dispatch;
pub mod json;
mod listen;
mod metered;
mod own_rules;
pub mod proto;
mod service;
mod settings;
mod wire;

use tollgate::Limiter;
use tollgate::Store;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

pub(crate) use account::record;
pub(crate) use listen::start;
use proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitServiceServer, SERVICE_NAME,
};
pub use service::RateLimits;
pub(crate) use service::{
    CallExplanation, GIVES_BACK, NO_RULES, RULES_VERSION, explain, gives_back,
};
pub use settings::{Enforcement, GrpcSettings, HeaderNames, Metadata};

/// The longest message that is read: 64 descriptors of 16 entries with a kilobyte each. Envoy sends
/// some hundred bytes; headers that clients can lengthen end far below.
pub const MAX_MESSAGE: usize = 1024 * 1024;

/// The name by which the reference service reports its health.
pub const HEALTH_NAME: &str = "ratelimit";

/// The services: rate limits, health, and reflection in both of its versions; and the handle
/// by which the server announces its end.
///
/// # Errors
///
/// When the description of the protocols cannot be read, which no build that compiles does.
pub async fn routes<S: Store + 'static>(
    limiter: Limiter<S>,
    settings: GrpcSettings,
) -> Result<(Routes, HealthReporter), tonic_reflection::server::Error> {
    let (limits, others, health) = services(RateLimits::new(limiter, settings)).await?;
    Ok((others.add_service(limits), health))
}

/// The names under which the health is reported.
const NAMES: [&str; 3] = ["", HEALTH_NAME, SERVICE_NAME];

/// The same, with the rate limits apart from the others.
async fn services<S: Store + 'static>(
    limits: RateLimits<S>,
) -> Result<
    (RateLimitServiceServer<RateLimits<S>>, Routes, HealthReporter),
    tonic_reflection::server::Error,
> {
    let limits = RateLimitServiceServer::new(limits).max_decoding_message_size(MAX_MESSAGE);
    let (health, health_service) = health_reporter();
    for name in NAMES {
        health.set_service_status(name, ServingStatus::Serving).await;
    }
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTION)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let others = Routes::new(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok((limits, others, health))
}
