//! Problems (RFC 9457): the JSON bodies of refusals.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use crate::rules::json_string;

/// A response whose body is a problem. `registered` is the name and the title of a problem type in
/// IANA's registry. Without one, the title is that of the status.
pub(super) fn response(
    status: StatusCode,
    registered: Option<(&str, &str)>,
    detail: &str,
    policies: &[String],
) -> Response<Bytes> {
    let (uri, title) = match registered {
        Some((name, title)) => {
            (format!("https://iana.org/assignments/http-problem-types#{name}"), title)
        }
        None => ("about:blank".to_owned(), status.canonical_reason().unwrap_or_default()),
    };
    let (number, detail) = (status.as_u16(), json_string(detail));
    let mut json =
        format!(r#"{{"type":"{uri}","title":"{title}","status":{number},"detail":{detail}"#);
    if !policies.is_empty() {
        let policies: Vec<String> = policies.iter().map(|policy| json_string(policy)).collect();
        // Writing into a string does not fail.
        let _ = write!(json, r#","violated-policies":[{}]"#, policies.join(","));
    }
    json.push('}');
    let mut response = Response::new(Bytes::from(json));
    *response.status_mut() = status;
    let problem = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, problem);
    response
}
