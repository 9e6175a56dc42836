//! The layer for outgoing calls that are limited by rules.
//!
//! [`OutboundLayer`](super::OutboundLayer) asks one gate; this layer asks the rules of a domain. A
//! function of the application builds the ask of each call: the layer reads no attributes by itself,
//! because outgoing calls have no client address. One limit may grant a place in the future within
//! the patience. Permits of concurrency limits are held until the response's body ends.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tollgate_core::Store;
use tollgate_core::rule::{Ask, AskError};
use tollgate_embedded::EmbeddedStore;
use tower_layer::Layer;
use tower_service::Service;

use super::body::LimitedBody;
use super::outbound::OutboundError;
use super::outbound_refusal::OutboundRefusal;
use super::refusal::RefusalKind;
use super::request_permits::BodyPermits;
use super::wait_limit::WaitLimit;
use crate::decision::DecidingRules;
use crate::{Limiter, Permits};

/// Makes calls wait for a place that the rules of a domain grant. Clones share everything.
///
/// Leaky queue and meter, token bucket and smooth limits grant places in the future. Of several
/// limits one grants the place; a call that another limit refuses fails at once.
///
/// ```
/// use std::time::Duration;
/// use http::{Request, Response};
/// use tollgate::http::{OutboundError, OutboundRulesLayer};
/// use tollgate::{EmbeddedStore, Limiter, rules};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// limiter.set_rules(rules::load(
///     "
/// version: 1
/// domain: partners
/// rules:
///   - name: per-partner
///     by: [host]
///     limits: [{ count: 10, per: 1s, burst: 1, algorithm: token-bucket }]
/// ",
///     rules::Format::Yaml,
/// )?)?;
/// let layer = OutboundRulesLayer::new(limiter, "partners", Duration::from_millis(150), |ask, call| {
///     ask.with("host", call.uri.host().unwrap_or_default())
/// });
/// let client = layer.layer(service_fn(|call: Request<String>| async move {
///     Ok::<_, std::io::Error>(Response::new(call.into_body()))
/// }));
///
/// let call = || Request::post("https://bank.example/pay").body(String::new());
/// client.clone().oneshot(call()?).await?;
/// let (second, third) = tokio::join!(client.clone().oneshot(call()?), client.oneshot(call()?));
/// assert!(second.is_ok(), "after a tenth of a second");
/// let Err(OutboundError::Refused(refusal)) = third else { panic!("two tenths are too long") };
/// assert_eq!(refusal.policies(), ["per-partner"]);
/// # Ok(()) }
/// ```
pub struct OutboundRulesLayer<S = EmbeddedStore> {
    rules: Arc<OutboundRules<S>>,
}

/// Adds the attributes of a call to its ask.
type AskFn = dyn for<'r> Fn(Ask<'r>, &'r Parts) -> Result<Ask<'r>, AskError> + Send + Sync;

/// The configuration of a layer.
struct OutboundRules<S> {
    limiter: Limiter<S>,
    domain: Arc<str>,
    patience: Duration,
    ask: Arc<AskFn>,
    wait_limit: WaitLimit,
}

impl<S: Store + 'static> OutboundRulesLayer<S> {
    /// A layer whose calls ask this limiter in this domain, and wait for at most `patience`. `ask` is
    /// given an empty ask of the domain and adds the attributes that rules look at.
    pub fn new(
        limiter: Limiter<S>,
        domain: impl Into<Arc<str>>,
        patience: Duration,
        ask: impl for<'r> Fn(Ask<'r>, &'r Parts) -> Result<Ask<'r>, AskError> + Send + Sync + 'static,
    ) -> Self {
        let (domain, ask) = (domain.into(), Arc::new(ask));
        let rules =
            OutboundRules { limiter, domain, patience, ask, wait_limit: WaitLimit::default() };
        Self { rules: Arc::new(rules) }
    }

    /// Sets how many calls may wait at once, including those that the store has not answered yet;
    /// 6000 by default.
    pub fn max_waiting(mut self, most: usize) -> Self {
        Arc::make_mut(&mut self.rules).wait_limit = WaitLimit::of(most);
        self
    }
}

impl<S: Store + 'static> OutboundRules<S> {
    /// Waits until a call may be made, and returns its permits.
    async fn turn(&self, parts: &Parts) -> Result<Permits, RulesRejection> {
        let ask = (self.ask)(Ask::new(&self.domain), parts).map_err(|error| {
            RulesRejection::Refused(OutboundRefusal::unjudged(RefusalKind::Malformed(error.into())))
        })?;
        let _slot = self.wait_limit.reserve().ok_or(RulesRejection::TooManyWaiting)?;
        let rules = DecidingRules::Rules(self.limiter.rules());
        let (admission, booking) = self.limiter.admit_with_place(&ask, self.patience, &rules).await;
        if !admission.passes() {
            return Err(RulesRejection::Refused(OutboundRefusal::judged(&admission)));
        }
        booking.wait().await;
        Ok(admission.into_permits())
    }
}

enum RulesRejection {
    TooManyWaiting,
    Refused(OutboundRefusal),
}

impl<Svc, S> Layer<Svc> for OutboundRulesLayer<S> {
    type Service = OutboundRulesService<Svc, S>;

    fn layer(&self, inner: Svc) -> Self::Service {
        OutboundRulesService { inner, rules: Arc::clone(&self.rules) }
    }
}

/// Calls the inner service when rules allow it.
pub struct OutboundRulesService<Svc, S = EmbeddedStore> {
    inner: Svc,
    rules: Arc<OutboundRules<S>>,
}

impl<Svc, S, Q, R> Service<Request<Q>> for OutboundRulesService<Svc, S>
where
    Svc: Service<Request<Q>, Response = Response<R>> + Clone,
    S: Store + 'static,
{
    type Response = Response<LimitedBody<R>>;
    type Error = OutboundError<Svc::Error>;
    type Future = OutboundRulesFuture<Svc, Q>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(OutboundError::Call)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let clone = self.inner.clone();
        // The service that is ready makes this call.
        let inner = std::mem::replace(&mut self.inner, clone);
        let (parts, body) = request.into_parts();
        let rules = Arc::clone(&self.rules);
        let turn: RulesTurn = Box::pin(async move {
            let turn = rules.turn(&parts).await;
            (parts, turn)
        });
        OutboundRulesFuture { phase: OutboundRulesPhase::Waiting { turn, inner, body: Some(body) } }
    }
}

type RulesTurn = Pin<Box<dyn Future<Output = (Parts, Result<Permits, RulesRejection>)> + Send>>;

pin_project! {
    /// The response to a call that rules judge first. Dropping it releases the permits.
    #[must_use = "a future does nothing unless it is polled"]
    pub struct OutboundRulesFuture<Svc, Q>
    where
        Svc: Service<Request<Q>>,
    {
        #[pin]
        phase: OutboundRulesPhase<Svc, Svc::Future, Q>,
    }
}

pin_project! {
    #[project = Projected]
    enum OutboundRulesPhase<Svc, F, Q> {
        Waiting { turn: RulesTurn, inner: Svc, body: Option<Q> },
        Calling { #[pin] future: F, permits: Option<Permits> },
    }
}

impl<Svc, Q, R> Future for OutboundRulesFuture<Svc, Q>
where
    Svc: Service<Request<Q>, Response = Response<R>>,
{
    type Output = Result<Response<LimitedBody<R>>, OutboundError<Svc::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut phase = self.project().phase;
        loop {
            let next = match phase.as_mut().project() {
                Projected::Calling { future, permits } => {
                    let response = ready!(future.poll(context)).map_err(OutboundError::Call)?;
                    let permits = permits.take().unwrap_or_default();
                    return Poll::Ready(Ok(
                        response.map(|it| LimitedBody::served(it, BodyPermits::new(permits)))
                    ));
                }
                Projected::Waiting { turn, inner, body } => {
                    match (ready!(turn.as_mut().poll(context)), body.take()) {
                        ((parts, Ok(permits)), Some(body)) => OutboundRulesPhase::Calling {
                            future: inner.call(Request::from_parts(parts, body)),
                            permits: Some(permits),
                        },
                        ((_, Err(RulesRejection::Refused(refusal))), _) => {
                            return Poll::Ready(Err(OutboundError::Refused(refusal)));
                        }
                        // `body` is `None` only if the future is polled after it was ready.
                        ((_, Err(RulesRejection::TooManyWaiting)), _) | ((_, Ok(_)), None) => {
                            return Poll::Ready(Err(OutboundError::TooManyWaiting));
                        }
                    }
                }
            };
            phase.set(next);
        }
    }
}

impl<S> Clone for OutboundRules<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            domain: Arc::clone(&self.domain),
            patience: self.patience,
            ask: Arc::clone(&self.ask),
            wait_limit: self.wait_limit.clone(),
        }
    }
}

impl<S> Clone for OutboundRulesLayer<S> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules) }
    }
}

impl<S> fmt::Debug for OutboundRulesLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundRulesLayer")
            .field("domain", &self.rules.domain)
            .field("patience", &self.rules.patience)
            .finish_non_exhaustive()
    }
}

impl<Svc: Clone, S> Clone for OutboundRulesService<Svc, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rules: Arc::clone(&self.rules) }
    }
}

impl<Svc: fmt::Debug, S> fmt::Debug for OutboundRulesService<Svc, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundRulesService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<Svc: Service<Request<Q>>, Q> fmt::Debug for OutboundRulesFuture<Svc, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundRulesFuture").finish_non_exhaustive()
    }
}
