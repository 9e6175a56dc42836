//! Request framing, checked strictly before hyper reads it leniently.
//!
//! If a request can be read in two ways, a proxy in front of the server and the server may disagree where
//! the next request begins (C19). hyper accepts lines that end without a carriage return, the first of two
//! equal lengths, and chunks beside a length. This check follows the bytes from a head through its body to
//! the next head, and finds all of these.
//!
//! Framing that cannot be read at all is an error, too. Only a head without an end is left to hyper, which
//! answers it and ends the connection.

use std::mem;

use memchr::memchr;

use super::MAX_HEAD;
use super::checked_input::InputCheck;

/// Follows the bytes that arrive on a connection.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    at: Position,
    /// The line that has begun, as far as it came with earlier bytes.
    line: Vec<u8>,
    head: HeadFields,
}

/// Part of a request that the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// A line of a head.
    #[default]
    Head,
    /// A body of so many more bytes.
    Body(u64),
    /// The line before a chunk.
    Size,
    /// A chunk of so many more bytes, with the end of its line.
    Chunk(u64),
    /// A line after the last chunk.
    Trailer,
    /// A head that hyper refuses, as it is too long.
    TooLong,
}

/// Framing fields of a head.
#[derive(Clone, Copy, Debug, Default)]
struct HeadFields {
    begun: bool,
    length: Option<u64>,
    chunked: bool,
}

impl InputCheck for Framing {
    // hyper refuses one byte or the next of these wherever they stand: a line feed alone ends a line of
    // a head, and a zero byte may be in the extension of a chunk.
    const BROKEN: &'static [u8] = b"\0\n\r\n\r\n";

    /// Follows these bytes.
    ///
    /// # Errors
    ///
    /// When they can be read in two ways: with the place of the line that does it, or of its part that
    /// is here.
    fn pass(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut rest = bytes;
        while !rest.is_empty() && self.at != Position::TooLong {
            if let Position::Body(left) | Position::Chunk(left) = self.at {
                rest = self.skip(left, rest);
                continue;
            }
            let Some(end) = memchr(b'\n', rest) else {
                if !self.keep(rest) {
                    return Err(bytes.len().saturating_sub(rest.len()));
                }
                break;
            };
            let (line, later) = rest.split_at(end.saturating_add(1));
            let clear = if self.line.is_empty() {
                self.read(line)
            } else {
                self.line.extend_from_slice(line);
                let line = mem::take(&mut self.line);
                self.read(&line)
            };
            if !clear {
                return Err(bytes.len().saturating_sub(rest.len()));
            }
            rest = later;
        }
        Ok(())
    }
}

impl Framing {
    fn skip<'b>(&mut self, left: u64, bytes: &'b [u8]) -> &'b [u8] {
        let here = u64::try_from(bytes.len()).unwrap_or(u64::MAX).min(left);
        self.at = match (self.at, left.saturating_sub(here)) {
            (Position::Chunk(_), 0) => Position::Size,
            (Position::Chunk(_), left) => Position::Chunk(left),
            (_, 0) => Position::Head,
            (_, left) => Position::Body(left),
        };
        bytes.get(usize::try_from(here).unwrap_or(usize::MAX)..).unwrap_or_default()
    }

    /// Keeps the part of a line, and tells whether the line is short enough.
    fn keep(&mut self, part: &[u8]) -> bool {
        self.line.extend_from_slice(part);
        if self.line.len() <= MAX_HEAD {
            return true;
        }
        self.line = Vec::new();
        // hyper reads no longer heads; but a chunk may have a size of a million digits there.
        let is_head = self.at == Position::Head;
        self.at = Position::TooLong;
        is_head
    }

    /// Reads a line, and tells whether it can be read in one way only.
    fn read(&mut self, line: &[u8]) -> bool {
        let Some(line) = line.strip_suffix(b"\r\n") else { return false };
        match self.at {
            Position::Head if line.is_empty() => {
                // Empty lines before a request are nothing.
                if self.head.begun {
                    self.at = mem::take(&mut self.head).body();
                }
            }
            Position::Head if self.head.begun => return self.field(line),
            Position::Head => self.head.begun = true,
            Position::Size => match chunk(line) {
                Some(at) => self.at = at,
                None => return false,
            },
            Position::Trailer if line.is_empty() => self.at = Position::Head,
            Position::Trailer | Position::Body(_) | Position::Chunk(_) | Position::TooLong => {}
        }
        true
    }

    fn field(&mut self, line: &[u8]) -> bool {
        const NAMES: [&[u8]; 2] = [b"content-length", b"transfer-encoding"];
        let Some((name, value)) = NAMES.iter().find_map(|name| {
            let (own, value) = line.split_at_checked(name.len())?;
            (own.eq_ignore_ascii_case(name) && value.first() == Some(&b':'))
                .then_some((*name, value))
        }) else {
            return true;
        };
        if self.head.length.is_some() {
            return false;
        }
        if name == NAMES[1] {
            // Twice is refused where codings are looked at.
            self.head.chunked = true;
        } else if self.head.chunked {
            return false;
        } else {
            self.head.length = number(value.get(1..).unwrap_or_default().trim_ascii(), 10);
            return self.head.length.is_some();
        }
        true
    }
}

impl HeadFields {
    /// Position after the head.
    const fn body(self) -> Position {
        match self.length {
            _ if self.chunked => Position::Size,
            None | Some(0) => Position::Head,
            Some(length) => Position::Body(length),
        }
    }
}

/// Position after the size line of a chunk.
fn chunk(line: &[u8]) -> Option<Position> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    Some(match number(line.get(..digits)?, 16)? {
        0 => Position::Trailer,
        size => Position::Chunk(size.checked_add(2)?),
    })
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    // A sign is none, though Rust reads one.
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\n";

    /// Place of the first error, however the bytes are split.
    fn found(text: &str) -> Option<usize> {
        let bytes = text.as_bytes();
        let whole = Framing::default().pass(bytes).err();
        for split in [1, 2, 3, 7] {
            let mut framing = Framing::default();
            let part = bytes.chunks(split).position(|part| framing.pass(part).is_err());
            // Of a line that is split, what came before was passed on.
            assert_eq!(part.is_some(), whole.is_some(), "{text:?} in parts of {split}");
            let before = part.and_then(|part| part.checked_mul(split)).unwrap_or(usize::MAX);
            assert!(whole.is_none_or(|whole| before.saturating_add(split) > whole), "{text:?}");
        }
        whole
    }

    #[test]
    fn what_can_be_read_in_one_way_passes() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\na\nb",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\na\n\r\n0\r\nT: v\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length:0\r\nX-Content-Length: 1\r\nContent-Lengthy: 2\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ] {
            let twice = format!("{text}{text}");
            assert_eq!((found(text), found(&twice)), (None, None), "{text:?}");
        }
    }

    /// C19
    #[test]
    fn what_can_be_read_in_two_ways_is_found_where_it_is() {
        for (before, line) in [
            ("", "GET / HTTP/1.1\n"),
            ("", "\n"),
            (POST, "X: a\n"),
            (POST, "\n"),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\n", "content-LENGTH: 1\r\n"),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\n", "Transfer-Encoding: chunked\r\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 1\r\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "1;a\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", "T: v\n"),
        ] {
            for first in ["", "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n\n\n"] {
                let before = format!("{first}{before}");
                let text = format!("{before}{line}Host: a\r\n\r\n");
                assert_eq!(found(&text), Some(before.len()), "{text:?}");
            }
        }
    }

    #[test]
    fn numbers_that_are_none_are_found() {
        for (before, line) in [
            ("POST / HTTP/1.1\r\n", "Content-Length: +1\r\n"),
            ("POST / HTTP/1.1\r\n", "Content-Length: 1, 1\r\n"),
            ("POST / HTTP/1.1\r\n", "Content-Length: 99999999999999999999\r\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "z\r\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "ffffffffffffffff\r\n"),
        ] {
            assert_eq!(found(&format!("{before}{line}")), Some(before.len()), "{line:?}");
        }
    }

    /// hyper takes a chunk's size of any length: whatever was behind one was not looked at any more.
    #[test]
    fn a_line_without_an_end_is_found_unless_it_is_of_a_head() {
        let passes = |begin: &str| {
            let mut framing = Framing::default();
            let mut parts = std::iter::once(begin.as_bytes()).chain([&[b'0'; 1024][..]; 100]);
            (parts.all(|part| framing.pass(part).is_ok()), framing.line.capacity())
        };
        assert_eq!(passes("POST / HTTP/1.1\r\nX: "), (true, 0), "nothing is kept of it");
        for before in ["", "2\r\nab\r\n0\r\nT: "] {
            let begin = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{before}");
            assert_eq!(passes(&begin), (false, 0), "{begin:?}");
        }
    }
}
