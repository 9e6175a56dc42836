//! Fences (fencing tokens): numbers by which a resource distinguishes holders.

use std::fmt;

use crate::Timestamp;

/// A number that rises with every grant of a lock: the later grant has the larger fence.
///
/// A resource that remembers the largest fence it has seen, and refuses smaller ones, is safe from
/// a holder that was stopped for longer than its lease and does not know it yet.
///
/// ```
/// use tollgate_core::Timestamp;
/// use tollgate_core::lock::Fence;
///
/// let now = Timestamp::from_micros(1_700_000_000_000_000);
/// let first = Fence::next(None, now);
/// let second = Fence::next(Some(first), now);
/// assert!(second > first, "even within one microsecond");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The largest fence. Above it, the doubles of a script could no longer count by one.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// A fence as it was sent or stored; `None` above [`Fence::MAX`].
    pub const fn new(number: u64) -> Option<Self> {
        if number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// The fence of a grant at `now`, after `last`: the larger of `last` plus one and the
    /// microseconds of the store's clock.
    ///
    /// So it rises even if the clock steps back, or if the store forgets `last`. It may fail to
    /// rise only if both happen at once.
    pub fn next(last: Option<Self>, now: Timestamp) -> Self {
        let risen = last.map_or(0, |Self(last)| last.saturating_add(1));
        Self(risen.max(now.as_micros()).min(Self::MAX.0))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    // E42
    #[test]
    fn it_rises_when_the_clock_steps_back_and_when_the_last_is_forgotten() {
        let first = Fence::next(None, NOW);

        let stepped_back = Fence::next(Some(first), Timestamp::EPOCH);
        let forgotten = Fence::next(None, Timestamp::from_micros(NOW.as_micros() + 1));

        assert_eq!(stepped_back.get(), first.get() + 1);
        assert!(forgotten > first);
    }

    #[test]
    fn it_stays_where_a_double_can_count() {
        assert_eq!(Fence::next(None, Timestamp::MAX), Fence::MAX);
        assert_eq!(Fence::new(1 << 53), None);
        assert_eq!(Fence::new((1 << 53) - 1), Some(Fence::MAX));
    }
}
