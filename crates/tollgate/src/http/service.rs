//! The service behind a [`LimitLayer`](super::LimitLayer), and its future.
//!
//! A local store answers within the call: the request goes on to the inner service at once, and
//! nothing is boxed. A remote store takes a round trip: the inner service that was ready is kept for
//! the request, and a clone takes its place.
//!
//! Permits move from the admission into the future, and from there into the response's body, unless
//! the handler takes them over (`request_permits.rs`).
//! Dropping either, by cancellation or a panic, releases them.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arc_swap::Guard;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tollgate_core::Store;
use tollgate_embedded::EmbeddedStore;
use tower_service::Service;

use super::ask::Head;
use super::body::LimitedBody;
use super::inner_call::{InnerFuture, RequestScope, call_inner};
use super::layer::{BookedAdmission, Config, LocalOutcome, PassedRequest};
use super::request_permits::BodyPermits;
use crate::Admission;

/// Judges requests before the inner service sees them.
pub struct LimitService<Svc, S = EmbeddedStore> {
    inner: Svc,
    config: Arc<Config<S>>,
}

impl<Svc, S> LimitService<Svc, S> {
    pub(super) const fn new(inner: Svc, config: Arc<Config<S>>) -> Self {
        Self { inner, config }
    }
}

impl<Svc, S, Q, R> Service<Request<Q>> for LimitService<Svc, S>
where
    Svc: Service<Request<Q>, Response = Response<R>> + Clone,
    S: Store + 'static,
{
    type Response = Response<LimitedBody<R>>;
    type Error = Svc::Error;
    type Future = LimitFuture<Svc, Q>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let config = &self.config;
        if config.has_judged(request.extensions()) {
            let scope = config.scope(|| copied(&request));
            return LimitFuture::serve(&mut self.inner, request, None, scope);
        }
        let reader = config.reader();
        let mut ruling = None;
        let judged = if reader.wants_parts {
            let (parts, body) = request.into_parts();
            let judged = config.judge_now(&reader, Head::of_parts(&parts), &mut ruling);
            request = Request::from_parts(parts, body);
            judged
        } else {
            config.judge_now(&reader, Head::of(&request), &mut ruling)
        };
        let granted = match judged {
            LocalOutcome::Decided(permits) => {
                if let Some(ruling) = ruling.as_ref().filter(|ruling| ruling.passes()) {
                    let passing = config.pass(ruling, permits, &reader, request.extensions_mut());
                    let scope = config.scope(|| copied(&request));
                    return LimitFuture::serve(&mut self.inner, request, Some(passing), scope);
                }
                None
            }
            LocalOutcome::Unjudged(kind) => {
                return LimitFuture::refused(config.unjudged(kind, &request.into_parts().0));
            }
            LocalOutcome::Granted(answered) => Some(answered),
            LocalOutcome::Remote => None,
        };
        if let Some(ruling) = ruling.as_ref().filter(|_| granted.is_none()) {
            let parts = request.into_parts().0;
            return LimitFuture::refused(config.refuse(ruling, &reader, &parts));
        }
        let (parts, body) = request.into_parts();
        let decision = Box::pin(decide(Arc::clone(config), granted, parts));
        // The service that is ready serves this request.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        LimitFuture { phase: LimitPhase::Deciding { decision, inner, body: Some(body) } }
    }
}

/// A copy of the head of a request.
fn copied<Q>(request: &Request<Q>) -> Parts {
    let mut parts = Request::new(()).into_parts().0;
    parts.method = request.method().clone();
    parts.uri = request.uri().clone();
    parts.version = request.version();
    parts.headers = request.headers().clone();
    parts.extensions = request.extensions().clone();
    parts
}

type PendingDecision = Pin<Box<dyn Future<Output = (Parts, Conclusion)> + Send>>;

/// The result of the decision.
enum Conclusion {
    Pass(PassedRequest, RequestScope),
    Refuse(Response<Bytes>),
}

/// Asks the limiter unless it has answered, and waits for a place in the future if one was granted.
async fn decide<S: Store + 'static>(
    config: Arc<Config<S>>,
    granted: Option<Box<BookedAdmission>>,
    mut parts: Parts,
) -> (Parts, Conclusion) {
    let reader = Guard::into_inner(config.reader());
    let answered = match granted {
        Some(answered) => Ok(*answered),
        None => config.judge(&reader, Head::of_parts(&parts)).await,
    };
    let concluded = match answered {
        Ok(answered) => {
            let Admission { ruling, permits } = answered.wait().await;
            if ruling.passes() {
                let passing = config.pass(&ruling, permits, &reader, &mut parts.extensions);
                Conclusion::Pass(passing, config.scope(|| parts.clone()))
            } else {
                Conclusion::Refuse(config.refuse(&ruling, &reader, &parts))
            }
        }
        Err(kind) => Conclusion::Refuse(config.unjudged(kind, &parts)),
    };
    (parts, concluded)
}

pin_project! {
    /// The response to a request that is judged first.
    #[must_use = "a future does nothing unless it is polled"]
    pub struct LimitFuture<Svc, Q>
    where
        Svc: Service<Request<Q>>,
    {
        #[pin]
        phase: LimitPhase<Svc, Svc::Future, Q>,
    }
}

pin_project! {
    #[project = Projected]
    enum LimitPhase<Svc, F, Q> {
        Deciding { decision: PendingDecision, inner: Svc, body: Option<Q> },
        Serving { #[pin] future: InnerFuture<F>, passing: Option<PassedRequest> },
        Refused { response: Option<Response<Bytes>> },
    }
}

impl<Svc: Service<Request<Q>>, Q> LimitFuture<Svc, Q> {
    #[inline(always)]
    fn serve(
        inner: &mut Svc,
        request: Request<Q>,
        passing: Option<PassedRequest>,
        scope: RequestScope,
    ) -> Self {
        Self { phase: LimitPhase::Serving { future: call_inner(inner, request, scope), passing } }
    }

    const fn refused(response: Response<Bytes>) -> Self {
        Self { phase: LimitPhase::Refused { response: Some(response) } }
    }
}

impl<Svc, Q, R> Future for LimitFuture<Svc, Q>
where
    Svc: Service<Request<Q>, Response = Response<R>>,
{
    type Output = Result<Response<LimitedBody<R>>, Svc::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut phase = self.project().phase;
        loop {
            let next = match phase.as_mut().project() {
                Projected::Serving { future, passing } => {
                    let response = ready!(future.poll(context))?;
                    return Poll::Ready(Ok(served(response, passing.take())));
                }
                Projected::Refused { response } => {
                    let response = response.take().unwrap_or_default();
                    return Poll::Ready(Ok(response.map(LimitedBody::refusal)));
                }
                Projected::Deciding { decision, inner, body } => {
                    match (ready!(decision.as_mut().poll(context)), body.take()) {
                        ((parts, Conclusion::Pass(passing, scope)), Some(body)) => {
                            let request = Request::from_parts(parts, body);
                            Self::serve(inner, request, Some(passing), scope).phase
                        }
                        ((_, Conclusion::Refuse(response)), _) => {
                            LimitPhase::Refused { response: Some(response) }
                        }
                        // Only after the first answer is there no body any more.
                        ((_, Conclusion::Pass(..)), None) => LimitPhase::Refused { response: None },
                    }
                }
            };
            phase.set(next);
        }
    }
}

/// The response with its fields. Its body holds the permits.
fn served<R>(
    mut response: Response<R>,
    passing: Option<PassedRequest>,
) -> Response<LimitedBody<R>> {
    let Some(PassedRequest { fields, permits }) = passing else {
        return response.map(|body| LimitedBody::served(body, BodyPermits::default()));
    };
    fields.add_to(response.headers_mut());
    response.map(|body| LimitedBody::served(body, permits))
}

impl<Svc: Clone, S> Clone for LimitService<Svc, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: Arc::clone(&self.config) }
    }
}

impl<Svc: fmt::Debug, S> fmt::Debug for LimitService<Svc, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<Svc: Service<Request<Q>>, Q> fmt::Debug for LimitFuture<Svc, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitFuture").finish_non_exhaustive()
    }
}
