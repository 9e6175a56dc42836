//! A blocking RESP2 client, just enough to read the contents of a server.
//!
//! Deliberately not the client of the stores: a test must not assert with the code that it tests.
//! It does not reconnect, and does not speak RESP3.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The longest wait for a silent server, so that a hanging test fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest accepted length. No test stores more, and a corrupted length must not become an
/// allocation.
const MAX_LENGTH: usize = 64 << 20;
/// The deepest nesting of a reply. The scripts of tests need less.
const MAX_DEPTH: usize = 32;

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple string, such as `OK`.
    Status(String),
    /// An error from the server, with its code: `WRONGTYPE …`.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// The null bulk string or null array.
    Nil,
    /// Several replies.
    Array(Vec<Self>),
}

/// A connection to a server, or to a proxy in front of it.
#[derive(Debug)]
pub struct Client<S> {
    stream: BufReader<S>,
}

impl Client<TcpStream> {
    /// Connects over TCP. An answer that takes 30 s is an error of kind `WouldBlock`.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }
}

impl Client<UnixStream> {
    /// Connects to a unix socket, with the same timeout.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }
}

impl<S: Read + Write> Client<S> {
    /// Sends one command and waits for its reply. An error of the server is a reply, not an `Err`.
    pub fn command(&mut self, parts: &[&[u8]]) -> io::Result<Reply> {
        self.send(parts)?;
        self.receive()
    }

    /// Sends one command without waiting.
    pub fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.send_all([parts])
    }

    /// Sends several commands in one write without waiting.
    pub fn send_all<'a>(
        &mut self,
        commands: impl IntoIterator<Item = &'a [&'a [u8]]>,
    ) -> io::Result<()> {
        let mut request = Vec::new();
        for parts in commands {
            request.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
            for part in parts {
                request.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
                request.extend_from_slice(part);
                request.extend_from_slice(b"\r\n");
            }
        }
        self.stream.get_mut().write_all(&request)
    }

    /// Waits for the next reply. The error is `InvalidData` if the bytes are not RESP2, and
    /// `UnexpectedEof` if the connection ends first.
    pub fn receive(&mut self) -> io::Result<Reply> {
        self.reply(0)
    }

    /// The connection itself, for its socket options and for reading raw bytes.
    pub fn stream(&self) -> &S {
        self.stream.get_ref()
    }

    fn reply(&mut self, depth: usize) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| garbage(&line))?;
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(rest.parse().map_err(|_| garbage(&line))?),
            "$" | "*" if rest == "-1" => Reply::Nil,
            "$" => Reply::Bulk(self.bulk(length(&line)?)?),
            "*" if depth < MAX_DEPTH => {
                let items = (0..length(&line)?).map(|_| self.reply(depth + 1));
                Reply::Array(items.collect::<io::Result<_>>()?)
            }
            _ => return Err(garbage(&line)),
        })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let limit = u64::try_from(MAX_LENGTH).unwrap_or(u64::MAX);
        self.stream.by_ref().take(limit).read_until(b'\n', &mut line)?;
        let text = String::from_utf8_lossy(&line);
        match text.strip_suffix("\r\n") {
            Some(text) => Ok(text.to_owned()),
            None if line.ends_with(b"\n") => Err(garbage(&text)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn bulk(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

fn length(line: &str) -> io::Result<usize> {
    let length = line.get(1..).and_then(|digits| digits.parse().ok());
    length.filter(|length| *length <= MAX_LENGTH).ok_or_else(|| garbage(line))
}

fn garbage(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP2 reply: {line:?}"))
}
