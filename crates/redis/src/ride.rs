//! Those who wait for one batch, and what they are told.
//!
//! They share one piece of memory, which each locks twice: to take its seat and to take its answer.
//! The [`Pilot`] is the driver's side of it, a [`Ticket`] a caller's.
//!
//! A waker is never dropped under the lock: it may be the last that holds a task, and with it somebody
//! else's ticket of the same ride.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tollgate_core::{StoreError, StoreErrorKind};

use crate::batch::Told;
use crate::clock::Instant;
use crate::error::Cause;

#[derive(Debug, Default)]
struct Ride(Mutex<Aboard>);

#[derive(Debug, Default)]
struct Aboard {
    seats: Vec<Seat>,
    /// Requests of all of them.
    requests: usize,
    /// Seats whose callers gave up.
    given_up: usize,
    /// What was told, by the place of each request; empty before.
    told: Vec<Told>,
    /// Why those who failed did.
    error: Option<StoreError>,
}

#[derive(Debug)]
struct Seat {
    waker: Option<Waker>,
    /// Its requests, by their places.
    first: usize,
    requests: usize,
    stands: Stands,
}

/// How it stands with a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Waits,
    /// Nobody listens any more.
    GaveUp,
    /// Its time had run out before it could depart.
    TurnedAway,
    /// Its answers are there.
    Answered,
    /// There is an error, and no answer.
    Failed,
    /// There is an error, and answers to some of its requests.
    FailedPartly,
}

impl Ride {
    fn lock(&self) -> MutexGuard<'_, Aboard> {
        // Nothing panics while it is held; if something did, the list is whole all the same.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Aboard {
    /// Says how it stands with those who wait and of whom this holds; whom to wake.
    fn settle(&mut self, mut stands: impl FnMut(&Seat, usize) -> Option<Stands>) -> Vec<Waker> {
        let mut wakers = Vec::with_capacity(self.seats.len());
        for (number, seat) in self.seats.iter_mut().enumerate() {
            if seat.stands == Stands::Waits
                && let Some(stands) = stands(seat, number)
            {
                seat.stands = stands;
                wakers.extend(seat.waker.take());
            }
        }
        wakers
    }
}

fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

/// A caller's place. Dropping it before its time is giving up.
#[derive(Debug)]
pub(crate) struct Ticket {
    ride: Arc<Ride>,
    seat: usize,
    used: bool,
}

impl Ticket {
    /// What is told of each request, once something is, as far as it is taken: only once.
    pub(crate) fn poll<T>(
        &mut self,
        context: &Context<'_>,
        take: impl FnOnce(&mut [Told]) -> T,
    ) -> Poll<Result<T, StoreError>> {
        let mut aboard = self.ride.lock();
        let Aboard { seats, told, error, .. } = &mut *aboard;
        let Some(seat) = seats.get_mut(self.seat) else {
            return Poll::Ready(Err(StoreError::new(StoreErrorKind::Timeout)));
        };
        let told = match seat.stands {
            Stands::Waits => {
                let known = seat.waker.as_ref().is_some_and(|w| w.will_wake(context.waker()));
                let old = (!known).then(|| seat.waker.replace(context.waker().clone()));
                drop(aboard);
                drop(old);
                return Poll::Pending;
            }
            Stands::Answered => {
                let end = seat.first.saturating_add(seat.requests);
                Ok(take(told.get_mut(seat.first..end).unwrap_or_default()))
            }
            Stands::GaveUp | Stands::TurnedAway => Err(Cause::DeadlinePassed.unavailable()),
            Stands::Failed | Stands::FailedPartly => {
                // Without a reason, the driver's thread has ended.
                let error = error.clone().unwrap_or(StoreError::new(StoreErrorKind::Timeout));
                let partly = seat.stands == Stands::FailedPartly;
                Err(if partly { error.after_a_charge() } else { error })
            }
        };
        drop(aboard);
        self.used = true;
        Poll::Ready(told)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.used {
            return;
        }
        let mut aboard = self.ride.lock();
        let waker = match aboard.seats.get_mut(self.seat) {
            Some(seat) if seat.stands == Stands::Waits => {
                seat.stands = Stands::GaveUp;
                seat.waker.take()
            }
            _ => None,
        };
        if waker.is_some() {
            aboard.given_up = aboard.given_up.saturating_add(1);
        }
        drop(aboard);
        drop(waker);
    }
}

/// Seats callers, and tells them. Should it be dropped before all are told, they are told that.
#[derive(Debug, Default)]
pub(crate) struct Pilot(Arc<Ride>);

impl Pilot {
    /// Seats a caller with so many requests.
    pub(crate) fn seat(&self, requests: usize, waker: Waker) -> Ticket {
        let mut aboard = self.0.lock();
        let (seat, first) = (aboard.seats.len(), aboard.requests);
        aboard.requests = first.saturating_add(requests);
        let (waker, stands) = (Some(waker), Stands::Waits);
        aboard.seats.push(Seat { waker, first, requests, stands });
        drop(aboard);
        Ticket { ride: Arc::clone(&self.0), seat, used: false }
    }

    /// Leaves behind who gave up, and turns away whose deadline, in the order of the seats, is before
    /// `earliest`. Returns for each request whether it goes, unless all do.
    pub(crate) fn depart(&self, deadlines: &[Instant], earliest: Instant) -> Option<Vec<bool>> {
        let mut aboard = self.0.lock();
        let late = |seat: usize| deadlines.get(seat).is_some_and(|deadline| *deadline < earliest);
        if aboard.given_up == 0 && !(0..deadlines.len()).any(late) {
            return None;
        }
        let wakers = aboard.settle(|_, seat| late(seat).then_some(Stands::TurnedAway));
        let mut goes = Vec::with_capacity(aboard.requests);
        for seat in &aboard.seats {
            goes.extend(std::iter::repeat_n(seat.stands == Stands::Waits, seat.requests));
        }
        drop(aboard);
        wake(wakers);
        Some(goes)
    }

    /// Turns everybody away, uncharged.
    pub(crate) fn turn_away(&self) {
        let wakers = self.0.lock().settle(|_, _| Some(Stands::TurnedAway));
        wake(wakers);
    }

    /// Tells those of whose requests none is open.
    pub(crate) fn tell(&self, told: &mut Vec<Told>) {
        let mut aboard = self.0.lock();
        if !told.iter().any(Told::is_open) {
            aboard.told = mem::take(told);
            let wakers = aboard.settle(|_, _| Some(Stands::Answered));
            drop(aboard);
            return wake(wakers);
        }
        let mut all = mem::take(&mut aboard.told);
        all.resize_with(told.len(), Told::default);
        let wakers = aboard.settle(|seat, _| {
            let places = seat.first..seat.first.saturating_add(seat.requests);
            let (own, to) = (told.get_mut(places.clone())?, all.get_mut(places)?);
            if own.iter().any(Told::is_open) {
                return None;
            }
            to.swap_with_slice(own);
            Some(Stands::Answered)
        });
        aboard.told = all;
        drop(aboard);
        wake(wakers);
    }

    /// Tells all who still wait that there will be no answer, given what is told by now.
    pub(crate) fn fail(&self, error: StoreError, told: &[Told]) {
        let mut aboard = self.0.lock();
        aboard.error = Some(error);
        let wakers = aboard.settle(|seat, _| {
            let own = told.get(seat.first..seat.first.saturating_add(seat.requests));
            let partly = own.is_some_and(|own| own.iter().any(|told| !told.is_open()));
            Some(if partly { Stands::FailedPartly } else { Stands::Failed })
        });
        drop(aboard);
        wake(wakers);
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        let wakers = self.0.lock().settle(|_, _| Some(Stands::Failed));
        wake(wakers);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_core::state::ImmediateTake;
    use tollgate_core::{Span, Timestamp};

    use super::*;
    use crate::alarm::Alarm;
    use crate::clock;

    fn told(places: &[u64]) -> Vec<Told> {
        let passed = |place: &u64| match place {
            0 => Told::Open,
            place => Told::Plain(ImmediateTake::Pass(Span::ZERO), Timestamp::from_micros(*place)),
        };
        places.iter().map(passed).collect()
    }

    /// When each was decided, 0 for what is open; what kind of error; or nothing yet.
    fn hear(ticket: &mut Ticket) -> Option<Result<Vec<u64>, StoreErrorKind>> {
        let when = |told: &mut Told| match mem::take(told) {
            Told::Plain(_, at) => at.as_micros(),
            _ => 0,
        };
        let take = |told: &mut [Told]| told.iter_mut().map(when).collect();
        match ticket.poll(&Context::from_waker(Waker::noop()), take) {
            Poll::Pending => None,
            Poll::Ready(heard) => Some(heard.map_err(|error| error.kind())),
        }
    }

    #[test]
    fn each_is_told_its_own_and_woken_once() {
        let (pilot, alarm) = (Pilot::default(), Arc::new(Alarm::default()));
        let seat = |requests| pilot.seat(requests, Arc::clone(&alarm).into());
        let (mut one, mut three, mut two) = (seat(1), seat(3), seat(2));

        pilot.tell(&mut told(&[1, 2, 3, 4, 5, 6]));

        assert_eq!(alarm.rang(), 3);
        assert_eq!(hear(&mut two), Some(Ok(vec![5, 6])));
        assert_eq!(hear(&mut one), Some(Ok(vec![1])));
        assert_eq!(hear(&mut three), Some(Ok(vec![2, 3, 4])));
    }

    #[test]
    fn who_is_told_in_part_waits_for_the_rest_or_learns_that_something_was_charged() {
        let pilot = Pilot::default();
        let [mut first, mut second, mut third] =
            [1, 2, 2].map(|requests| pilot.seat(requests, Waker::noop().clone()));
        let mut all = told(&[1, 2, 0, 0, 0]);

        pilot.tell(&mut all);
        assert_eq!(hear(&mut first), Some(Ok(vec![1])));
        assert_eq!((hear(&mut second), hear(&mut third)), (None, None));
        pilot.fail(StoreError::new(StoreErrorKind::Unavailable), &all);

        assert_eq!(hear(&mut second), Some(Err(StoreErrorKind::Timeout)), "one was charged");
        assert_eq!(hear(&mut third), Some(Err(StoreErrorKind::Unavailable)));
    }

    #[test]
    fn who_gave_up_or_is_late_stays_behind() {
        let (pilot, now) = (Pilot::default(), clock::now());
        let seat = |requests| pilot.seat(requests, Waker::noop().clone());
        let (mut late, gone, mut going) = (seat(1), seat(2), seat(1));
        let deadlines = [1, 2, 3].map(|ms| now + Duration::from_millis(ms));
        assert_eq!(pilot.depart(&deadlines, now), None, "all go");

        drop(gone);
        let goes = pilot.depart(&deadlines, deadlines[1]);

        assert_eq!(goes, Some(vec![false, false, false, true]));
        assert_eq!(hear(&mut late), Some(Err(StoreErrorKind::Unavailable)));
        pilot.tell(&mut told(&[0, 0, 0, 4]));
        assert_eq!(hear(&mut going), Some(Ok(vec![4])));
    }

    #[test]
    fn without_a_pilot_nobody_waits() {
        let pilot = Pilot::default();
        let mut ticket = pilot.seat(1, Waker::noop().clone());
        assert_eq!(hear(&mut ticket), None);

        drop(pilot);

        assert_eq!(hear(&mut ticket), Some(Err(StoreErrorKind::Timeout)));
    }
}
