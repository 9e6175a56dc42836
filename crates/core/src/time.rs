//! Moments, and clocks.
//!
//! A [`Timestamp`] counts microseconds since the Unix epoch. Nothing in this crate reads a clock: a
//! store does, once for each decision, and passes the moment in. So tests can replay whole
//! histories in virtual time, and every node behind one store agrees on the time.

use std::fmt;
use std::time::Duration;

/// A moment: microseconds since the Unix epoch, by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The first representable moment, 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);

    /// The last representable moment, in the year 586 912.
    ///
    /// A charge that must be remembered beyond it is refused rather than recorded imprecisely.
    pub const MAX: Self = Self(u64::MAX);

    /// The moment `micros` microseconds after the epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Time elapsed since `earlier`, or zero if `earlier` is in the future.
    ///
    /// Saturating, because a store's clock may step backwards and a limiter must not refund
    /// quota when it does.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.micros_since(earlier))
    }

    /// The moment `later` after this one, or `None` past the end of time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_core::Timestamp;
    ///
    /// let second = Timestamp::EPOCH.checked_add(Duration::from_secs(1));
    /// assert_eq!(second, Some(Timestamp::from_micros(1_000_000)));
    /// assert_eq!(Timestamp::MAX.checked_add(Duration::from_micros(1)), None);
    /// ```
    pub fn checked_add(self, later: Duration) -> Option<Self> {
        self.checked_plus_micros(u64::try_from(later.as_micros()).ok()?)
    }

    /// Microseconds since an earlier moment; zero if it is not earlier.
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) const fn plus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    pub(crate) fn checked_plus_micros(self, micros: u64) -> Option<Self> {
        self.0.checked_add(micros).map(Self)
    }

    pub(crate) const fn minus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_sub(micros))
    }
}

/// The whole microseconds of a span, saturating.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} µs", self.0)
    }
}

/// A source of time. Only a store holds one.
pub trait Clock: Send + Sync {
    /// True if two reads never go backwards, in whatever order threads make them.
    ///
    /// A store may then read the clock before it takes its lock, and settle the race by taking the
    /// later of two readings. Otherwise it must read the clock inside the lock: a thread that was
    /// overtaken would look like a clock that stepped back.
    const MONOTONIC: bool = false;

    /// The current time.
    fn now(&self) -> Timestamp;
}

impl<C: Clock> Clock for std::sync::Arc<C> {
    const MONOTONIC: bool = C::MONOTONIC;

    fn now(&self) -> Timestamp {
        C::now(self)
    }
}
