//! What the door can be asked, as OpenAPI 3.1 has it. A test compares it with the routes.

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};

use crate::http::body::Body;

/// The description.
pub(super) const OPENAPI: &str = include_str!("openapi.json");

pub(super) fn response() -> Response<Body> {
    let mut response = Response::new(OPENAPI.into());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
