//! Release records that are no longer needed, removed many at a time.
//!
//! A release leaves a record for 20 s, so that the same release can be sent again and a late
//! acquisition is not granted. Redisson deletes each with a command of its own, a third of all
//! commands. Here they are collected for a moment. If the store is dropped meanwhile, they expire.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;

use crate::link::{Link, command};
use tollgate_core::lock_mutex;

/// Records removed with one command: some twenty microseconds of Redis's time.
const AT_ONCE: usize = 64;

/// The longest time that records are collected.
const FLUSH_AFTER: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct ReleaseRecords {
    /// Records to remove, fewer than [`AT_ONCE`].
    spent: Mutex<Vec<String>>,
}

impl ReleaseRecords {
    /// Adds a record. Returns the records to remove now, or an empty list to remove them in a
    /// moment; `None` if that is scheduled already.
    fn add(&self, record: String) -> Option<Vec<String>> {
        let mut spent = lock_mutex(&self.spent);
        spent.push(record);
        match spent.len() {
            1 => Some(Vec::new()),
            AT_ONCE.. => Some(std::mem::take(&mut *spent)),
            _ => None,
        }
    }

    fn all(&self) -> Vec<String> {
        std::mem::take(&mut *lock_mutex(&self.spent))
    }

    /// Adds a record. Returns a future that removes it with others, to be run on the thread of the
    /// store, unless one is scheduled.
    pub(super) fn remove(
        self: &Arc<Self>,
        link: &Arc<Link>,
        record: String,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let mut enough = self.add(record)?;
        let (records, link) = (Arc::clone(self), Arc::clone(link));
        Some(async move {
            if enough.is_empty() {
                sleep(FLUSH_AFTER).await;
                enough = records.all();
            }
            unlink(&link, &enough);
        })
    }
}

fn unlink(link: &Link, records: &[String]) {
    if !records.is_empty() {
        let records = records.iter().map(String::as_bytes);
        let words: Vec<&[u8]> = std::iter::once(&b"UNLINK"[..]).chain(records).collect();
        link.send_and_forget(command(&words));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_removed_in_a_moment_or_when_there_are_enough() {
        let records = ReleaseRecords::default();
        let name = |i: usize| format!("record {i}");

        assert_eq!(records.add(name(0)), Some(vec![]));
        for i in 1..AT_ONCE - 1 {
            assert_eq!(records.add(name(i)), None);
        }
        assert_eq!(records.add(name(AT_ONCE - 1)), Some((0..AT_ONCE).map(name).collect()));

        assert_eq!(records.add(name(0)), Some(vec![]), "the next is a first again");
        assert_eq!(records.all(), [name(0)]);
        assert!(records.all().is_empty());
    }
}
