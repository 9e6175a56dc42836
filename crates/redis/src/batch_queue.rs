//! The batch queue: callers that wait for a batch to be sent to Redis.
//!
//! Callers fill the open batch at its end; the driver takes another. So neither touches more than a
//! pointer of what the other works on.
//!
//! The oldest batch is sent first, until it has waited for too long. Then callers arrive faster than
//! Redis can serve them, and the newest batch is sent first: its callers are answered with time to
//! spare. In order, every request would be sent with little time left, and be charged without an
//! answer. Callers that waited in vain are rejected uncharged shortly before their deadline, not at
//! once: callers that retry at once would leave no processor time for the others.
#![allow(clippy::arithmetic_side_effects, reason = "counts of callers, which the queue bounds")]

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Instant;
use tollgate_core::lock_mutex;

/// Empty batches kept for their memory.
const SPARES: usize = 8;

#[derive(Debug)]
pub(crate) struct BatchQueue<B> {
    state: Mutex<QueueState<B>>,
    arrival: Notify,
    /// Charges in a full batch.
    batch_charges: usize,
    /// The most callers that wait at a time.
    most: usize,
    /// The whole time a caller waits.
    patience: Duration,
}

/// The reason a caller could not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueRejection {
    Full,
    Closed,
}

#[derive(Debug)]
struct QueueState<B> {
    full: VecDeque<QueuedBatch<B>>,
    open: QueuedBatch<B>,
    waiting: usize,
    spares: Vec<B>,
    /// The driver waits for `arrival`.
    asleep: bool,
    closed: bool,
}

/// A batch, with what the queue must know of its callers.
#[derive(Debug, Default)]
struct QueuedBatch<B> {
    batch: B,
    charges: usize,
    callers: usize,
    /// Deadlines of the first and the last caller.
    deadlines: Option<(Instant, Instant)>,
}

impl<B: Default> BatchQueue<B> {
    pub(crate) fn new(batch_charges: usize, most: usize, patience: Duration) -> Self {
        let state = QueueState {
            full: VecDeque::new(),
            open: QueuedBatch::default(),
            waiting: 0,
            spares: Vec::new(),
            asleep: false,
            closed: false,
        };
        Self { state: Mutex::new(state), arrival: Notify::new(), batch_charges, most, patience }
    }

    /// Returns the least time a caller must have left to be sent. With less, it would most likely
    /// be charged and time out.
    pub(crate) fn min_time_left(&self) -> Duration {
        self.patience.checked_div(4).unwrap_or_default()
    }

    /// Lets one caller with this many charges join the open batch.
    pub(crate) fn join<T>(
        &self,
        charges: usize,
        deadline: Instant,
        enter: impl FnOnce(&mut B) -> T,
    ) -> Result<T, QueueRejection> {
        let mut state = lock_mutex(&self.state);
        if state.closed {
            return Err(QueueRejection::Closed);
        }
        if state.waiting >= self.most {
            return Err(QueueRejection::Full);
        }
        state.waiting += 1;
        let open = &mut state.open;
        let entered = enter(&mut open.batch);
        open.charges += charges;
        open.callers += 1;
        open.deadlines = Some((open.deadlines.map_or(deadline, |(first, _)| first), deadline));
        if open.charges >= self.batch_charges {
            let batch = state.next_open();
            state.full.push_back(batch);
        }
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.arrival.notify_one();
        }
        Ok(entered)
    }

    /// Waits for the next batch. Returns `None` after the queue was closed.
    pub(crate) async fn next_batch(&self, now: impl Fn() -> Instant) -> Option<B> {
        loop {
            {
                let mut state = lock_mutex(&self.state);
                if state.closed {
                    return None;
                }
                if state.waiting > 0 {
                    let batch = if self.is_overloaded(&state, now()) {
                        state.full.pop_back()
                    } else {
                        state.full.pop_front()
                    };
                    let batch = batch.unwrap_or_else(|| state.next_open());
                    state.waiting -= batch.callers;
                    return Some(batch.batch);
                }
                state.asleep = true;
            }
            self.arrival.notified().await;
        }
    }

    /// Takes a full batch whose callers have too little time left. The open batch is sent before
    /// that happens.
    pub(crate) fn expired(&self, now: Instant) -> Option<B> {
        let least = self.min_time_left();
        // The last caller of a batch is its youngest.
        let is_over = |batch: &mut QueuedBatch<B>| {
            batch.deadlines.is_some_and(|(_, last)| left(last, now) < least)
        };
        let mut state = lock_mutex(&self.state);
        let batch = state.full.pop_front_if(is_over)?;
        state.waiting -= batch.callers;
        Some(batch.batch)
    }

    /// Returns whether the oldest batch has waited so long that the newest goes first.
    fn is_overloaded(&self, state: &QueueState<B>, now: Instant) -> bool {
        let first = state.full.front().and_then(|batch| batch.deadlines);
        first.is_some_and(|(first, _)| {
            left(first, now).saturating_add(self.min_time_left()) < self.patience
        })
    }

    /// Keeps an empty batch for its memory.
    pub(crate) fn recycle(&self, batch: B) {
        let mut state = lock_mutex(&self.state);
        if state.spares.len() < SPARES {
            state.spares.push(batch);
        }
    }

    /// Rejects all further callers and drops those that wait.
    pub(crate) fn close(&self) {
        let mut state = lock_mutex(&self.state);
        state.closed = true;
        let dropped = (std::mem::take(&mut state.full), std::mem::take(&mut state.open));
        drop(state);
        drop(dropped);
        self.arrival.notify_one();
    }
}

impl<B: Default> QueueState<B> {
    /// Takes the open batch and opens another.
    fn next_open(&mut self) -> QueuedBatch<B> {
        let batch = self.spares.pop().unwrap_or_default();
        std::mem::replace(&mut self.open, QueuedBatch { batch, ..QueuedBatch::default() })
    }
}

fn left(deadline: Instant, now: Instant) -> Duration {
    deadline.saturating_duration_since(now)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::clock;

    const MS: Duration = Duration::from_millis(1);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Caller(usize, Instant);

    type Callers = Vec<Caller>;

    fn queue() -> BatchQueue<Callers> {
        BatchQueue::new(256, 10_000, 20 * MS)
    }

    fn join(queue: &BatchQueue<Callers>, caller: Caller) -> Result<(), QueueRejection> {
        queue.join(caller.0, caller.1, |batch| batch.push(caller))
    }

    /// The batch that is sent at `now`, if any.
    fn batch(queue: &BatchQueue<Callers>, now: Instant) -> Option<Vec<Caller>> {
        match pin!(queue.next_batch(|| now)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(batch) => batch,
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_batch_is_full_with_its_last_caller_which_is_not_split() {
        let (queue, now) = (queue(), clock::now());
        let caller = |charges| Caller(charges, now + 20 * MS);
        for charges in [255, 256, 1] {
            join(&queue, caller(charges)).unwrap();
        }

        assert_eq!(batch(&queue, now), Some(vec![caller(255), caller(256)]), "511 charges at most");
        assert_eq!(batch(&queue, now), Some(vec![caller(1)]), "the open batch is sent");
        assert_eq!(batch(&queue, now), None);
    }

    #[test]
    fn one_more_than_may_wait_is_turned_away() {
        let (queue, now) = (queue(), clock::now());
        let caller = Caller(1, now + 20 * MS);
        for _ in 0..10_000 {
            join(&queue, caller).unwrap();
        }

        assert_eq!(join(&queue, caller), Err(QueueRejection::Full));

        assert_eq!(batch(&queue, now).unwrap().len(), 256);
        assert_eq!(join(&queue, caller), Ok(()), "there is room again");
    }

    #[test]
    fn the_newest_batch_is_sent_first_while_the_oldest_has_waited_for_too_long() {
        let (queue, start) = (&queue(), clock::now());
        // A full batch each millisecond.
        let caller = |ms: u32| Caller(256, start + (20 + ms) * MS);
        for ms in 0..16 {
            join(queue, caller(ms)).unwrap();
        }

        assert_eq!(batch(queue, start + 5 * MS), Some(vec![caller(0)]), "in order so far");
        assert_eq!(batch(queue, start + 6 * MS + MS / 2), Some(vec![caller(15)]));
        assert_eq!(batch(queue, start + 19 * MS), Some(vec![caller(14)]));
        let expired = |ms| std::iter::from_fn(move || queue.expired(start + ms * MS)).flatten();
        assert_eq!(expired(19).collect::<Vec<_>>(), [1, 2, 3].map(caller));
        assert_eq!(expired(40).collect::<Vec<_>>(), [4, 5, 6, 7, 8, 9, 10, 11, 12, 13].map(caller));
    }

    #[test]
    fn a_closed_queue_drops_its_callers_and_takes_no_more() {
        let (queue, now) = (queue(), clock::now());
        join(&queue, Caller(1, now)).unwrap();

        queue.close();

        assert_eq!(join(&queue, Caller(1, now)), Err(QueueRejection::Closed));
        assert_eq!(batch(&queue, now), None);
    }
}
