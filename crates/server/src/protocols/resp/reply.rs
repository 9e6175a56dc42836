//! Replies of the Redis protocol, written into a buffer.
//!
//! RESP2 and RESP3 differ only in maps and in nothing; everything else is the same bytes.

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
    if (0..10).contains(&number) {
        return out.push(b'0' | u8::try_from(number).unwrap_or_default());
    }
    let mut buffer = [0_u8; 20];
    let mut left = number.unsigned_abs();
    let mut start = buffer.len();
    for (place, digit) in buffer.iter_mut().enumerate().rev() {
        *digit = b'0' | u8::try_from(left % 10).unwrap_or_default();
        start = place;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(buffer.get(start..).unwrap_or_default());
}

/// `:7`
#[inline]
pub fn integer(number: i64, out: &mut Vec<u8>) {
    out.push(b':');
    digits(number, out);
    out.extend_from_slice(b"\r\n");
}

/// `+OK`
pub fn simple(text: &str, out: &mut Vec<u8>) {
    out.push(b'+');
    one_line(text.as_bytes(), out);
    out.extend_from_slice(b"\r\n");
}

/// `-ERR …`. Whatever it repeats of a client's words is kept to one line.
pub fn error(text: &str, out: &mut Vec<u8>) {
    out.push(b'-');
    one_line(text.as_bytes(), out);
    out.extend_from_slice(b"\r\n");
}

/// The longest text of an error: what it repeats may be sixteen kilobytes.
const MAX_ERROR: usize = 256;

fn one_line(text: &[u8], out: &mut Vec<u8>) {
    let text = text.get(..text.len().min(MAX_ERROR)).unwrap_or_default();
    out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
}

/// `$3\r\nabc`
pub fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'$');
    digits(i64::try_from(bytes.len()).unwrap_or(i64::MAX), out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Nothing.
pub fn null(version: RespVersion, out: &mut Vec<u8>) {
    out.extend_from_slice(match version {
        RespVersion::Resp2 => b"$-1\r\n",
        RespVersion::Resp3 => b"_\r\n",
    });
}

/// The head of a list of so many replies.
pub fn array(count: usize, out: &mut Vec<u8>) {
    out.push(b'*');
    digits(i64::try_from(count).unwrap_or(i64::MAX), out);
    out.extend_from_slice(b"\r\n");
}

/// The head of so many pairs: in RESP2 a flat list.
pub fn map(pairs: usize, version: RespVersion, out: &mut Vec<u8>) {
    match version {
        RespVersion::Resp2 => array(pairs.saturating_mul(2), out),
        RespVersion::Resp3 => {
            out.push(b'%');
            digits(i64::try_from(pairs).unwrap_or(i64::MAX), out);
            out.extend_from_slice(b"\r\n");
        }
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
            assert_eq!(String::from_utf8(out).unwrap(), number.to_string());
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
