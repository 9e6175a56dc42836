//! Where callers wait for a flight: in loads, each of which becomes one batch.
//!
//! Callers fill the last load, the driver takes another, so neither touches more than a pointer of
//! what the other works on.
//!
//! The first load departs first, until it has waited for too long. Then more come than Redis can
//! serve, and the latest departs first: those aboard are answered with time to spare, where in
//! order everybody would be sent with the little that is left of its time, and be charged without
//! being told. Those who waited in vain are turned away uncharged shortly before their deadline,
//! and not at once: callers that ask again at once would leave no processor time for the others.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Instant;

/// How many empty loads are kept for their memory.
const SPARES: usize = 8;

/// What callers fill, and what departs as a whole.
pub(crate) trait Load: Default {
    /// How full it is.
    fn charges(&self) -> usize;

    /// How many callers are in it.
    fn callers(&self) -> usize;

    /// Until when the one who came first waits, and the one who came last.
    fn deadlines(&self) -> Option<(Instant, Instant)>;

    /// Empties it, but keeps its memory.
    fn clear(&mut self);
}

#[derive(Debug)]
pub(crate) struct Queue<L> {
    line: Mutex<Line<L>>,
    arrival: Notify,
    /// Charges that make a load full.
    load: usize,
    /// The most that wait at a time.
    most: usize,
    /// How long a caller waits in all.
    patience: Duration,
}

/// Why somebody was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnedAway {
    Full,
    Closed,
}

#[derive(Debug)]
struct Line<L> {
    full: VecDeque<L>,
    open: L,
    waiting: usize,
    spares: Vec<L>,
    /// Whether the driver sleeps and must be woken.
    asleep: bool,
    closed: bool,
}

impl<L: Load> Queue<L> {
    pub(crate) fn new(load: usize, most: usize, patience: Duration) -> Self {
        let line = Line {
            full: VecDeque::new(),
            open: L::default(),
            waiting: 0,
            spares: Vec::new(),
            asleep: false,
            closed: false,
        };
        Self { line: Mutex::new(line), arrival: Notify::new(), load, most, patience }
    }

    /// With less than this left of its time nobody departs: it would most likely be charged and
    /// told that it may have been.
    pub(crate) fn least(&self) -> Duration {
        self.patience.checked_div(4).unwrap_or_default()
    }

    /// Has one caller put itself into the last load.
    pub(crate) fn join<T>(&self, enter: impl FnOnce(&mut L) -> T) -> Result<T, TurnedAway> {
        let mut line = self.lock();
        if line.closed {
            return Err(TurnedAway::Closed);
        }
        if line.waiting >= self.most {
            return Err(TurnedAway::Full);
        }
        let entered = enter(&mut line.open);
        line.waiting = line.waiting.saturating_add(1);
        if line.open.charges() >= self.load {
            let load = line.next_open();
            line.full.push_back(load);
        }
        let asleep = std::mem::take(&mut line.asleep);
        drop(line);
        if asleep {
            self.arrival.notify_one();
        }
        Ok(entered)
    }

    /// The next load, once there is one; nothing after the queue was closed.
    pub(crate) async fn depart(&self, now: impl Fn() -> Instant) -> Option<L> {
        loop {
            {
                let mut line = self.lock();
                if line.closed {
                    return None;
                }
                if line.waiting > 0 {
                    let load = if self.is_late(&line, now()) {
                        line.full.pop_back()
                    } else {
                        line.full.pop_front()
                    };
                    let load = load.unwrap_or_else(|| line.next_open());
                    line.waiting = line.waiting.saturating_sub(load.callers());
                    return Some(load);
                }
                line.asleep = true;
            }
            self.arrival.notified().await;
        }
    }

    /// A load whose time has run out. The open one departs before that happens to it.
    pub(crate) fn expired(&self, now: Instant) -> Option<L> {
        let least = self.least();
        // The last of a load is its youngest.
        let is_over =
            |load: &mut L| load.deadlines().is_some_and(|(_, last)| left(last, now) < least);
        let mut line = self.lock();
        let load = line.full.pop_front_if(is_over)?;
        line.waiting = line.waiting.saturating_sub(load.callers());
        Some(load)
    }

    /// Whether the first has waited for so long that nobody should who comes now.
    fn is_late(&self, line: &Line<L>, now: Instant) -> bool {
        let first = line.full.front().and_then(Load::deadlines);
        first
            .is_some_and(|(first, _)| left(first, now).saturating_add(self.least()) < self.patience)
    }

    /// Takes back a load for its memory.
    pub(crate) fn give_back(&self, mut load: L) {
        load.clear();
        let mut line = self.lock();
        if line.spares.len() < SPARES {
            line.spares.push(load);
        }
    }

    /// Lets nobody in any more, and drops those who wait.
    pub(crate) fn close(&self) {
        let mut line = self.lock();
        line.closed = true;
        let dropped = (std::mem::take(&mut line.full), std::mem::take(&mut line.open));
        drop(line);
        drop(dropped);
        self.arrival.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Line<L>> {
        // Nothing panics while it is held; if something did, the line is whole all the same.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Load> Line<L> {
    /// Takes the open load and opens another.
    fn next_open(&mut self) -> L {
        let next = self.spares.pop().unwrap_or_default();
        std::mem::replace(&mut self.open, next)
    }
}

fn left(deadline: Instant, now: Instant) -> Duration {
    deadline.saturating_duration_since(now)
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::clock;

    const MS: Duration = Duration::from_millis(1);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Job(usize, Instant);

    impl Load for Vec<Job> {
        fn charges(&self) -> usize {
            self.iter().map(|job| job.0).sum()
        }

        fn callers(&self) -> usize {
            self.len()
        }

        fn deadlines(&self) -> Option<(Instant, Instant)> {
            self.first().zip(self.last()).map(|(first, last)| (first.1, last.1))
        }

        fn clear(&mut self) {
            self.clear();
        }
    }

    type Jobs = Vec<Job>;

    fn queue() -> Queue<Jobs> {
        Queue::new(256, 10_000, 20 * MS)
    }

    fn join(queue: &Queue<Jobs>, job: Job) -> Result<(), TurnedAway> {
        queue.join(|load| load.push(job))
    }

    /// What departs at `now`, if something does.
    fn load(queue: &Queue<Jobs>, now: Instant) -> Option<Vec<Job>> {
        match pin!(queue.depart(|| now)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(load) => load,
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_load_is_full_with_its_last_job_which_is_not_torn_apart() {
        let (queue, now) = (queue(), clock::now());
        let job = |charges| Job(charges, now + 20 * MS);
        for charges in [255, 256, 1] {
            join(&queue, job(charges)).unwrap();
        }

        assert_eq!(load(&queue, now), Some(vec![job(255), job(256)]), "511 charges at most");
        assert_eq!(load(&queue, now), Some(vec![job(1)]), "what is there departs");
        assert_eq!(load(&queue, now), None);
    }

    #[test]
    fn one_more_than_may_wait_is_turned_away() {
        let (queue, now) = (queue(), clock::now());
        let job = Job(1, now + 20 * MS);
        for _ in 0..10_000 {
            join(&queue, job).unwrap();
        }

        assert_eq!(join(&queue, job), Err(TurnedAway::Full));

        assert_eq!(load(&queue, now).unwrap().len(), 256);
        assert_eq!(join(&queue, job), Ok(()), "there is room again");
    }

    #[test]
    fn the_latest_departs_first_while_the_first_has_waited_for_too_long() {
        let (queue, start) = (&queue(), clock::now());
        // A full load each millisecond.
        let job = |ms: u32| Job(256, start + (20 + ms) * MS);
        for ms in 0..16 {
            join(queue, job(ms)).unwrap();
        }

        assert_eq!(load(queue, start + 5 * MS), Some(vec![job(0)]), "in order so far");
        assert_eq!(load(queue, start + 6 * MS + MS / 2), Some(vec![job(15)]));
        assert_eq!(load(queue, start + 19 * MS), Some(vec![job(14)]));
        let expired = |ms| std::iter::from_fn(move || queue.expired(start + ms * MS)).flatten();
        assert_eq!(expired(19).collect::<Vec<_>>(), [1, 2, 3].map(job));
        assert_eq!(expired(40).collect::<Vec<_>>(), [4, 5, 6, 7, 8, 9, 10, 11, 12, 13].map(job));
    }

    #[test]
    fn a_closed_queue_drops_who_waits_and_lets_nobody_in() {
        let (queue, now) = (queue(), clock::now());
        join(&queue, Job(1, now)).unwrap();

        queue.close();

        assert_eq!(join(&queue, Job(1, now)), Err(TurnedAway::Closed));
        assert_eq!(load(&queue, now), None);
    }
}
