//! A connection with deadlines.
//!
//! The deadline depends on the phase of the connection: between requests it may be idle for a
//! minute; a head must arrive within ten seconds of its first byte; a response must be taken within
//! thirty. The code that reads a body has a deadline for it. One timer serves all of these, and is moved
//! only when it would fire too early or too late.
//!
//! A request that can be read in two ways (`framing.rs`) does not get through: bytes that are no request
//! replace it, so that hyper answers 400 and closes, after the answers to earlier requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::checked_input::CheckedInput;
use super::framing::Framing;

/// Idle time allowed between requests.
const IDLE: Duration = Duration::from_secs(60);

/// Time limit for the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// Time limit for a client to read a response.
const WRITE: Duration = Duration::from_secs(30);

/// Phase of a connection, which selects its deadline.
#[derive(Debug, Default)]
pub(crate) struct ConnectionPhase(AtomicU8);

const AT_REST: u8 = 0;
const IN_HEAD: u8 = 1;
const SERVING: u8 = 2;
const TIMED_OUT: u8 = 3;

impl ConnectionPhase {
    /// Notes that a request is being served.
    pub(crate) fn serving(&self) {
        self.0.store(SERVING, Ordering::Relaxed);
    }

    /// Notes that the request was answered.
    pub(crate) fn idle(&self) {
        self.0.store(AT_REST, Ordering::Relaxed);
    }

    /// True if a deadline ended the connection.
    pub(crate) fn timed_out(&self) -> bool {
        self.0.load(Ordering::Relaxed) == TIMED_OUT
    }
}

/// A connection with deadlines.
pub(crate) struct DeadlineStream<S> {
    stream: S,
    phase: Arc<ConnectionPhase>,
    timer: Pin<Box<Sleep>>,
    /// Set if the timer, unless it has fired, wakes the task that serves.
    wakes: bool,
    /// Since when reading waits, and in which phase.
    reading: Option<(u8, Instant)>,
    /// Until when the client must take more.
    writing: Option<Instant>,
    input: CheckedInput<Framing>,
    /// Bytes to be read again, before any others.
    ahead: Vec<u8>,
}

impl<S> DeadlineStream<S> {
    pub(crate) fn new(stream: S, phase: Arc<ConnectionPhase>) -> Self {
        Self {
            stream,
            phase,
            timer: Box::pin(tokio::time::sleep(HEAD)),
            wakes: false,
            // A client that connects is about to send something.
            reading: Some((AT_REST, after(HEAD))),
            writing: None,
            input: CheckedInput::new(Framing::default()),
            ahead: Vec::new(),
        }
    }

    /// Puts these bytes in front of the input.
    pub(crate) fn unread(&mut self, bytes: Vec<u8>) {
        self.ahead = bytes;
    }

    /// True if `due` has passed; otherwise it wakes the task then.
    fn is_late(&mut self, due: Instant, context: &mut Context<'_>) -> bool {
        if self.timer.deadline() > due {
            self.timer.as_mut().reset(due);
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if Instant::now() >= due {
                self.phase.0.store(TIMED_OUT, Ordering::Relaxed);
                return true;
            }
            self.timer.as_mut().reset(due);
        }
        self.wakes = true;
        false
    }

    /// Begins to be idle. If hyper tried to read while the request was served, it does not read again
    /// before there is input: then only this timer wakes the task.
    fn rest(&mut self, context: &mut Context<'_>) {
        let due = after(IDLE);
        self.reading = Some((AT_REST, due));
        if !self.wakes || self.timer.is_elapsed() {
            self.is_late(due, context);
        }
    }
}

fn after(duration: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(duration).unwrap_or(now)
}

impl<S: AsyncRead + Unpin> AsyncRead for DeadlineStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let phase = this.phase.0.load(Ordering::Relaxed);
        let before = buffer.filled().len();
        let read = if this.ahead.is_empty() {
            this.input.poll_read(Pin::new(&mut this.stream), context, buffer)
        } else {
            let length = this.ahead.len().min(buffer.remaining());
            buffer.put_slice(this.ahead.get(..length).unwrap_or_default());
            this.ahead.drain(..length);
            Poll::Ready(Ok(()))
        };
        if phase == AT_REST && buffer.filled().len() > before {
            this.phase.0.store(IN_HEAD, Ordering::Relaxed);
            this.reading = None;
        }
        // How long a body may take is up to the code that reads it.
        if read.is_ready() || phase == SERVING {
            return read;
        }
        let due = match this.reading {
            Some((since, due)) if since == phase => due,
            _ => {
                let due = after(if phase == AT_REST { IDLE } else { HEAD });
                this.reading = Some((phase, due));
                due
            }
        };
        this.pending_until(due, context)
    }
}

impl<S> DeadlineStream<S> {
    /// Waits on, unless it is late.
    fn pending_until<T>(&mut self, due: Instant, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.is_late(due, context) {
            let late = io::Error::new(io::ErrorKind::TimedOut, "the client took too long");
            return Poll::Ready(Err(late));
        }
        Poll::Pending
    }

    fn written<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() && self.phase.0.load(Ordering::Relaxed) == AT_REST {
            self.rest(context);
        }
        self.taken(written, context)
    }

    /// Gives up if the client has read nothing for too long. Under TLS a flush or the shutdown waits for the
    /// client, as a write only fills a buffer.
    fn taken<T>(
        &mut self,
        done: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.writing = None;
            return done;
        }
        let due = *self.writing.get_or_insert_with(|| after(WRITE));
        self.pending_until(due, context)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DeadlineStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.taken(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.taken(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::checked_input::InputCheck as _;
    use super::*;

    /// The two ends of a connection.
    async fn pair() -> (DeadlineStream<TcpStream>, TcpStream, Arc<ConnectionPhase>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let phase = Arc::new(ConnectionPhase::default());
        (DeadlineStream::new(server, Arc::clone(&phase)), client, phase)
    }

    /// Time until a read was given up, in seconds of virtual time.
    async fn given_up(guarded: &mut DeadlineStream<TcpStream>) -> u64 {
        let began = Instant::now();
        let error = guarded.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // Connecting took some of it, and a timer is late by up to a millisecond.
        u64::try_from(began.elapsed().as_millis().saturating_add(500) / 1_000).unwrap()
    }

    /// C21, in virtual time.
    #[tokio::test]
    async fn heads_that_dribble_and_connections_that_say_nothing_are_ended() {
        let (mut silent, _client, phase) = pair().await;
        let (mut dribbles, mut dribbler, _) = pair().await;
        let (mut keeps, mut keeper, kept) = pair().await;
        dribbler.write_all(b"G").await.unwrap();
        keeper.write_all(b"G").await.unwrap();
        assert_eq!(
            (dribbles.read_u8().await.unwrap(), keeps.read_u8().await.unwrap()),
            (b'G', b'G')
        );
        kept.serving();
        kept.idle();
        tokio::time::pause();

        assert_eq!(given_up(&mut silent).await, 10, "never said anything");
        assert!(phase.timed_out());
        assert_eq!(given_up(&mut dribbles).await, 10, "began a head");
        assert_eq!(given_up(&mut keeps).await, 60, "was served before");
    }

    /// C21: hyper reads ahead while a request is served, and has no reason to read again after it.
    #[tokio::test]
    async fn a_connection_that_was_served_is_ended_whoever_reads() {
        let (guarded, mut client, phase) = pair().await;
        let at = Arc::clone(&phase);
        let service = hyper::service::service_fn(move |_| {
            at.serving();
            let at = Arc::clone(&at);
            async move {
                at.idle();
                Ok::<_, std::convert::Infallible>(hyper::Response::new(String::new()))
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.header_read_timeout(None::<Duration>);
        // In a task, which nobody polls but whom it waits for.
        let io = hyper_util::rt::TokioIo::new(guarded);
        let connection = tokio::spawn(builder.serve_connection(io, service));
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        client.read_exact(&mut [0; 15]).await.unwrap();
        tokio::time::pause();
        let began = Instant::now();

        let ended = tokio::time::timeout(Duration::from_secs(600), connection).await;

        assert!(ended.is_ok() && phase.timed_out(), "{ended:?}");
        let seconds = began.elapsed().as_secs();
        assert!((59..=60).contains(&seconds), "{seconds} s");
    }

    #[tokio::test]
    async fn what_can_be_read_in_two_ways_is_no_request_any_more() {
        let (mut guarded, mut client, _) = pair().await;
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\nHost: a\r\n\r\n")
            .await
            .unwrap();
        let mut read = Vec::new();

        guarded.read_to_end(&mut read).await.unwrap();

        // Of a line that did not fit into one read, what came before was passed on.
        let (first, second) = read.split_at(27);
        assert_eq!(first, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(
            second.ends_with(Framing::BROKEN) && !second.contains(&b'H'),
            "{}",
            second.escape_ascii()
        );
    }

    /// A stream as TLS is to a client that takes nothing: it keeps what is written, and cannot pass it on.
    struct Sealed;

    impl AsyncWrite for Sealed {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    /// C21: neither a flush nor the end of a connection waits for ever for its client.
    #[tokio::test(start_paused = true)]
    async fn a_response_that_nobody_unseals_ends_the_connection() {
        for ends in [false, true] {
            let mut guarded = DeadlineStream::new(Sealed, Arc::default());
            guarded.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
            let began = Instant::now();

            let given_up = if ends { guarded.shutdown().await } else { guarded.flush().await };

            assert_eq!(given_up.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(began.elapsed().as_secs(), 30);
        }
    }

    #[tokio::test]
    async fn a_response_that_nobody_takes_ends_the_connection() {
        let (mut guarded, _client, phase) = pair().await;
        phase.serving();
        tokio::time::pause();
        let began = Instant::now();

        let error = guarded.write_all(&vec![0; 64 << 20]).await.unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= WRITE);
    }
}
