//! The Redis protocol (RESP), version 2: writing commands and reading replies.
//!
//! Replies are not trusted. One that is malformed, nested too deeply or too long is a protocol error,
//! and its connection must be closed. Memory is allocated for bytes that have arrived, never for bytes
//! that were promised. Version 3 is an error too, as nobody asked for it.

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

/// The bytes are not the protocol, or more than a server may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProtocolError;

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
    let length = head.len().saturating_add(tail.len());
    out.reserve(length.saturating_add(MAX_FRAME));
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
            let (tens, ones) = (b'0'.saturating_add(length / 10), b'0'.saturating_add(length % 10));
            out.extend_from_slice(&[mark, tens, ones, b'\r', b'\n']);
        }
        _ => {
            out.push(mark);
            out.extend_from_slice(length.to_string().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Returns where the first value in these bytes ends, once all of it has arrived.
pub(super) fn measure(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    let mut at = 0_usize;
    // Values that are still to come, per array.
    let mut open = vec![1_usize];
    while let Some(left) = open.last_mut() {
        if *left == 0 {
            open.pop();
            continue;
        }
        *left = left.saturating_sub(1);
        let Some(line) = ReplyLine::read(bytes.get(at..).unwrap_or(&[]))? else { return Ok(None) };
        at = at.saturating_add(line.length);
        match line.kind()? {
            Framing::Flat(_) => {}
            Framing::String(length) => at = at.saturating_add(length).saturating_add(2),
            Framing::Array(_) if open.len() > MAX_DEPTH => return Err(ProtocolError),
            Framing::Array(values) => open.push(values),
        }
        if at > MAX_BYTES {
            return Err(ProtocolError);
        }
    }
    Ok((at <= bytes.len()).then_some(at))
}

/// Reads a value, all of which has arrived.
pub(super) fn read(mut bytes: &[u8]) -> Result<Value, ProtocolError> {
    let value = read_next(&mut bytes, 0)?;
    if bytes.is_empty() { Ok(value) } else { Err(ProtocolError) }
}

fn read_next(bytes: &mut &[u8], depth: usize) -> Result<Value, ProtocolError> {
    let line = ReplyLine::read(bytes)?.ok_or(ProtocolError)?;
    *bytes = bytes.get(line.length..).ok_or(ProtocolError)?;
    match line.kind()? {
        Framing::Flat(value) => Ok(value),
        Framing::String(length) => {
            let (string, rest) = bytes.split_at_checked(length).ok_or(ProtocolError)?;
            *bytes = rest.strip_prefix(b"\r\n").ok_or(ProtocolError)?;
            Ok(Value::String(string.to_vec()))
        }
        Framing::Array(_) if depth >= MAX_DEPTH => Err(ProtocolError),
        Framing::Array(values) => {
            let next = |_| read_next(bytes, depth.saturating_add(1));
            (0..values).map(next).collect::<Result<_, _>>().map(Value::Array)
        }
    }
}

/// Reads the first line of these bytes, once all of it has arrived.
struct ReplyLine<'b> {
    mark: u8,
    text: &'b [u8],
    /// With its mark and its end.
    length: usize,
}

/// The content that follows a line.
enum Framing {
    /// Nothing: it is the value.
    Flat(Value),
    /// So many bytes, and an end of line.
    String(usize),
    /// So many values.
    Array(usize),
}

impl<'b> ReplyLine<'b> {
    /// The first line of these bytes, if all of it has come.
    fn read(bytes: &'b [u8]) -> Result<Option<Self>, ProtocolError> {
        let Some((mark, text)) = bytes.split_first() else { return Ok(None) };
        if !b"+-:$*".contains(mark) {
            return Err(ProtocolError);
        }
        let text = text.get(..MAX_LINE).unwrap_or(text);
        match text.windows(2).position(|end| end == b"\r\n") {
            Some(end) => {
                let text = text.get(..end).unwrap_or(&[]);
                Ok(Some(Self { mark: *mark, text, length: end.saturating_add(3) }))
            }
            None if text.len() >= MAX_LINE => Err(ProtocolError),
            None => Ok(None),
        }
    }

    fn kind(&self) -> Result<Framing, ProtocolError> {
        Ok(match self.mark {
            b'+' => Framing::Flat(Value::Status(self.text.to_vec())),
            b'-' => Framing::Flat(Value::Error(ErrorReply::read(self.text))),
            b':' => Framing::Flat(Value::Number(self.number()?)),
            _ => match (self.mark, self.number()?) {
                (_, -1) => Framing::Flat(Value::Nil),
                (b'$', length) => Framing::String(within(length, MAX_BYTES)?),
                (_, values) => Framing::Array(within(values, MAX_VALUES)?),
            },
        })
    }

    fn number(&self) -> Result<i64, ProtocolError> {
        let digits = std::str::from_utf8(self.text).map_err(|_| ProtocolError)?;
        digits.parse().map_err(|_| ProtocolError)
    }
}

fn within(length: i64, most: usize) -> Result<usize, ProtocolError> {
    usize::try_from(length).ok().filter(|length| *length <= most).ok_or(ProtocolError)
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
                assert_eq!(measure(&bytes[..cut]), Ok(None), "{shown} cut to {cut}");
            }
            let more = [bytes, b"+more"].concat();
            assert_eq!(measure(&more), Ok(Some(bytes.len())), "{shown}");
            assert_eq!(read(bytes), Ok(value), "{shown}");
        }
    }

    #[test]
    fn what_is_no_value_or_too_much_of_one_is_garbage() {
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
            assert_eq!(measure(bytes.as_bytes()), Err(ProtocolError), "{bytes}");
        }
        assert_eq!(read(b"$1\r\nxyz"), Err(ProtocolError), "a string that ends elsewhere");
        assert_eq!(measure(b"$536870000\r\n"), Ok(None), "nearly as long as Redis allows");
        assert_eq!(measure(b"*16384\r\n"), Ok(None));
    }

    /// Whatever comes, what is measured can be read or is garbage, and nothing panics.
    #[test]
    fn any_bytes_are_a_value_or_garbage_or_not_yet_anything() {
        let mut rng = Rng::new(2);
        for _ in 0..200_000 {
            let length = rng.below(16);
            let bytes: Vec<u8> = (0..length).map(|_| rng.pick(b"$*+-:01239\r\n\r\nx")).collect();
            if let Ok(Some(end)) = measure(&bytes) {
                assert!(end <= bytes.len());
                let _ = read(&bytes[..end]);
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
