//! One request over gRPC: access control, its id, and its service.
//!
//! Envoy's calls go straight to their service; everything else through tonic's routes.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::service::Routes;
use tower_service::Service as _;

use super::account::InFlightCall;
use super::bodies::{BodyDeadline, RequestBody, ResponseBody};
use super::connection_health::ConnectionHealth;
use super::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use super::service::{NO_RULES, RateLimits};
use crate::accept::ConnectionContext;
use crate::http::{X_REQUEST_ID, said_id};
use crate::listener::Listener;
use crate::protocols::http::bearer;
use crate::store::AnyStore;

/// The path of Envoy's calls.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The path of the health watch, whose answer is a stream.
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Time limit for a request body, once the server waits for it.
const BODY: Duration = Duration::from_secs(10);

/// Idle time allowed on a request stream.
const SILENCE: Duration = Duration::from_secs(60);

/// Services of the gRPC listener.
#[derive(Clone, Debug)]
pub(super) struct Services {
    pub(super) limits: RateLimitServiceServer<RateLimits<AnyStore>>,
    pub(super) others: Routes,
}

/// The services, for the requests of one connection.
#[derive(Clone)]
pub(super) struct Dispatch {
    pub(super) services: Services,
    pub(super) connection: Arc<ConnectionContext>,
}

impl Dispatch {
    /// Answers one request.
    pub(super) async fn answer(
        mut self,
        request: Request<Incoming>,
        health: Arc<ConnectionHealth>,
    ) -> Response<ResponseBody> {
        if request.uri().path() == SHOULD_RATE_LIMIT {
            return self.limit(request, health).await;
        }
        // In a box, so that the future of a rate limit call stays short.
        Box::pin(self.pass_on(request, health)).await
    }

    async fn pass_on(
        &mut self,
        request: Request<Incoming>,
        health: Arc<ConnectionHealth>,
    ) -> Response<ResponseBody> {
        let path = request.uri().path();
        let lasts = path == WATCH || path.starts_with("/grpc.reflection.");
        let request = request.map(|body| {
            let patience = BodyDeadline::Silence(SILENCE);
            tonic::body::Body::new(RequestBody::new(body, Arc::clone(&health), patience))
        });
        let Ok(response) = self.services.others.call(request).await;
        response.map(|body| ResponseBody::new(body, (!lasts).then_some(health)))
    }

    async fn limit(
        &mut self,
        request: Request<Incoming>,
        health: Arc<ConnectionHealth>,
    ) -> Response<ResponseBody> {
        let id = self.name(request.headers());
        let mut response = match self.judge(request, &health).await {
            Ok(response) => response,
            Err(status) => status.into_http(),
        };
        if let Some(id) = id.and_then(|id| HeaderValue::from_str(&id).ok()) {
            response.headers_mut().insert(X_REQUEST_ID, id);
        }
        response.map(|body| ResponseBody::new(body, Some(health)))
    }

    /// Id of the request: the client's, or a new one if it is logged.
    fn name(&self, headers: &HeaderMap) -> Option<String> {
        let given = said_id(headers);
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return given;
        }
        let id = given.unwrap_or_else(|| self.connection.server.request_id());
        tracing::debug!(request = id, "gRPC call");
        Some(id)
    }

    async fn judge(
        &mut self,
        request: Request<Incoming>,
        health: &Arc<ConnectionHealth>,
    ) -> Result<Response<tonic::body::Body>, Status> {
        let ConnectionContext { server, peer, local, .. } = &*self.connection;
        if let Some(token) = &server.settings.api_token
            && !token.matches(bearer(request.headers()).unwrap_or_default())
        {
            let id = said_id(request.headers());
            server.failed_logins.record(Listener::Grpc, Some(*peer), id.as_deref());
            return Err(Status::unauthenticated("missing or wrong bearer token"));
        }
        // Until it is judged it is an error, also if its client leaves.
        let may_give_back = *local || server.settings.api_token.is_some();
        let in_flight = Arc::new(InFlightCall::new(Arc::clone(server), may_give_back));
        if server.refuses_envoy() {
            return Err(Status::unavailable(NO_RULES));
        }
        let mut request = request.map(|body| {
            let patience = BodyDeadline::Whole(BODY);
            tonic::body::Body::new(RequestBody::new(body, Arc::clone(health), patience))
        });
        request.extensions_mut().insert(in_flight);
        let Ok(response) = self.services.limits.call(request).await;
        Ok(response)
    }
}
