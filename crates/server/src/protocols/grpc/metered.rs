//! A connection whose frames are counted.
//!
//! hyper bounds streams, resets and heads of HTTP/2, but answers any number of pings and settings.
//! Here the heads of frames are read as they pass by, and a client that says too much that asks for
//! nothing ([`ConnectionHealth::idle_talk`]) has its next frame replaced by one that breaks the protocol: so it is
//! hyper that says GOAWAY and closes, in order with what it was writing.
//!
//! Frames are not understood beyond their length and type; whether they are right is hyper's business.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connection_health::ConnectionHealth;

/// `PRI * HTTP/2.0` and what follows it.
const PREFACE: usize = 24;

/// A ping on a stream, which no client may send.
const BROKEN: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];

/// Time for the client to read the last frames.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are read and dropped meanwhile. A connection that is closed with something
/// unread is reset, and with it goes what was sent and not yet taken: the GOAWAY.
const LINGER_BYTES: usize = 256 * 1024;

/// A connection whose frames are counted.
pub(super) struct MeteredStream<S> {
    stream: S,
    meter: Meter,
    /// Rest of the bytes that replace the client's, to end the connection.
    ending: Option<&'static [u8]>,
    /// Since nothing more is sent: until when the client may close, and what may come until then.
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> MeteredStream<S> {
    pub(super) const fn new(stream: S, health: Arc<ConnectionHealth>) -> Self {
        Self { stream, meter: Meter::new(health), ending: None, lingering: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ending.is_none() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            let fresh = buffer.filled().get(before..).unwrap_or_default();
            match this.meter.pass(fresh) {
                Flow::Fine => return Poll::Ready(Ok(())),
                Flow::Flood { at } => {
                    buffer.set_filled(before.saturating_add(at));
                    this.ending = Some(&BROKEN);
                }
            }
        }
        if let Some(rest) = &mut this.ending {
            let (now, later) = rest.split_at(rest.len().min(buffer.remaining()));
            buffer.put_slice(now);
            *rest = later;
        }
        Poll::Ready(Ok(()))
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

/// Action for bytes that arrived.
#[derive(Debug, PartialEq, Eq)]
enum Flow {
    /// Nothing.
    Fine,
    /// One frame too many begins here.
    Flood {
        /// Bytes before it.
        at: usize,
    },
}

/// Finds frames in what passes by.
struct Meter {
    health: Arc<ConnectionHealth>,
    /// Bytes until the next head.
    skip: usize,
    /// The head as far as it is here: length, type, flags.
    head: [u8; 9],
    have: usize,
    flooded: bool,
}

impl Meter {
    const fn new(health: Arc<ConnectionHealth>) -> Self {
        Self { health, skip: PREFACE, head: [0; 9], have: 0, flooded: false }
    }

    fn pass(&mut self, bytes: &[u8]) -> Flow {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(rest.len());
                self.skip = self.skip.saturating_sub(skipped);
                rest = rest.get(skipped..).unwrap_or_default();
                continue;
            }
            if self.flooded && self.have == 0 {
                return Flow::Flood { at: bytes.len().saturating_sub(rest.len()) };
            }
            let wanted = self.head.len().saturating_sub(self.have).min(rest.len());
            let (now, later) = rest.split_at(wanted);
            for byte in now {
                if let Some(place) = self.head.get_mut(self.have) {
                    *place = *byte;
                }
                self.have = self.have.saturating_add(1);
            }
            rest = later;
            if self.have == self.head.len() {
                self.have = 0;
                self.frame();
            }
        }
        Flow::Fine
    }

    /// A whole head is here.
    fn frame(&mut self) {
        let [a, b, c, kind, flags, ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]);
        self.skip = usize::try_from(length).unwrap_or(usize::MAX);
        // Data that is empty and not the last asks for nothing either.
        let useful = match kind {
            0 => length > 0 || flags & 1 == 1,
            1 => true,
            _ => false,
        };
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
        assert_eq!(meter.pass(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Flow::Fine);
        meter
    }

    #[test]
    fn a_flood_is_cut_where_a_frame_begins_however_it_is_split() {
        for split in [1, 7, 17, 100, 4096] {
            let mut meter = begin();
            let bytes = PING.repeat(2_000);
            let mut passed = 0;
            let cut = bytes.chunks(split).find_map(|chunk| match meter.pass(chunk) {
                Flow::Fine => {
                    passed += chunk.len();
                    None
                }
                Flow::Flood { at } => Some(passed + at),
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
            assert_eq!(meter.pass(&HEADERS), Flow::Fine);
            assert_eq!(meter.pass(&PING), Flow::Fine);
        }
    }
}
