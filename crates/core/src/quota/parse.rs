//! Quotas as people write them: `100 per 1m burst 20`, `5 per 10s`, `1_000 per minute`.
//!
//! The grammar is `COUNT per PERIOD [burst COUNT]`, words in any case. A count is a whole number
//! and may hold `_` between digits; a period is a whole number and a unit (`us`, `ms`, `s`, `m`,
//! `h`, `d`, `w`), or a unit's English name alone.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Quota, QuotaError};

/// Units of a period with their microseconds, largest first, so that printing picks the largest.
pub(super) const UNITS: &[(&str, u64)] = &[
    ("w", 604_800_000_000),
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

const NAMES: &[(&str, &str)] = &[
    ("week", "w"),
    ("day", "d"),
    ("hour", "h"),
    ("minute", "m"),
    ("second", "s"),
    ("millisecond", "ms"),
    ("microsecond", "us"),
];

/// Longer text is refused unread, so that an error never repeats a megabyte of input.
const MAX_TEXT: usize = 128;

impl FromStr for Quota {
    type Err = ParseQuotaError;

    fn from_str(text: &str) -> Result<Self, ParseQuotaError> {
        let fail = |kind| ParseQuotaError { kind };
        if text.len() > MAX_TEXT {
            return Err(fail(ParseQuotaErrorKind::TooLong));
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let is = |word: &str, expected: &str| word.eq_ignore_ascii_case(expected);
        let (count, period, burst) = match words.as_slice() {
            [count, per, period] if is(per, "per") => (*count, *period, None),
            [count, per, period, with, burst] if is(per, "per") && is(with, "burst") => {
                (*count, *period, Some(*burst))
            }
            _ => return Err(fail(ParseQuotaErrorKind::Shape(text.to_owned()))),
        };
        let period = parse_period(period).map_err(fail)?;
        let count = parse_count(count, Some(period)).map_err(fail)?;
        let quota = Self::new(count, period).map_err(|error| fail(error.into()))?;
        match burst {
            None => Ok(quota),
            Some(burst) => {
                let burst = parse_count(burst, None).map_err(fail)?;
                quota.with_burst(burst).map_err(|error| fail(error.into()))
            }
        }
    }
}

fn parse_count(word: &str, period: Option<Duration>) -> Result<u64, ParseQuotaErrorKind> {
    if let Some(fraction) = Fraction::parse(word) {
        return Err(ParseQuotaErrorKind::NotWhole {
            word: word.to_owned(),
            instead: period.and_then(|period| fraction.whole_quota(period)),
        });
    }
    let digits = word.replace('_', "");
    let misplaced = word.starts_with('_') || word.ends_with('_');
    if misplaced || digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseQuotaErrorKind::Count(word.to_owned()));
    }
    digits.parse().map_err(|_| ParseQuotaErrorKind::CountOverflow(word.to_owned()))
}

fn parse_period(word: &str) -> Result<Duration, ParseQuotaErrorKind> {
    let bad = || ParseQuotaErrorKind::Period(word.to_owned());
    let lower = word.to_ascii_lowercase();
    let split = lower.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let (digits, unit) = lower.split_at(split);
    let named =
        NAMES.iter().find(|(name, _)| *name == unit || unit.strip_suffix('s') == Some(name));
    let unit = named.map_or(unit, |(_, short)| short);
    let (_, micros) = UNITS.iter().find(|(short, _)| *short == unit).ok_or_else(bad)?;
    let amount = match digits {
        // `per minute` reads as one minute; `per m` is more likely a slip.
        "" if named.is_some() => 1,
        "" => return Err(bad()),
        digits => digits.parse::<u64>().map_err(|_| bad())?,
    };
    let micros = amount.checked_mul(*micros).ok_or_else(bad)?;
    Ok(Duration::from_micros(micros))
}

/// A decimal fraction such as `1.5`, to tell how to write it with whole numbers.
struct Fraction {
    numerator: u64,
    denominator: u64,
}

impl Fraction {
    fn parse(word: &str) -> Option<Self> {
        let (whole, decimals) = word.split_once('.')?;
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.is_empty() {
            return None;
        }
        let denominator = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
        let numerator = format!("{whole}{decimals}").parse().ok()?;
        Some(Self { numerator, denominator })
    }

    /// `1.5 per 1s` is `3 per 2s`.
    fn whole_quota(&self, period: Duration) -> Option<Quota> {
        let (mut a, mut b) = (self.numerator, self.denominator);
        while b != 0 {
            (a, b) = (b, a.checked_rem(b)?);
        }
        let count = self.numerator.checked_div(a)?;
        let periods = u32::try_from(self.denominator.checked_div(a)?).ok()?;
        Quota::new(count, period.checked_mul(periods)?).ok()
    }
}

/// The reason why a text is not a quota. [`ParseQuotaError::kind`] tells the cases apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseQuotaError {
    kind: ParseQuotaErrorKind,
}

impl ParseQuotaError {
    /// The kind of the failure.
    pub const fn kind(&self) -> &ParseQuotaErrorKind {
        &self.kind
    }
}

/// The mistake in the text of a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseQuotaErrorKind {
    /// The text is longer than any quota.
    TooLong,
    /// The words are not `COUNT per PERIOD [burst COUNT]`.
    Shape(String),
    /// The word is not a whole number.
    Count(String),
    /// The number does not fit 64 bits.
    CountOverflow(String),
    /// The count has a fraction.
    NotWhole {
        /// The word as written.
        word: String,
        /// The same rate in whole numbers, where there is one.
        instead: Option<Quota>,
    },
    /// The word is not a whole number and a unit.
    Period(String),
    /// The numbers are readable, but make no valid quota.
    Quota(QuotaError),
}

impl From<QuotaError> for ParseQuotaErrorKind {
    fn from(error: QuotaError) -> Self {
        Self::Quota(error)
    }
}

impl fmt::Display for ParseQuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ParseQuotaErrorKind::TooLong => {
                write!(f, "longer than {MAX_TEXT} bytes: write `100 per 1m burst 20`")
            }
            ParseQuotaErrorKind::Shape(text) => {
                write!(f, "{text:?} is not a quota: write `100 per 1m` or `100 per 1m burst 20`")
            }
            ParseQuotaErrorKind::Count(word) => {
                write!(f, "{word:?} is not a whole number from 1 upwards")
            }
            ParseQuotaErrorKind::CountOverflow(word) => {
                write!(f, "{word} is above {}", Quota::MAX_COUNT)
            }
            ParseQuotaErrorKind::NotWhole { word, instead: Some(quota) } => {
                write!(f, "{word} is not a whole number: write `{quota}`")
            }
            ParseQuotaErrorKind::NotWhole { word, instead: None } => {
                write!(f, "{word} is not a whole number")
            }
            ParseQuotaErrorKind::Period(word) => write!(
                f,
                "{word:?} is not a period: write a whole number and one of us, ms, s, m, h, d, w"
            ),
            // Transparent: the reason is the whole message, so it is not repeated as a source.
            ParseQuotaErrorKind::Quota(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ParseQuotaError {}
