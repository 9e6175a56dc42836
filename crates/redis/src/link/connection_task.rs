//! The connection task: writes queued commands, and hands out the replies in order.
//!
//! It ends when the connection does, or when it receives something other than Redis's protocol or a reply
//! that nobody asked for. Every caller that still waits then learns that no reply will come.
//!
//! On a subscriber connection it passes each message to a callback. Messages are not stored, so there is
//! no queue that could grow.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};

use super::resp::{self, ReadError, Value};
use super::write_queue::WriteQueue;
use crate::clock;

/// Receives the channel and the content of each message, on the thread of the connection.
pub(crate) type OnMessage = Box<dyn FnMut(&[u8], &[u8]) + Send>;

/// Size of the read buffer when nothing is unread: the reply to a batch fits.
const ROOM: usize = 32 << 10;

pub(super) struct ConnectionTask<S> {
    stream: S,
    /// Receives messages, on a subscriber connection.
    on_message: Option<OnMessage>,
    /// Commands to write, and callers that wait for replies.
    queue: Arc<WriteQueue>,
    /// The next look at deadlines, while there are any.
    look: Option<Pin<Box<Sleep>>>,
    /// Something written may not be flushed yet.
    unflushed: bool,
    /// The read buffer: the first `filled` bytes are unread.
    incoming: Vec<u8>,
    filled: usize,
    /// The most bytes of one reply or message.
    most: usize,
}

/// The connection is over, for whatever reason.
struct TaskOver;

impl<S: AsyncRead + AsyncWrite + Unpin> ConnectionTask<S> {
    pub(super) fn new(
        stream: S,
        queue: Arc<WriteQueue>,
        on_message: Option<OnMessage>,
        most: usize,
    ) -> Self {
        Self {
            stream,
            on_message,
            queue,
            look: None,
            unflushed: false,
            incoming: vec![0; ROOM],
            filled: 0,
            most,
        }
    }

    fn write(&mut self, context: &mut Context<'_>) -> Result<(), TaskOver> {
        let stream = &mut self.stream;
        let wrote = self.queue.write(|slices: &[IoSlice<'_>]| {
            Pin::new(&mut *stream).poll_write_vectored(context, slices)
        });
        self.unflushed |= wrote.map_err(|_| TaskOver)?;
        if self.unflushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(context)
        {
            flushed.map_err(|_| TaskOver)?;
            self.unflushed = false;
        }
        Ok(())
    }

    /// Reads once, and hands out the replies that are complete.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TaskOver>> {
        if self.filled > self.most {
            return Poll::Ready(Err(TaskOver));
        }
        if self.filled == self.incoming.len() {
            self.incoming.resize(self.filled.saturating_mul(2), 0);
        }
        let mut room = ReadBuf::new(&mut self.incoming[self.filled..]);
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut room));
        let bytes = room.filled().len();
        if read.is_err() || bytes == 0 {
            return Poll::Ready(Err(TaskOver));
        }
        self.filled = self.filled.saturating_add(bytes);
        Poll::Ready(self.hand_out())
    }

    fn hand_out(&mut self) -> Result<(), TaskOver> {
        let (mut unread, now) = (&self.incoming[..self.filled], clock::now());
        loop {
            let (answer, end) = match resp::read(unread, self.most) {
                Ok(read) => read,
                Err(ReadError::Incomplete) => break,
                Err(ReadError::Malformed) => return Err(TaskOver),
            };
            unread = &unread[end..];
            if let Some(on_message) = &mut self.on_message
                && let Some((channel, content)) = message(&answer)
            {
                on_message(channel, content);
                continue;
            }
            let tell = self.queue.next().ok_or(TaskOver)?;
            // A caller that gave up does not miss it.
            let _ = tell.send(Some((answer, now)));
        }
        // Nobody asked for the reply that begins here.
        if !unread.is_empty() && self.on_message.is_none() && self.queue.is_empty() {
            return Err(TaskOver);
        }
        let start = self.filled.saturating_sub(unread.len());
        if start > 0 {
            self.incoming.copy_within(start..self.filled, 0);
            self.filled = self.filled.saturating_sub(start);
        }
        if self.filled == 0 && self.incoming.len() > ROOM {
            self.incoming.truncate(ROOM);
            self.incoming.shrink_to_fit();
        }
        Ok(())
    }

    fn write_and_read(&mut self, context: &mut Context<'_>) -> Result<(), TaskOver> {
        self.queue.register_waker(context);
        loop {
            self.write(context)?;
            match self.read(context) {
                Poll::Ready(read) => read?,
                Poll::Pending => break,
            }
        }
        // After the replies, so that none is late because of this.
        self.look_after(context);
        Ok(())
    }

    /// Tells callers whose deadline has passed.
    fn look_after(&mut self, context: &mut Context<'_>) {
        if self.look.is_none() && !self.queue.has_deadlines() {
            return;
        }
        while self.look.as_mut().is_none_or(|look| look.as_mut().poll(context).is_ready()) {
            match self.queue.expire_overdue(clock::now()) {
                Some(at) => self.look = Some(Box::pin(sleep_until(at))),
                None => {
                    self.look = None;
                    return;
                }
            }
        }
    }
}

impl<S> Drop for ConnectionTask<S> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Returns the channel and the content, if this is a message.
fn message(value: &Value) -> Option<(&[u8], &[u8])> {
    let Value::Array(parts) = value else { return None };
    match parts.as_slice() {
        [Value::String(kind), Value::String(channel), Value::String(content)]
            if kind == b"message" =>
        {
            Some((channel, content))
        }
        _ => None,
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for ConnectionTask<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.write_and_read(context) {
            Ok(()) => Poll::Pending,
            Err(TaskOver) => Poll::Ready(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const MESSAGE: &[u8] = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n";

    fn task(
        stream: DuplexStream,
        on_message: Option<OnMessage>,
        most: usize,
    ) -> (ConnectionTask<DuplexStream>, Arc<WriteQueue>) {
        let queue = Arc::new(WriteQueue::new(None, 1));
        (ConnectionTask::new(stream, Arc::clone(&queue), on_message, most), queue)
    }

    #[tokio::test]
    async fn messages_are_heard_before_between_and_after_answers() {
        let (ours, mut theirs) = duplex(64);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let messages = Arc::clone(&heard);
        let on_message: OnMessage = Box::new(move |channel, content| {
            messages.lock().unwrap().push([channel, content].concat());
        });
        let (task, queue) = task(ours, Some(on_message), resp::MAX_BYTES);
        let running = tokio::spawn(task);
        // Cut anywhere, as a network may.
        for byte in MESSAGE {
            theirs.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let [first, second] = [(); 2].map(|()| queue.send(b"?".into(), None).unwrap());
        assert_eq!(theirs.read_exact(&mut [0; 2]).await.unwrap(), 2);

        theirs.write_all(b":1\r\n").await.unwrap();
        theirs.write_all(MESSAGE).await.unwrap();
        theirs.write_all(b":2\r\n").await.unwrap();

        let replies = [first.await, second.await].map(|reply| reply.unwrap().unwrap().0);
        assert_eq!(replies, [Value::Number(1), Value::Number(2)]);
        theirs.write_all(MESSAGE).await.unwrap();
        drop(theirs);
        running.await.unwrap();
        assert_eq!(*heard.lock().unwrap(), [b"c0", b"c0", b"c0"]);
    }

    #[tokio::test]
    async fn commands_arrive_whole_and_in_order_however_little_is_taken_at_a_time() {
        for room in [1, 7, 1 << 16] {
            let (ours, mut theirs) = duplex(room);
            let (task, queue) = task(ours, None, resp::MAX_BYTES);
            let (mut expected, mut pending) = (Vec::new(), Vec::new());
            for i in 0..200 {
                let command = vec![b"abcdefghij"[i % 10]; 1 + i % 11];
                expected.extend_from_slice(&command);
                pending.push(queue.send(command, None).unwrap());
            }
            let running = tokio::spawn(task);

            let mut written = vec![0; expected.len()];
            theirs.read_exact(&mut written).await.unwrap();

            assert_eq!(written, expected, "{room} bytes at a time");
            drop(theirs);
            running.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_reply_nobody_asked_for_ends_the_task_unless_it_is_a_message_for_a_subscriber() {
        let on_message: OnMessage = Box::new(|_, _| {});
        for (unasked, on_message) in [(MESSAGE, None), (b":1\r\n", Some(on_message))] {
            let (ours, mut theirs) = duplex(64);

            theirs.write_all(unasked).await.unwrap();

            task(ours, on_message, resp::MAX_BYTES).0.await;
        }
    }

    #[tokio::test]
    async fn a_longer_reply_than_allowed_ends_the_task() {
        for (length, ends) in [(93, false), (94, true)] {
            let (ours, mut theirs) = duplex(1024);
            let (task, queue) = task(ours, None, 100);
            let running = tokio::spawn(task);
            let reply = queue.send(b"?".into(), None).unwrap();
            let promised = format!("${length}\r\n{}", "x".repeat(length));
            theirs.write_all(format!("{promised}\r\n").as_bytes()).await.unwrap();

            assert_eq!(reply.await.is_err(), ends, "{length}");
            drop(theirs);
            running.await.unwrap();
        }
    }
}
