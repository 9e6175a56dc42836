//! The callers that wait for one batch, and the delivery of their answers.
//!
//! They share one list, which each caller locks twice: to join and to take its answer. [`Waiters`] is
//! the driver's side, a [`WaiterHandle`] a caller's.
//!
//! A waker is never dropped under the lock. It may be the last owner of a task, and with it of another
//! caller's handle on the same list.

use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tollgate_core::{StoreError, StoreErrorKind};

use crate::batch::PendingAnswer;
use crate::clock::Instant;
use crate::error::Cause;
use tollgate_core::lock_mutex;

#[derive(Debug, Default)]
struct WaitList {
    waiters: Vec<Waiter>,
    /// Number of requests of all waiters.
    requests: usize,
    /// Answers by the place of each request; empty until something is delivered.
    answers: Vec<PendingAnswer>,
    /// The reason for `Failed` and `PartlyCharged`.
    error: Option<StoreError>,
}

#[derive(Debug)]
struct Waiter {
    waker: Option<Waker>,
    deadline: Instant,
    /// The places of its requests.
    places: Range<usize>,
    state: WaiterState,
}

/// The state of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaiterState {
    Waiting,
    /// The caller dropped its handle.
    GaveUp,
    /// The deadline was too near to send the requests.
    Expired,
    /// The answers can be taken.
    Answered,
    /// The batch failed before any answer.
    Failed,
    /// The batch failed after some of its requests were answered.
    PartlyCharged,
}

impl WaitList {
    /// Sets the state of those waiting for whom `state` returns one. Returns the wakers to wake.
    fn settle(&mut self, mut state: impl FnMut(&Waiter) -> Option<WaiterState>) -> Vec<Waker> {
        let mut wakers = Vec::with_capacity(self.waiters.len());
        for waiter in &mut self.waiters {
            if waiter.state == WaiterState::Waiting
                && let Some(state) = state(waiter)
            {
                waiter.state = state;
                wakers.extend(waiter.waker.take());
            }
        }
        wakers
    }
}

fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

/// A caller's side of a wait. Dropping it early gives up.
#[derive(Debug)]
pub(crate) struct WaiterHandle {
    list: Arc<Mutex<WaitList>>,
    waiter: usize,
    taken: bool,
}

impl WaiterHandle {
    /// Passes the answers to `take` once they are there. They can be taken once.
    pub(crate) fn poll<T>(
        &mut self,
        context: &Context<'_>,
        take: impl FnOnce(&mut [PendingAnswer]) -> T,
    ) -> Poll<Result<T, StoreError>> {
        let mut list = lock_mutex(&self.list);
        let WaitList { waiters, answers, error, .. } = &mut *list;
        let Some(waiter) = waiters.get_mut(self.waiter) else {
            return Poll::Ready(Err(StoreError::new(StoreErrorKind::Timeout)));
        };
        let answers = match waiter.state {
            WaiterState::Waiting => {
                let known = waiter.waker.as_ref().is_some_and(|w| w.will_wake(context.waker()));
                let old = (!known).then(|| waiter.waker.replace(context.waker().clone()));
                drop(list);
                drop(old);
                return Poll::Pending;
            }
            WaiterState::Answered => {
                Ok(take(answers.get_mut(waiter.places.clone()).unwrap_or_default()))
            }
            WaiterState::GaveUp | WaiterState::Expired => Err(Cause::DeadlinePassed.unavailable()),
            WaiterState::Failed | WaiterState::PartlyCharged => {
                // Without a reason, the driver's thread has ended.
                let error = error.clone().unwrap_or(StoreError::new(StoreErrorKind::Timeout));
                let partly = waiter.state == WaiterState::PartlyCharged;
                Err(if partly { error.after_a_charge() } else { error })
            }
        };
        drop(list);
        self.taken = true;
        Poll::Ready(answers)
    }
}

impl Drop for WaiterHandle {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut list = lock_mutex(&self.list);
        let waker = match list.waiters.get_mut(self.waiter) {
            Some(waiter) if waiter.state == WaiterState::Waiting => {
                waiter.state = WaiterState::GaveUp;
                waiter.waker.take()
            }
            _ => None,
        };
        drop(list);
        drop(waker);
    }
}

/// The driver's side of the wait for one batch. Dropping it fails every caller that still waits.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Arc<Mutex<WaitList>>);

impl Waiters {
    /// Adds a caller with this many requests.
    pub(crate) fn add(&self, requests: usize, deadline: Instant, waker: Waker) -> WaiterHandle {
        let mut list = lock_mutex(&self.0);
        let places = list.requests..list.requests.saturating_add(requests);
        list.requests = places.end;
        let (waker, state) = (Some(waker), WaiterState::Waiting);
        list.waiters.push(Waiter { waker, deadline, places, state });
        let waiter = list.waiters.len().saturating_sub(1);
        drop(list);
        WaiterHandle { list: Arc::clone(&self.0), waiter, taken: false }
    }

    /// Drops callers that gave up, and rejects those whose deadline is before `earliest`. Returns the
    /// earliest deadline of the others, and for each request whether it is still live, unless all
    /// are.
    pub(crate) fn retain_live(&self, earliest: Instant) -> (Option<Instant>, Option<Vec<bool>>) {
        let mut list = lock_mutex(&self.0);
        let wakers =
            list.settle(|waiter| (waiter.deadline < earliest).then_some(WaiterState::Expired));
        let is_live = |waiter: &&Waiter| waiter.state == WaiterState::Waiting;
        let deadline = list.waiters.iter().filter(is_live).map(|waiter| waiter.deadline).min();
        let live = (!list.waiters.iter().all(|waiter| is_live(&waiter))).then(|| {
            let live =
                list.waiters.iter().map(|waiter| vec![is_live(&waiter); waiter.places.len()]);
            live.flatten().collect()
        });
        drop(list);
        wake(wakers);
        (deadline, live)
    }

    /// Rejects every caller, uncharged.
    pub(crate) fn reject_all(&self) {
        let wakers = lock_mutex(&self.0).settle(|_| Some(WaiterState::Expired));
        wake(wakers);
    }

    /// Delivers the answers of every caller that has no undecided request.
    pub(crate) fn deliver(&self, answers: &mut Vec<PendingAnswer>) {
        let mut list = lock_mutex(&self.0);
        if !answers.iter().any(PendingAnswer::is_undecided) {
            list.answers = mem::take(answers);
            let wakers = list.settle(|_| Some(WaiterState::Answered));
            drop(list);
            return wake(wakers);
        }
        let mut all = mem::take(&mut list.answers);
        all.resize_with(answers.len(), PendingAnswer::default);
        let wakers = list.settle(|waiter| {
            let places = &waiter.places;
            let (own, to) = (answers.get_mut(places.clone())?, all.get_mut(places.clone())?);
            if own.iter().any(PendingAnswer::is_undecided) {
                return None;
            }
            to.swap_with_slice(own);
            Some(WaiterState::Answered)
        });
        list.answers = all;
        drop(list);
        wake(wakers);
    }

    /// Fails every caller that still waits. `answers` tells which were partly charged.
    pub(crate) fn fail(&self, error: StoreError, answers: &[PendingAnswer]) {
        let mut list = lock_mutex(&self.0);
        list.error = Some(error);
        let wakers = list.settle(|waiter| {
            let own = answers.get(waiter.places.clone());
            let partly = own.is_some_and(|own| own.iter().any(|answers| !answers.is_undecided()));
            Some(if partly { WaiterState::PartlyCharged } else { WaiterState::Failed })
        });
        drop(list);
        wake(wakers);
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        let wakers = lock_mutex(&self.0).settle(|_| Some(WaiterState::Failed));
        wake(wakers);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_core::state::ImmediateTake;
    use tollgate_core::{Span, Timestamp};

    use super::*;
    use crate::clock;
    use crate::wake_count::WakeCount;

    fn decided(places: &[u64]) -> Vec<PendingAnswer> {
        let passed = |place: &u64| match place {
            0 => PendingAnswer::Undecided,
            place => PendingAnswer::BucketTake(
                ImmediateTake::Pass(Span::ZERO),
                Timestamp::from_micros(*place),
            ),
        };
        places.iter().map(passed).collect()
    }

    /// The time of each decision, 0 if undecided; the kind of error; or `None` while waiting.
    fn answers_of(handle: &mut WaiterHandle) -> Option<Result<Vec<u64>, StoreErrorKind>> {
        let when = |answers: &mut PendingAnswer| match mem::take(answers) {
            PendingAnswer::BucketTake(_, at) => at.as_micros(),
            _ => 0,
        };
        let take = |answers: &mut [PendingAnswer]| answers.iter_mut().map(when).collect();
        match handle.poll(&Context::from_waker(Waker::noop()), take) {
            Poll::Pending => None,
            Poll::Ready(answers) => Some(answers.map_err(|error| error.kind())),
        }
    }

    #[test]
    fn each_caller_gets_its_own_answers_and_is_woken_once() {
        let (waiters, wakes) = (Waiters::default(), Arc::new(WakeCount::default()));
        let add = |requests| waiters.add(requests, clock::now(), Arc::clone(&wakes).into());
        let (mut one, mut three, mut two) = (add(1), add(3), add(2));

        waiters.deliver(&mut decided(&[1, 2, 3, 4, 5, 6]));

        assert_eq!(wakes.take(), 3);
        assert_eq!(answers_of(&mut two), Some(Ok(vec![5, 6])));
        assert_eq!(answers_of(&mut one), Some(Ok(vec![1])));
        assert_eq!(answers_of(&mut three), Some(Ok(vec![2, 3, 4])));
    }

    #[test]
    fn a_partly_answered_caller_waits_for_the_rest_or_learns_that_something_was_charged() {
        let waiters = Waiters::default();
        let [mut first, mut second, mut third] =
            [1, 2, 2].map(|requests| waiters.add(requests, clock::now(), Waker::noop().clone()));
        let mut all = decided(&[1, 2, 0, 0, 0]);

        waiters.deliver(&mut all);
        assert_eq!(answers_of(&mut first), Some(Ok(vec![1])));
        assert_eq!((answers_of(&mut second), answers_of(&mut third)), (None, None));
        waiters.fail(StoreError::new(StoreErrorKind::Unavailable), &all);

        assert_eq!(answers_of(&mut second), Some(Err(StoreErrorKind::Timeout)), "one was charged");
        assert_eq!(answers_of(&mut third), Some(Err(StoreErrorKind::Unavailable)));
    }

    #[test]
    fn callers_that_gave_up_or_are_late_are_dropped() {
        let (waiters, now) = (Waiters::default(), clock::now());
        let deadlines = [1, 2, 3].map(|ms| now + Duration::from_millis(ms));
        let add = |i, requests| waiters.add(requests, deadlines[i], Waker::noop().clone());
        let (mut late, gone, mut going) = (add(0, 1), add(1, 2), add(2, 1));
        assert_eq!(waiters.retain_live(now), (Some(deadlines[0]), None), "all go");

        drop(gone);
        let live = waiters.retain_live(deadlines[1]);

        assert_eq!(live, (Some(deadlines[2]), Some(vec![false, false, false, true])));
        assert_eq!(answers_of(&mut late), Some(Err(StoreErrorKind::Unavailable)));
        waiters.deliver(&mut decided(&[0, 0, 0, 4]));
        assert_eq!(answers_of(&mut going), Some(Ok(vec![4])));
    }

    #[test]
    fn nobody_waits_for_a_dropped_batch() {
        let waiters = Waiters::default();
        let mut handle = waiters.add(1, clock::now(), Waker::noop().clone());
        assert_eq!(answers_of(&mut handle), None);

        drop(waiters);

        assert_eq!(answers_of(&mut handle), Some(Err(StoreErrorKind::Timeout)));
    }
}
