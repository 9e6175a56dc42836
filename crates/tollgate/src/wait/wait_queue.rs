//! The wait queue of a gate: the callers of this process, and their places in the future.
//!
//! A store grants places; the queue assigns them to callers. Places of one cost are alike, so the
//! callers of that cost have them in order: the first caller the first place, and so on. No caller
//! has a place of another cost. When a caller leaves, later callers of the same cost move up, and
//! the *last* of their places becomes vacant. The next caller of that cost takes it. If it is the
//! last place of all, it can be given back to the store. So no two departures come closer than the
//! rate allows.
//!
//! Only the first caller of a cost needs to know its exact moment; the others learn theirs when
//! they come to the front. So a caller that leaves affects at most one other, however long the
//! queue is.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;
use tollgate_core::{Cost, Timestamp, lock_mutex};

use crate::clock::{self, Instant};

/// A place in the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantedPlace {
    /// The moment at which it is due, by this process's clock.
    pub(crate) due: Instant,
    /// The same moment by the store's clock.
    pub(crate) granted: Timestamp,
    pub(crate) cost: Cost,
}

/// The callers of a gate, and their places.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    state: Mutex<QueueState>,
}

/// The order of places: by the store's time, then by number.
type Order = (Timestamp, u64);

#[derive(Debug, Default)]
struct QueueState {
    by_cost: HashMap<Cost, CostQueue>,
    /// All places, by their costs.
    costs: BTreeMap<Order, Cost>,
    next: u64,
    waiting: usize,
}

/// The callers of one cost, and their places.
#[derive(Debug, Default)]
struct CostQueue {
    /// In the order in which they came.
    waiting: BTreeMap<u64, PlaceWaiter>,
    /// A place for each caller, and behind them the vacant ones.
    places: BTreeMap<Order, GrantedPlace>,
}

#[derive(Debug)]
struct PlaceWaiter {
    due: watch::Sender<Instant>,
    /// True if its moment came before its turn. Then it waits until it is woken.
    early: bool,
}

impl WaitQueue {
    /// Queues a caller at a place that was granted.
    pub(crate) fn join(self: &Arc<Self>, place: GrantedPlace) -> QueuePosition {
        let mut state = self.lock();
        let number = state.number();
        let order = (place.granted, number);
        state.costs.insert(order, place.cost);
        state.by_cost.entry(place.cost).or_default().places.insert(order, place);
        let due = state.wait(number, place);
        QueuePosition { wait_queue: Arc::clone(self), number, cost: place.cost, due }
    }

    /// Queues a caller at a vacant place of this cost, if one is due by `deadline`.
    pub(crate) fn join_vacant(
        self: &Arc<Self>,
        cost: Cost,
        deadline: Instant,
    ) -> Option<QueuePosition> {
        let now = clock::now();
        let mut state = self.lock();
        state.forget_past(cost, now);
        let place = state.by_cost.get(&cost)?.vacant()?;
        if place.due > deadline {
            return None;
        }
        let number = state.number();
        let due = state.wait(number, place);
        Some(QueuePosition { wait_queue: Arc::clone(self), number, cost, due })
    }

    /// Takes out the last place if it is vacant: it can be given back.
    pub(crate) fn take_last(&self) -> Option<GrantedPlace> {
        let now = clock::now();
        let mut state = self.lock();
        loop {
            let (order, cost) = state.last_is_vacant()?;
            let place = state.by_cost.get_mut(&cost)?.places.remove(&order)?;
            state.costs.remove(&order);
            state.forget_empty(cost);
            // What has passed is worth nothing to anybody.
            if place.due > now {
                return Some(place);
            }
        }
    }

    /// True if [`WaitQueue::take_last`] would find a place.
    pub(crate) fn has_last(&self) -> bool {
        self.lock().last_is_vacant().is_some()
    }

    /// The number of waiting callers.
    pub(crate) fn len(&self) -> usize {
        self.lock().waiting
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Nothing below can panic halfway.
        lock_mutex(&self.state)
    }
}

impl QueueState {
    fn number(&mut self) -> u64 {
        self.next = self.next.saturating_add(1);
        self.next
    }

    /// Adds a caller to the queue of the place's cost.
    fn wait(&mut self, number: u64, place: GrantedPlace) -> watch::Receiver<Instant> {
        let (due, receiver) = watch::channel(place.due);
        let queue = self.by_cost.entry(place.cost).or_default();
        queue.waiting.insert(number, PlaceWaiter { due, early: false });
        // A caller that joins a line with a vacant place gets another place than its own.
        queue.tell_first();
        self.waiting = self.waiting.saturating_add(1);
        receiver
    }

    /// Departs because the time has come; false if callers of its cost before it have not departed.
    fn depart(&mut self, number: u64, cost: Cost) -> bool {
        let Some(queue) = self.by_cost.get_mut(&cost) else { return true };
        if queue.waiting.first_key_value().is_some_and(|(first, _)| *first != number) {
            if let Some(waiting) = queue.waiting.get_mut(&number) {
                waiting.early = true;
            }
            return false;
        }
        if queue.waiting.remove(&number).is_some() {
            self.waiting = self.waiting.saturating_sub(1);
            if let Some((order, _)) = queue.places.pop_first() {
                self.costs.remove(&order);
            }
            queue.tell_first();
            self.forget_empty(cost);
        }
        true
    }

    /// Leaves the queue early: the last place of its cost becomes vacant.
    fn leave(&mut self, number: u64, cost: Cost) {
        let Some(queue) = self.by_cost.get_mut(&cost) else { return };
        if queue.waiting.remove(&number).is_some() {
            self.waiting = self.waiting.saturating_sub(1);
            queue.tell_first();
        }
    }

    fn last_is_vacant(&self) -> Option<(Order, Cost)> {
        let (order, cost) = self.costs.last_key_value()?;
        self.by_cost.get(cost)?.vacant().map(|_| (*order, *cost))
    }

    /// Drops vacant places whose time has come: used later, they would be too close to others.
    fn forget_past(&mut self, cost: Cost, now: Instant) {
        let Some(queue) = self.by_cost.get_mut(&cost) else { return };
        while let Some((order, _)) = queue.first_vacant().filter(|(_, place)| place.due <= now) {
            queue.places.remove(&order);
            self.costs.remove(&order);
        }
        self.forget_empty(cost);
    }

    fn forget_empty(&mut self, cost: Cost) {
        if self.by_cost.get(&cost).is_some_and(|queue| queue.places.is_empty()) {
            self.by_cost.remove(&cost);
        }
    }
}

impl CostQueue {
    /// The first vacant place.
    fn first_vacant(&self) -> Option<(Order, GrantedPlace)> {
        let vacant = self.places.len().checked_sub(self.waiting.len())?.checked_sub(1)?;
        self.places.iter().rev().nth(vacant).map(|(order, place)| (*order, *place))
    }

    fn vacant(&self) -> Option<GrantedPlace> {
        self.first_vacant().map(|(_, place)| place)
    }

    /// Wakes the first caller if it has moved up.
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

/// A caller's position in the queue, which moves up when a caller before it leaves. Dropping it
/// leaves.
#[derive(Debug)]
pub(crate) struct QueuePosition {
    wait_queue: Arc<WaitQueue>,
    number: u64,
    cost: Cost,
    due: watch::Receiver<Instant>,
}

impl QueuePosition {
    /// Waits until its place is due. Wakes once, or twice if a caller before it has left.
    pub(crate) async fn wait(&mut self) {
        loop {
            let due = *self.due.borrow_and_update();
            tokio::select! {
                () = tokio::time::sleep_until(due) => {
                    if self.wait_queue.lock().depart(self.number, self.cost) {
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
}

impl Drop for QueuePosition {
    fn drop(&mut self) {
        self.wait_queue.lock().leave(self.number, self.cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn place(n: u64, cost: Cost) -> GrantedPlace {
        let due = clock::after(clock::now(), Duration::from_secs(n));
        GrantedPlace { due, granted: Timestamp::from_micros(n), cost }
    }

    /// The second at which each caller departs.
    async fn seconds(tickets: Vec<QueuePosition>) -> Vec<u64> {
        let start = clock::now();
        let mut tasks = Vec::new();
        for mut position in tickets {
            tasks.push(tokio::spawn(async move {
                position.wait().await;
                clock::now().saturating_duration_since(start).as_secs()
            }));
        }
        let mut seconds = Vec::new();
        for task in tasks {
            seconds.push(task.await.unwrap());
        }
        seconds
    }

    #[tokio::test(start_paused = true)]
    async fn those_behind_move_up_and_the_last_place_is_free() {
        let wait_queue = Arc::new(WaitQueue::default());
        let mut tickets: Vec<QueuePosition> =
            (1..=4).map(|n| wait_queue.join(place(n, 1))).collect();

        drop(tickets.remove(1));

        assert_eq!(wait_queue.take_last().map(|place| place.granted.as_micros()), Some(4));
        assert_eq!(wait_queue.take_last(), None, "the others are taken");
        assert_eq!(seconds(tickets).await, [1, 2, 3]);
        assert_eq!(wait_queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_moves_into_a_place_of_another_size() {
        // Granted to 1, 100 and 1; the replies come in another order.
        let wait_queue = Arc::new(WaitQueue::default());
        let large = wait_queue.join(place(2, 100));
        let (small, smaller) = (wait_queue.join(place(1, 1)), wait_queue.join(place(3, 1)));
        assert_eq!(seconds(vec![small, large, smaller]).await, [1, 2, 3]);

        let first = wait_queue.join(place(1, 2));
        let second = wait_queue.join(place(2, 1));
        drop(first);
        assert_eq!(wait_queue.take_last(), None, "a hole, as the one behind costs less");
        drop(second);
        let given_back = [wait_queue.take_last(), wait_queue.take_last(), wait_queue.take_last()];
        assert_eq!(given_back.map(|place| place.map(|it| it.cost)), [Some(1), Some(2), None]);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_takes_a_place_that_was_left() {
        let wait_queue = Arc::new(WaitQueue::default());
        let (left, behind) = (wait_queue.join(place(1, 1)), wait_queue.join(place(2, 5)));
        drop(left);
        let soon = clock::after(clock::now(), Duration::from_millis(999));
        let later = clock::after(soon, Duration::from_secs(1));

        assert!(wait_queue.join_vacant(1, soon).is_none(), "not in time");
        assert!(wait_queue.join_vacant(2, later).is_none(), "of another size");
        let position = wait_queue.join_vacant(1, later).unwrap();
        assert!(wait_queue.join_vacant(1, later).is_none(), "taken");
        assert_eq!(seconds(vec![position, behind]).await, [1, 2]);

        let (left, _behind) = (wait_queue.join(place(1, 1)), wait_queue.join(place(2, 5)));
        drop(left);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(wait_queue.join_vacant(1, later).is_none(), "its time has passed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_thousand_can_leave() {
        for costs in [1_u64, 100_000] {
            let wait_queue = Arc::new(WaitQueue::default());
            let join = |n| wait_queue.join(place(n + 1, 1 + n % costs));
            let tickets: Vec<QueuePosition> = (0..100_000).map(join).collect();

            drop(tickets);

            let free = std::iter::from_fn(|| wait_queue.take_last()).count();
            assert_eq!((free, wait_queue.len()), (100_000, 0));
        }
    }
}
