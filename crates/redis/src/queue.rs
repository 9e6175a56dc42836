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

/// What fills a load.
pub(crate) trait Load {
    fn charges(&self) -> usize;

    fn deadline(&self) -> Instant;
}

#[derive(Debug)]
pub(crate) struct Queue<J> {
    line: Mutex<Line<J>>,
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
struct Line<J> {
    full: VecDeque<Vec<J>>,
    open: Vec<J>,
    /// Charges in the open load.
    charges: usize,
    waiting: usize,
    spares: Vec<Vec<J>>,
    /// Whether the driver sleeps and must be woken.
    asleep: bool,
    closed: bool,
}

impl<J: Load> Queue<J> {
    pub(crate) fn new(load: usize, most: usize, patience: Duration) -> Self {
        let line = Line {
            full: VecDeque::new(),
            open: Vec::new(),
            charges: 0,
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

    /// Joins the last load.
    pub(crate) fn join(&self, job: J) -> Result<(), TurnedAway> {
        let charges = job.charges();
        let mut line = self.lock();
        if line.closed {
            return Err(TurnedAway::Closed);
        }
        if line.waiting >= self.most {
            return Err(TurnedAway::Full);
        }
        line.open.push(job);
        line.waiting = line.waiting.saturating_add(1);
        line.charges = line.charges.saturating_add(charges);
        if line.charges >= self.load {
            let load = line.next_open();
            line.full.push_back(load);
        }
        let asleep = std::mem::take(&mut line.asleep);
        drop(line);
        if asleep {
            self.arrival.notify_one();
        }
        Ok(())
    }

    /// The next load, once there is one; nothing after the queue was closed.
    pub(crate) async fn depart(&self, now: impl Fn() -> Instant) -> Option<Vec<J>> {
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
                    line.waiting = line.waiting.saturating_sub(load.len());
                    return Some(load);
                }
                line.asleep = true;
            }
            self.arrival.notified().await;
        }
    }

    /// A load whose time has run out. The open one departs before that happens to it.
    pub(crate) fn expired(&self, now: Instant) -> Option<Vec<J>> {
        let least = self.least();
        // The last of a load is its youngest.
        let is_over = |load: &mut Vec<J>| load.last().is_some_and(|job| left(job, now) < least);
        let mut line = self.lock();
        let load = line.full.pop_front_if(is_over)?;
        line.waiting = line.waiting.saturating_sub(load.len());
        Some(load)
    }

    /// Whether the first has waited for so long that nobody should who comes now.
    fn is_late(&self, line: &Line<J>, now: Instant) -> bool {
        let first = line.full.front().and_then(|load| load.first());
        first.is_some_and(|job| left(job, now).saturating_add(self.least()) < self.patience)
    }

    /// Takes back a load for its memory.
    pub(crate) fn give_back(&self, mut load: Vec<J>) {
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

    fn lock(&self) -> MutexGuard<'_, Line<J>> {
        // Nothing panics while it is held; if something did, the line is whole all the same.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> Line<J> {
    /// Takes the open load and opens another.
    fn next_open(&mut self) -> Vec<J> {
        self.charges = 0;
        let next = self.spares.pop().unwrap_or_default();
        std::mem::replace(&mut self.open, next)
    }
}

fn left(job: &impl Load, now: Instant) -> Duration {
    job.deadline().saturating_duration_since(now)
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

    impl Load for Job {
        fn charges(&self) -> usize {
            self.0
        }

        fn deadline(&self) -> Instant {
            self.1
        }
    }

    fn queue() -> Queue<Job> {
        Queue::new(256, 10_000, 20 * MS)
    }

    /// What departs at `now`, if something does.
    fn load(queue: &Queue<Job>, now: Instant) -> Option<Vec<Job>> {
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
            queue.join(job(charges)).unwrap();
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
            queue.join(job).unwrap();
        }

        assert_eq!(queue.join(job), Err(TurnedAway::Full));

        assert_eq!(load(&queue, now).unwrap().len(), 256);
        assert_eq!(queue.join(job), Ok(()), "there is room again");
    }

    #[test]
    fn the_latest_departs_first_while_the_first_has_waited_for_too_long() {
        let (queue, start) = (&queue(), clock::now());
        // A full load each millisecond.
        let job = |ms: u32| Job(256, start + (20 + ms) * MS);
        for ms in 0..16 {
            queue.join(job(ms)).unwrap();
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
        queue.join(Job(1, now)).unwrap();

        queue.close();

        assert_eq!(queue.join(Job(1, now)), Err(TurnedAway::Closed));
        assert_eq!(load(&queue, now), None);
    }
}
