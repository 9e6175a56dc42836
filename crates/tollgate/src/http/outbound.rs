//! The layer for outgoing calls through one gate: each call waits for its turn, or fails before it
//! is made.
//!
//! Calls queue at a [`Gate`]. Each is granted a place in the future and wakes once, so a thousand
//! waiting calls are no thundering herd. The layer's patience and the number of waiting calls bound
//! the queue. A call beyond either fails at once, and nothing is charged.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tollgate_core::{Cost, Store};
use tollgate_embedded::EmbeddedStore;
use tower_layer::Layer;
use tower_service::Service;

use super::outbound_refusal::OutboundRefusal;
use super::wait_limit::WaitLimit;
use crate::{Gate, NotAdmitted};

/// Makes calls wait for their turn at a gate. Clones share the queue.
///
/// Works for any tower service, whatever its requests are.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limit, TokenBucket};
/// use tollgate::http::{OutboundError, OutboundLayer};
/// use tollgate::{EmbeddedStore, Limiter};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// let limit = Limit::new(TokenBucket, "10 per 1s burst 1".parse()?)?;
/// let bank = OutboundLayer::new(limiter.gate("bank", limit)?, Duration::from_millis(150));
/// let bank = bank.layer(service_fn(|amount: u64| async move { Ok::<_, std::io::Error>(amount) }));
///
/// assert_eq!(bank.clone().oneshot(1).await?, 1);
/// let (second, third) = tokio::join!(bank.clone().oneshot(2), bank.oneshot(3));
/// assert_eq!(second?, 2, "after a tenth of a second");
/// assert!(matches!(third, Err(OutboundError::NotAdmitted(_))), "two tenths are too long");
/// # Ok(()) }
/// ```
pub struct OutboundLayer<S = EmbeddedStore> {
    queue: GateQueue<S>,
}

struct GateQueue<S> {
    gate: Gate<S>,
    patience: Duration,
    cost: Cost,
    wait_limit: WaitLimit,
}

impl<S: Store + 'static> OutboundLayer<S> {
    /// A layer whose calls wait at this gate, for at most `patience`.
    pub fn new(gate: Gate<S>, patience: Duration) -> Self {
        Self { queue: GateQueue { gate, patience, cost: 1, wait_limit: WaitLimit::default() } }
    }

    /// Sets the cost of each call; 1 by default.
    pub fn cost(mut self, cost: Cost) -> Self {
        self.queue.cost = cost;
        self
    }

    /// Sets how many calls may wait at once; 6000 by default.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.queue.wait_limit = WaitLimit::of(most);
        self
    }
}

impl<S: Store + 'static> GateQueue<S> {
    /// Waits for a turn.
    async fn turn(self) -> Result<(), CallRejection> {
        let _slot = self.wait_limit.reserve().ok_or(CallRejection::TooManyWaiting)?;
        let turn = self.gate.acquire_timeout(self.cost, self.patience).await;
        turn.map_err(CallRejection::NotAdmitted)
    }
}

enum CallRejection {
    TooManyWaiting,
    NotAdmitted(NotAdmitted),
}

impl<Svc, S> Layer<Svc> for OutboundLayer<S> {
    type Service = OutboundService<Svc, S>;

    fn layer(&self, inner: Svc) -> Self::Service {
        OutboundService { inner, queue: self.queue.clone() }
    }
}

/// Calls the inner service when it is its turn.
pub struct OutboundService<Svc, S = EmbeddedStore> {
    inner: Svc,
    queue: GateQueue<S>,
}

impl<Svc, S, Q> Service<Q> for OutboundService<Svc, S>
where
    Svc: Service<Q> + Clone,
    S: Store + 'static,
{
    type Response = Svc::Response;
    type Error = OutboundError<Svc::Error>;
    type Future = OutboundFuture<Svc, Q>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(OutboundError::Call)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let clone = self.inner.clone();
        // The service that is ready makes this call.
        let inner = std::mem::replace(&mut self.inner, clone);
        let turn: GateTurn = Box::pin(self.queue.clone().turn());
        OutboundFuture { phase: OutboundPhase::Waiting { turn, inner, request: Some(request) } }
    }
}

type GateTurn = Pin<Box<dyn Future<Output = Result<(), CallRejection>> + Send>>;

pin_project! {
    /// The response to a call that waits for its turn first. Dropping it gives the turn back.
    #[must_use = "a future does nothing unless it is polled"]
    pub struct OutboundFuture<Svc, Q>
    where
        Svc: Service<Q>,
    {
        #[pin]
        phase: OutboundPhase<Svc, Svc::Future, Q>,
    }
}

pin_project! {
    #[project = Projected]
    enum OutboundPhase<Svc, F, Q> {
        Waiting { turn: GateTurn, inner: Svc, request: Option<Q> },
        Calling { #[pin] future: F },
    }
}

impl<Svc: Service<Q>, Q> Future for OutboundFuture<Svc, Q> {
    type Output = Result<Svc::Response, OutboundError<Svc::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut phase = self.project().phase;
        loop {
            let next = match phase.as_mut().project() {
                Projected::Calling { future } => {
                    return future.poll(context).map_err(OutboundError::Call);
                }
                Projected::Waiting { turn, inner, request } => {
                    match (ready!(turn.as_mut().poll(context)), request.take()) {
                        (Ok(()), Some(request)) => {
                            OutboundPhase::Calling { future: inner.call(request) }
                        }
                        (Err(CallRejection::NotAdmitted(why)), _) => {
                            return Poll::Ready(Err(OutboundError::NotAdmitted(why)));
                        }
                        // `request` is `None` only if the future is polled after it was ready.
                        (Err(CallRejection::TooManyWaiting), _) | (Ok(()), None) => {
                            return Poll::Ready(Err(OutboundError::TooManyWaiting));
                        }
                    }
                }
            };
            phase.set(next);
        }
    }
}

/// A call without a response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutboundError<E> {
    /// The call was not made: its turn would have come too late, or never.
    NotAdmitted(NotAdmitted),
    /// The call was not made: rules refused it.
    Refused(OutboundRefusal),
    /// The call was not made: too many calls wait already.
    TooManyWaiting,
    /// The call was made, and failed.
    Call(E),
}

impl<E> fmt::Display for OutboundError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAdmitted(_) => "the call was not made, because its turn did not come",
            Self::Refused(_) => "the call was not made, because rules refuse it",
            Self::TooManyWaiting => "the call was not made, because too many calls wait already",
            Self::Call(_) => "the call failed",
        })
    }
}

impl<E: std::error::Error + 'static> std::error::Error for OutboundError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotAdmitted(why) => Some(why),
            Self::Refused(refusal) => Some(refusal),
            Self::TooManyWaiting => None,
            Self::Call(error) => Some(error),
        }
    }
}

impl<S> Clone for GateQueue<S> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
            patience: self.patience,
            cost: self.cost,
            wait_limit: self.wait_limit.clone(),
        }
    }
}

impl<S> Clone for OutboundLayer<S> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

impl<S> fmt::Debug for OutboundLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundLayer")
            .field("patience", &self.queue.patience)
            .finish_non_exhaustive()
    }
}

impl<Svc: Clone, S> Clone for OutboundService<Svc, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), queue: self.queue.clone() }
    }
}

impl<Svc: fmt::Debug, S> fmt::Debug for OutboundService<Svc, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<Svc: Service<Q>, Q> fmt::Debug for OutboundFuture<Svc, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundFuture").finish_non_exhaustive()
    }
}
