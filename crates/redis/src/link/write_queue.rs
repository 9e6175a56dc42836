//! What is to be written on a connection and who waits for an answer: shared by the task behind it
//! (`talk.rs`) and those who ask.
//!
//! A question usually goes to that task, which writes it. Whoever *sends* one writes it itself, if nothing
//! else is to be written, as to wake another thread takes longer than to write. If as many are under way
//! as is good, it is left for the task, which is woken for the first of those: so what is asked meanwhile
//! is written at once.
//!
//! Somebody must tell who sent that no answer came. The task does, by its own clock: while there are
//! such questions it looks at them, and for a while after the last, so that the next need not wake it.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;

use super::resp::Value;
use crate::clock::Instant;

/// An answer, and when it arrived: whoever waits for it may look much later.
pub(super) type TimedReply = (Value, Instant);

/// Where an answer goes: `None` if there was none in time.
pub(super) type ReplySender = oneshot::Sender<Option<TimedReply>>;

/// How long the task goes on looking when there was nothing to look after. No question that is sent has
/// less time than this, so that a look comes before its end. Steps on locks have more.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// Questions under way up to which one more is written by who sends it: a few tasks do not wait for each
/// other's answers, and many share what they take to write.
const MAX_DIRECT: usize = 4;

/// Commands written with one call to the system: those that are asked at the same time are few.
const AT_ONCE: usize = 64;

/// The other end of a pair of file descriptors for one socket, on which others than the task write.
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
    /// How many may wait for an answer before nobody sends any more.
    most: usize,
}

#[derive(Debug, Default)]
struct QueueContents {
    /// None where a question cannot simply be written, and when the talk is over.
    socket: Option<Socket>,
    /// What is to be written, and how much of the first has been.
    outgoing: VecDeque<Vec<u8>>,
    written: usize,
    /// Who waits for an answer, in order; with those whose question is not written yet.
    waiting: VecDeque<PendingReply>,
    task: Option<Waker>,
    /// Whether the task looks after those who sent, and whether anybody did since its last look.
    watched: bool,
    sent: bool,
}

#[derive(Debug)]
struct PendingReply {
    /// None once it was told.
    tell: Option<ReplySender>,
    until: Option<Instant>,
}

impl WriteQueue {
    pub(super) fn new(socket: Option<Socket>, most: usize) -> Self {
        Self { contents: Mutex::new(QueueContents { socket, ..QueueContents::default() }), most }
    }

    fn lock(&self) -> MutexGuard<'_, QueueContents> {
        // Every edit is whole before anything could panic.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a question, or leaves it to the task; `None` if it must go another way. It has [`WATCH_INTERVAL`] at
    /// least to be answered.
    pub(super) fn send(
        &self,
        command: Vec<u8>,
        until: Instant,
    ) -> Option<oneshot::Receiver<Option<TimedReply>>> {
        let (tell, told) = oneshot::channel();
        let mut contents = self.lock();
        let socket = contents.socket.as_ref()?;
        if contents.waiting.len() >= self.most {
            return None;
        }
        let mut wake = false;
        if contents.outgoing.is_empty() && contents.waiting.len() < MAX_DIRECT {
            let written = match socket.write(&command) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                // The task finds out by itself.
                Err(_) => return None,
            };
            if written < command.len() {
                contents.written = written;
                contents.outgoing.push_back(command);
                wake = true;
            }
        } else {
            // The next answer may be far; those who come after this one need not wake it again.
            wake = contents.outgoing.is_empty();
            contents.outgoing.push_back(command);
        }
        contents.waiting.push_back(PendingReply { tell: Some(tell), until: Some(until) });
        contents.sent = true;
        wake |= !std::mem::replace(&mut contents.watched, true);
        let task = contents.task.as_ref().filter(|_| wake).cloned();
        drop(contents);
        if let Some(task) = task {
            task.wake();
        }
        Some(told)
    }

    /// The task has this question to write.
    pub(super) fn put(&self, command: Vec<u8>, tell: ReplySender) {
        let mut contents = self.lock();
        contents.outgoing.push_back(command);
        contents.waiting.push_back(PendingReply { tell: Some(tell), until: None });
    }

    /// Remembers whom to wake.
    pub(super) fn register_waker(&self, context: &Context<'_>) {
        let mut contents = self.lock();
        if contents.task.as_ref().is_none_or(|task| !task.will_wake(context.waker())) {
            contents.task = Some(context.waker().clone());
        }
    }

    /// Writes what there is by `write`, as far as it gets; whether anything was written.
    ///
    /// # Errors
    ///
    /// When it cannot be written on any more.
    pub(super) fn write(
        &self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> io::Result<bool> {
        let mut contents = self.lock();
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

    /// Who waits for the next of these answers, which are told in the same order.
    pub(super) fn next(&self) -> Option<ReplySender> {
        self.lock().waiting.pop_front().map(|waiting| waiting.tell.unwrap_or_else(nobody))
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// Whether those who sent are to be looked after.
    pub(super) fn has_deadlines(&self) -> bool {
        self.lock().watched
    }

    /// Tells those whose time has passed, and when to look again, if ever.
    pub(super) fn expire_overdue(&self, now: Instant) -> Option<Instant> {
        let mut contents = self.lock();
        let (mut late, mut first) = (Vec::new(), None::<Instant>);
        for PendingReply { tell, until } in &mut contents.waiting {
            match until {
                Some(at) if tell.is_some() && *at <= now => late.extend(tell.take()),
                Some(at) if tell.is_some() => {
                    first = Some(first.map_or(*at, |first| first.min(*at)))
                }
                _ => {}
            }
        }
        let sent = std::mem::take(&mut contents.sent);
        contents.watched = sent || first.is_some();
        let watched = contents.watched;
        drop(contents);
        // Whoever has given up does not miss it.
        late.into_iter().for_each(|tell| drop(tell.send(None)));
        let again = now.checked_add(WATCH_INTERVAL).unwrap_or(now);
        watched.then(|| first.map_or(again, |first| first.min(again)))
    }

    /// Lets go of everybody who waits: there will be no answer.
    pub(super) fn close(&self) {
        let gone = std::mem::take(&mut *self.lock());
        drop(gone);
    }
}

impl QueueContents {
    /// So many bytes more of what is outgoing were written.
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

/// In place of somebody who was told already.
fn nobody() -> ReplySender {
    oneshot::channel().0
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests {
    use std::io::Read;
    use std::sync::Arc;

    use super::*;
    use crate::clock;
    use crate::wake_count::WakeCount;

    /// A queue at which a task attends, and what is written on its socket.
    fn queue(most: usize) -> (WriteQueue, UnixStream, Arc<WakeCount>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let (queue, wakes) =
            (WriteQueue::new(Some(Socket::Unix(ours)), most), Arc::new(WakeCount::default()));
        queue.register_waker(&Context::from_waker(&Waker::from(Arc::clone(&wakes))));
        (queue, theirs, wakes)
    }

    fn written(theirs: &mut UnixStream) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let read = theirs.read(&mut bytes).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    fn heard(value: Value) -> Option<TimedReply> {
        Some((value, clock::now()))
    }

    fn value(told: &mut oneshot::Receiver<Option<TimedReply>>) -> Option<Value> {
        told.try_recv().unwrap().map(|(value, _)| value)
    }

    fn soon() -> Instant {
        clock::now() + WATCH_INTERVAL
    }

    #[test]
    fn a_few_write_for_themselves_and_the_rest_is_written_at_once() {
        let (queue, mut theirs, wakes) = queue(100);

        let told: Vec<_> = (b'a'..=b'h').map(|letter| queue.send(vec![letter], soon())).collect();

        assert!(told.iter().all(Option::is_some));
        assert_eq!(written(&mut theirs), b"abcd");
        assert_eq!(wakes.take(), 2, "to look after the first, and to write the fifth");
        let mut rest = Vec::new();
        let write = |slices: &[IoSlice<'_>]| {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            rest.push(bytes.clone());
            Poll::Ready(Ok(bytes.len()))
        };
        assert!(queue.write(write).unwrap());
        assert_eq!(rest, [b"efgh"]);
    }

    #[test]
    fn answers_go_to_those_who_asked_in_the_order_in_which_it_was_written() {
        let (queue, mut theirs, _) = queue(100);
        let (tell, mut put) = oneshot::channel();
        let mut first = queue.send(b"1".into(), soon()).unwrap();
        queue.put(b"2".into(), tell);
        // Something is to be written already, so this must not come before it.
        let mut third = queue.send(b"3".into(), soon()).unwrap();
        assert_eq!(written(&mut theirs), b"1");

        for number in 1..=3 {
            queue.next().unwrap().send(heard(Value::Number(number))).unwrap();
        }

        let answers = [&mut first, &mut put, &mut third].map(value);
        assert_eq!(answers, [1, 2, 3].map(|number| Some(Value::Number(number))));
        assert!(queue.next().is_none() && queue.is_empty());
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
    fn who_is_not_answered_is_told_at_its_deadline_and_its_answer_is_nobodys() {
        let (queue, _theirs, wakes) = queue(100);
        let now = clock::now();
        let mut early = queue.send(b"1".into(), now + WATCH_INTERVAL).unwrap();
        let mut later = queue.send(b"2".into(), now + 3 * WATCH_INTERVAL).unwrap();

        assert!(queue.has_deadlines());
        assert_eq!(queue.expire_overdue(now), Some(now + WATCH_INTERVAL));
        assert!(early.try_recv().is_err(), "its time has not passed");
        assert_eq!(queue.expire_overdue(now + WATCH_INTERVAL), Some(now + 2 * WATCH_INTERVAL));
        assert_eq!(early.try_recv(), Ok(None));

        assert!(queue.next().unwrap().send(heard(Value::Nil)).is_err(), "nobody hears it");
        queue.next().unwrap().send(heard(Value::Nil)).unwrap();
        assert_eq!(value(&mut later), Some(Value::Nil), "the next hears its own");
        assert_eq!(
            queue.expire_overdue(now + 2 * WATCH_INTERVAL),
            None,
            "there is nobody left to look after"
        );
        wakes.take();
        queue.send(b"3".into(), now + 4 * WATCH_INTERVAL).unwrap();
        assert_eq!(wakes.take(), 1, "whoever comes next has the task look again");
    }

    #[test]
    fn who_posts_while_the_task_still_looks_need_not_wake_it() {
        let (queue, _theirs, wakes) = queue(100);
        let now = clock::now();
        let sent = queue.send(b"1".into(), now + WATCH_INTERVAL).unwrap();
        assert_eq!(queue.expire_overdue(now), Some(now + WATCH_INTERVAL));
        queue.next().unwrap().send(heard(Value::Nil)).unwrap();
        drop(sent);
        wakes.take();

        // The task looks at `now + WATCH_INTERVAL`, before this could be late.
        queue.send(b"2".into(), now + WATCH_INTERVAL + WATCH_INTERVAL / 2).unwrap();

        assert_eq!(wakes.take(), 0);
        assert_eq!(
            queue.expire_overdue(now + WATCH_INTERVAL),
            Some(now + WATCH_INTERVAL + WATCH_INTERVAL / 2)
        );
    }

    #[test]
    fn no_more_are_posted_than_may_wait() {
        let (queue, _theirs, _) = queue(6);
        let sent: Vec<_> = (0..7).map(|_| queue.send(b"?".into(), soon())).collect();
        assert_eq!(sent.iter().filter(|sent| sent.is_some()).count(), 6);
        // Those who gave up take their place until they are answered.
        drop(sent);
        assert!(queue.send(b"?".into(), soon()).is_none());
        drop(queue.next().unwrap());
        assert!(queue.send(b"?".into(), soon()).is_some());
    }

    #[test]
    fn when_it_is_closed_nobody_waits_and_nobody_posts() {
        let (queue, mut theirs, _) = queue(100);
        let mut sent = queue.send(b"1".into(), soon()).unwrap();

        queue.close();

        assert!(matches!(sent.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(queue.send(b"2".into(), soon()).is_none());
        assert_eq!(written(&mut theirs), b"1");
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the socket is closed on this side");
    }
}
