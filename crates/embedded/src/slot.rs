//! The encoding of a slot: a state in twelve bytes, or its index in the spill.
//!
//! Nearly all keys hold a bucket or a fixed window, which fit into the slot itself. Other states
//! (logs, panes, holders, smooth limiters, a bucket in debt, a count above 2³²) are in the shard's
//! spill, and the slot has the index.

use tollgate_core::state::{AheadReason, Bucket, ImmediateTake, Window};
use tollgate_core::{Algorithm, Charge, Limit, Span, State, Timestamp};

use crate::fingerprint::Fingerprint;

/// One key's entry in the table: half a cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) word: u64,
    pub(crate) small: u32,
    meta: u32,
}

/// The number of a limit within its shard. The three highest bits of a slot's `meta` are flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitId(pub(crate) u32);

impl LimitId {
    pub(crate) fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// The state is in the spill.
const SPILLED: u32 = 1 << 31;

/// A request in progress holds the state.
const HELD: u32 = 1 << 30;

/// The state is in a hot slot.
const PROMOTED: u32 = 1 << 29;

impl Slot {
    pub(crate) const EMPTY: Self =
        Self { fingerprint: Fingerprint::NONE, word: 0, small: 0, meta: 0 };

    /// A slot whose state is at `index` of the spill.
    pub(crate) fn spilled(fingerprint: Fingerprint, limit: LimitId, index: usize) -> Self {
        let word = u64::try_from(index).unwrap_or(u64::MAX);
        Self { fingerprint, word, small: 0, meta: limit.0 | SPILLED }
    }

    /// A slot that holds the state; `None` if the state does not fit.
    #[inline]
    pub(crate) fn inline(fingerprint: Fingerprint, limit: LimitId, state: &State) -> Option<Self> {
        let (word, part) = match state {
            State::TokenBucket(Bucket { arrival, ahead: AheadReason::WithinBurst })
            | State::LeakyMeter(Bucket { arrival, ahead: AheadReason::WithinBurst })
            | State::LeakyQueue(Bucket { arrival, ahead: AheadReason::WithinBurst }) => {
                (arrival.whole, arrival.part)
            }
            State::FixedWindow(Window { start, used }) => (start.as_micros(), *used),
            _ => return None,
        };
        let small = u32::try_from(part).ok()?;
        Some(Self::new(fingerprint, limit, word, small))
    }

    /// A slot that holds these twelve bytes of state.
    #[inline]
    pub(crate) const fn new(
        fingerprint: Fingerprint,
        limit: LimitId,
        word: u64,
        small: u32,
    ) -> Self {
        Self { fingerprint, word, small, meta: limit.0 }
    }

    /// The state; `None` if it is not in the slot.
    #[inline]
    pub(crate) fn state(&self, under: &Limit) -> Option<State> {
        if self.spill().is_some() {
            return None;
        }
        let part = u64::from(self.small);
        let bucket =
            Bucket { arrival: Span { whole: self.word, part }, ahead: AheadReason::WithinBurst };
        Some(match under.algorithm() {
            Algorithm::TokenBucket(_) => State::TokenBucket(bucket),
            Algorithm::LeakyMeter(_) => State::LeakyMeter(bucket),
            Algorithm::LeakyQueue(_) => State::LeakyQueue(bucket),
            Algorithm::FixedWindow(_) => {
                State::FixedWindow(Window { start: Timestamp::from_micros(self.word), used: part })
            }
            // These never fit into a slot.
            Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::Smooth(_)
            | Algorithm::Concurrency(_) => State::Absent,
        })
    }

    /// Makes an immediate take from the bucket in the slot. Returns the result, and the slot after
    /// it. `None` for any other charge or state.
    #[inline]
    pub(crate) fn take_immediately(
        self,
        under: &Limit,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Option<(ImmediateTake, Self)> {
        let (cost, plan) = (charge.immediate_cost()?, under.bucket_plan()?);
        if self.meta & (SPILLED | PROMOTED) != 0 || !under.counts_like(charge.limit()) {
            return None;
        }
        let mut arrival = Span { whole: self.word, part: u64::from(self.small) };
        let take = plan.take_immediately(&mut arrival, cost, now)?;
        let small = u32::try_from(arrival.part).ok()?;
        Some((take, Self { word: arrival.whole, small, ..self }))
    }

    /// The index of the state in the spill; `None` if it is not there.
    #[inline]
    pub(crate) fn spill(&self) -> Option<usize> {
        (self.meta & SPILLED != 0).then(|| usize::try_from(self.word).unwrap_or(usize::MAX))
    }

    /// The limit it was counted under.
    #[inline]
    pub(crate) const fn limit(&self) -> LimitId {
        LimitId(self.meta & !(SPILLED | HELD | PROMOTED))
    }

    /// Returns the slot with the mark that a request holds its state.
    pub(crate) const fn held(self) -> Self {
        Self { meta: self.meta | HELD, ..self }
    }

    /// Returns the slot with the mark that its state is in a hot slot.
    pub(crate) const fn promoted(self) -> Self {
        Self { meta: self.meta | PROMOTED, ..self }
    }

    pub(crate) const fn is_promoted(&self) -> bool {
        self.meta & PROMOTED != 0
    }

    /// True if a request or a hot slot holds the state.
    pub(crate) const fn is_away(&self) -> bool {
        self.meta & (HELD | PROMOTED) != 0
    }
}
