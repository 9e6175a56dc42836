//! The fast paths of acquisition and release answer and leave what the long way would.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a test stops there"
)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use crate::common::*;
use crate::locks::Redis;
use tollgate_core::testing::locks::{self, LockStoreUnderTest, granted, plain};
use tollgate_harness::Reply;
use tollgate_redis::core::Timestamp;
use tollgate_redis::core::lock::{
    Acquire, AcquireOutcome, Attempt, HoldId, LockKind, LockName, Owner, RELEASE_RECORD_TTL,
    Release, ReleaseOutcome, Renew, RenewOutcome,
};

/// Sends every release as one that was never sent before, which has a fast path of its own and of which
/// the store remembers nothing for long: so this remembers in its place.
struct SoleAttemptStore {
    redis: Redis,
    now_ms: Cell<u64>,
    records: RefCell<HashMap<(LockName, HoldId), (ReleaseOutcome, u64)>>,
}

impl SoleAttemptStore {
    fn record(&self, name: &LockName, hold: HoldId) -> Option<ReleaseOutcome> {
        let records = self.records.borrow();
        let (answer, until) = records.get(&(name.clone(), hold))?;
        (self.now_ms.get() <= *until).then_some(*answer)
    }
}

impl LockStoreUnderTest for SoleAttemptStore {
    fn acquire(&self, ask: &Acquire<'_>) -> AcquireOutcome {
        let over = self.record(ask.name, ask.hold).is_some();
        if over { AcquireOutcome::Over } else { self.redis.acquire(ask) }
    }

    fn renew(&self, batch: &[Renew<'_>]) -> Vec<RenewOutcome> {
        self.redis.renew(batch)
    }

    fn release(&self, ask: &Release<'_>) -> ReleaseOutcome {
        if let Some(answer) = self.record(ask.name, ask.hold) {
            return answer;
        }
        let answer = self.redis.release(&Release { attempt: Attempt::Sole, ..*ask });
        let until = self.now_ms.get() + RELEASE_RECORD_TTL.as_millis() as u64;
        self.records.borrow_mut().insert((ask.name.clone(), ask.hold), (answer, until));
        answer
    }

    fn force_release(&self, name: &LockName) -> Option<(String, u32)> {
        self.redis.force_release(name)
    }

    fn holder(&self, name: &LockName) -> Option<(String, u32)> {
        self.redis.holder(name)
    }

    fn set_time(&self, now: Timestamp) {
        self.now_ms.set(now.as_micros() / 1_000);
        self.redis.set_time(now);
    }
}

/// E42, E43, E45
#[test]
fn a_release_that_is_sent_once_is_answered_as_any_other() {
    let redis = Redis::start();
    let subject = SoleAttemptStore { redis, now_ms: Cell::default(), records: RefCell::default() };
    for seed in 10..12 {
        locks::all(&subject, seed, 2_500);
        run(&subject.redis.server, &[b"FLUSHALL"]);
        subject.records.borrow_mut().clear();
    }
}

/// A barred sidecar is what it was after an acquisition that it kept out.
#[test]
fn who_is_kept_out_by_a_lock_delay_changes_nothing() {
    let subject = Redis::start();
    let (me, you) = (Owner::new(1, 9), Owner::new(2, 9));
    for (kind, name) in [(LockKind::Reentrant, "a"), (LockKind::Simple, "b")] {
        subject.set_time(locks::START);
        let lock = LockName::new(name).unwrap();
        let delay = Duration::from_secs(60);
        granted(subject.acquire(&Acquire { delay, ..plain(&lock, kind, &me, 1) }));
        // Past the lease of 30 s, before the end of the delay.
        subject.set_time(Timestamp::from_micros(locks::START.as_micros() + 31_000_000));
        let sidecar = format!("tg:lock:w:{{{name}}}");
        let before = run(&subject.server, &[b"GET", sidecar.as_bytes()]);

        for hold in 2..4 {
            let left = Some(Duration::from_secs(59));
            let asked = subject.acquire(&plain(&lock, kind, &you, hold));
            assert_eq!(asked, AcquireOutcome::Busy { left });
        }

        assert_eq!(run(&subject.server, &[b"GET", sidecar.as_bytes()]), before);
        assert!(pttl(&subject.server, sidecar.as_bytes()) >= 86_400_000);
        assert_eq!(run(&subject.server, &[b"EXISTS", name.as_bytes()]), Reply::Integer(0));
    }
}
