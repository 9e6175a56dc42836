//! Latches that nobody will ask any more, removed many at a time.
//!
//! Redisson sends a command for each, and does not wait for it. It is a third of all commands, for
//! something that ends by itself: here they are gathered for a moment. Should the store be dropped
//! meanwhile, they end with their time to live.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::link::{Link, command};

/// Latches removed with one command: some twenty microseconds of Redis's time.
const AT_ONCE: usize = 64;

/// For how long they are gathered at most: a latch is kept that little longer.
const GATHERED: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct Latches {
    /// Less than [`AT_ONCE`].
    spent: Mutex<Vec<String>>,
}

/// What is to be done when one was added.
#[derive(Debug, PartialEq, Eq)]
enum Then {
    /// Somebody will send for it.
    Nothing,
    /// It is the first: send for it in a moment.
    Soon,
    /// These are enough.
    Now(Vec<String>),
}

impl Latches {
    fn gather(&self, latch: String) -> Then {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.push(latch);
        match spent.len() {
            1 => Then::Soon,
            AT_ONCE.. => Then::Now(std::mem::take(&mut *spent)),
            _ => Then::Nothing,
        }
    }

    fn all(&self) -> Vec<String> {
        std::mem::take(&mut *self.spent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has it removed, with others. What is returned is to be run on the thread of the store.
    pub(super) fn remove(
        self: &Arc<Self>,
        link: &Arc<Link>,
        latch: String,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let enough = match self.gather(latch) {
            Then::Nothing => return None,
            Then::Now(latches) => latches,
            Then::Soon => Vec::new(),
        };
        let (latches, link) = (Arc::clone(self), Arc::clone(link));
        Some(async move {
            if enough.is_empty() {
                sleep(GATHERED).await;
                send_for(&link, &latches.all());
            } else {
                send_for(&link, &enough);
            }
        })
    }
}

fn send_for(link: &Link, latches: &[String]) {
    if !latches.is_empty() {
        let latches = latches.iter().map(String::as_bytes);
        let words: Vec<&[u8]> = std::iter::once(&b"UNLINK"[..]).chain(latches).collect();
        link.dispatch(command(&words));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latches_are_sent_for_in_a_moment_or_when_there_are_enough() {
        let latches = Latches::default();
        let name = |i: usize| format!("latch {i}");

        assert_eq!(latches.gather(name(0)), Then::Soon);
        for i in 1..AT_ONCE - 1 {
            assert_eq!(latches.gather(name(i)), Then::Nothing);
        }
        let Then::Now(sent) = latches.gather(name(AT_ONCE - 1)) else { panic!("these are enough") };

        assert_eq!(sent, (0..AT_ONCE).map(name).collect::<Vec<_>>());
        assert_eq!(latches.gather(name(0)), Then::Soon, "the next is a first again");
        assert_eq!(latches.all(), [name(0)]);
        assert!(latches.all().is_empty());
    }
}
