//! The line before a gate: who in this process waits for which place in the future.
//!
//! A store grants places; the line says who has which. When somebody leaves, those behind move up
//! and the *last* place is free: only that one can be given back, and only while the store has
//! granted none behind it to another process (it stays a hole otherwise; the store decides that).
//! So no two departures come closer than the rate allows.
//!
//! Places are moved up only among equal costs. With unequal ones behind it, a place that is left
//! stays a hole unless it is the last.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tollgate_core::{Cost, Timestamp};

use crate::clock::Instant;

/// A place in the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// When, by this process's clock.
    pub(crate) due: Instant,
    /// When, by the store's.
    pub(crate) granted: Timestamp,
    pub(crate) cost: Cost,
}

/// Those who wait, in the order of their places.
#[derive(Debug, Default)]
pub(crate) struct Line {
    waiting: Mutex<VecDeque<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    place: watch::Sender<Place>,
}

impl Line {
    /// Lines up for a place that was granted.
    pub(crate) fn join(self: &Arc<Self>, number: u64, place: Place) -> Ticket {
        let (sender, receiver) = watch::channel(place);
        let mut waiting = self.lock();
        // Grants of concurrent questions may come back in another order than they were given.
        let behind =
            waiting.iter().rposition(|other| other.place.borrow().granted <= place.granted);
        let at = behind.map_or(0, |i| i.saturating_add(1));
        waiting.insert(at, Waiting { number, place: sender });
        Ticket { line: Arc::clone(self), number, place: receiver }
    }

    /// Leaves the line because the time has come.
    fn depart(&self, number: u64) {
        let mut waiting = self.lock();
        if let Some(i) = waiting.iter().position(|other| other.number == number) {
            waiting.remove(i);
        }
    }

    /// Leaves the line early. Returns the place that became free, if it is worth giving back.
    fn leave(&self, number: u64) -> Option<Place> {
        let mut waiting = self.lock();
        let i = waiting.iter().position(|other| other.number == number)?;
        let left = *waiting.remove(i)?.place.borrow();
        let equal = waiting.range(i..).all(|other| other.place.borrow().cost == left.cost);
        if !equal {
            return None;
        }
        // Each takes the place before it; the last one is left over.
        let mut free = left;
        for other in waiting.range(i..) {
            free = other.place.send_replace(free);
        }
        Some(free)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        // Nothing above can panic halfway.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the line, which moves up when somebody before it leaves.
#[derive(Debug)]
pub(crate) struct Ticket {
    line: Arc<Line>,
    number: u64,
    place: watch::Receiver<Place>,
}

impl Ticket {
    /// Waits for its time. Wakes once, unless somebody before it leaves.
    pub(crate) async fn wait(&mut self) {
        loop {
            let due = self.place.borrow_and_update().due;
            tokio::select! {
                () = tokio::time::sleep_until(due) => break,
                moved = self.place.changed() => if moved.is_err() { break },
            }
        }
        self.line.depart(self.number);
    }

    /// Gives the place up. Returns what can be given back to the store.
    pub(crate) fn leave(&self) -> Option<Place> {
        self.line.leave(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn place(n: u64, cost: Cost) -> Place {
        let due = crate::clock::after(crate::clock::now(), Duration::from_secs(n));
        Place { due, granted: Timestamp::from_micros(n), cost }
    }

    #[tokio::test(start_paused = true)]
    async fn those_behind_move_up_and_the_last_place_is_free() {
        let line = Arc::new(Line::default());
        let mut tickets: Vec<Ticket> = (1..=4).map(|n| line.join(n, place(n, 1))).collect();

        let free = tickets.remove(1).leave().unwrap();

        let granted = |ticket: &Ticket| ticket.place.borrow().granted.as_micros();
        assert_eq!(free.granted.as_micros(), 4);
        assert_eq!(tickets.iter().map(granted).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_moves_into_a_place_of_another_size() {
        let line = Arc::new(Line::default());
        let first = line.join(1, place(1, 2));
        let second = line.join(2, place(2, 1));

        assert_eq!(first.leave(), None, "a hole, as the one behind needs less");
        assert_eq!(second.leave().map(|place| place.cost), Some(1), "the last can go");
    }
}
