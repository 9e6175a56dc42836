//! Limits for HTTP: layers for axum, tonic, hyper and other tower services.
//!
//! [`LimitLayer`] judges incoming requests and answers those that are refused. [`OutboundLayer`] and
//! [`OutboundRulesLayer`] make outgoing calls wait for their turn. This module turns requests into asks, and
//! admissions into fields and status codes; it decides nothing.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::http::{LimitLayer, Peer};
//! use tollgate::{EmbeddedStore, Limiter, rules};
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::new(EmbeddedStore::new());
//! limiter.set_rules(rules::load(
//!     "
//! version: 1
//! domain: shop
//! rules:
//!   - name: per-ip
//!     by: [ip]
//!     limits: [1 per 1m]
//! ",
//!     rules::Format::Yaml,
//! )?)?;
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(LimitLayer::new(limiter, "shop"));
//!
//! // With `into_make_service_with_connect_info::<SocketAddr>()`, axum provides the peer.
//! let request = || {
//!     let peer = Peer::from(([203, 0, 113, 9], 4711));
//!     http::Request::get("/").extension(peer).body(axum::body::Body::empty())
//! };
//! let first = app.clone().oneshot(request()?).await?;
//! assert_eq!(first.status(), 200);
//! assert_eq!(first.headers()["ratelimit"], r#""per-ip";r=0;t=60"#);
//!
//! let second = app.oneshot(request()?).await?;
//! assert_eq!(second.status(), 429);
//! assert_eq!(second.headers()["retry-after"], "60");
//! # Ok(()) }
//! ```
//!
//! | File | Holds |
//! |---|---|
//! | `client`, `forwarded` | the client's address, behind trusted proxies |
//! | `attributes`, `ask`, `segments` | the attributes of a request that rules look at |
//! | `layer`, `service`, `body` | the layer, its service, and the body that holds permits |
//! | `rulings` | rulings in a request's extensions, so that nested layers charge once |
//! | `request_permits` | permits in a request's extensions, for work that outlives the response |
//! | `policies`, `fields` | `RateLimit` and related fields |
//! | `refusal`, `problem`, `grpc` | responses to refused requests |
//! | `refusal_report` | `Retry-After` and what else a response says of a refusal |
//! | `inner_call`, `scope`, `refused`, `not_locked` | scopes and responses of functions under `#[limit]` and `#[lock]` |
//! | `outbound` | the layer for outgoing calls through one gate |
//! | `outbound_rules`, `outbound_refusal` | the layer for outgoing calls by rules |
//! | `wait_limit` | the bound on waiting requests |

mod ask;
mod attributes;
mod body;
mod client;
mod fields;
mod forwarded;
mod grpc;
mod inner_call;
mod layer;
#[cfg(feature = "macros")]
mod not_locked;
mod outbound;
mod outbound_refusal;
mod outbound_rules;
mod policies;
mod problem;
mod refusal;
mod refusal_report;
#[cfg(feature = "macros")]
mod refused;
mod request_permits;
mod rulings;
#[cfg(feature = "macros")]
mod scope;
mod segments;
mod service;
mod wait_limit;

pub use attributes::{AttributeText, Peer};
pub use body::LimitedBody;
pub use client::{MAX_BYTES, MAX_HOPS, TooManyHops, Trust};
pub use fields::{LegacyReset, RateLimitFields};
pub use layer::LimitLayer;
pub use outbound::{OutboundError, OutboundFuture, OutboundLayer, OutboundService};
pub use outbound_refusal::OutboundRefusal;
pub use outbound_rules::{OutboundRulesFuture, OutboundRulesLayer, OutboundRulesService};
pub use refusal::{MalformedRequest, Refusal, RefusalKind};
pub use request_permits::RequestPermits;
pub use rulings::Rulings;
#[cfg(feature = "macros")]
pub use scope::{ScopeLayer, ScopeService};
pub use service::{LimitFuture, LimitService};
