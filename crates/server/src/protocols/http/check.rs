//! Checks, peeks, batches and reservations.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json as object;
use tokio::task::yield_now;
use tollgate::Ask;
use tollgate::{Admission, MAX_LIFETIME};
use tollgate::{Store as _, Timestamp};

use super::wire::{self, BatchRequest, CheckAnswer, CheckRequest};
use crate::http::body::{self, Body};
use crate::http::problem::{Problem, json};
use crate::state::ServerState;
use crate::store::at_once;
use crate::telemetry::counts::{InFlightRequest, Protocol};

/// The longest body: an ask with all the attributes it may have, of usual length.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// The most checks in a batch.
pub(super) const MAX_BATCH: usize = 64;

/// Longest wait for a grant.
const MAX_PATIENCE: Duration = Duration::from_secs(60);

/// Default lifetime of a reservation.
const LIFETIME: Duration = Duration::from_secs(60);

/// Kind of check, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckKind {
    Check,
    Batch,
    Peek,
    Reserve,
}

impl CheckKind {
    pub(super) fn at(path: &str) -> Option<Self> {
        match path {
            "/v1/check" => Some(Self::Check),
            "/v1/check/batch" => Some(Self::Batch),
            "/v1/peek" => Some(Self::Peek),
            "/v1/reserve" => Some(Self::Reserve),
            _ => None,
        }
    }
}

pub(super) async fn answer(
    server: Arc<ServerState>,
    body: Incoming,
    asks: CheckKind,
) -> Response<Body> {
    // It counts as an error until it is decided, also if its client leaves.
    let in_flight =
        (asks != CheckKind::Peek).then(|| InFlightRequest::new(&server.counts, Protocol::Http));
    let bytes = match body::read(body, MAX_BODY).await {
        Ok(bytes) => bytes,
        Err(problem) => return problem.into(),
    };
    if server.refuses_all() {
        return Problem::new(503, "no rules have been loaded yet").retry_after(1).into();
    }
    // Futures that ask the store are long, and would be copied into each of those around them.
    let answered = match asks {
        CheckKind::Check if server.limiter.store().is_remote() => {
            Box::pin(check(&server, &bytes, in_flight)).await
        }
        CheckKind::Check => at_once(check(&server, &bytes, in_flight)),
        CheckKind::Batch => Box::pin(batch(&server, &bytes, in_flight)).await,
        CheckKind::Peek => Box::pin(peek(&server, &bytes)).await,
        CheckKind::Reserve => Box::pin(reserve(&server, &bytes, in_flight)).await,
    };
    answered.unwrap_or_else(Into::into)
}

type CheckResult = Result<Response<Body>, Problem>;

async fn check(
    server: &ServerState,
    bytes: &[u8],
    in_flight: Option<InFlightRequest<'_>>,
) -> CheckResult {
    let check: CheckRequest<'_> = wire::read(bytes)?;
    let (ask, patience) = (check.ask()?, patience(&check)?);
    Ok(written(&judge(server, &ask, patience, in_flight).await))
}

pub(super) fn patience(check: &CheckRequest<'_>) -> Result<Duration, Problem> {
    at_most("patience_ms", check.patience_ms, MAX_PATIENCE)
}

/// Has the store decide, and counts it. On the embedded store it never waits.
pub(super) async fn judge(
    server: &ServerState,
    ask: &Ask<'_>,
    patience: Duration,
    in_flight: Option<InFlightRequest<'_>>,
) -> Admission {
    if server.limiter.store().is_remote() {
        // Requests arrive in droves: those that are read before one asks share its round trip.
        yield_now().await;
    }
    let admission = server.limiter.admit_within(ask, patience).await;
    in_flight.map(InFlightRequest::end);
    server.record(Protocol::Http, ask, &admission);
    admission
}

fn written(admission: &Admission) -> Response<Body> {
    json(StatusCode::OK, &CheckAnswer::new(admission))
}

/// This many milliseconds, or a problem if they exceed the maximum: a client would not notice less.
fn at_most(name: &str, millis: u64, most: Duration) -> Result<Duration, Problem> {
    let said = Duration::from_millis(millis);
    if said > most {
        let most = most.as_millis();
        return Err(Problem::new(400, format!("`{name}` is {millis}: at most {most} is allowed")));
    }
    Ok(said)
}

async fn peek(server: &ServerState, bytes: &[u8]) -> CheckResult {
    let check: CheckRequest<'_> = wire::read(bytes)?;
    let admission = server.limiter.peek(&check.ask()?).await;
    Ok(written(&admission))
}

/// Each check is a request of its own, and is counted. One that is malformed spoils the batch before
/// anything is charged.
async fn batch(
    server: &ServerState,
    bytes: &[u8],
    in_flight: Option<InFlightRequest<'_>>,
) -> CheckResult {
    let batch: BatchRequest<'_> = wire::read(bytes)?;
    if batch.checks.len() > MAX_BATCH {
        return Err(Problem::new(400, format!("a batch has at most {MAX_BATCH} checks")));
    }
    let asks = batch.checks.iter().enumerate();
    let asks = asks.map(|(at, check)| check.ask().map_err(|problem| problem.with("check", at)));
    let asks = asks.collect::<Result<Vec<_>, _>>()?;
    let mut admissions = Vec::with_capacity(asks.len());
    if let Some(in_flight) = in_flight {
        in_flight.divide();
    }
    for ask in &asks {
        let one = InFlightRequest::new(&server.counts, Protocol::Http);
        let admission = server.limiter.admit(ask).await;
        one.end();
        server.record(Protocol::Http, ask, &admission);
        admissions.push(admission);
    }
    let answers: Vec<CheckAnswer<'_>> = admissions.iter().map(CheckAnswer::new).collect();
    Ok(json(StatusCode::OK, &object!({ "results": answers })))
}

async fn reserve(
    server: &ServerState,
    bytes: &[u8],
    in_flight: Option<InFlightRequest<'_>>,
) -> CheckResult {
    let check: CheckRequest<'_> = wire::read(bytes)?;
    let ask = check.ask()?;
    let lifetime = match check.lifetime_ms {
        Some(millis) => at_most("lifetime_ms", millis, MAX_LIFETIME)?,
        None => LIFETIME,
    };
    let mut charged = false;
    let reserved = server.limiter.reserve_telling(&ask, lifetime, |admission| {
        charged = admission.ruling().at() > Timestamp::EPOCH;
        in_flight.map(InFlightRequest::end);
        server.record(Protocol::Http, &ask, admission);
    });
    let reservation = match reserved.await {
        Ok(reservation) => reservation,
        Err(admission) => return Ok(written(&admission)),
    };
    let token = server.limiter.token(&reservation);
    let mut body = object!({ "allowed": true, "reservation": token });
    // Where nothing was charged there is nothing to settle in time.
    if charged {
        body["expires_at_us"] = reservation.expires().as_micros().into();
    }
    Ok(json(StatusCode::OK, &body))
}
