//! A connection whose frames are counted.
//!
//! hyper bounds streams, resets and heads of HTTP/2, but answers any number of pings and settings.
//! Here the heads of frames are read as they pass by. If a client sends too many frames without a request
//! ([`ConnectionHealth::idle_talk`]), its next frame is replaced by one that breaks the protocol, so that
//! hyper sends GOAWAY and closes, in order with its other output.
//!
//! Only the length and type of a frame are read; hyper validates it.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "places in a buffer, and in a head of nine bytes"
)]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connection_health::ConnectionHealth;
use crate::http::checked_input::{CheckedInput, InputCheck};

/// `PRI * HTTP/2.0` and what follows it.
const PREFACE: usize = 24;

/// Time for the client to read the last frames.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are read and dropped meanwhile. Closing a connection with unread input resets it, and the
/// client may lose the last output: the GOAWAY.
const LINGER_BYTES: usize = 256 * 1024;

/// A connection whose frames are counted.
pub(super) struct MeteredStream<S> {
    stream: S,
    input: CheckedInput<Meter>,
    /// After the last output: the time for the client to close, and the bytes that may come until then.
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> MeteredStream<S> {
    pub(super) const fn new(stream: S, health: Arc<ConnectionHealth>) -> Self {
        Self { stream, input: CheckedInput::new(Meter::new(health)), lingering: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.input.poll_read(Pin::new(&mut this.stream), context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
        }
        let (timer, left) = this
            .lingering
            .get_or_insert_with(|| (Box::pin(tokio::time::sleep(LINGER)), LINGER_BYTES));
        let mut unheard = [0; 4096];
        loop {
            if *left == 0 || timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut unheard);
            match ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    *left = left.saturating_sub(buffer.filled().len());
                }
                // Closed, by whichever side.
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}

/// Finds frames in the input.
struct Meter {
    health: Arc<ConnectionHealth>,
    /// Bytes until the next head.
    skip: usize,
    /// The head as far as it is here: length, type, flags.
    head: [u8; 9],
    have: usize,
    flooded: bool,
}

impl InputCheck for Meter {
    // A ping on a stream, which no client may send.
    const BROKEN: &'static [u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];

    /// Follows these bytes.
    ///
    /// # Errors
    ///
    /// When one frame too many begins in them; with its place.
    fn pass(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.skip == 0 && self.have == 0 && self.flooded {
                return Err(bytes.len() - rest.len());
            }
            let wanted = if self.skip > 0 { self.skip } else { self.head.len() - self.have };
            let (now, later) = rest.split_at(wanted.min(rest.len()));
            rest = later;
            if self.skip > 0 {
                self.skip -= now.len();
                continue;
            }
            let end = self.have + now.len();
            self.head[self.have..end].copy_from_slice(now);
            self.have = end % self.head.len();
            if self.have == 0 {
                self.frame();
            }
        }
        Ok(())
    }
}

impl Meter {
    const fn new(health: Arc<ConnectionHealth>) -> Self {
        Self { health, skip: PREFACE, head: [0; 9], have: 0, flooded: false }
    }

    /// Counts the frame whose head is complete.
    fn frame(&mut self) {
        let [a, b, c, kind, flags, ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]);
        self.skip = usize::try_from(length).unwrap_or(usize::MAX);
        // Data that is empty and not the last asks for nothing either.
        let useful = kind == 1 || (kind == 0 && (length > 0 || flags & 1 == 1));
        if useful {
            self.health.useful();
        } else {
            self.flooded |= self.health.idle_talk();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::connection_health::SPARE;
    use super::*;

    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    const HEADERS: [u8; 11] = [0, 0, 2, 1, 4, 0, 0, 0, 1, 6, 6];

    fn begin() -> Meter {
        let mut meter = Meter::new(Arc::default());
        assert_eq!(meter.pass(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Ok(()));
        meter
    }

    #[test]
    fn a_flood_is_cut_where_a_frame_begins_however_it_is_split() {
        for split in [1, 7, 17, 100, 4096] {
            let mut meter = begin();
            let bytes = PING.repeat(2_000);
            let mut passed = 0;
            let cut = bytes.chunks(split).find_map(|chunk| match meter.pass(chunk) {
                Ok(()) => {
                    passed += chunk.len();
                    None
                }
                Err(at) => Some(passed + at),
            });
            let allowed = usize::try_from(SPARE).unwrap() + 1;
            assert_eq!(cut, Some(allowed * PING.len()), "split at {split}");
        }
    }

    /// A client that does not stop talking hears the last words, and is not listened to for ever.
    #[tokio::test]
    async fn the_last_words_are_heard_before_the_end() {
        let (client, server) = tokio::io::duplex(1_000);
        let (mut hears, mut talks) = tokio::io::split(client);
        let mut server = MeteredStream::new(server, Arc::default());
        let talking = tokio::spawn(async move {
            let mut said = 0;
            while talks.write_all(&[7; 100]).await.is_ok() {
                said += 100;
            }
            said
        });
        server.write_all(b"goodbye").await.unwrap();
        server.shutdown().await.unwrap();
        drop(server);
        let mut heard = String::new();
        hears.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "goodbye");
        let said = talking.await.unwrap();
        assert!((LINGER_BYTES..LINGER_BYTES + 10_000).contains(&said), "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stays_is_waited_for_a_second() {
        let (_client, server) = tokio::io::duplex(1_000);
        let mut server = MeteredStream::new(server, Arc::default());
        let began = tokio::time::Instant::now();
        server.shutdown().await.unwrap();
        assert_eq!(began.elapsed(), LINGER);
    }

    #[test]
    fn whoever_asks_for_something_may_ping_as_well() {
        let mut meter = begin();
        for _ in 0..10_000 {
            assert_eq!(meter.pass(&HEADERS), Ok(()));
            assert_eq!(meter.pass(&PING), Ok(()));
        }
    }
}
