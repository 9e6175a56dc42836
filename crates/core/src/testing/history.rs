//! Generated traffic on one key: operations, limits and moments.
//!
//! A [`History`] is deterministic: the same seed and the same answers make the same turns. It reads
//! the answers so that it can come back exactly at the time of the retry, one microsecond early, or
//! one late. Limiters break at these edges.

use std::time::Duration;

use super::Rng;
use crate::algorithm::{
    Algorithm, Anchor, Concurrency, Estimate, FixedWindow, LeakyMeter, LeakyQueue, Payment,
    SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use crate::time::micros;
use crate::{Decision, Holder, Limit, OnChange, Op, Quota, Retry, Revision, Timestamp, Verdict};

/// An algorithm in one of its shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmKind {
    /// A fixed window, with either anchor.
    FixedWindow,
    /// A sliding log.
    SlidingLog,
    /// A sliding window that never admits too much.
    Conservative,
    /// A sliding window that estimates.
    Weighted,
    /// A token bucket.
    TokenBucket,
    /// A leaky bucket as a meter.
    LeakyMeter,
    /// A leaky bucket as a queue.
    LeakyQueue,
    /// A smooth limiter, bursty or warming up, with either payment.
    Smooth,
    /// A concurrency limit.
    Concurrency,
}

impl AlgorithmKind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::FixedWindow,
        Self::SlidingLog,
        Self::Conservative,
        Self::Weighted,
        Self::TokenBucket,
        Self::LeakyMeter,
        Self::LeakyQueue,
        Self::Smooth,
        Self::Concurrency,
    ];

    /// The kind of an algorithm. The match is exhaustive, so an algorithm without histories does
    /// not compile.
    pub const fn of(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow(_) => Self::FixedWindow,
            Algorithm::SlidingLog(_) => Self::SlidingLog,
            Algorithm::SlidingWindow(window) => match window.estimate {
                Estimate::Conservative => Self::Conservative,
                Estimate::Weighted => Self::Weighted,
            },
            Algorithm::TokenBucket(_) => Self::TokenBucket,
            Algorithm::LeakyMeter(_) => Self::LeakyMeter,
            Algorithm::LeakyQueue(_) => Self::LeakyQueue,
            Algorithm::Smooth(_) => Self::Smooth,
            Algorithm::Concurrency(_) => Self::Concurrency,
        }
    }

    /// An algorithm of this kind with random parameters.
    pub fn algorithm(self, rng: &mut Rng) -> Algorithm {
        let panes = rng.pick(&[1, 1, 2, 3, 4, 10, 60, 64]);
        match self {
            Self::FixedWindow => {
                FixedWindow { anchor: rng.pick(&[Anchor::FirstHit, Anchor::Epoch]) }.into()
            }
            Self::SlidingLog => SlidingLog.into(),
            Self::Conservative => SlidingWindow { panes, estimate: Estimate::Conservative }.into(),
            Self::Weighted => SlidingWindow { panes, estimate: Estimate::Weighted }.into(),
            Self::TokenBucket => TokenBucket.into(),
            Self::LeakyMeter => LeakyMeter.into(),
            Self::LeakyQueue => LeakyQueue.into(),
            Self::Smooth => {
                let warming = Smooth::warming_up(Duration::from_millis(rng.within(1, 20_000)));
                let smooth = rng.pick(&[
                    Smooth::bursty(),
                    warming,
                    warming.with_cold_factor(1),
                    warming.with_cold_factor(7),
                ]);
                smooth.with_payment(rng.pick(&[Payment::Next, Payment::Own])).into()
            }
            Self::Concurrency => Concurrency.into(),
        }
    }

    /// A random limit of this kind: everyday rates, awkward ones and extreme ones.
    pub fn limit(self, rng: &mut Rng) -> Limit {
        loop {
            let algorithm = self.algorithm(rng);
            if let Some(limit) = self.quota(rng).and_then(|q| Limit::new(algorithm, q).ok()) {
                return limit;
            }
        }
    }

    fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyMeter | Self::LeakyQueue | Self::Smooth)
    }

    fn quota(self, rng: &mut Rng) -> Option<Quota> {
        const AWKWARD: [(u64, u64); 14] = [
            (7, 1_000_000),
            (3_000_003, 1_000_000),
            (1, 3),
            (1, 31_536_000_000_000),
            (1_000_000_000, 1_000_000),
            (1_000, 1),
            (3, 7),
            (1, 1),
            (10, 1_000_000),
            (100, 60_000_000),
            (1_000_000, 86_400_000_000),
            (999_983, 999_979),
            (999_999_999_999, 31_535_999_999_999),
            (5, 10_000_000),
        ];
        let (count, period) = if rng.chance(1, 2) {
            rng.pick(&AWKWARD)
        } else {
            let most =
                if matches!(self, Self::SlidingLog | Self::Concurrency) { 30 } else { 5_000 };
            (rng.magnitude(most), rng.magnitude(100_000_000))
        };
        let quota = Quota::new(count, Duration::from_micros(period)).ok()?;
        if !self.has_burst() || rng.chance(1, 3) {
            return Some(quota);
        }
        quota.with_burst(rng.pick(&[1, 2, 3, 10, 20, 1_000, count.saturating_mul(3)])).ok()
    }
}

/// The clock of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockMode {
    /// Never steps back.
    Forward,
    /// Steps back now and then, by little or by much.
    Unsteady,
}

/// Edits of a history's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edits {
    /// No edits.
    None,
    /// Edits now and then: newer and older revisions, and other quotas at the same one.
    Live,
}

/// One charge of a history.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The limit of the charge.
    pub limit: Limit,
    /// The operation.
    pub op: Op,
    /// The caller's patience.
    pub patience: Duration,
    /// The moment.
    pub now: Timestamp,
}

/// Deterministic generated traffic on one key.
#[derive(Clone, Debug)]
pub struct History {
    rng: Rng,
    kind: AlgorithmKind,
    clockwork: ClockMode,
    limits: Vec<Limit>,
    current: usize,
    now: u64,
    told: Option<u64>,
    granted: u64,
}

/// The end of histories, in the year 2112. Up to there, sums of times stay within an oracle's
/// fractions and are exact in the doubles of a Redis script.
const LAST_MOMENT: u64 = 1 << 52;

impl History {
    /// A history of this kind.
    pub fn new(kind: AlgorithmKind, clockwork: ClockMode, edits: Edits, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut limits = vec![kind.limit(&mut rng)];
        if edits == Edits::Live {
            for revision in [0, 1, 1, 2, 3] {
                let how = rng.pick(&[OnChange::Keep, OnChange::Scale, OnChange::Reset]);
                let limit = Self::edited(kind, &limits[0], &mut rng);
                limits.push(limit.with_revision(Revision(revision)).with_on_change(how));
            }
        }
        let now = rng.pick(&[1_700_000_000_000_000, 1_000_000_000_000, 100_000_000_000_000]);
        let now = now + rng.below(10_000_000);
        Self { rng, kind, clockwork, limits, current: 0, now, told: None, granted: now }
    }

    /// Another limit of the same kind, as likely near the first as anywhere.
    fn edited(kind: AlgorithmKind, first: &Limit, rng: &mut Rng) -> Limit {
        let quota = first.quota();
        let count = match rng.below(4) {
            0 => quota.count().get() / 2,
            1 => quota.count().get().saturating_mul(2),
            2 => quota.count().get() + rng.below(5),
            _ => 0,
        };
        let near = Quota::new(count, quota.period()).ok();
        let near = near.and_then(|quota| Limit::new(first.algorithm(), quota).ok());
        near.unwrap_or_else(|| kind.limit(rng))
    }

    /// The limit of the next charge, unless it changes.
    pub fn limit(&self) -> &Limit {
        &self.limits[self.current]
    }

    /// The next charge.
    pub fn turn(&mut self) -> Turn {
        if self.rng.chance(1, 40) {
            self.current = self.rng.below(self.limits.len() as u64) as usize;
        }
        self.pass_time();
        let op = match self.kind {
            AlgorithmKind::Concurrency => self.holder_op(),
            _ => self.cost_op(),
        };
        let refill = self.refill();
        let patience = match self.rng.below(8) {
            0 => self.interval().saturating_mul(3),
            1 => self.rng.below(refill.saturating_add(2)),
            2 => self.told.unwrap_or(0),
            3 => refill,
            _ => 0,
        };
        let patience = Duration::from_micros(patience).min(Quota::MAX_PERIOD);
        Turn { limit: *self.limit(), op, patience, now: Timestamp::from_micros(self.now) }
    }

    /// Moves the history to a moment that it shares with others.
    pub fn move_to(&mut self, now: Timestamp) {
        self.now = now.as_micros();
    }

    /// Reads the answer to the last turn.
    pub fn hear(&mut self, decision: &Decision) {
        match decision.verdict {
            Verdict::Allow => self.granted = self.now,
            Verdict::Wait(wait) => self.granted = self.now + micros(wait),
            Verdict::Deny(Retry::After(after)) => self.told = Some(micros(after)),
            Verdict::Deny(Retry::Never) => {}
        }
        if self.rng.chance(1, 10) {
            self.told = Some(micros(decision.reset_after));
        }
    }

    /// The time that one permit takes, rounded up.
    fn interval(&self) -> u64 {
        self.limit().quota().rate().span(1).ceil()
    }

    fn period(&self) -> u64 {
        micros(self.limit().quota().period())
    }

    fn refill(&self) -> u64 {
        let quota = self.limit().quota();
        quota.rate().span(quota.burst().get()).ceil()
    }

    /// A span of one microsecond less, exactly, or one more.
    fn about(&mut self, span: u64) -> u64 {
        (span + self.rng.below(3)).saturating_sub(1)
    }

    fn pass_time(&mut self) {
        let (interval, period, refill) = (self.interval(), self.period(), self.refill());
        if self.clockwork == ClockMode::Unsteady && self.rng.chance(1, 15) {
            let back = match self.rng.below(6) {
                0 => 1,
                1 => self.rng.below(interval.saturating_add(1)),
                2 => self.rng.below(period.saturating_mul(2)),
                3 => self.about(period),
                4 => self.rng.below(refill.saturating_add(1)),
                _ => 3_600_000_000,
            };
            // Histories begin long after the epoch and stay there.
            self.now = self.now.saturating_sub(back).max(1_000_000_000);
            return;
        }
        let by = match self.rng.below(24) {
            0..10 => 0,
            10 => 1,
            11 | 12 => self.rng.below(interval.saturating_add(1)),
            13 => self.about(interval),
            14 => self.rng.below(period / 2 + 1),
            15 => self.about(period),
            16 => {
                let times = self.rng.within(2, 5);
                self.about(period.saturating_mul(times))
            }
            17 => self.about(refill),
            18 => self.rng.below(refill.saturating_mul(2).saturating_add(1)),
            19..23 => {
                let told = self.told.take().unwrap_or(interval);
                self.about(told)
            }
            _ => self.rng.magnitude(100_000_000_000),
        };
        let next = self.now.saturating_add(by);
        if next < LAST_MOMENT {
            self.now = next;
        }
    }

    fn cost(&mut self) -> u64 {
        let quota = self.limit().quota();
        let (count, burst) = (quota.count().get(), quota.burst().get());
        match self.rng.below(20) {
            0 => 0,
            1 => burst,
            2 => burst + 1,
            3 => count,
            4 => burst + 2,
            5 if self.rng.chance(1, 4) => u64::MAX,
            6 => burst.saturating_mul(10) + self.rng.below(2),
            7..12 => self.rng.within(1, burst),
            12 | 13 => self.rng.magnitude(burst),
            _ => self.rng.within(1, 3),
        }
    }

    fn moment(&mut self) -> Timestamp {
        let (interval, period) = (self.interval(), self.period());
        let moment = match self.rng.below(8) {
            0 => self.now - self.rng.below(interval.saturating_add(2)).min(self.now),
            1 => self.now.saturating_sub(self.about(period)),
            2 => self.now.saturating_sub(self.rng.magnitude(100_000_000_000)),
            3 => self.now + self.rng.below(period + 1),
            4 | 5 => self.granted,
            _ => self.now,
        };
        Timestamp::from_micros(moment)
    }

    fn cost_op(&mut self) -> Op {
        let cost = self.cost();
        match self.rng.below(20) {
            0..14 => Op::Take(cost),
            14 | 15 => Op::Peek(cost),
            16 => Op::Debit { cost, at: self.moment() },
            _ => Op::Credit { cost: cost.min(1 << 60), at: self.moment() },
        }
    }

    fn holder_op(&mut self) -> Op {
        let most = self.limit().quota().count().get().min(20) + 3;
        let holder = Holder(self.rng.below(most).into());
        let period = self.period();
        let lease = Duration::from_micros(match self.rng.below(4) {
            0 => period,
            1 => 1,
            _ => self.rng.magnitude(period).max(1),
        });
        match self.rng.below(10) {
            0..5 => Op::Acquire { holder, lease },
            5 | 6 => Op::Renew { holder, lease },
            7 | 8 => Op::Release { holder },
            _ => Op::Peek(self.rng.within(0, most)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_draws_limits_of_its_own_kind() {
        let mut rng = Rng::new(1);
        for kind in AlgorithmKind::ALL {
            for _ in 0..100 {
                assert_eq!(AlgorithmKind::of(&kind.limit(&mut rng).algorithm()), kind);
            }
        }
    }
}
