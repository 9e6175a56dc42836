//! Access control of the admin listener.
//!
//! Off loopback a token is needed, and there is no default one. Tokens are compared in constant time;
//! an address with too many failed logins has to wait. Other sites cannot use a browser: a request that
//! changes something must not come from another origin, and must have a content type that a form cannot
//! send. Without a token, the Host must be a name of this machine, because any other name can be made to
//! point here.

use http::header::{CONTENT_TYPE, HOST, HeaderMap, ORIGIN};

use crate::http::HttpCall;
use crate::http::problem::Problem;
use crate::listener::Listener;
use crate::protocols::http::bearer;
use crate::state::ServerState;

/// Admits a request, or returns the problem.
pub(super) fn admit(server: &ServerState, call: &HttpCall) -> Result<(), Problem> {
    let headers = call.request.headers();
    match &server.settings.admin_token {
        Some(token) => {
            if !server.failed_logins.may_try(call.peer.ip()) {
                return Err(Problem::new(429, "too many wrong tokens").retry_after(6));
            }
            if !token.matches(bearer(headers).unwrap_or_default()) {
                server.failed_logins.record(Listener::Admin, Some(call.peer), Some(&call.id));
                return Err(Problem::new(401, "missing or wrong bearer token"));
            }
        }
        None if !call.local => {
            return Err(Problem::new(
                403,
                "the admin API needs a token when it listens off loopback, and none is set",
            ));
        }
        None if !names_this_machine(headers) => {
            return Err(Problem::new(
                403,
                "without a token the Host must be localhost or a loopback address",
            ));
        }
        None => {}
    }
    if !call.request.method().is_safe() {
        same_site(headers)?;
    }
    Ok(())
}

/// Refuses requests that a page of another site can make a browser send.
fn same_site(headers: &HeaderMap) -> Result<(), Problem> {
    let crossing = || Problem::new(403, "cross-site requests are not allowed");
    if let Some(site) = headers.get("sec-fetch-site")
        && !matches!(site.as_bytes(), b"same-origin" | b"none")
    {
        return Err(crossing());
    }
    if let Some(origin) = headers.get(ORIGIN) {
        let host = headers.get(HOST).map(http::HeaderValue::as_bytes).unwrap_or_default();
        let origin = origin.as_bytes();
        let name = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
        if host.is_empty() || name != Some(host) {
            return Err(crossing());
        }
    }
    let kind = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let of_a_form: [&[u8]; 4] =
        [b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"];
    if of_a_form.iter().any(|form| kind.eq_ignore_ascii_case(form)) {
        return Err(Problem::new(
            415,
            "Content-Type must be application/json, application/yaml or application/toml",
        ));
    }
    Ok(())
}

/// True if the host is a loopback address or `localhost`. Any other name may be an attacker's, whose
/// DNS points it here.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost"
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs =
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        pairs.collect()
    }

    /// C28
    #[test]
    fn what_a_page_of_another_site_can_send_is_refused() {
        let json = ("content-type", "application/json; charset=utf-8");
        let host = ("host", "127.0.0.1:9091");
        assert!(same_site(&headers(&[json, host])).is_ok(), "no browser");
        assert!(same_site(&headers(&[json, host, ("origin", "http://127.0.0.1:9091")])).is_ok());
        for bad in [
            &[json, host, ("origin", "https://evil.example")][..],
            &[json, host, ("origin", "null")],
            &[json, ("origin", "http://127.0.0.1:9091")],
            &[json, host, ("sec-fetch-site", "cross-site")],
            &[json, host, ("sec-fetch-site", "same-site")],
            &[host, ("content-type", "text/plain")],
            &[host, ("content-type", "Text/Plain;charset=utf-8")],
            &[host],
        ] {
            assert!(same_site(&headers(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_that_was_made_to_point_here_is_not_answered_to() {
        for good in ["localhost", "localhost:9091", "127.0.0.1:9091", "[::1]:9091"] {
            assert!(names_this_machine(&headers(&[("host", good)])), "{good}");
        }
        for bad in ["evil.example", "10.0.0.1", "localhost.evil.example:9091", ""] {
            assert!(!names_this_machine(&headers(&[("host", bad)])), "{bad}");
        }
        assert!(!names_this_machine(&HeaderMap::new()));
    }
}
