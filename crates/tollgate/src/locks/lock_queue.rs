//! Waiting for a lock, in this process: one queue for each name, first come, first served.
//!
//! Only the head of a queue asks the store; the others wait until it leaves. So a release wakes one
//! waiter of a process, and a hundred thousand waiters cost only memory. A queue exists while a
//! task waits in it. It holds the subscription by which the store announces releases.
//!
//! `acquisition.rs` contains the work of the head.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tollgate_core::lock::{LockName, Owner, ReleaseNotifier};
use tollgate_core::lock_mutex;

use crate::clock::BootTime;

/// All queues of a process.
#[derive(Debug)]
pub(crate) struct LockQueues {
    table: Mutex<QueueTable>,
    /// The most tasks that may wait, in all queues together.
    max_waiting: usize,
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
    /// Wakes the head after a release.
    released: Arc<Notify>,
    /// The subscription to releases. While it exists, the store announces them.
    subscription: Option<Subscription>,
}

/// A subscription of any store, kept until it is dropped.
type Subscription = Box<dyn Any + Send + Sync>;

#[derive(Debug)]
struct QueuedTask {
    owner: Owner,
    since: BootTime,
    /// Wakes the task when it becomes the head.
    turn: Arc<Notify>,
}

/// A task of this process that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The lock.
    pub name: LockName,
    /// The owner under which the task will hold it.
    pub owner: Owner,
    /// The time that it has waited.
    pub age: Duration,
}

impl LockQueues {
    pub(crate) fn new(max_waiting: usize) -> Self {
        Self { table: Mutex::default(), max_waiting }
    }

    fn lock(&self) -> MutexGuard<'_, QueueTable> {
        // Every edit is whole before anything could panic.
        lock_mutex(&self.table)
    }

    /// True if a task waits for this lock here.
    pub(crate) fn has(&self, name: &LockName) -> bool {
        self.lock().by_name.contains_key(name)
    }

    /// Joins the end of a queue; `None` if too many tasks wait already.
    pub(crate) fn join(
        self: &Arc<Self>,
        name: &LockName,
        owner: &Owner,
    ) -> Option<LockQueuePosition> {
        let mut table = self.lock();
        if table.waiting >= self.max_waiting {
            return None;
        }
        table.waiting = table.waiting.saturating_add(1);
        let queue = table.by_name.entry(name.clone()).or_default();
        let number = queue.next;
        queue.next = number.saturating_add(1);
        let (turn, released) = (Arc::new(Notify::new()), Arc::clone(&queue.released));
        let (owner, since) = (owner.clone(), BootTime::now());
        queue.waiting.insert(number, QueuedTask { owner, since, turn: Arc::clone(&turn) });
        let (queues, name) = (Arc::clone(self), name.clone());
        Some(LockQueuePosition { queues, name, number, turn, released, has_lock: false })
    }

    /// The waiting tasks of this process, longest first for each lock.
    pub(crate) fn waiters(&self, most: usize) -> Vec<Waiter> {
        let now = BootTime::now();
        let table = self.lock();
        let waiters = table.by_name.iter().flat_map(|(name, queue)| {
            queue.waiting.values().map(move |task| Waiter {
                name: name.clone(),
                owner: task.owner.clone(),
                age: now.since(task.since),
            })
        });
        waiters.take(most).collect()
    }
}

impl LockQueue {
    fn head(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(number, _)| *number)
    }
}

/// Wakes the head of a queue after a release.
pub(crate) struct HeadNotifier(pub(crate) Weak<LockQueues>);

impl ReleaseNotifier for HeadNotifier {
    fn notify(&self, name: &LockName) {
        let Some(queues) = self.0.upgrade() else { return };
        let released = queues.lock().by_name.get(name).map(|queue| Arc::clone(&queue.released));
        if let Some(released) = released {
            released.notify_one();
        }
    }
}

/// A place in a queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct LockQueuePosition {
    queues: Arc<LockQueues>,
    name: LockName,
    number: u64,
    turn: Arc<Notify>,
    released: Arc<Notify>,
    has_lock: bool,
}

impl LockQueuePosition {
    /// Waits to be the head.
    pub(crate) async fn turn(&self) {
        let is_head = |table: MutexGuard<'_, QueueTable>| {
            table.by_name.get(&self.name).is_none_or(|queue| queue.head() == Some(self.number))
        };
        while !is_head(self.queues.lock()) {
            self.turn.notified().await;
        }
    }

    /// Waits for a release. A release that came before this call counts, too.
    pub(crate) async fn released(&self) {
        self.released.notified().await;
    }

    /// True if the store announces releases to this queue.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.queues.lock().by_name.get(&self.name).is_some_and(|it| it.subscription.is_some())
    }

    /// Keeps a subscription while a task waits in this queue.
    pub(crate) fn set_subscription(&self, subscription: Subscription) {
        let mut table = self.queues.lock();
        let queue = table.by_name.get_mut(&self.name);
        let replaced = queue.and_then(|queue| queue.subscription.replace(subscription));
        drop(table);
        drop(replaced);
    }

    /// Leaves with the lock, so the next task need not try now.
    pub(crate) fn leave_with_lock(mut self) {
        self.has_lock = true;
    }
}

impl Drop for LockQueuePosition {
    fn drop(&mut self) {
        let mut table = self.queues.lock();
        table.waiting = table.waiting.saturating_sub(1);
        let Some(queue) = table.by_name.get_mut(&self.name) else { return };
        let was_head = queue.head() == Some(self.number);
        queue.waiting.remove(&self.number);
        let Some((_, next)) = queue.waiting.first_key_value() else {
            // Dropped outside the lock: its subscription has a lock of its own.
            let empty = table.by_name.remove(&self.name);
            drop(table);
            drop(empty);
            return;
        };
        if was_head {
            next.turn.notify_one();
            if !self.has_lock {
                // A release may have woken this task, which left before it tried.
                queue.released.notify_one();
            }
        }
    }
}
