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

/// The next action after a record was added.
#[derive(Debug, PartialEq, Eq)]
enum FlushRecords {
    /// A removal is scheduled already.
    Nothing,
    /// Schedule a removal: this record is the first.
    Soon,
    /// Remove these now.
    Now(Vec<String>),
}

impl ReleaseRecords {
    fn add(&self, record: String) -> FlushRecords {
        let mut spent = lock_mutex(&self.spent);
        spent.push(record);
        match spent.len() {
            1 => FlushRecords::Soon,
            AT_ONCE.. => FlushRecords::Now(std::mem::take(&mut *spent)),
            _ => FlushRecords::Nothing,
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
        let enough = match self.add(record) {
            FlushRecords::Nothing => return None,
            FlushRecords::Now(records) => records,
            FlushRecords::Soon => Vec::new(),
        };
        let (records, link) = (Arc::clone(self), Arc::clone(link));
        Some(async move {
            if enough.is_empty() {
                sleep(FLUSH_AFTER).await;
                send_for(&link, &records.all());
            } else {
                send_for(&link, &enough);
            }
        })
    }
}

fn send_for(link: &Link, records: &[String]) {
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
    fn records_are_sent_for_in_a_moment_or_when_there_are_enough() {
        let records = ReleaseRecords::default();
        let name = |i: usize| format!("record {i}");

        assert_eq!(records.add(name(0)), FlushRecords::Soon);
        for i in 1..AT_ONCE - 1 {
            assert_eq!(records.add(name(i)), FlushRecords::Nothing);
        }
        let FlushRecords::Now(sent) = records.add(name(AT_ONCE - 1)) else {
            panic!("these are enough")
        };

        assert_eq!(sent, (0..AT_ONCE).map(name).collect::<Vec<_>>());
        assert_eq!(records.add(name(0)), FlushRecords::Soon, "the next is a first again");
        assert_eq!(records.all(), [name(0)]);
        assert!(records.all().is_empty());
    }
}
