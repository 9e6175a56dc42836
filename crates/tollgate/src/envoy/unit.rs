//! The units of a rate limit, with the lengths that the reference service gives them.

use std::time::Duration;

/// In which time a rate limit counts. Windows begin at whole multiples of it since the Unix epoch.
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
    /// 30 days, whatever the calendar says.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All of them, shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// How long it is.
    pub const fn period(self) -> Duration {
        const DAY: u64 = 24 * 60 * 60;
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        })
    }

    /// Its name in the protocol, such as `MINUTE`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }

    /// The unit of this name, in whatever case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// What stands for it in keys: never to be changed.
    pub(super) const fn letter(self) -> u8 {
        match self {
            Self::Second => b's',
            Self::Minute => b'm',
            Self::Hour => b'h',
            Self::Day => b'd',
            Self::Week => b'w',
            Self::Month => b'M',
            Self::Year => b'y',
        }
    }
}
