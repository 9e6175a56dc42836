//! The line before a gate: who in this process waits for which place in the future.
//!
//! A store grants places; the line says who has which. Those who wait have the places in order: the
//! first the first place, and so on. When somebody leaves, those behind move up and the *last* place
//! is free: only that one can be given back, and only while the store has granted none behind it to
//! another process (it stays a hole otherwise; the store decides that). So no two departures come
//! closer than the rate allows.
//!
//! Only the first needs to know its exact moment; the others learn theirs when they come to the
//! front. So whoever leaves or departs concerns one other at most, however long the line is.
//!
//! Places are moved up only while all who wait cost the same. Otherwise a place that is left stays a
//! hole, unless it is the last.

use std::collections::{BTreeMap, HashMap};
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

/// Those who wait, and their places, each in order.
#[derive(Debug, Default)]
pub(crate) struct Line {
    row: Mutex<Row>,
}

/// In which order places come: by time, then by number.
type Order = (Instant, u64);

#[derive(Debug, Default)]
struct Row {
    /// In the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    /// As many as there are waiting.
    places: BTreeMap<Order, Place>,
    /// How many wait for each cost.
    costs: HashMap<Cost, usize>,
}

#[derive(Debug)]
struct Waiting {
    cost: Cost,
    due: watch::Sender<Instant>,
    /// Whether its moment came before its turn, so that it waits to be told.
    early: bool,
}

impl Line {
    /// Lines up for a place that was granted.
    pub(crate) fn join(self: &Arc<Self>, number: u64, place: Place) -> Ticket {
        let (due, receiver) = watch::channel(place.due);
        let mut row = self.lock();
        row.waiting.insert(number, Waiting { cost: place.cost, due, early: false });
        row.places.insert((place.due, number), place);
        let count = row.costs.entry(place.cost).or_default();
        *count = count.saturating_add(1);
        // Grants of concurrent questions may come back in another order than they were given.
        row.tell_first();
        Ticket { line: Arc::clone(self), number, due: receiver }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    fn lock(&self) -> MutexGuard<'_, Row> {
        // Nothing below can panic halfway.
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Row {
    /// Leaves the line because the time has come; false if others are to leave before.
    fn depart(&mut self, number: u64) -> bool {
        if self.waiting.first_key_value().is_some_and(|(first, _)| *first != number) {
            if let Some(waiting) = self.waiting.get_mut(&number) {
                waiting.early = true;
            }
            return false;
        }
        if self.remove(number).is_some() {
            self.places.pop_first();
            self.tell_first();
        }
        true
    }

    /// Leaves the line early. Returns the place that became free, if it is worth giving back.
    fn leave(&mut self, number: u64) -> Option<Place> {
        let alike = self.costs.len() == 1;
        let index = if alike { None } else { self.waiting.keys().position(|at| *at == number) };
        self.remove(number)?;
        let free = if alike {
            self.places.pop_last().map(|(_, place)| place)
        } else {
            // The place of as many as were before it.
            let last = self.places.len().checked_sub(1);
            let place = index.and_then(|index| self.places.keys().nth(index).copied());
            let left = place.and_then(|place| self.places.remove(&place));
            left.filter(|_| index == last)
        };
        self.tell_first();
        free
    }

    fn remove(&mut self, number: u64) -> Option<()> {
        let left = self.waiting.remove(&number)?;
        if let Some(count) = self.costs.get_mut(&left.cost) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.costs.remove(&left.cost);
            }
        }
        Some(())
    }

    /// The first may have moved up.
    fn tell_first(&mut self) {
        if let (Some(mut first), Some((_, place))) =
            (self.waiting.first_entry(), self.places.first_key_value())
        {
            let first = first.get_mut();
            let waits = std::mem::take(&mut first.early);
            let told = |due: &mut Instant| std::mem::replace(due, place.due) != place.due || waits;
            first.due.send_if_modified(told);
        }
    }
}

/// A place in the line, which moves up when somebody before it leaves.
#[derive(Debug)]
pub(crate) struct Ticket {
    line: Arc<Line>,
    number: u64,
    due: watch::Receiver<Instant>,
}

impl Ticket {
    /// Waits for its time. Wakes once, or twice if somebody before it has left.
    pub(crate) async fn wait(&mut self) {
        loop {
            let due = *self.due.borrow_and_update();
            tokio::select! {
                () = tokio::time::sleep_until(due) => {
                    if self.line.lock().depart(self.number) {
                        return;
                    }
                    if self.due.changed().await.is_err() {
                        return;
                    }
                }
                moved = self.due.changed() => if moved.is_err() { return },
            }
        }
    }

    /// Gives the place up. Returns what can be given back to the store.
    pub(crate) fn leave(&self) -> Option<Place> {
        self.line.lock().leave(self.number)
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

        assert_eq!(free.granted.as_micros(), 4);
        let start = crate::clock::now();
        for (ticket, second) in tickets.iter_mut().zip(1..) {
            ticket.wait().await;
            assert_eq!((crate::clock::now() - start).as_secs(), second, "in a place of its own");
        }
        assert_eq!(line.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_moves_into_a_place_of_another_size() {
        let line = Arc::new(Line::default());
        let first = line.join(1, place(1, 2));
        let second = line.join(2, place(2, 1));

        assert_eq!(first.leave(), None, "a hole, as the one behind needs less");
        assert_eq!(second.leave().map(|place| place.cost), Some(1), "the last can go");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_thousand_can_leave() {
        let line = Arc::new(Line::default());
        let tickets: Vec<Ticket> = (0..100_000).map(|n| line.join(n, place(n + 1, 1))).collect();

        let free = tickets.iter().filter_map(Ticket::leave).count();

        assert_eq!((free, line.len()), (100_000, 0));
    }
}
