//! Quotas as people write them: `100 per 1m burst 20`, `5 per 10s`, `1_000 per minute`.
//!
//! The grammar is `COUNT per PERIOD [burst COUNT]`, words in any case. A count is a whole number
//! and may hold `_` between digits; a period is a whole number and a unit (`us`, `ms`, `s`, `m`,
//! `h`, `d`, `w`), or a unit's English name alone.

use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use super::{Quota, QuotaError};
use crate::errors::messages;
use crate::span::PermitRate;

/// The units of a period with their microseconds. The largest comes first, so that printing picks
/// it.
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

/// The longest text that is parsed, so that an error never repeats a megabyte of input.
const MAX_TEXT: usize = 128;

impl FromStr for Quota {
    type Err = ParseQuotaError;

    fn from_str(text: &str) -> Result<Self, ParseQuotaError> {
        if text.len() > MAX_TEXT {
            return Err(ParseQuotaError::TooLong);
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let is = |word: &str, expected: &str| word.eq_ignore_ascii_case(expected);
        let (count, period, burst) = match words.as_slice() {
            [count, per, period] if is(per, "per") => (*count, *period, None),
            [count, per, period, with, burst] if is(per, "per") && is(with, "burst") => {
                (*count, *period, Some(*burst))
            }
            _ => return Err(ParseQuotaError::Shape(text.to_owned())),
        };
        let period = parse_period(period)?;
        let quota = Self::new(parse_count(count, Some(period))?, period)?;
        match burst {
            None => Ok(quota),
            Some(burst) => Ok(quota.with_burst(parse_count(burst, None)?)?),
        }
    }
}

fn parse_count(word: &str, period: Option<Duration>) -> Result<u64, ParseQuotaError> {
    if let Some(permits_per) = fraction(word) {
        let instead = period.and_then(|period| whole_quota(permits_per, period));
        return Err(ParseQuotaError::NotWhole { word: word.to_owned(), instead });
    }
    let digits = word.replace('_', "");
    let misplaced = word.starts_with('_') || word.ends_with('_');
    if misplaced || digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseQuotaError::Count(word.to_owned()));
    }
    digits.parse().map_err(|_| ParseQuotaError::CountOverflow(word.to_owned()))
}

fn parse_period(word: &str) -> Result<Duration, ParseQuotaError> {
    let bad = || ParseQuotaError::Period(word.to_owned());
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

/// A decimal fraction such as `1.5`, as a numerator and a denominator.
fn fraction(word: &str) -> Option<(u64, u64)> {
    let (whole, decimals) = word.split_once('.')?;
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.is_empty() {
        return None;
    }
    let denominator = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    Some((format!("{whole}{decimals}").parse().ok()?, denominator))
}

/// The quota of a fractional count in whole numbers: `1.5 per 1s` is `3 per 2s`.
fn whole_quota((numerator, denominator): (u64, u64), period: Duration) -> Option<Quota> {
    let rate = PermitRate::new(NonZeroU64::new(numerator)?, NonZeroU64::new(denominator)?);
    let periods = u32::try_from(rate.micros().get()).ok()?;
    Quota::new(rate.denominator().get(), period.checked_mul(periods)?).ok()
}

/// The reason why a text is not a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseQuotaError {
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
        /// The same rate in whole numbers, if there is one.
        instead: Option<Quota>,
    },
    /// The word is not a whole number and a unit.
    Period(String),
    /// The text has the right form, but its numbers do not make a valid quota.
    Quota(QuotaError),
}

impl From<QuotaError> for ParseQuotaError {
    fn from(error: QuotaError) -> Self {
        Self::Quota(error)
    }
}

messages! { ParseQuotaError:
    Self::TooLong => "longer than {MAX_TEXT} bytes: write `100 per 1m burst 20`";
    Self::Shape(text) => "{text:?} is not a quota: write `100 per 1m` or `100 per 1m burst 20`";
    Self::Count(word) => "{word:?} is not a whole number from 1 upwards";
    Self::CountOverflow(word) => "{word} is above {}", Quota::MAX_COUNT;
    Self::NotWhole { word, instead: Some(quota) } =>
        "{word} is not a whole number: write `{quota}`";
    Self::NotWhole { word, instead: None } => "{word} is not a whole number";
    Self::Period(word) =>
        "{word:?} is not a period: write a whole number and one of us, ms, s, m, h, d, w";
    // Transparent: the reason is the whole message, so it is not repeated as a source.
    Self::Quota(error) => "{error}";
}
