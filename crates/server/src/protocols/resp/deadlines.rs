//! Deadlines of a thread's connections: ends slow ones, and all of them when the server stops.
//!
//! A connection only notes its activity and the number of its commands, in two stores to memory. One task
//! checks these every few seconds, which costs nothing per command, unlike a timer for each connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::state::Connections;
use crate::sync::lock;

/// Interval of checks.
const TICK: Duration = Duration::from_secs(5);

/// A command must be complete, and a reply taken, within two looks: five to ten seconds.
const PATIENCE: u64 = 2;

/// A connection may be silent for an hour.
const IDLE: u64 = 720;

/// Activity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Activity {
    /// Waiting for a command.
    Idle = 0,
    /// Waiting for the rest of one.
    Partial = 1,
    /// Waiting for the client to take replies.
    Writing = 2,
    /// Waiting for the store.
    Asking = 3,
}

/// Activity of a connection, as it reports it.
#[derive(Debug, Default)]
pub(super) struct ConnectionActivity {
    state: AtomicU8,
    commands: AtomicU64,
}

impl ConnectionActivity {
    #[inline]
    #[expect(clippy::as_conversions, reason = "the number of a variant without fields")]
    pub(super) fn set(&self, state: Activity) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Counts an answered command. Only the connection itself counts, so no lock is needed.
    #[inline]
    pub(super) fn count_command(&self) {
        let commands = self.commands.load(Ordering::Relaxed).wrapping_add(1);
        self.commands.store(commands, Ordering::Relaxed);
    }
}

/// The connections of a thread.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    rows: Mutex<HashMap<u64, TableRow>>,
}

#[derive(Debug)]
struct TableRow {
    entry: Arc<ConnectionActivity>,
    task: AbortHandle,
    seen: (u64, u8),
    quiet: u64,
}

impl ConnectionTable {
    pub(super) fn add(&self, id: u64, entry: Arc<ConnectionActivity>, task: AbortHandle) {
        // One that ended before it was noted must not stay.
        if !task.is_finished() {
            lock(&self.rows).insert(id, TableRow { entry, task, seen: (u64::MAX, 0), quiet: 0 });
        }
    }

    pub(super) fn remove(&self, id: u64) {
        lock(&self.rows).remove(&id);
    }

    /// Ends connections that take too long, for ever.
    pub(super) async fn run(&self, connections: &Connections) {
        loop {
            tokio::time::sleep(TICK).await;
            let ended = self.look();
            connections.timed_out.fetch_add(ended, Ordering::Relaxed);
        }
    }

    /// Ends the connections that have not moved for too long, and returns their number.
    fn look(&self) -> u64 {
        let mut ended = 0_u64;
        for row in lock(&self.rows).values_mut() {
            // The time before a command began does not count towards it.
            let state = row.entry.state.load(Ordering::Relaxed);
            let seen = (row.entry.commands.load(Ordering::Relaxed), state);
            row.quiet = if seen == row.seen { row.quiet.saturating_add(1) } else { 0 };
            row.seen = seen;
            let most = match state {
                0 => IDLE,
                1 | 2 => PATIENCE,
                // A store has deadlines of its own.
                _ => u64::MAX,
            };
            if row.quiet >= most {
                row.task.abort();
                ended = ended.saturating_add(1);
            }
        }
        ended
    }

    /// Commands answered on all of them, up to overflow: the same twice if none was.
    pub(super) fn commands(&self) -> u64 {
        let commands = |row: &TableRow| row.entry.commands.load(Ordering::Relaxed);
        lock(&self.rows).values().map(commands).fold(0, u64::wrapping_add)
    }

    /// Number of connections.
    pub(super) fn count(&self) -> usize {
        lock(&self.rows).len()
    }

    /// Ends all connections without pending replies; true if none is left.
    pub(super) fn dismiss(&self) -> bool {
        let rows = lock(&self.rows);
        for row in rows.values().filter(|row| row.entry.state.load(Ordering::Relaxed) < 2) {
            row.task.abort();
        }
        rows.is_empty()
    }

    /// Ends all.
    pub(super) fn dismiss_all(&self) {
        lock(&self.rows).values().for_each(|row| row.task.abort());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_begun_and_not_ended_is_ended_and_a_silent_client_is_not() {
        let watch = ConnectionTable::default();
        let entries: Vec<Arc<ConnectionActivity>> = (0..3).map(|_| Arc::default()).collect();
        let mut tasks = Vec::new();
        for (id, entry) in (0..).zip(&entries) {
            let task = tokio::spawn(std::future::pending::<()>());
            watch.add(id, Arc::clone(entry), task.abort_handle());
            tasks.push(task);
        }
        entries[0].set(Activity::Idle);
        entries[1].set(Activity::Partial);
        entries[2].set(Activity::Writing);

        assert_eq!(watch.look(), 0);
        entries[2].count_command();
        assert_eq!([watch.look(), watch.look()], [0, 1], "the second has not moved");
        entries[1].set(Activity::Idle);
        assert_eq!(watch.look(), 1, "and now the third has not");
        assert!(!tasks[0].is_finished());
    }

    /// Clients of a pool are silent for long, and then send a command in two pieces.
    #[tokio::test]
    async fn a_command_after_a_long_silence_has_as_much_time_as_any() {
        let (watch, entry) = (ConnectionTable::default(), Arc::new(ConnectionActivity::default()));
        let task = tokio::spawn(std::future::pending::<()>());
        watch.add(0, Arc::clone(&entry), task.abort_handle());
        for _ in 0..100 {
            assert_eq!(watch.look(), 0, "silent");
        }

        entry.set(Activity::Partial);

        assert_eq!([watch.look(), watch.look(), watch.look()], [0, 0, 1]);
    }
}
