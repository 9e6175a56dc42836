//! Hosts: one normal form for every spelling of a host in a request.
//!
//! The port and a final dot are removed, and capitals become lower case. The listener refuses a
//! request that names two hosts; [`super::Ask`] refuses a second `host` as well.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use crate::errors::messages;

/// The longest host name in DNS.
pub const MAX_LEN: usize = 253;

/// Normalizes a host: `A.com.:80` becomes `a.com`.
///
/// ```
/// use tollgate_core::rule::host::{HostError, canonical};
///
/// assert_eq!(canonical("A.com:80")?, "a.com");
/// assert_eq!(canonical("[2001:DB8:0::1]:443")?, "[2001:db8::1]");
/// assert_eq!(canonical(""), Err(HostError::Empty));
/// # Ok::<(), HostError>(())
/// ```
///
/// # Errors
///
/// When the name is empty, too long or has invalid characters, or the port is not a number. Names
/// beyond ASCII must be in their `xn--` form, as they are on the wire.
pub fn canonical(raw: &str) -> Result<Cow<'_, str>, HostError> {
    if let Some(rest) = raw.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or(HostError::Malformed)?;
        check_port(port)?;
        let address: Ipv6Addr = address.parse().map_err(|_| HostError::Malformed)?;
        return Ok(Cow::Owned(format!("[{address}]")));
    }
    let (name, port) = raw.split_at(raw.find(':').unwrap_or(raw.len()));
    check_port(port)?;
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        return Err(HostError::Empty);
    }
    if name.len() > MAX_LEN {
        return Err(HostError::TooLong);
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.split('.').any(|label| label.is_empty() || !label.bytes().all(fits)) {
        return Err(HostError::Malformed);
    }
    Ok(if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    })
}

/// Checks the text after the name: nothing, or a colon and an optional port.
fn check_port(text: &str) -> Result<(), HostError> {
    let is_port = match text.strip_prefix(':') {
        Some(port) => port.is_empty() || (!port.starts_with('+') && port.parse::<u16>().is_ok()),
        None => text.is_empty(),
    };
    if is_port { Ok(()) } else { Err(HostError::Malformed) }
}

/// The reason why a text is not a host. A server answers 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HostError {
    /// There is no name.
    Empty,
    /// The name is longer than [`MAX_LEN`].
    TooLong,
    /// It is neither a name nor an address in brackets, with or without a port.
    Malformed,
}

messages! { HostError:
    Self::Empty => "the host is empty";
    Self::TooLong => "the host is longer than 253 bytes";
    Self::Malformed => "the host is not a name or an address in brackets";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_host_is_one_host() {
        for raw in ["a.com", "A.com", "a.com.", "a.com:80", "A.COM.:443", "a.com:"] {
            assert_eq!(canonical(raw).as_deref(), Ok("a.com"), "{raw}");
        }
        for raw in ["[::1]", "[::1]:80", "[0:0::1]"] {
            assert_eq!(canonical(raw).as_deref(), Ok("[::1]"), "{raw}");
        }
    }

    #[test]
    fn a_canonical_host_is_its_own_canonical_form() {
        for raw in ["A.com:80", "[::FFFF:1.2.3.4]", "x_y.Z"] {
            let once = canonical(raw).unwrap().into_owned();
            assert_eq!(canonical(&once).as_deref(), Ok(once.as_str()));
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for raw in ["", ".", ":80", "a..b", ".a", "a.com..", "a b", "a@b", "a/b", "a:b", "a:1:2"] {
            assert!(canonical(raw).is_err(), "{raw}");
        }
        for raw in ["[::1", "::1", "[::1]x", "[a]", "a:65536", "a:+1", "é.com", "a%41", "a,b"] {
            assert!(canonical(raw).is_err(), "{raw}");
        }
    }

    #[test]
    fn the_longest_host_is_253_bytes() {
        let longest = "a".repeat(MAX_LEN);
        assert_eq!(canonical(&longest).as_deref(), Ok(longest.as_str()));
        assert_eq!(canonical(&format!("{longest}a")), Err(HostError::TooLong));
    }
}
