//! Helpers of the property tests: one key, charged by hand.
#![allow(
    dead_code,
    clippy::as_conversions,
    clippy::unwrap_used,
    reason = "each test file uses its own part of this; a count fits 64 bits"
)]

use std::time::Duration;

use tollgate_core::algorithm::Algorithm;
use tollgate_core::{Charge, Counter, Decision, Key, Limit, Op, Retry, Timestamp, Verdict};

/// A moment far from both ends of time, aligned to seconds, minutes and hours.
pub(crate) const START: u64 = 1_700_006_400_000_000;

pub(crate) const SECOND: u64 = 1_000_000;

pub(crate) fn limit(algorithm: impl Into<Algorithm>, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap()
}

pub(crate) fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}

pub(crate) fn deny_after(micros: u64) -> Verdict {
    Verdict::Deny(Retry::After(Duration::from_micros(micros)))
}

pub(crate) fn wait(micros: u64) -> Verdict {
    Verdict::Wait(Duration::from_micros(micros))
}

pub(crate) const NEVER: Verdict = Verdict::Deny(Retry::Never);

/// One key and its counter.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) limit: Limit,
    pub(crate) counter: Counter,
}

impl Subject {
    pub(crate) fn new(limit: &Limit) -> Self {
        Self { limit: *limit, counter: Counter::absent(limit) }
    }

    pub(crate) fn charge(&mut self, op: Op, patience: u64, now: u64) -> Decision {
        let limit = self.limit;
        let charge = Charge::new(Key::new("k").unwrap(), &limit, op).unwrap();
        self.counter.charge(&charge.with_patience(Duration::from_micros(patience)), at(now))
    }

    pub(crate) fn take(&mut self, cost: u64, now: u64) -> Decision {
        self.charge(Op::Take(cost), 0, now)
    }

    pub(crate) fn peek(&mut self, cost: u64, now: u64) -> Decision {
        self.charge(Op::Peek(cost), 0, now)
    }

    /// Takes one permit after the other, as many as pass at this moment, at most `most`.
    pub(crate) fn drain(&mut self, now: u64, most: u64) -> u64 {
        (0..most).take_while(|_| self.take(1, now).passes()).count() as u64
    }
}
