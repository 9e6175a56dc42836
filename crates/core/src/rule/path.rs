//! Canonical paths: every spelling of a path that reaches the same handler becomes one text.
//!
//! [`canonical`] decodes a path once, and refuses every path that two servers could read
//! differently. Match its result with rules, and forward it from a gateway. Answer a refused path
//! with 400; never pass it on unmatched.
//!
//! The canonical form keeps case and `;parameters`; matching ignores them (`template.rs`) and
//! decodes the escapes that are kept here: change them together.

use std::borrow::Cow;
use std::fmt::Write;

use crate::errors::messages;

/// The longest canonical path: the usual limit of servers for a whole request line.
pub const MAX_LEN: usize = 8192;

/// The most segments of a path: far above any route, so a walk along a path stays short.
pub const MAX_SEGMENTS: usize = 256;

/// Normalizes a path. A query is dropped.
///
/// - Escapes of letters, digits and `-._~` are decoded. All others are written in capitals.
/// - Characters that must not appear in a path are escaped.
/// - `//` becomes `/`; `.` and `..` are resolved. A slash at the end stays.
/// - A canonical path is its own canonical form.
///
/// ```
/// use tollgate_core::rule::path::{PathError, canonical};
///
/// assert_eq!(canonical("/x/..//api/./%6Cogin?next=/")?, "/api/login");
/// assert_eq!(canonical("/api%2flogin"), Err(PathError::EncodedSeparator));
/// # Ok::<(), PathError>(())
/// ```
///
/// # Errors
///
/// When the path does not begin with `/`, climbs above the root, is too long, or contains parts
/// that servers read differently: see [`PathError`].
pub fn canonical(raw: &str) -> Result<Cow<'_, str>, PathError> {
    if raw.contains('#') {
        return Err(PathError::Fragment);
    }
    let path = raw.split_once('?').map_or(raw, |(path, _)| path);
    if !path.starts_with('/') {
        return Err(PathError::NotAbsolute);
    }
    if path.len() > MAX_LEN {
        return Err(PathError::TooLong);
    }
    let rewritten =
        if is_canonical(path.as_bytes()) { Cow::Borrowed(path) } else { rewrite(path)? };
    if rewritten.len() > MAX_LEN {
        return Err(PathError::TooLong);
    }
    if rewritten.bytes().filter(|byte| *byte == b'/').count() > MAX_SEGMENTS {
        return Err(PathError::TooManySegments);
    }
    Ok(rewritten)
}

/// Normalizes bytes, for the path of every ask. Most paths are canonical already; in these each
/// byte is examined once.
pub(super) fn canonical_bytes(raw: &[u8]) -> Result<Cow<'_, [u8]>, PathError> {
    // A path that short cannot have too many segments.
    if raw.len() <= MAX_SEGMENTS && raw.first() == Some(&b'/') && is_canonical(raw) {
        return Ok(Cow::Borrowed(raw));
    }
    let text = std::str::from_utf8(raw).map_err(|_| PathError::NotUtf8)?;
    canonical(text).map(bytes)
}

/// The bytes of a text.
pub(super) fn bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// True if the path certainly needs no rewriting. If false, it must be parsed.
fn is_canonical(path: &[u8]) -> bool {
    let mut after_slash = false;
    path.iter().all(|byte| {
        let slash = *byte == b'/';
        let fits = !(after_slash && (slash || *byte == b'.')) && (slash || stands_as_it_is(*byte));
        after_slash = slash;
        fits
    })
}

fn rewrite(path: &str) -> Result<Cow<'_, str>, PathError> {
    let mut out = String::with_capacity(path.len());
    let mut starts = Vec::new();
    let mut slash = false;
    for raw in path.split('/').skip(1) {
        let start = out.len();
        out.push('/');
        rewrite_segment(raw, &mut out)?;
        let segment = out.get(start..).unwrap_or_default();
        slash = matches!(segment, "/" | "/." | "/..");
        match segment {
            "/" | "/." => out.truncate(start),
            "/.." => out.truncate(starts.pop().ok_or(PathError::AboveRoot)?),
            dots if is_dots_with_parameters(dots) => return Err(PathError::DotParameters),
            _ => starts.push(start),
        }
    }
    if slash || out.is_empty() {
        out.push('/');
    }
    Ok(if out == path { Cow::Borrowed(path) } else { Cow::Owned(out) })
}

/// Decodes one segment once and appends its normal form.
fn rewrite_segment(raw: &str, out: &mut String) -> Result<(), PathError> {
    let start = out.len();
    // What the escapes and the text say together must be UTF-8; ASCII ends a sequence.
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        let (byte, escaped) = if byte == b'%' {
            let (Some(high), Some(low)) = (bytes.next().and_then(hex), bytes.next().and_then(hex))
            else {
                return Err(PathError::MalformedEscape);
            };
            (high << 4 | low, true)
        } else {
            (byte, false)
        };
        decoded.push(byte);
        match byte {
            b'/' if escaped => return Err(PathError::EncodedSeparator),
            b'\\' if escaped => return Err(PathError::EncodedSeparator),
            b'\\' => return Err(PathError::Backslash),
            0..0x20 | 0x7f => return Err(PathError::Control),
            _ if is_unreserved(byte) || (!escaped && stands_as_it_is(byte)) => {
                out.push(char::from(byte));
            }
            // Writing into memory cannot fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    if std::str::from_utf8(&decoded).is_err() {
        return Err(PathError::NotUtf8);
    }
    if is_encoded_twice(out.get(start..).unwrap_or_default()) {
        return Err(PathError::EncodedTwice);
    }
    Ok(())
}

/// True if an escaped `%` begins an escape for the next decoder.
fn is_encoded_twice(segment: &str) -> bool {
    segment.match_indices("%25").any(|(at, escape)| {
        let mut rest = segment.bytes().skip(at).skip(escape.len());
        rest.next().and_then(hex).is_some() && rest.next().and_then(hex).is_some()
    })
}

/// True for `/..;x` and the like: some servers drop the parameter and climb.
fn is_dots_with_parameters(segment: &str) -> bool {
    let rest = segment.trim_start_matches('/').trim_start_matches('.');
    let dots = segment.len().saturating_sub(rest.len()).saturating_sub(1);
    (1..=2).contains(&dots) && (rest.starts_with(';') || rest.starts_with("%3B"))
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// True if the byte may appear in a path unescaped (RFC 3986, `pchar`).
const fn stands_as_it_is(byte: u8) -> bool {
    is_unreserved(byte)
        || matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',')
        || matches!(byte, b';' | b'=' | b':' | b'@')
}

/// The value of a hexadecimal digit.
pub(super) fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// The reason why a path cannot be normalized. A server answers 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathError {
    /// It does not begin with `/`: an absolute form, `*`, or nothing.
    NotAbsolute,
    /// It is longer than [`MAX_LEN`].
    TooLong,
    /// It has more than [`MAX_SEGMENTS`].
    TooManySegments,
    /// `..` leads above the root.
    AboveRoot,
    /// `..;x`: one server climbs, and the next one reads a name.
    DotParameters,
    /// `#` must not appear in a request.
    Fragment,
    /// `\` is a slash for some servers.
    Backslash,
    /// `%2F` or `%5C`: a separator for some servers, and text for others.
    EncodedSeparator,
    /// A control character, NUL included, plain or escaped.
    Control,
    /// `%` without two hexadecimal digits.
    MalformedEscape,
    /// `%25` before two hexadecimal digits: a second decoder would read a different path.
    EncodedTwice,
    /// The escapes are not UTF-8, or encode a character with more bytes than needed.
    NotUtf8,
}

messages! { PathError:
    Self::NotAbsolute => "the path does not begin with `/`";
    Self::TooLong => "the path is longer than 8192 bytes";
    Self::TooManySegments => "the path has more than 256 segments";
    Self::AboveRoot => "the path climbs above its root";
    Self::DotParameters => "the path has a dot segment with parameters";
    Self::Fragment => "the path has a fragment";
    Self::Backslash => "the path has a backslash";
    Self::EncodedSeparator => "the path has an escaped slash or backslash";
    Self::Control => "the path has a control character";
    Self::MalformedEscape => "the path has a `%` that begins no escape";
    Self::EncodedTwice => "the path is escaped twice";
    Self::NotUtf8 => "the escapes of the path are not UTF-8";
}
