//! What is to be written on a connection and who waits for an answer: shared by the task behind it
//! (`talk.rs`) and those who ask.
//!
//! A question usually goes to that task, which writes it. Whoever *posts* one writes it itself, if nothing
//! else is to be written, as to wake another thread takes longer than to write. If as many are under way
//! as is good, it is left for the task, which is woken for the first of those: so what is asked meanwhile
//! is written at once.
//!
//! Somebody must tell who posted that no answer came. The task does, by its own clock: while there are
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
pub(super) type Heard = (Value, Instant);

/// Where an answer goes: `None` if there was none in time.
pub(super) type Tell = oneshot::Sender<Option<Heard>>;

/// How long the task goes on looking when there was nothing to look after. No question that is posted has
/// less time than this, so that a look comes before its end. Steps on locks have more.
pub(crate) const WATCH: Duration = Duration::from_millis(200);

/// Questions under way up to which one more is written by who posts it: a few tasks do not wait for each
/// other's answers, and many share what they take to write.
const AHEAD: usize = 4;

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
pub(super) struct Desk {
    papers: Mutex<Papers>,
    /// How many may wait for an answer before nobody posts any more.
    most: usize,
}

#[derive(Debug, Default)]
struct Papers {
    /// None where a question cannot simply be written, and when the talk is over.
    socket: Option<Socket>,
    /// What is to be written, and how much of the first has been.
    outgoing: VecDeque<Vec<u8>>,
    written: usize,
    /// Who waits for an answer, in order; with those whose question is not written yet.
    waiting: VecDeque<Waiting>,
    task: Option<Waker>,
    /// Whether the task looks after those who posted, and whether anybody did since its last look.
    watched: bool,
    posted: bool,
}

#[derive(Debug)]
struct Waiting {
    /// None once it was told.
    tell: Option<Tell>,
    until: Option<Instant>,
}

impl Desk {
    pub(super) fn new(socket: Option<Socket>, most: usize) -> Self {
        Self { papers: Mutex::new(Papers { socket, ..Papers::default() }), most }
    }

    fn lock(&self) -> MutexGuard<'_, Papers> {
        // Every edit is whole before anything could panic.
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a question, or leaves it to the task; `None` if it must go another way. It has [`WATCH`] at
    /// least to be answered.
    pub(super) fn post(
        &self,
        command: Vec<u8>,
        until: Instant,
    ) -> Option<oneshot::Receiver<Option<Heard>>> {
        let (tell, told) = oneshot::channel();
        let mut papers = self.lock();
        let socket = papers.socket.as_ref()?;
        if papers.waiting.len() >= self.most {
            return None;
        }
        let mut wake = false;
        if papers.outgoing.is_empty() && papers.waiting.len() < AHEAD {
            let written = match socket.write(&command) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                // The task finds out by itself.
                Err(_) => return None,
            };
            if written < command.len() {
                papers.written = written;
                papers.outgoing.push_back(command);
                wake = true;
            }
        } else {
            // The next answer may be far; those who come after this one need not wake it again.
            wake = papers.outgoing.is_empty();
            papers.outgoing.push_back(command);
        }
        papers.waiting.push_back(Waiting { tell: Some(tell), until: Some(until) });
        papers.posted = true;
        wake |= !std::mem::replace(&mut papers.watched, true);
        let task = papers.task.as_ref().filter(|_| wake).cloned();
        drop(papers);
        if let Some(task) = task {
            task.wake();
        }
        Some(told)
    }

    /// The task has this question to write.
    pub(super) fn put(&self, command: Vec<u8>, tell: Tell) {
        let mut papers = self.lock();
        papers.outgoing.push_back(command);
        papers.waiting.push_back(Waiting { tell: Some(tell), until: None });
    }

    /// Remembers whom to wake.
    pub(super) fn attend(&self, context: &Context<'_>) {
        let mut papers = self.lock();
        if papers.task.as_ref().is_none_or(|task| !task.will_wake(context.waker())) {
            papers.task = Some(context.waker().clone());
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
        let mut papers = self.lock();
        let mut any = false;
        while !papers.outgoing.is_empty() {
            let mut slices = [IoSlice::new(&[]); AT_ONCE];
            let mut begun = papers.written;
            for (slice, command) in slices.iter_mut().zip(&papers.outgoing) {
                *slice = IoSlice::new(command.get(std::mem::take(&mut begun)..).unwrap_or(&[]));
            }
            let filled = slices.get(..papers.outgoing.len()).unwrap_or(&slices);
            match write(filled) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(bytes) => papers.wrote(bytes?),
            }
            any = true;
        }
        Ok(any)
    }

    /// Who waits for the next of these answers, which are told in the same order.
    pub(super) fn next(&self) -> Option<Tell> {
        self.lock().waiting.pop_front().map(|waiting| waiting.tell.unwrap_or_else(nobody))
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// Whether those who posted are to be looked after.
    pub(super) fn is_watched(&self) -> bool {
        self.lock().watched
    }

    /// Tells those whose time has passed, and when to look again, if ever.
    pub(super) fn look(&self, now: Instant) -> Option<Instant> {
        let mut papers = self.lock();
        let (mut late, mut first) = (Vec::new(), None::<Instant>);
        for Waiting { tell, until } in &mut papers.waiting {
            match until {
                Some(at) if tell.is_some() && *at <= now => late.extend(tell.take()),
                Some(at) if tell.is_some() => {
                    first = Some(first.map_or(*at, |first| first.min(*at)))
                }
                _ => {}
            }
        }
        let posted = std::mem::take(&mut papers.posted);
        papers.watched = posted || first.is_some();
        let watched = papers.watched;
        drop(papers);
        // Whoever has given up does not miss it.
        late.into_iter().for_each(|tell| drop(tell.send(None)));
        let again = now.checked_add(WATCH).unwrap_or(now);
        watched.then(|| first.map_or(again, |first| first.min(again)))
    }

    /// Lets go of everybody who waits: there will be no answer.
    pub(super) fn close(&self) {
        let gone = std::mem::take(&mut *self.lock());
        drop(gone);
    }
}

impl Papers {
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
fn nobody() -> Tell {
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

    /// A desk at which a task attends, and what is written on its socket.
    fn desk(most: usize) -> (Desk, UnixStream, Arc<WakeCount>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let (desk, wakes) =
            (Desk::new(Some(Socket::Unix(ours)), most), Arc::new(WakeCount::default()));
        desk.attend(&Context::from_waker(&Waker::from(Arc::clone(&wakes))));
        (desk, theirs, wakes)
    }

    fn written(theirs: &mut UnixStream) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let read = theirs.read(&mut bytes).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    fn heard(value: Value) -> Option<Heard> {
        Some((value, clock::now()))
    }

    fn value(told: &mut oneshot::Receiver<Option<Heard>>) -> Option<Value> {
        told.try_recv().unwrap().map(|(value, _)| value)
    }

    fn soon() -> Instant {
        clock::now() + WATCH
    }

    #[test]
    fn a_few_write_for_themselves_and_the_rest_is_written_at_once() {
        let (desk, mut theirs, wakes) = desk(100);

        let told: Vec<_> = (b'a'..=b'h').map(|letter| desk.post(vec![letter], soon())).collect();

        assert!(told.iter().all(Option::is_some));
        assert_eq!(written(&mut theirs), b"abcd");
        assert_eq!(wakes.take(), 2, "to look after the first, and to write the fifth");
        let mut rest = Vec::new();
        let write = |slices: &[IoSlice<'_>]| {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            rest.push(bytes.clone());
            Poll::Ready(Ok(bytes.len()))
        };
        assert!(desk.write(write).unwrap());
        assert_eq!(rest, [b"efgh"]);
    }

    #[test]
    fn answers_go_to_those_who_asked_in_the_order_in_which_it_was_written() {
        let (desk, mut theirs, _) = desk(100);
        let (tell, mut put) = oneshot::channel();
        let mut first = desk.post(b"1".into(), soon()).unwrap();
        desk.put(b"2".into(), tell);
        // Something is to be written already, so this must not come before it.
        let mut third = desk.post(b"3".into(), soon()).unwrap();
        assert_eq!(written(&mut theirs), b"1");

        for number in 1..=3 {
            desk.next().unwrap().send(heard(Value::Number(number))).unwrap();
        }

        let answers = [&mut first, &mut put, &mut third].map(value);
        assert_eq!(answers, [1, 2, 3].map(|number| Some(Value::Number(number))));
        assert!(desk.next().is_none() && desk.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_left_to_the_task_which_is_woken() {
        let (desk, mut theirs, wakes) = desk(100);
        let long = vec![b'x'; 1 << 23];
        desk.post(long.clone(), soon()).unwrap();
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
        desk.write(write).unwrap();

        assert!(arrived > 0 && rest > 0, "{arrived} and {rest}");
        assert_eq!(arrived + rest, long.len());
    }

    #[test]
    fn who_is_not_answered_is_told_at_its_deadline_and_its_answer_is_nobodys() {
        let (desk, _theirs, wakes) = desk(100);
        let now = clock::now();
        let mut early = desk.post(b"1".into(), now + WATCH).unwrap();
        let mut later = desk.post(b"2".into(), now + 3 * WATCH).unwrap();

        assert!(desk.is_watched());
        assert_eq!(desk.look(now), Some(now + WATCH));
        assert!(early.try_recv().is_err(), "its time has not passed");
        assert_eq!(desk.look(now + WATCH), Some(now + 2 * WATCH));
        assert_eq!(early.try_recv(), Ok(None));

        assert!(desk.next().unwrap().send(heard(Value::Nil)).is_err(), "nobody hears it");
        desk.next().unwrap().send(heard(Value::Nil)).unwrap();
        assert_eq!(value(&mut later), Some(Value::Nil), "the next hears its own");
        assert_eq!(desk.look(now + 2 * WATCH), None, "there is nobody left to look after");
        wakes.take();
        desk.post(b"3".into(), now + 4 * WATCH).unwrap();
        assert_eq!(wakes.take(), 1, "whoever comes next has the task look again");
    }

    #[test]
    fn who_posts_while_the_task_still_looks_need_not_wake_it() {
        let (desk, _theirs, wakes) = desk(100);
        let now = clock::now();
        let posted = desk.post(b"1".into(), now + WATCH).unwrap();
        assert_eq!(desk.look(now), Some(now + WATCH));
        desk.next().unwrap().send(heard(Value::Nil)).unwrap();
        drop(posted);
        wakes.take();

        // The task looks at `now + WATCH`, before this could be late.
        desk.post(b"2".into(), now + WATCH + WATCH / 2).unwrap();

        assert_eq!(wakes.take(), 0);
        assert_eq!(desk.look(now + WATCH), Some(now + WATCH + WATCH / 2));
    }

    #[test]
    fn no_more_are_posted_than_may_wait() {
        let (desk, _theirs, _) = desk(6);
        let posted: Vec<_> = (0..7).map(|_| desk.post(b"?".into(), soon())).collect();
        assert_eq!(posted.iter().filter(|posted| posted.is_some()).count(), 6);
        // Those who gave up take their place until they are answered.
        drop(posted);
        assert!(desk.post(b"?".into(), soon()).is_none());
        drop(desk.next().unwrap());
        assert!(desk.post(b"?".into(), soon()).is_some());
    }

    #[test]
    fn when_it_is_closed_nobody_waits_and_nobody_posts() {
        let (desk, mut theirs, _) = desk(100);
        let mut posted = desk.post(b"1".into(), soon()).unwrap();

        desk.close();

        assert!(matches!(posted.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(desk.post(b"2".into(), soon()).is_none());
        assert_eq!(written(&mut theirs), b"1");
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the socket is closed on this side");
    }
}
