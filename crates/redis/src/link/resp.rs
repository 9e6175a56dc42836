//! The Redis protocol (RESP), version 2: writing commands and reading replies.
//!
//! Replies are not trusted. One that is malformed, nested too deeply or too long is a protocol error,
//! and its connection must be closed. Memory is allocated for bytes that have arrived, never for bytes
//! that were promised. Version 3 of the protocol is an error too.
#![allow(clippy::arithmetic_side_effects, reason = "lengths, each bounded before it is added")]

/// The most bytes of one value: the limit of Redis itself for a string.
pub(super) const MAX_BYTES: usize = 512 << 20;

/// The most values in an array. A lock step returns a few, the check of permissions some thirty; a
/// `SCAN` of five hundred places may find several keys in each.
const MAX_VALUES: usize = 1 << 14;

/// The deepest nesting of arrays. Ours hold none.
const MAX_DEPTH: usize = 4;

/// The longest line: a status, a length, or an error, which may quote its command.
const MAX_LINE: usize = 64 << 10;

/// A reply of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Number(i64),
    Status(Vec<u8>),
    String(Vec<u8>),
    Error(ErrorReply),
    Array(Vec<Self>),
}

/// An error reply: its first word, and the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorReply {
    pub(crate) code: String,
    pub(crate) detail: String,
}

/// The reason no value was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadError {
    /// Some of its bytes have not arrived yet.
    Incomplete,
    /// The bytes are not the protocol, or more than a server may send.
    Malformed,
}

/// Writes a command of these words.
pub(crate) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    write_length(b'*', words.len(), &mut out);
    words.iter().for_each(|word| write_string(word, &mut out));
    out
}

pub(super) fn write_string(string: &[u8], out: &mut Vec<u8>) {
    write_parts(string, &[], out);
}

/// Writes a string that is given in two parts. Returns where it begins.
#[inline]
pub(super) fn write_parts(head: &[u8], tail: &[u8], out: &mut Vec<u8>) -> usize {
    let length = head.len() + tail.len();
    out.reserve(length + MAX_FRAME);
    write_length(b'$', length, out);
    let start = out.len();
    out.extend_from_slice(head);
    out.extend_from_slice(tail);
    out.extend_from_slice(b"\r\n");
    start
}

/// The most bytes that frame a string: its mark, twenty digits, two line ends.
pub(super) const MAX_FRAME: usize = 25;

/// Writes the line before so many bytes or words.
#[inline]
pub(super) fn write_length(mark: u8, length: usize, out: &mut Vec<u8>) {
    match u8::try_from(length) {
        // Nearly all are of two digits.
        Ok(length @ 10..100) => {
            out.extend_from_slice(&[mark, b'0' + length / 10, b'0' + length % 10, b'\r', b'\n']);
        }
        _ => {
            out.push(mark);
            out.extend_from_slice(length.to_string().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Reads the first value in these bytes. Returns it with its length, which is at most `most`.
pub(super) fn read(bytes: &[u8], most: usize) -> Result<(Value, usize), ReadError> {
    let mut reader = ValueReader { bytes, at: 0, most };
    let value = reader.value(0)?;
    Ok((value, reader.at))
}

struct ValueReader<'b> {
    bytes: &'b [u8],
    /// The number of bytes that were read, or that a string promises.
    at: usize,
    /// The most bytes of the value.
    most: usize,
}

impl<'b> ValueReader<'b> {
    fn value(&mut self, depth: usize) -> Result<Value, ReadError> {
        let (mark, text) = self.line()?;
        Ok(match mark {
            b'+' => Value::Status(text.to_vec()),
            b'-' => Value::Error(ErrorReply::read(text)),
            b':' => Value::Number(number(text)?),
            _ => match (mark, number(text)?) {
                (_, -1) => Value::Nil,
                (b'$', length) => self.string(within(length, MAX_BYTES)?)?,
                _ if depth >= MAX_DEPTH => return Err(ReadError::Malformed),
                (_, values) => {
                    let next = |_| self.value(depth + 1);
                    let values = (0..within(values, MAX_VALUES)?).map(next);
                    Value::Array(values.collect::<Result<_, _>>()?)
                }
            },
        })
    }

    /// Reads a line. Returns its mark and its text.
    fn line(&mut self) -> Result<(u8, &'b [u8]), ReadError> {
        let (mark, text) = self.bytes[self.at..].split_first().ok_or(ReadError::Incomplete)?;
        if !b"+-:$*".contains(mark) {
            return Err(ReadError::Malformed);
        }
        let text = &text[..text.len().min(MAX_LINE)];
        match text.windows(2).position(|end| end == b"\r\n") {
            Some(end) => {
                self.advance(end + 3)?;
                Ok((*mark, &text[..end]))
            }
            None if text.len() == MAX_LINE => Err(ReadError::Malformed),
            None => Err(ReadError::Incomplete),
        }
    }

    fn string(&mut self, length: usize) -> Result<Value, ReadError> {
        let start = self.at;
        self.advance(length + 2)?;
        let string = self.bytes.get(start..self.at).ok_or(ReadError::Incomplete)?;
        let string = string.strip_suffix(b"\r\n").ok_or(ReadError::Malformed)?;
        Ok(Value::String(string.to_vec()))
    }

    fn advance(&mut self, bytes: usize) -> Result<(), ReadError> {
        self.at += bytes;
        if self.at > self.most { Err(ReadError::Malformed) } else { Ok(()) }
    }
}

fn number(digits: &[u8]) -> Result<i64, ReadError> {
    let digits = std::str::from_utf8(digits).map_err(|_| ReadError::Malformed)?;
    digits.parse().map_err(|_| ReadError::Malformed)
}

fn within(length: i64, most: usize) -> Result<usize, ReadError> {
    usize::try_from(length).ok().filter(|length| *length <= most).ok_or(ReadError::Malformed)
}

impl ErrorReply {
    fn read(line: &[u8]) -> Self {
        let line = String::from_utf8_lossy(line);
        let (code, detail) = line.split_once(' ').unwrap_or((&line, ""));
        Self { code: code.to_owned(), detail: detail.to_owned() }
    }
}

impl std::fmt::Display for ErrorReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.code, self.detail)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::testing::Rng;

    use super::*;

    fn string(text: &str) -> Value {
        Value::String(text.into())
    }

    #[test]
    fn a_value_is_read_whole_or_not_at_all() {
        let error = ErrorReply { code: "ERR".to_owned(), detail: "no such".to_owned() };
        for (bytes, value) in [
            (&b"+PONG\r\n"[..], Value::Status(b"PONG".into())),
            (b"-ERR no such\r\n", Value::Error(error)),
            (b":-12\r\n", Value::Number(-12)),
            (b"$-1\r\n", Value::Nil),
            (b"*-1\r\n", Value::Nil),
            (b"$0\r\n\r\n", string("")),
            (b"$4\r\na\r\nb\r\n", string("a\r\nb")),
            (b"*0\r\n", Value::Array(vec![])),
            (
                b"*3\r\n$1\r\nx\r\n*1\r\n:1\r\n$-1\r\n",
                Value::Array(vec![string("x"), Value::Array(vec![Value::Number(1)]), Value::Nil]),
            ),
        ] {
            let shown = bytes.escape_ascii();
            for cut in 0..bytes.len() {
                assert_eq!(
                    read(&bytes[..cut], MAX_BYTES),
                    Err(ReadError::Incomplete),
                    "{shown} cut to {cut}"
                );
            }
            let more = [bytes, b"+more"].concat();
            assert_eq!(read(&more, MAX_BYTES), Ok((value, bytes.len())), "{shown}");
        }
    }

    #[test]
    fn malformed_and_excessive_values_are_refused() {
        let deep = "*1\r\n".repeat(MAX_DEPTH + 1);
        let line = format!("+{}", "x".repeat(MAX_LINE));
        for bytes in [
            "HTTP/1.1 400\r\n",
            "\r\n",
            "_\r\n",
            ">1\r\n",
            "$x\r\n",
            "$\r\n",
            "$-2\r\n",
            "$536870913\r\n",
            "*16385\r\n",
            "*-2\r\n",
            ":1.5\r\n",
            ":9223372036854775808\r\n",
            "*1\r\n!",
            &deep,
            &line,
        ] {
            assert_eq!(read(bytes.as_bytes(), MAX_BYTES), Err(ReadError::Malformed), "{bytes}");
        }
        let read = |bytes| read(bytes, MAX_BYTES);
        assert_eq!(read(b"$1\r\nxyz"), Err(ReadError::Malformed), "a string that ends elsewhere");
        assert_eq!(
            read(b"$536870000\r\n"),
            Err(ReadError::Incomplete),
            "nearly too long for Redis"
        );
        assert_eq!(read(b"*16384\r\n"), Err(ReadError::Incomplete));
    }

    /// No bytes cause a panic.
    #[test]
    fn any_bytes_are_a_value_or_garbage_or_not_yet_anything() {
        let mut rng = Rng::new(2);
        for _ in 0..200_000 {
            let length = rng.below(16);
            let bytes: Vec<u8> = (0..length).map(|_| rng.pick(b"$*+-:01239\r\n\r\nx")).collect();
            if let Ok((value, end)) = read(&bytes, MAX_BYTES) {
                assert_eq!(read(&bytes[..end], MAX_BYTES), Ok((value, end)));
            }
        }
    }

    #[test]
    fn a_command_is_an_array_of_its_words() {
        let long = [b'x'; 100];
        let expected = [b"*3\r\n$4\r\nEVAL\r\n$0\r\n\r\n$100\r\n", &long[..], b"\r\n"].concat();
        assert_eq!(command(&[b"EVAL", b"", &long]), expected);
    }
}
