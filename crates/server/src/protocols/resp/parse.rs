//! The RESP parser of the server: finds commands in a buffer without copying.
//!
//! Total: any bytes are a command, the beginning of one, or an error that ends the connection. A
//! command is an array of bulk strings, or an inline line of words as people type them. What comes
//! in never nests, so there is no recursion, and every length is bounded before it is believed.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "places in a buffer of some kilobytes cannot overflow"
)]

use std::fmt;
use std::ops::Range;

/// The most arguments of a command: an ask with all its attributes, twice.
pub const MAX_ARGS: usize = 256;

/// The longest argument: far more than a key may have.
pub const MAX_BULK: usize = 16 * 1024;

/// The longest command, framing included. A connection keeps no more than this of its input.
pub const MAX_COMMAND: usize = 24 * 1024;

/// The longest inline command, as a person or a health check types it.
pub const MAX_INLINE: usize = 4 * 1024;

/// Ranges of a command's arguments in the input.
pub type Args = Vec<Range<usize>>;

/// Protocol error. The connection is closed after it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number after `*` is none, is negative, or above [`MAX_ARGS`].
    Multibulk,
    /// The number after `$` is none, is negative, or above [`MAX_BULK`].
    Bulk,
    /// Something else where an argument begins.
    Expected(u8),
    /// A line or bulk string does not end where it has to.
    Unterminated,
    /// An inline line is longer than [`MAX_INLINE`].
    Inline,
    /// A quote in an inline line is not closed, or something follows it.
    Quotes,
    /// An inline line has a zero byte.
    Binary,
    /// The command is longer than [`MAX_COMMAND`].
    Command,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Multibulk => f.write_str("invalid multibulk length"),
            Self::Bulk => f.write_str("invalid bulk length"),
            Self::Expected(byte) => {
                write!(f, "expected '$', got '{}'", char::from(*byte).escape_default())
            }
            Self::Unterminated => f.write_str("expected CR LF"),
            Self::Inline => f.write_str("too big inline request"),
            Self::Quotes => f.write_str("unbalanced quotes in request"),
            Self::Binary => f.write_str("a zero byte in an inline request"),
            Self::Command => f.write_str("too big request"),
        }
    }
}

impl std::error::Error for ProtocolError {}

/// Finds the first command of `input` and notes where its arguments are. Returns how many bytes it
/// has, or `None` if it is not all there yet. A command without arguments is to be skipped.
///
/// # Errors
///
/// When no bytes that could follow make it a command.
#[inline]
pub fn parse(input: &[u8], args: &mut Args) -> Result<Option<usize>, ProtocolError> {
    args.clear();
    match input.first() {
        None => Ok(None),
        Some(b'*') => array(input, args),
        Some(_) => inline(input, args),
    }
}

#[inline]
fn array(input: &[u8], args: &mut Args) -> Result<Option<usize>, ProtocolError> {
    let Some((count, mut at)) = number(input, 1, MAX_ARGS, ProtocolError::Multibulk)? else {
        return Ok(None);
    };
    for _ in 0..count {
        match input.get(at) {
            None => return incomplete(input),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::Expected(*other)),
        }
        let begin = at + 1;
        let Some((length, start)) = number(input, begin, MAX_BULK, ProtocolError::Bulk)? else {
            return incomplete(input);
        };
        let end = start + length;
        if end + 2 > MAX_COMMAND {
            return Err(ProtocolError::Command);
        }
        match input.get(end..end + 2) {
            None => return incomplete(input),
            Some(b"\r\n") => {}
            Some(_) => return Err(ProtocolError::Unterminated),
        }
        args.push(start..end);
        at = end + 2;
    }
    Ok(Some(at))
}

fn incomplete(input: &[u8]) -> Result<Option<usize>, ProtocolError> {
    if input.len() >= MAX_COMMAND { Err(ProtocolError::Command) } else { Ok(None) }
}

/// The number from `at` to the end of its line, and where the next line begins. It has as many
/// digits as the largest one allowed, so that no endless line has to be kept.
#[inline]
fn number(
    input: &[u8],
    at: usize,
    most: usize,
    error: ProtocolError,
) -> Result<Option<(usize, usize)>, ProtocolError> {
    const DIGITS: usize = 6;
    let mut value = 0_usize;
    for digits in 0..=DIGITS {
        let place = at + digits;
        match input.get(place) {
            None => return Ok(None),
            Some(byte @ b'0'..=b'9') if digits < DIGITS => {
                let digit = usize::from(byte - b'0');
                value = value * 10 + digit;
            }
            Some(b'\r') if digits > 0 => {
                if value > most {
                    return Err(error);
                }
                return match input.get(place + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((value, place + 2))),
                    Some(_) => Err(ProtocolError::Unterminated),
                };
            }
            Some(_) => return Err(error),
        }
    }
    Err(error)
}

/// A line of words. Quotes keep spaces together; escapes within them are taken as they are, which is
/// enough for what is typed by hand.
fn inline(input: &[u8], args: &mut Args) -> Result<Option<usize>, ProtocolError> {
    let searched = input.get(..input.len().min(MAX_INLINE)).unwrap_or_default();
    let Some(newline) = searched.iter().position(|byte| *byte == b'\n') else {
        return if input.len() >= MAX_INLINE { Err(ProtocolError::Inline) } else { Ok(None) };
    };
    let line = input.get(..newline).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // Nobody types it: it is another protocol.
    if line.contains(&0) {
        return Err(ProtocolError::Binary);
    }
    let mut at = 0_usize;
    while let Some(byte) = line.get(at) {
        if matches!(byte, b' ' | b'\t') {
            at += 1;
            continue;
        }
        if args.len() >= MAX_ARGS {
            return Err(ProtocolError::Multibulk);
        }
        let rest = line.get(at..).unwrap_or_default();
        if let quote @ (b'"' | b'\'') = *byte {
            let inner = rest.get(1..).unwrap_or_default();
            let length = inner.iter().position(|byte| *byte == quote);
            let length = length.ok_or(ProtocolError::Quotes)?;
            let start = at + 1;
            let end = start + length;
            args.push(start..end);
            at = end + 1;
            if !matches!(line.get(at), None | Some(b' ' | b'\t')) {
                return Err(ProtocolError::Quotes);
            }
        } else {
            let length = rest.iter().position(|byte| matches!(byte, b' ' | b'\t'));
            let end = at + length.unwrap_or(rest.len());
            args.push(at..end);
            at = end;
        }
    }
    Ok(Some(newline + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(input: &[u8]) -> Result<Option<(Vec<String>, usize)>, ProtocolError> {
        let mut args = Args::new();
        let used = parse(input, &mut args)?;
        let text =
            |range: &Range<usize>| String::from_utf8_lossy(&input[range.clone()]).into_owned();
        Ok(used.map(|used| (args.iter().map(text).collect(), used)))
    }

    #[test]
    fn a_command_is_found_at_every_cut_and_never_before_its_last_byte() {
        let whole = b"*3\r\n$4\r\nECHO\r\n$0\r\n\r\n$2\r\n\r\n\r\nnext";
        let end = whole.len() - 4;

        for cut in 0..end {
            assert_eq!(texts(&whole[..cut]), Ok(None), "cut at {cut}");
        }
        let words = vec!["ECHO".to_owned(), String::new(), "\r\n".to_owned()];
        assert_eq!(texts(whole), Ok(Some((words, end))));
    }

    #[test]
    fn inline_words_may_be_quoted() {
        let words = |line: &[u8]| texts(line).unwrap().unwrap().0;
        assert_eq!(words(b"PING\r\n"), ["PING"]);
        assert_eq!(words(b"  ECHO  'a b'\t\"\" c\n"), ["ECHO", "a b", "", "c"]);
        assert_eq!(words(b"\r\n"), Vec::<String>::new());
        assert_eq!(texts(b"ECHO 'a\n"), Err(ProtocolError::Quotes));
        assert_eq!(texts(b"ECHO 'a'b\n"), Err(ProtocolError::Quotes));
    }

    /// C31
    #[test]
    fn lengths_are_not_believed() {
        for (bytes, error) in [
            (&b"*9223372036854775807\r\n"[..], ProtocolError::Multibulk),
            (b"*-1\r\n", ProtocolError::Multibulk),
            (b"*\r\n", ProtocolError::Multibulk),
            (b"*257\r\n", ProtocolError::Multibulk),
            (b"*1\r\n$-2\r\n", ProtocolError::Bulk),
            (b"*1\r\n$536870913\r\n", ProtocolError::Bulk),
            (b"*1\r\n$16385\r\n", ProtocolError::Bulk),
            (b"*1\r\n$ 1\r\n", ProtocolError::Bulk),
            (b"*1\r\n$1\ra", ProtocolError::Unterminated),
            (b"*1\r\n$1\r\nabc", ProtocolError::Unterminated),
            (b"*1\r\n:1\r\n", ProtocolError::Expected(b':')),
            (b"*2\r\n$1\r\na\r\n*1\r\n", ProtocolError::Expected(b'*')),
            (b"*1\r\n\0", ProtocolError::Expected(0)),
        ] {
            assert_eq!(texts(bytes), Err(error), "{}", bytes.escape_ascii());
        }
        let nested = b"*1\r\n".repeat(100_000);
        assert_eq!(texts(&nested), Err(ProtocolError::Expected(b'*')));
    }

    #[test]
    fn the_limits_themselves_are_allowed() {
        let most =
            b"*256\r\n".iter().copied().chain(b"$1\r\na\r\n".repeat(256)).collect::<Vec<_>>();
        assert_eq!(texts(&most).unwrap().unwrap().0.len(), MAX_ARGS);
        let long = [b"*1\r\n$16384\r\n", vec![b'x'; MAX_BULK].as_slice(), b"\r\n"].concat();
        assert_eq!(texts(&long).unwrap().unwrap().1, long.len());
        let two = [b"*2\r\n", &long[4..], &long[4..]].concat();
        assert_eq!(texts(&two), Err(ProtocolError::Command));
        assert_eq!(texts(&vec![b'x'; MAX_INLINE]), Err(ProtocolError::Inline));
        assert_eq!(texts(&vec![b'x'; MAX_INLINE - 1]), Ok(None));
    }

    /// E50: a walk over bytes that look like the protocol.
    #[test]
    fn any_bytes_are_a_command_a_beginning_or_an_error() {
        let parts: [&[u8]; 14] = [
            b"*", b"$", b"\r\n", b"1", b"2", b"3", b"PING", b"\0", b"\n", b" ", b"'", b"-1",
            b"999999", b"\r",
        ];
        let mut state = 1_u64;
        let mut next = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        for _ in 0..200_000 {
            let input: Vec<u8> = (0..next(16)).flat_map(|_| parts[next(14)].to_vec()).collect();
            let mut args = Args::new();
            if let Ok(Some(used)) = parse(&input, &mut args) {
                assert!(used > 0 && used <= input.len());
                assert!(args.iter().all(|range| range.start <= range.end && range.end < used));
            }
        }
    }
}
