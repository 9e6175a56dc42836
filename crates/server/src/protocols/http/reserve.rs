//! Settling reservations: commit and refund.

use std::sync::Arc;

use http::{Response, StatusCode};
use tollgate::ReservationError;

use super::check::MAX_BODY;
use super::wire::{self, SettleRequest};
use crate::http::HttpCall;
use crate::http::body::{self, Body};
use crate::http::problem::{Problem, json};
use crate::state::ServerState;

pub(super) async fn settle(
    server: &Arc<ServerState>,
    call: HttpCall,
) -> Result<Response<Body>, Problem> {
    let commits = call.request.uri().path() == "/v1/commit";
    let bytes = body::read(call.request.into_body(), MAX_BODY).await?;
    let settle: SettleRequest = wire::read(&bytes)?;
    let reservation = server
        .limiter
        .redeem(&settle.reservation)
        .map_err(|error| Problem::new(400, format!("invalid reservation: {error}")))?;
    let done = match (commits, settle.actual) {
        (true, Some(actual)) => server.limiter.commit(&reservation, actual).await,
        (true, None) => return Err(Problem::new(400, "a commit needs `actual`, the real cost")),
        (false, None) => server.limiter.refund(&reservation).await,
        (false, Some(_)) => return Err(Problem::new(400, "a refund has no `actual`: use commit")),
    };
    let Err(error) = done else {
        return Ok(json(StatusCode::OK, &serde_json::json!({ "settled": true })));
    };
    let status = match &error {
        ReservationError::AlreadyUsed => 409,
        ReservationError::Expired => 410,
        ReservationError::NoRoom | ReservationError::Store(_) => 503,
        _ => 400,
    };
    let problem = Problem::new(status, error.to_string());
    Err(if status == 503 { problem.retry_after(1) } else { problem })
}
