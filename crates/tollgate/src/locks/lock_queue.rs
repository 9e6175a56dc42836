//! Waiting for a lock, in this process: one line a name, first come, first served.
//!
//! Only the head of a line asks the store; the others wait for it to leave. So a release wakes one
//! waiter of a process, and a hundred thousand of them cost memory and nothing else. A line exists while
//! somebody waits in it, and holds the ear by which the store's releases are heard.
//!
//! Not here: what the head does (`wait.rs`).

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tollgate_core::lock::{LockName, Owner, ReleaseNotifier};

use crate::clock::BootTime;

/// All lines of a process.
#[derive(Debug)]
pub(crate) struct LockQueues {
    all: Mutex<QueueTable>,
    /// How many may wait, in all lines together.
    most: usize,
}

#[derive(Debug, Default)]
struct QueueTable {
    by_name: HashMap<LockName, LockQueue>,
    waiting: usize,
}

#[derive(Debug, Default)]
struct LockQueue {
    next: u64,
    waiting: BTreeMap<u64, QueuedTask>,
    /// Rung for the head.
    released: Arc<Notify>,
    /// While it is here, releases are heard.
    subscription: Option<Ear>,
}

/// What a store gave for listening.
pub(crate) struct Ear {
    /// Kept to be dropped.
    _kept: Box<dyn Any + Send + Sync>,
}

impl Ear {
    pub(crate) fn new(kept: impl Any + Send + Sync) -> Self {
        Self { _kept: Box::new(kept) }
    }
}

impl fmt::Debug for Ear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ear(..)")
    }
}

#[derive(Debug)]
struct QueuedTask {
    owner: Owner,
    since: BootTime,
    /// Told when it becomes the head.
    turn: Arc<Notify>,
}

/// Somebody who waits in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// For which lock.
    pub name: LockName,
    /// Who.
    pub owner: Owner,
    /// For how long already.
    pub age: Duration,
}

impl LockQueues {
    pub(crate) fn new(most: usize) -> Self {
        Self { all: Mutex::default(), most }
    }

    fn lock(&self) -> MutexGuard<'_, QueueTable> {
        // Every edit is whole before anything could panic.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody waits for this lock here.
    pub(crate) fn has(&self, name: &LockName) -> bool {
        self.lock().by_name.contains_key(name)
    }

    /// Joins the end of a line; `None` if as many wait as may.
    pub(crate) fn join(
        self: &Arc<Self>,
        name: &LockName,
        owner: &Owner,
    ) -> Option<LockQueuePosition> {
        let mut all = self.lock();
        if all.waiting >= self.most {
            return None;
        }
        all.waiting = all.waiting.saturating_add(1);
        let lock_queue = all.by_name.entry(name.clone()).or_default();
        let number = lock_queue.next;
        lock_queue.next = number.saturating_add(1);
        let turn = Arc::new(Notify::new());
        let place =
            QueuedTask { owner: owner.clone(), since: BootTime::now(), turn: Arc::clone(&turn) };
        lock_queue.waiting.insert(number, place);
        let released = Arc::clone(&lock_queue.released);
        Some(LockQueuePosition {
            queues: Arc::clone(self),
            name: name.clone(),
            number,
            turn,
            released,
            won: false,
        })
    }

    /// Who waits here, longest first within a lock.
    pub(crate) fn waiters(&self, most: usize) -> Vec<Waiter> {
        let now = BootTime::now();
        let all = self.lock();
        let each = all.by_name.iter().flat_map(|(name, lock_queue)| {
            lock_queue.waiting.values().map(move |place| Waiter {
                name: name.clone(),
                owner: place.owner.clone(),
                age: now.since(place.since),
            })
        });
        each.take(most).collect()
    }
}

/// Wakes the head of a line.
pub(crate) struct HeadNotifier(pub(crate) Weak<LockQueues>);

impl ReleaseNotifier for HeadNotifier {
    fn notify(&self, name: &LockName) {
        let Some(queues) = self.0.upgrade() else { return };
        let released =
            queues.lock().by_name.get(name).map(|lock_queue| Arc::clone(&lock_queue.released));
        if let Some(released) = released {
            released.notify_one();
        }
    }
}

/// A place in a line, given up when dropped.
#[derive(Debug)]
pub(crate) struct LockQueuePosition {
    queues: Arc<LockQueues>,
    name: LockName,
    number: u64,
    turn: Arc<Notify>,
    released: Arc<Notify>,
    won: bool,
}

impl LockQueuePosition {
    /// Waits to be the head.
    pub(crate) async fn turn(&self) {
        loop {
            {
                let all = self.queues.lock();
                let lock_queue = all.by_name.get(&self.name);
                let head = lock_queue.and_then(|lock_queue| lock_queue.waiting.first_key_value());
                if head.is_none_or(|(number, _)| *number == self.number) {
                    return;
                }
            }
            self.turn.notified().await;
        }
    }

    /// Waits for a release; one that came while nobody waited counts.
    pub(crate) async fn released(&self) {
        self.released.notified().await;
    }

    /// Whether releases are heard.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.queues
            .lock()
            .by_name
            .get(&self.name)
            .is_some_and(|lock_queue| lock_queue.subscription.is_some())
    }

    /// Hears releases by this from now on, for whoever waits in this line.
    pub(crate) fn set_subscription(&self, subscription: Ear) {
        let mut all = self.queues.lock();
        let replaced = all
            .by_name
            .get_mut(&self.name)
            .and_then(|lock_queue| lock_queue.subscription.replace(subscription));
        drop(all);
        drop(replaced);
    }

    /// Leaves with the lock: nobody behind need try now.
    pub(crate) fn win(mut self) {
        self.won = true;
    }
}

impl Drop for LockQueuePosition {
    fn drop(&mut self) {
        let mut all = self.queues.lock();
        all.waiting = all.waiting.saturating_sub(1);
        let Some(lock_queue) = all.by_name.get_mut(&self.name) else { return };
        let was_head = lock_queue.waiting.first_key_value().is_some_and(|(n, _)| *n == self.number);
        lock_queue.waiting.remove(&self.number);
        let Some((_, next)) = lock_queue.waiting.first_key_value() else {
            // Its ear is dropped outside the lock: it has one of its own.
            let empty = all.by_name.remove(&self.name);
            drop(all);
            drop(empty);
            return;
        };
        if was_head {
            next.turn.notify_one();
            if !self.won {
                // It may have been woken by a release and gone before it tried.
                lock_queue.released.notify_one();
            }
        }
    }
}
