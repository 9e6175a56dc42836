//! The scope of a request, where functions under `#[limit]` find its attributes.
//!
//! The request goes on to the handler, so the scope has a copy of its head. Attributes are read from it
//! when a function asks for them, in the same way as by the layer.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use http::request::Parts;
use tollgate_core::Store;
use tollgate_embedded::EmbeddedStore;
use tower_layer::Layer;
use tower_service::Service;

use super::ask::{AttributeSource, Head};
use super::layer::{Config, LimitLayer};
use super::refusal::RefusalKind;
use super::rulings::Rulings;
use crate::attribute_value::AttributeValue;
use crate::function::AnyLimiter;
use crate::scope::{self, AttributeError, ScopedFuture};
use crate::{Limiter, Ruling};

/// The head of a request, and the layer that reads its attributes.
pub(super) struct ScopedRequest<S> {
    config: Arc<Config<S>>,
    parts: Parts,
}

impl<S> ScopedRequest<S> {
    pub(super) const fn new(config: Arc<Config<S>>, parts: Parts) -> Self {
        Self { config, parts }
    }
}

impl<S: Store + 'static> scope::RequestAttributes for ScopedRequest<S> {
    fn find(&self, name: &str) -> Result<Option<AttributeValue<'_>>, AttributeError> {
        let source = AttributeSource::of(&self.config, name).ok_or(AttributeError::Unknown)?;
        source.find(&self.config, Head::of_parts(&self.parts)).map_err(|kind| match kind {
            RefusalKind::Malformed(problem) => AttributeError::Malformed(problem.to_string()),
            _ => AttributeError::NoPeer,
        })
    }

    fn ruling(&self, limiter: u128, domain: &str) -> Option<&Ruling> {
        self.parts.extensions.get::<Rulings>()?.by(limiter, domain)
    }
}

/// Lets functions under `#[limit]` find the limiter and the request. The layer itself charges nothing.
///
/// [`LimitLayer::only_scope`] returns one with a domain, trusted proxies and attributes.
///
/// ```
/// use axum::{Router, routing::post};
/// use tollgate::http::{Peer, ScopeLayer};
/// use tollgate::{EmbeddedStore, Limiter, Refused, limit};
/// use tower::ServiceExt;
///
/// #[limit("1 per 1m", by = ip, message = "too many attempts, try again later")]
/// async fn login() -> Result<&'static str, Refused> {
///     Ok("welcome")
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// let app: Router = Router::new().route("/login", post(login)).layer(ScopeLayer::new(limiter));
///
/// let request = || {
///     let peer = Peer::from(([203, 0, 113, 9], 4711));
///     http::Request::post("/login").extension(peer).body(axum::body::Body::empty())
/// };
/// assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
/// let refused = app.oneshot(request()?).await?;
/// assert_eq!(refused.status(), 429);
/// assert_eq!(refused.headers()["retry-after"], "60");
/// # Ok(()) }
/// ```
pub struct ScopeLayer<S = EmbeddedStore> {
    config: Arc<Config<S>>,
    limiter: Arc<dyn AnyLimiter>,
}

impl<S: Store + 'static> ScopeLayer<S> {
    /// A layer that provides this limiter. Functions that name a rule must also name its domain.
    pub fn new(limiter: Limiter<S>) -> Self {
        LimitLayer::new(limiter, "").only_scope()
    }
}

impl<S: Store + 'static> ScopeLayer<S> {
    pub(super) fn of(config: Arc<Config<S>>) -> Self {
        config.limiter.note_scopes();
        let limiter = Arc::new(config.limiter.clone());
        Self { config, limiter }
    }
}

impl<Svc, S> Layer<Svc> for ScopeLayer<S> {
    type Service = ScopeService<Svc, S>;

    fn layer(&self, inner: Svc) -> Self::Service {
        ScopeService { inner, scope: self.clone() }
    }
}

/// Calls the inner service in the scope of its request.
pub struct ScopeService<Svc, S = EmbeddedStore> {
    inner: Svc,
    scope: ScopeLayer<S>,
}

impl<Svc, S, Q> Service<Request<Q>> for ScopeService<Svc, S>
where
    Svc: Service<Request<Q>>,
    S: Store + 'static,
{
    type Response = Svc::Response;
    type Error = Svc::Error;
    type Future = ScopedFuture<Svc::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let scope = self.scope.config.scope_of(&self.scope.limiter, parts.clone());
        let request = Request::from_parts(parts, body);
        let future = scope.clone().call(|| self.inner.call(request));
        scope.run(future)
    }
}

impl<S> Clone for ScopeLayer<S> {
    fn clone(&self) -> Self {
        Self { config: Arc::clone(&self.config), limiter: Arc::clone(&self.limiter) }
    }
}

impl<S> fmt::Debug for ScopeLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeLayer").field("config", &self.config).finish()
    }
}

impl<Svc: Clone, S> Clone for ScopeService<Svc, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), scope: self.scope.clone() }
    }
}

impl<Svc: fmt::Debug, S> fmt::Debug for ScopeService<Svc, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
