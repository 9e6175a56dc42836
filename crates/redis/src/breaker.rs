//! The circuit breaker: decides whether Redis is worth asking.
//!
//! A pure state machine: its caller passes each event and its time. It opens after failures
//! in a row that span some time, or when a probe is not answered. Only a successful probe closes it:
//! the callers it rejects must not be the ones who find out.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::clock::Instant;
use crate::config::BreakerSettings;
use tollgate_core::lock_mutex;

#[derive(Debug)]
pub(crate) struct Breaker {
    settings: BreakerSettings,
    streak: Mutex<Option<Streak>>,
    // Read by every call. It only ever changes while the streak is locked.
    open: AtomicBool,
    opens: AtomicU64,
}

/// Failures in a row.
#[derive(Clone, Copy, Debug)]
struct Streak {
    since: Instant,
    failures: u32,
}

/// The effect of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The first in a row: worth a probe, which may know sooner than the calls do.
    First,
    /// One more in a row, or the breaker is open already.
    Another,
    /// The breaker opened.
    Opened,
}

impl Breaker {
    pub(crate) fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            streak: Mutex::new(None),
            open: AtomicBool::new(false),
            opens: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// Returns how often it has opened.
    pub(crate) fn opens(&self) -> u64 {
        self.opens.load(Relaxed)
    }

    /// Records a call that Redis answered.
    ///
    /// This does not close an open breaker: the call may be older than the stall.
    pub(crate) fn succeed(&self) {
        *lock_mutex(&self.streak) = None;
    }

    /// Records a call without an answer, or with one that says that Redis is busy.
    pub(crate) fn fail(&self, now: Instant) -> Failure {
        let mut streak = lock_mutex(&self.streak);
        let first = streak.is_none();
        let current = streak.get_or_insert(Streak { since: now, failures: 0 });
        current.failures = current.failures.saturating_add(1);
        match self.is_enough(*current, now) && self.open() {
            true => Failure::Opened,
            false if first => Failure::First,
            false => Failure::Another,
        }
    }

    /// Records an unanswered probe. Returns whether this opened the breaker.
    pub(crate) fn trip(&self) -> bool {
        let _streak = lock_mutex(&self.streak);
        self.open()
    }

    /// Records a probe that was answered in time. Returns whether this closed the breaker.
    pub(crate) fn close(&self) -> bool {
        let mut streak = lock_mutex(&self.streak);
        let was_open = self.open.swap(false, Relaxed);
        // While it is closed, calls alone say when their row of failures ends: a server may answer
        // every PING and no script.
        if was_open {
            *streak = None;
        }
        was_open
    }

    fn is_enough(&self, streak: Streak, now: Instant) -> bool {
        streak.failures >= self.settings.failures
            && now.saturating_duration_since(streak.since) >= self.settings.span
    }

    /// Opens it, with the streak locked. Returns whether it was closed.
    fn open(&self) -> bool {
        let opened = !self.open.swap(true, Relaxed);
        if opened {
            self.opens.fetch_add(1, Relaxed);
        }
        opened
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;

    const MS: Duration = Duration::from_millis(1);

    fn breaker() -> Breaker {
        Breaker::new(BreakerSettings::default().failures(3).span(50 * MS))
    }

    #[test]
    fn it_opens_after_enough_failures_over_enough_time() {
        let (breaker, start) = (breaker(), clock::now());

        let outcomes = [0, 30, 50, 51].map(|ms| breaker.fail(start + ms * MS));

        assert_eq!(outcomes, [Failure::First, Failure::Another, Failure::Opened, Failure::Another]);
        assert!(breaker.is_open());
        assert_eq!(breaker.opens(), 1);
    }

    #[test]
    fn a_hundred_failures_at_once_are_one_hiccup() {
        let (breaker, start) = (breaker(), clock::now());

        for _ in 0..100 {
            breaker.fail(start);
        }

        assert!(!breaker.is_open());
    }

    #[test]
    fn two_failures_are_too_few_however_far_apart() {
        let (breaker, start) = (breaker(), clock::now());

        breaker.fail(start);
        breaker.fail(start + 10_000 * MS);

        assert!(!breaker.is_open());
    }

    #[test]
    fn an_answer_ends_the_row() {
        let (breaker, start) = (breaker(), clock::now());

        breaker.fail(start);
        breaker.fail(start + 60 * MS);
        breaker.succeed();

        assert_eq!(breaker.fail(start + 70 * MS), Failure::First);
        assert!(!breaker.is_open());
    }

    #[test]
    fn only_a_probe_closes_it() {
        let (breaker, start) = (breaker(), clock::now());

        assert!(breaker.trip());
        assert!(!breaker.trip(), "it was open already");
        breaker.succeed();
        assert!(breaker.is_open());

        assert!(breaker.close());
        assert!(!breaker.is_open());
        assert_eq!(breaker.fail(start), Failure::First, "a closed breaker starts afresh");
    }

    #[test]
    fn a_probe_that_passes_does_not_excuse_the_calls_that_fail() {
        let (breaker, start) = (breaker(), clock::now());

        breaker.fail(start);
        breaker.fail(start + 25 * MS);
        breaker.close();

        assert_eq!(breaker.fail(start + 50 * MS), Failure::Opened);
    }

    #[test]
    fn one_failure_of_no_span_can_be_enough() {
        let settings = BreakerSettings::default().failures(1).span(Duration::ZERO);
        assert_eq!(Breaker::new(settings).fail(clock::now()), Failure::Opened);
    }
}
