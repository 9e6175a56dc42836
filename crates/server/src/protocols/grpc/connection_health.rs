//! Connection health: a connection's activity, its memory, and when it is to be closed.
//!
//! HTTP/2 lets a client use resources at no cost: by frames without a request, by bodies that do not
//! arrive, by answers that it does not read. Each has a bound here. The connection's task checks it every
//! [`TICK`]; nothing in here reads a clock, so that tests count ticks.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Interval of checks of a connection.
pub(super) const TICK: Duration = Duration::from_secs(5);

/// Ticks until a connection must have said something: 10 s.
const GREETING: u32 = 2;

/// Ticks without a request after which a connection is closed: an hour. Envoy keeps its
/// connections, and pings find clients that are gone.
const IDLE: u32 = 720;

/// Ticks that a client may take to take an answer: 30 s.
const UNTAKEN: u32 = 6;

/// Frames that carry no request, before there was one.
pub(super) const SPARE: i64 = 1_000;

/// Allowance per request: windows, pings, a reset.
const PER_REQUEST: i64 = 8;

/// Allowance per tick: pings of a client that only keeps its connection.
const PER_TICK: i64 = 100;

/// Bytes of bodies that a connection may have in memory: two of the longest messages, and ample for the
/// streams of usual clients.
pub(super) const MAX_HELD: usize = 2 * super::MAX_MESSAGE;

/// Activity and memory of a connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionHealth {
    heard: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    /// Frames that carried no request, less the allowances since.
    spent: AtomicI64,
    held: AtomicUsize,
}

/// Checks the health of a connection once per tick.
#[derive(Debug, Default)]
pub(super) struct HealthCheck {
    silent: u32,
    idle: u32,
    stuck: u32,
    begun: u64,
    ended: u64,
}

/// Action for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthAction {
    /// Go on.
    Keep,
    /// It is idle: shut it down gracefully.
    Retire,
    /// It took too long: cut it.
    Cut,
}

impl ConnectionHealth {
    /// Counts a frame that begins or carries a request.
    pub(super) fn useful(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        // Only the connection's task counts frames, and ticks: nothing is lost in between.
        self.allow(PER_REQUEST);
    }

    /// Counts a frame that does not, and tells whether there were too many.
    pub(super) fn idle_talk(&self) -> bool {
        self.heard.fetch_add(1, Ordering::Relaxed);
        self.spent.fetch_add(1, Ordering::Relaxed) >= SPARE
    }

    fn allow(&self, frames: i64) {
        let spent = self.spent.load(Ordering::Relaxed).saturating_sub(frames);
        self.spent.store(spent.max(0), Ordering::Relaxed);
    }

    /// Counts a request, whose answer the client must read.
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an answer that was read, or a request that was cancelled.
    pub(super) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Reserves memory for bytes of a body, and tells whether there is enough.
    pub(super) fn hold(&self, bytes: usize) -> bool {
        self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= MAX_HELD
    }

    /// Releases that memory.
    pub(super) fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl HealthCheck {
    /// Checks the connection, a tick after the last check.
    pub(super) fn look(&mut self, health: &ConnectionHealth) -> HealthAction {
        health.allow(PER_TICK);
        if health.heard.load(Ordering::Relaxed) == 0 {
            self.silent = self.silent.saturating_add(1);
            return if self.silent >= GREETING { HealthAction::Cut } else { HealthAction::Keep };
        }
        let begun = health.begun.load(Ordering::Relaxed);
        let ended = health.ended.load(Ordering::Relaxed);
        let moved = (begun, ended) != (self.begun, self.ended);
        let waits = begun != ended && ended == self.ended;
        (self.begun, self.ended) = (begun, ended);
        self.idle = if moved || begun != ended { 0 } else { self.idle.saturating_add(1) };
        self.stuck = if waits { self.stuck.saturating_add(1) } else { 0 };
        match () {
            () if self.stuck > UNTAKEN => HealthAction::Cut,
            () if self.idle >= IDLE => HealthAction::Retire,
            () => HealthAction::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many looks something is done, and what.
    fn looks(health: &ConnectionHealth, mut before: impl FnMut(u32)) -> (u32, HealthAction) {
        let mut health_check = HealthCheck::default();
        for look in 1..=10_000 {
            before(look);
            match health_check.look(health) {
                HealthAction::Keep => {}
                verdict => return (look, verdict),
            }
        }
        (u32::MAX, HealthAction::Keep)
    }

    #[test]
    fn who_says_nothing_is_cut_after_ten_seconds() {
        assert_eq!(looks(&ConnectionHealth::default(), |_| {}), (2, HealthAction::Cut));
    }

    #[test]
    fn who_asks_nothing_retires_after_an_hour() {
        let health = ConnectionHealth::default();
        health.useful();
        assert_eq!(looks(&health, |_| {}), (720, HealthAction::Retire));
        let asks_now_and_then = |look: u32| {
            if look.is_multiple_of(700) {
                health.begin();
                health.end();
            }
        };
        assert_eq!(looks(&health, asks_now_and_then).1, HealthAction::Keep);
    }

    #[test]
    fn who_takes_no_answer_is_cut_after_thirty_seconds() {
        let health = ConnectionHealth::default();
        health.useful();
        health.begin();
        let (look, verdict) = looks(&health, |_| health.begin());
        assert_eq!((look, verdict), (UNTAKEN + 1, HealthAction::Cut), "asking on does not help");
        let takes = |_| {
            health.begin();
            health.end();
        };
        assert_eq!(looks(&health, takes).1, HealthAction::Keep);
    }

    #[test]
    fn talk_that_asks_nothing_is_bounded_and_pings_are_not_too_much() {
        let health = ConnectionHealth::default();
        let flood = (1..).find(|_| health.idle_talk());
        assert_eq!(flood, Some(SPARE + 1));
        let health = ConnectionHealth::default();
        for _ in 0..100_000 {
            health.useful();
            assert!(!(0..PER_REQUEST).any(|_| health.idle_talk()), "windows, pings, resets");
        }
        let mut health_check = HealthCheck::default();
        for _ in 0..10_000 {
            assert!(!(0..PER_TICK).any(|_| health.idle_talk()));
            health_check.look(&health);
        }
    }

    #[test]
    fn bodies_are_held_up_to_the_bound() {
        let health = ConnectionHealth::default();
        assert!(health.hold(MAX_HELD));
        assert!(!health.hold(1));
        health.release(MAX_HELD + 1);
        assert!(health.hold(1));
    }
}
