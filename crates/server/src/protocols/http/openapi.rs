//! OpenAPI 3.1 description of this listener, and a page that shows it. A test compares the
//! description with the routes.
//!
//! The page is three files of our own, which neither need nor may load anything from elsewhere: it works
//! without a network.

use http::Response;
use http::header::{CONTENT_SECURITY_POLICY, HeaderValue, X_CONTENT_TYPE_OPTIONS};

use crate::http::body::Body;
use crate::http::problem::typed;

/// The description.
pub(super) const OPENAPI: &str = include_str!("openapi.json");

/// Content security policy of the page: it loads its own two files, and asks this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) fn response() -> Response<Body> {
    typed("application/json", OPENAPI)
}

/// A file of the page, if it has one at this path.
pub(super) fn page(path: &str) -> Option<Response<Body>> {
    let mut response = match path {
        "/docs" => typed("text/html; charset=utf-8", include_str!("docs/index.html")),
        "/docs/page.js" => typed("text/javascript; charset=utf-8", include_str!("docs/page.js")),
        "/docs/style.css" => typed("text/css; charset=utf-8", include_str!("docs/style.css")),
        _ => return None,
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    Some(response)
}
