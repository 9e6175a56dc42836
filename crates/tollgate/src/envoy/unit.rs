//! The units of a rate limit, with the lengths that the reference service gives them.

use std::time::Duration;

/// The window of a rate limit. Windows begin at whole multiples of it since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// One second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// 7 days, which begin on Thursdays, as the epoch did.
    Week,
    /// 30 days, in every calendar month.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All of them, shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Its length.
    pub const fn period(self) -> Duration {
        Duration::from_secs(self.row().1)
    }

    /// Its name in the protocol, for example `MINUTE`.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The unit of this name, in upper or lower case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// Its letter in keys. It must never change.
    pub(super) const fn letter(self) -> u8 {
        self.row().2
    }

    /// Its name, its length in seconds, and its letter in keys.
    const fn row(self) -> (&'static str, u64, u8) {
        const DAY: u64 = 24 * 60 * 60;
        match self {
            Self::Second => ("SECOND", 1, b's'),
            Self::Minute => ("MINUTE", 60, b'm'),
            Self::Hour => ("HOUR", 60 * 60, b'h'),
            Self::Day => ("DAY", DAY, b'd'),
            Self::Week => ("WEEK", 7 * DAY, b'w'),
            Self::Month => ("MONTH", 30 * DAY, b'M'),
            Self::Year => ("YEAR", 365 * DAY, b'y'),
        }
    }
}
