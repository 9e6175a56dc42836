//! Parses one element of `X-Forwarded-For` or `Forwarded` into an address.
//!
//! Elements are split at commas from the right, inside quotes or not, because a client may have left a
//! quote open to the left of the proxy's part. A comma within quotes leaves an odd number of quotes
//! behind it: such an element has no address, and ends the walk.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address of an element of `X-Forwarded-For`: a port, brackets and a zone are dropped.
pub(super) fn address(element: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(element.trim_ascii()).ok()?;
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, port) = rest.split_once(']')?;
        check_port(port)?;
        return v6(inside);
    }
    if let Ok(v4) = text.parse::<Ipv4Addr>() {
        return Some(IpAddr::V4(v4));
    }
    let colon = text.find(':')?;
    let (before, port) = text.split_at_checked(colon)?;
    if let Ok(v4) = before.parse::<Ipv4Addr>() {
        check_port(port)?;
        return Some(IpAddr::V4(v4));
    }
    v6(text)
}

/// The address of an element of `Forwarded`: the value of its only `for`.
pub(super) fn element(element: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(element.trim_ascii()).ok()?;
    // No address needs an escape, and without escapes every quote is a delimiter.
    if text.contains('\\') {
        return None;
    }
    let mut found = None;
    for pair in text.split(';') {
        let (name, value) = pair.trim_ascii().split_once('=')?;
        let value = unquoted(value)?;
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
            return None;
        }
        if name.eq_ignore_ascii_case("for") {
            if found.is_some() {
                return None;
            }
            found = Some(address(value.as_bytes())?);
        }
    }
    found
}

/// A value without its quotes, which enclose all of it or are absent.
fn unquoted(value: &str) -> Option<&str> {
    let inside = match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"')?,
        None => value,
    };
    (!inside.contains('"')).then_some(inside)
}

fn v6(text: &str) -> Option<IpAddr> {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    if zone.is_some_and(str::is_empty) {
        return None;
    }
    address.parse::<Ipv6Addr>().ok().map(|v6| IpAddr::V6(v6).to_canonical())
}

/// Checks the text after an address: nothing, or a colon and a port.
fn check_port(text: &str) -> Option<()> {
    let Some(port) = text.strip_prefix(':') else { return text.is_empty().then_some(()) };
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    (digits && port.parse::<u16>().is_ok()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<String> {
        element(text.as_bytes()).map(|address| address.to_string())
    }

    #[test]
    fn an_element_says_whom_it_is_for() {
        assert_eq!(of("for=192.0.2.43").as_deref(), Some("192.0.2.43"));
        assert_eq!(
            of(" proto=http; For=\"192.0.2.43:47011\" ;by=_x ").as_deref(),
            Some("192.0.2.43")
        );
        assert_eq!(of("for=\"[2001:db8:cafe::17]:4711\"").as_deref(), Some("2001:db8:cafe::17"));
    }

    #[test]
    fn an_element_that_can_be_read_in_two_ways_says_nothing() {
        for text in ["for=unknown", "for=_a", "proto=http", "for=1.1.1.1;for=2.2.2.2", "for", ""] {
            assert_eq!(of(text), None, "{text}");
        }
        // What is left of a quoted text with a comma in it, cut there.
        for text in ["for=6.6.6.6\"", "for=6.6.6.6;a=\"", "for=6.6.6.6;a=\\\"", "for=6.6.6.6;a=b\""]
        {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn an_address_may_have_a_port_brackets_and_a_zone() {
        let read = |text: &str| address(text.as_bytes()).map(|address| address.to_string());
        for text in ["1.2.3.4", " 1.2.3.4:80\t", "::ffff:1.2.3.4", "[::ffff:102:304]:65535"] {
            assert_eq!(read(text).as_deref(), Some("1.2.3.4"), "{text}");
        }
        for text in
            ["1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:+1", "[1.2.3.4]", "1.2.3.4%a", "fe80::1%"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
