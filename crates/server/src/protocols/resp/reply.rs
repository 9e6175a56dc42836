//! Replies of the Redis protocol, written into a buffer.
//!
//! RESP2 and RESP3 differ only in maps and nulls; everything else is the same bytes.

/// Protocol version of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    /// The default.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// A number, as it stands in replies and lengths.
#[inline]
pub fn digits(number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// `:7`
#[inline]
pub fn integer(number: i64, out: &mut Vec<u8>) {
    // Most are one digit. In one piece, the five of `CL.THROTTLE` take a quarter less.
    if let Some(digit) = u8::try_from(number).ok().filter(|digit| *digit < 10) {
        return out.extend_from_slice(&[b':', b'0' | digit, b'\r', b'\n']);
    }
    out.push(b':');
    digits(number, out);
    out.extend_from_slice(b"\r\n");
}

/// `+OK`
pub fn simple(text: &str, out: &mut Vec<u8>) {
    one_line(b'+', text, out);
}

/// `-ERR …`, on one line even if it repeats words of the client.
pub fn error(text: &str, out: &mut Vec<u8>) {
    one_line(b'-', text, out);
}

/// The longest text of an error: a repeated argument may have sixteen kilobytes.
const MAX_ERROR: usize = 256;

fn one_line(kind: u8, text: &str, out: &mut Vec<u8>) {
    let text = text.as_bytes().iter().take(MAX_ERROR);
    out.push(kind);
    out.extend(text.map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
    out.extend_from_slice(b"\r\n");
}

/// `$3\r\nabc`
pub fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    head(b'$', bytes.len(), out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// The null reply.
pub fn null(version: RespVersion, out: &mut Vec<u8>) {
    out.extend_from_slice(match version {
        RespVersion::Resp2 => b"$-1\r\n",
        RespVersion::Resp3 => b"_\r\n",
    });
}

/// The head of a list of so many replies.
pub fn array(count: usize, out: &mut Vec<u8>) {
    head(b'*', count, out);
}

/// A length or a count on a line of its own.
pub(super) fn head(kind: u8, count: usize, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The head of so many pairs: in RESP2 a flat list.
pub fn map(pairs: usize, version: RespVersion, out: &mut Vec<u8>) {
    match version {
        RespVersion::Resp2 => array(pairs.saturating_mul(2), out),
        RespVersion::Resp3 => head(b'%', pairs, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are_printed() {
        for number in [0, 7, 9, 10, -1, -10, 123_456, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            digits(number, &mut out);
            integer(number, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{number}:{number}\r\n"));
        }
    }

    #[test]
    fn an_error_is_one_bounded_line() {
        let mut out = Vec::new();
        error(&format!("ERR a\r\nb{}", "x".repeat(1_000)), &mut out);
        assert!(out.starts_with(b"-ERR a  bx"));
        assert_eq!(out.len(), MAX_ERROR + 3);
    }
}
