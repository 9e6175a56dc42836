//! The write queue of a connection: commands to be written, and the callers that wait for replies.
//!
//! This is the only way to the socket. A caller that [sends](WriteQueue::send) a command writes it itself
//! if nothing else waits to be written, because waking another thread takes longer than writing. With
//! [`MAX_DIRECT`] commands in flight, or over TLS, the connection task (`connection_task.rs`) writes the
//! command; the first such command wakes the task, so commands that arrive meanwhile share one write.
//!
//! A command may have a deadline. The connection task watches the deadlines by its own clock, and keeps
//! watching for a while after the last one, so that the next command need not wake it.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;

use super::resp::Value;
use crate::clock::Instant;
use tollgate_core::lock_mutex;

/// A reply and its time of arrival. The caller may look at it much later.
pub(super) type TimedReply = (Value, Instant);

/// Delivers the reply, or `None` when the deadline passed first.
pub(super) type ReplySender = oneshot::Sender<Option<TimedReply>>;

/// The connection task keeps watching for this long after the last deadline. Commands with a deadline must
/// allow at least this much time, so that a look comes before it. Lock steps allow more.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// With fewer commands in flight than this, the caller writes its command itself: a few tasks do not wait
/// for each other's replies, and many share one write.
const MAX_DIRECT: usize = 4;

/// Commands written with one system call: few are sent at the same time.
const AT_ONCE: usize = 64;

/// A second descriptor of the connection's socket, on which callers write.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).write(bytes),
            Self::Unix(stream) => (&*stream).write(bytes),
        }
    }
}

#[derive(Debug)]
pub(super) struct WriteQueue {
    contents: Mutex<QueueContents>,
    /// Commands with a deadline are refused while this many callers wait for replies.
    max_pending: usize,
}

#[derive(Debug, Default)]
struct QueueContents {
    /// `None` where only the connection task can write: over TLS.
    socket: Option<Socket>,
    /// Commands to be written, and how many bytes of the first were.
    outgoing: VecDeque<Vec<u8>>,
    written: usize,
    /// Callers in the order of their commands, written or not.
    pending: VecDeque<PendingReply>,
    task: Option<Waker>,
    /// The task watches deadlines.
    watched: bool,
    /// A command with a deadline was sent since the task looked last.
    deadline_added: bool,
    closed: bool,
}

#[derive(Debug)]
struct PendingReply {
    /// `None` once the deadline passed.
    sender: Option<ReplySender>,
    deadline: Option<Instant>,
}

impl WriteQueue {
    pub(super) fn new(socket: Option<Socket>, max_pending: usize) -> Self {
        let contents = QueueContents { socket, ..QueueContents::default() };
        Self { contents: Mutex::new(contents), max_pending }
    }

    /// Writes a command, or queues it for the connection task. A deadline is at least [`WATCH_INTERVAL`]
    /// away; a command without one waits for as long as the connection lives.
    ///
    /// Returns `None`, with nothing written, when the connection is closed, or when a deadline is given and
    /// too many callers wait.
    pub(super) fn send(
        &self,
        command: Vec<u8>,
        deadline: Option<Instant>,
    ) -> Option<oneshot::Receiver<Option<TimedReply>>> {
        let (sender, receiver) = oneshot::channel();
        let mut contents = lock_mutex(&self.contents);
        let full = deadline.is_some() && contents.pending.len() >= self.max_pending;
        if full || contents.closed {
            return None;
        }
        // The first command in the queue wakes the task; those that follow need not.
        let mut wake = contents.outgoing.is_empty();
        let direct = wake && contents.pending.len() < MAX_DIRECT;
        let mut written = 0;
        if let Some(socket) = contents.socket.as_ref().filter(|_| direct) {
            written = match socket.write(&command) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                // The task notices by itself.
                Err(_) => return None,
            };
        }
        if written == command.len() {
            wake = false;
        } else {
            if wake {
                contents.written = written;
            }
            contents.outgoing.push_back(command);
        }
        contents.pending.push_back(PendingReply { sender: Some(sender), deadline });
        if deadline.is_some() {
            contents.deadline_added = true;
            wake |= !std::mem::replace(&mut contents.watched, true);
        }
        let task = contents.task.as_ref().filter(|_| wake).cloned();
        drop(contents);
        if let Some(task) = task {
            task.wake();
        }
        Some(receiver)
    }

    /// Remembers the waker of the connection task.
    pub(super) fn register_waker(&self, context: &Context<'_>) {
        let mut contents = lock_mutex(&self.contents);
        if contents.task.as_ref().is_none_or(|task| !task.will_wake(context.waker())) {
            contents.task = Some(context.waker().clone());
        }
    }

    /// Passes queued commands to `write`, as many as it takes. Returns whether anything was written.
    ///
    /// # Errors
    ///
    /// When the connection takes no more bytes.
    pub(super) fn write(
        &self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> io::Result<bool> {
        let mut contents = lock_mutex(&self.contents);
        let mut any = false;
        while !contents.outgoing.is_empty() {
            let mut slices = [IoSlice::new(&[]); AT_ONCE];
            let mut begun = contents.written;
            for (slice, command) in slices.iter_mut().zip(&contents.outgoing) {
                *slice = IoSlice::new(command.get(std::mem::take(&mut begun)..).unwrap_or(&[]));
            }
            let filled = slices.get(..contents.outgoing.len()).unwrap_or(&slices);
            match write(filled) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(bytes) => contents.wrote(bytes?),
            }
            any = true;
        }
        Ok(any)
    }

    /// Takes the caller that waits for the next reply.
    pub(super) fn next(&self) -> Option<ReplySender> {
        let pending = lock_mutex(&self.contents).pending.pop_front()?;
        // The deadline passed: nobody receives this one.
        Some(pending.sender.unwrap_or_else(|| oneshot::channel().0))
    }

    /// Returns whether no caller waits.
    pub(super) fn is_empty(&self) -> bool {
        lock_mutex(&self.contents).pending.is_empty()
    }

    /// Returns whether deadlines are to be watched.
    pub(super) fn has_deadlines(&self) -> bool {
        lock_mutex(&self.contents).watched
    }

    /// Tells callers whose deadline has passed. Returns when to look again, if ever.
    pub(super) fn expire_overdue(&self, now: Instant) -> Option<Instant> {
        let mut contents = lock_mutex(&self.contents);
        let (mut overdue, mut first) = (Vec::new(), None::<Instant>);
        for PendingReply { sender, deadline } in &mut contents.pending {
            if let Some(at) = deadline.filter(|_| sender.is_some()) {
                if at <= now {
                    overdue.extend(sender.take());
                } else {
                    first = Some(first.map_or(at, |first| first.min(at)));
                }
            }
        }
        let added = std::mem::take(&mut contents.deadline_added);
        let watched = added || first.is_some();
        contents.watched = watched;
        drop(contents);
        // A caller that gave up does not miss it.
        overdue.into_iter().for_each(|sender| drop(sender.send(None)));
        let again = now.checked_add(WATCH_INTERVAL).unwrap_or(now);
        watched.then(|| first.map_or(again, |first| first.min(again)))
    }

    /// Drops every caller that waits, and accepts no more commands.
    pub(super) fn close(&self) {
        let closed = QueueContents { closed: true, ..QueueContents::default() };
        let dropped = std::mem::replace(&mut *lock_mutex(&self.contents), closed);
        drop(dropped);
    }
}

impl QueueContents {
    /// Counts bytes that were written, and drops commands that are written whole.
    fn wrote(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes);
        while let Some(first) = self.outgoing.front()
            && self.written >= first.len()
        {
            self.written = self.written.saturating_sub(first.len());
            self.outgoing.pop_front();
        }
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests {
    use std::io::Read;
    use std::sync::Arc;

    use super::*;
    use crate::clock;
    use crate::wake_count::WakeCount;

    /// A queue with a task to wake, and the other end of its socket.
    fn queue(max_pending: usize) -> (WriteQueue, UnixStream, Arc<WakeCount>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let (queue, wakes) = (
            WriteQueue::new(Some(Socket::Unix(ours)), max_pending),
            Arc::new(WakeCount::default()),
        );
        queue.register_waker(&Context::from_waker(&Waker::from(Arc::clone(&wakes))));
        (queue, theirs, wakes)
    }

    fn written(theirs: &mut UnixStream) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let read = theirs.read(&mut bytes).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    /// The bytes of each write of the task.
    fn written_by_task(queue: &WriteQueue) -> Vec<Vec<u8>> {
        let mut writes = Vec::new();
        let write = |slices: &[IoSlice<'_>]| {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            writes.push(bytes.clone());
            Poll::Ready(Ok(bytes.len()))
        };
        assert!(queue.write(write).unwrap());
        writes
    }

    fn reply(value: Value) -> Option<TimedReply> {
        Some((value, clock::now()))
    }

    fn value(receiver: &mut oneshot::Receiver<Option<TimedReply>>) -> Option<Value> {
        receiver.try_recv().unwrap().map(|(value, _)| value)
    }

    fn soon() -> Option<Instant> {
        Some(clock::now() + WATCH_INTERVAL)
    }

    #[test]
    fn a_few_write_for_themselves_and_the_rest_is_written_at_once() {
        let (queue, mut theirs, wakes) = queue(100);

        let sent: Vec<_> = (b'a'..=b'h').map(|byte| queue.send(vec![byte], soon())).collect();

        assert!(sent.iter().all(Option::is_some));
        assert_eq!(written(&mut theirs), b"abcd");
        assert_eq!(wakes.take(), 2, "to look after the first, and to write the fifth");
        assert_eq!(written_by_task(&queue), [b"efgh"]);
    }

    #[test]
    fn answers_go_to_those_who_asked_in_the_order_in_which_it_was_written() {
        let (queue, mut theirs, _) = queue(100);
        let deadlines = [soon(), None, None, soon(), None, soon()];
        let mut sent: Vec<_> = (b'1'..)
            .zip(deadlines)
            .map(|(digit, deadline)| queue.send(vec![digit], deadline).unwrap())
            .collect();
        assert_eq!(written(&mut theirs), b"1234");

        for number in 1..=6 {
            queue.next().unwrap().send(reply(Value::Number(number))).unwrap();
        }

        let replies: Vec<_> = sent.iter_mut().map(value).collect();
        assert_eq!(replies, (1..=6).map(|number| Some(Value::Number(number))).collect::<Vec<_>>());
        assert!(queue.next().is_none() && queue.is_empty());
    }

    #[test]
    fn without_a_socket_of_its_own_the_task_writes_everything() {
        let (queue, wakes) = (WriteQueue::new(None, 100), Arc::new(WakeCount::default()));
        queue.register_waker(&Context::from_waker(&Waker::from(Arc::clone(&wakes))));

        let sent: Vec<_> = (b'a'..=b'c').map(|byte| queue.send(vec![byte], None)).collect();

        assert!(sent.iter().all(Option::is_some));
        assert_eq!(wakes.take(), 1, "for the first");
        assert_eq!(written_by_task(&queue), [b"abc"]);
    }

    #[test]
    fn what_does_not_fit_is_left_to_the_task_which_is_woken() {
        let (queue, mut theirs, wakes) = queue(100);
        let long = vec![b'x'; 1 << 23];
        queue.send(long.clone(), soon()).unwrap();
        assert_eq!(wakes.take(), 1);

        let mut arrived = 0;
        loop {
            let read = written(&mut theirs).len();
            if read == 0 {
                break;
            }
            arrived += read;
        }
        let mut rest = 0;
        let write = |slices: &[IoSlice<'_>]| {
            rest = slices[0].len();
            Poll::Ready(Ok(rest))
        };
        queue.write(write).unwrap();

        assert!(arrived > 0 && rest > 0, "{arrived} and {rest}");
        assert_eq!(arrived + rest, long.len());
    }

    #[test]
    fn a_caller_is_told_at_its_deadline_and_its_late_reply_is_dropped() {
        let (queue, _theirs, wakes) = queue(100);
        let now = clock::now();
        let mut early = queue.send(b"1".into(), Some(now + WATCH_INTERVAL)).unwrap();
        let mut later = queue.send(b"2".into(), Some(now + 3 * WATCH_INTERVAL)).unwrap();

        assert!(queue.has_deadlines());
        assert_eq!(queue.expire_overdue(now), Some(now + WATCH_INTERVAL));
        assert!(early.try_recv().is_err(), "its time has not passed");
        assert_eq!(queue.expire_overdue(now + WATCH_INTERVAL), Some(now + 2 * WATCH_INTERVAL));
        assert_eq!(early.try_recv(), Ok(None));

        assert!(queue.next().unwrap().send(reply(Value::Nil)).is_err(), "nobody hears it");
        queue.next().unwrap().send(reply(Value::Nil)).unwrap();
        assert_eq!(value(&mut later), Some(Value::Nil), "the next hears its own");
        assert_eq!(
            queue.expire_overdue(now + 2 * WATCH_INTERVAL),
            None,
            "there is nobody left to look after"
        );
        wakes.take();
        queue.send(b"3".into(), Some(now + 4 * WATCH_INTERVAL)).unwrap();
        assert_eq!(wakes.take(), 1, "whoever comes next has the task look again");
    }

    #[test]
    fn sending_while_the_task_still_watches_does_not_wake_it() {
        let (queue, _theirs, wakes) = queue(100);
        let now = clock::now();
        let sent = queue.send(b"1".into(), Some(now + WATCH_INTERVAL)).unwrap();
        assert_eq!(queue.expire_overdue(now), Some(now + WATCH_INTERVAL));
        queue.next().unwrap().send(reply(Value::Nil)).unwrap();
        drop(sent);
        wakes.take();

        // The task looks at `now + WATCH_INTERVAL`, before this could be late.
        queue.send(b"2".into(), Some(now + WATCH_INTERVAL + WATCH_INTERVAL / 2)).unwrap();

        assert_eq!(wakes.take(), 0);
        assert_eq!(
            queue.expire_overdue(now + WATCH_INTERVAL),
            Some(now + WATCH_INTERVAL + WATCH_INTERVAL / 2)
        );
    }

    #[test]
    fn no_more_deadlines_are_taken_than_may_wait() {
        let (queue, _theirs, _) = queue(6);
        let sent: Vec<_> = (0..7).map(|_| queue.send(b"?".into(), soon())).collect();
        assert_eq!(sent.iter().filter(|sent| sent.is_some()).count(), 6);
        // Those who gave up take their place until they are answered.
        drop(sent);
        assert!(queue.send(b"?".into(), soon()).is_none());
        drop(queue.next().unwrap());
        assert!(queue.send(b"?".into(), soon()).is_some());
        assert!(queue.send(b"PING".into(), None).is_some(), "a probe is never refused");
    }

    #[test]
    fn a_closed_queue_drops_callers_and_takes_no_commands() {
        let (queue, mut theirs, _) = queue(100);
        let mut sent = queue.send(b"1".into(), soon()).unwrap();

        queue.close();

        assert!(matches!(sent.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(queue.send(b"2".into(), soon()).is_none());
        assert_eq!(written(&mut theirs), b"1");
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the socket is closed on this side");
    }
}
