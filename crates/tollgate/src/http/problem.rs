//! Problems (RFC 9457): the JSON bodies of refusals.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use crate::rules::push_json_string;

/// A response whose body is a problem. `registered` is the name and the title of a problem type in
/// IANA's registry. Without one, the title is that of the status.
pub(super) fn response(
    status: StatusCode,
    registered: Option<(&str, &str)>,
    detail: &str,
    policies: &[String],
) -> Response<Bytes> {
    let (registry, name, title) = match registered {
        Some((name, title)) => ("https://iana.org/assignments/http-problem-types#", name, title),
        None => ("", "about:blank", status.canonical_reason().unwrap_or_default()),
    };
    let mut json = String::with_capacity(256);
    for part in [r#"{"type":""#, registry, name, r#"","title":""#, title, r#"","status":"#] {
        json.push_str(part);
    }
    json.push_str(status.as_str());
    json.push_str(r#","detail":"#);
    push_json_string(&mut json, detail);
    for (at, policy) in policies.iter().enumerate() {
        json.push_str(if at == 0 { r#","violated-policies":["# } else { "," });
        push_json_string(&mut json, policy);
    }
    json.push_str(if policies.is_empty() { "}" } else { "]}" });
    let mut response = Response::new(Bytes::from(json));
    *response.status_mut() = status;
    let problem = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, problem);
    response
}
