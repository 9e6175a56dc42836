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
pub(crate) struct Lines {
    all: Mutex<All>,
    /// How many may wait, in all lines together.
    most: usize,
}

#[derive(Debug, Default)]
struct All {
    by_name: HashMap<LockName, Line>,
    waiting: usize,
}

#[derive(Debug, Default)]
struct Line {
    next: u64,
    waiting: BTreeMap<u64, Place>,
    /// Rung for the head.
    bell: Arc<Notify>,
    /// While it is here, releases are heard.
    ear: Option<Ear>,
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
struct Place {
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

impl Lines {
    pub(crate) fn new(most: usize) -> Self {
        Self { all: Mutex::default(), most }
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        // Every edit is whole before anything could panic.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody waits for this lock here.
    pub(crate) fn has(&self, name: &LockName) -> bool {
        self.lock().by_name.contains_key(name)
    }

    /// Joins the end of a line; `None` if as many wait as may.
    pub(crate) fn join(self: &Arc<Self>, name: &LockName, owner: &Owner) -> Option<Ticket> {
        let mut all = self.lock();
        if all.waiting >= self.most {
            return None;
        }
        all.waiting = all.waiting.saturating_add(1);
        let line = all.by_name.entry(name.clone()).or_default();
        let number = line.next;
        line.next = number.saturating_add(1);
        let turn = Arc::new(Notify::new());
        let place = Place { owner: owner.clone(), since: BootTime::now(), turn: Arc::clone(&turn) };
        line.waiting.insert(number, place);
        let bell = Arc::clone(&line.bell);
        Some(Ticket { lines: Arc::clone(self), name: name.clone(), number, turn, bell, won: false })
    }

    /// Who waits here, longest first within a lock.
    pub(crate) fn waiters(&self, most: usize) -> Vec<Waiter> {
        let now = BootTime::now();
        let all = self.lock();
        let each = all.by_name.iter().flat_map(|(name, line)| {
            line.waiting.values().map(move |place| Waiter {
                name: name.clone(),
                owner: place.owner.clone(),
                age: now.since(place.since),
            })
        });
        each.take(most).collect()
    }
}

/// Wakes the head of a line.
pub(crate) struct Alarm(pub(crate) Weak<Lines>);

impl ReleaseNotifier for Alarm {
    fn notify(&self, name: &LockName) {
        let Some(lines) = self.0.upgrade() else { return };
        let bell = lines.lock().by_name.get(name).map(|line| Arc::clone(&line.bell));
        if let Some(bell) = bell {
            bell.notify_one();
        }
    }
}

/// A place in a line, given up when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    lines: Arc<Lines>,
    name: LockName,
    number: u64,
    turn: Arc<Notify>,
    bell: Arc<Notify>,
    won: bool,
}

impl Ticket {
    /// Waits to be the head.
    pub(crate) async fn turn(&self) {
        loop {
            {
                let all = self.lines.lock();
                let line = all.by_name.get(&self.name);
                let head = line.and_then(|line| line.waiting.first_key_value());
                if head.is_none_or(|(number, _)| *number == self.number) {
                    return;
                }
            }
            self.turn.notified().await;
        }
    }

    /// Waits for a release; one that came while nobody waited counts.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Whether releases are heard.
    pub(crate) fn hears(&self) -> bool {
        self.lines.lock().by_name.get(&self.name).is_some_and(|line| line.ear.is_some())
    }

    /// Hears releases by this from now on, for whoever waits in this line.
    pub(crate) fn hear(&self, ear: Ear) {
        let mut all = self.lines.lock();
        let replaced = all.by_name.get_mut(&self.name).and_then(|line| line.ear.replace(ear));
        drop(all);
        drop(replaced);
    }

    /// Leaves with the lock: nobody behind need try now.
    pub(crate) fn win(mut self) {
        self.won = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut all = self.lines.lock();
        all.waiting = all.waiting.saturating_sub(1);
        let Some(line) = all.by_name.get_mut(&self.name) else { return };
        let was_head = line.waiting.first_key_value().is_some_and(|(n, _)| *n == self.number);
        line.waiting.remove(&self.number);
        let Some((_, next)) = line.waiting.first_key_value() else {
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
                line.bell.notify_one();
            }
        }
    }
}
