//! `/json`: a call of Envoy's in JSON, as the reference service takes it, read and written as for gRPC.

use std::sync::Arc;

use http::{Response, StatusCode};

use super::check::MAX_BODY;
use super::{Envoy, TokenPolicy, allowed};
use crate::http::HttpCall;
use crate::http::body::{self, Body};
use crate::http::problem::{Problem, typed};
use crate::protocols::grpc::json;
use crate::protocols::grpc::{GIVES_BACK, NO_RULES, RULES_VERSION, gives_back, record};
use crate::state::ServerState;
use crate::telemetry::counts::{InFlightRequest, Protocol};

pub(super) async fn answer(
    server: &Arc<ServerState>,
    envoy: &Envoy,
    call: HttpCall,
) -> Result<Response<Body>, Problem> {
    // Until it is judged it is an error, also if its client leaves.
    let in_flight = InFlightRequest::new(&server.counts, Protocol::Json);
    let may_give_back = allowed(server, &call, TokenPolicy::TokenOffLoopback).is_ok();
    let bytes = body::read(call.request.into_body(), MAX_BODY).await?;
    let no_rules = || Err(Problem::new(503, NO_RULES).retry_after(1));
    if server.refuses_envoy() {
        return no_rules();
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| "the body is not UTF-8".to_owned());
    let asked = match text.and_then(|text| json::read(text).map_err(|it| it.to_string())) {
        Ok(asked) => asked,
        Err(error) => return Ok(written(400, error)),
    };
    if server.refuses_envoy_in(&asked.domain) {
        return no_rules();
    }
    if !may_give_back && gives_back(&asked) {
        return Err(Problem::new(403, GIVES_BACK));
    }
    let answered = envoy.decide(&asked).await;
    in_flight.end();
    record(server, Protocol::Json, &asked, &answered);
    let (status, text) = envoy.write_json(&asked, &answered);
    let mut response = written(status, text);
    if let Ok(answer) = answered {
        response.headers_mut().insert(RULES_VERSION, answer.version().into());
    }
    Ok(response)
}

/// JSON if it is an answer, and a line of text if it is not, as the reference has it.
fn written(status: u16, text: String) -> Response<Body> {
    let kind = if status == 400 { "text/plain; charset=utf-8" } else { "application/json" };
    let mut response = typed(kind, text);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    response
}
