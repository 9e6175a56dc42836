//! `CL.THROTTLE key max_burst count period [quantity]`, with the replies of redis-cell.
//!
//! The bucket holds `max_burst + 1` and refills `count` per `period` seconds. Five integers answer:
//! limited, limit, remaining, retry-after, reset-after. Seconds are rounded up if their milliseconds
//! are not zero; fractions of a millisecond are dropped, as redis-cell drops them. A retry of -1 is
//! either "passes" or "never will".

use std::time::Duration;

use tollgate::TokenBucket;
use tollgate::{Decision, Limit, Quota, Retry, Verdict};

use super::reply;

/// Arguments of the command.
#[derive(Clone, Copy, Debug)]
pub struct Throttle<'l> {
    /// The bucket.
    pub limit: &'l Limit,
    /// Tokens to take.
    pub quantity: u64,
}

/// Error reply, which begins as redis-cell's do.
pub type ThrottleError = String;

/// Limits made lately, so that a limit that comes with every command is made once. Two limits with
/// the same index evict each other.
#[derive(Debug)]
pub struct LimitCache(Box<[Option<CachedLimit>; PLACES]>);

/// The three numbers of a command, and their limit.
type CachedLimit = ([i64; 3], Limit);

const PLACES: usize = 64;

impl Default for LimitCache {
    fn default() -> Self {
        Self(Box::new([None; PLACES]))
    }
}

const USAGE: &str =
    "Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";

impl<'l> Throttle<'l> {
    /// Reads the arguments behind the key.
    ///
    /// # Errors
    ///
    /// In redis-cell's words where it has them.
    #[inline]
    pub fn read<'a>(
        mut numbers: impl ExactSizeIterator<Item = &'a [u8]>,
        limits: &'l mut LimitCache,
    ) -> Result<Self, ThrottleError> {
        if !(3..=4).contains(&numbers.len()) {
            return Err(USAGE.to_owned());
        }
        let mut next = || match numbers.next() {
            Some(text) => read_integer(text),
            None => Ok(1),
        };
        let terms = [next()?, next()?, next()?];
        let quantity = u64::try_from(next()?).map_err(|_| wrong("the quantity is negative"))?;
        let limit = limits.limit(terms)?;
        Ok(Self { limit, quantity })
    }

    /// Writes a decision. Without one, because the store did not answer, `session.rs` replies TRYAGAIN.
    #[inline]
    pub fn answer(&self, decision: &Decision, out: &mut Vec<u8>) {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let (mut limited, mut retry) = match decision.verdict {
            Verdict::Allow | Verdict::Wait(_) => (0, -1),
            Verdict::Deny(Retry::After(after)) => (1, seconds(after)),
            Verdict::Deny(Retry::Never) => (1, -1),
        };
        if self.quantity == 0
            && let Some(over) = self.over(decision)
        {
            (limited, retry) = (1, seconds(over));
        }
        out.extend_from_slice(b"*5\r\n");
        reply::integer(limited, out);
        reply::integer(whole(self.limit.quota().burst().get()), out);
        reply::integer(whole(decision.remaining), out);
        reply::integer(retry, out);
        reply::integer(seconds(decision.reset_after), out);
    }

    /// Time by which a bucket is over its burst, as another quota for the same key can leave it. A peek
    /// shows that.
    fn over(&self, decision: &Decision) -> Option<Duration> {
        let plan = self.limit.bucket_plan()?;
        let full = Duration::from_micros(plan.full.ceil());
        decision.reset_after.checked_sub(full).filter(|over| !over.is_zero())
    }
}

impl LimitCache {
    #[inline]
    fn limit(&mut self, terms: [i64; 3]) -> Result<&Limit, ThrottleError> {
        let mixed = terms
            .iter()
            .fold(0_i64, |mixed, term| mixed.wrapping_mul(0x9e37_79b9).wrapping_add(*term));
        let place = usize::try_from(mixed.unsigned_abs() >> 3).unwrap_or(0) % PLACES;
        // The remainder keeps it below the number of places.
        let kept = &mut self.0[place];
        if kept.as_ref().is_none_or(|(known, _)| *known != terms) {
            *kept = Some((terms, make(terms)?));
        }
        kept.as_ref().map(|(_, limit)| limit).ok_or_else(|| wrong("no limit"))
    }
}

fn make([max_burst, count, period]: [i64; 3]) -> Result<Limit, ThrottleError> {
    if count == 0 || period == 0 {
        return Err(wrong("Zero rates are not supported"));
    }
    let positive = |name: &str, number: i64| {
        u64::try_from(number).map_err(|_| wrong(&format!("the {name} is negative: {number}")))
    };
    let burst = positive("max_burst", max_burst)?.saturating_add(1);
    let (count, period) = (positive("count", count)?, positive("period", period)?);
    let quota = Quota::new(count, Duration::from_secs(period))
        .and_then(|quota| quota.with_burst(burst))
        .map_err(|error| wrong(&error.to_string()))?;
    Limit::new(TokenBucket, quota).map_err(|error| wrong(&error.to_string()))
}

fn wrong(why: &str) -> ThrottleError {
    format!("Cell error: {why}")
}

/// As redis-cell's `parse::<i64>`: a sign, digits, nothing else.
#[inline]
fn read_integer(text: &[u8]) -> Result<i64, ThrottleError> {
    // Nearly all are short and plain.
    let add = |sum: i64, byte: &u8| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| sum.wrapping_mul(10).wrapping_add(i64::from(digit)))
    };
    match text.iter().try_fold(0, add) {
        Some(number) if (1..=9).contains(&text.len()) => Ok(number),
        _ => read_any_integer(text),
    }
}

#[cold]
fn read_any_integer(text: &[u8]) -> Result<i64, ThrottleError> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| {
        wrong(&format!("Couldn't parse as integer: {}", String::from_utf8_lossy(text)))
    })
}

/// Whole seconds, rounded up unless only a fraction of a millisecond is left over.
#[inline]
fn seconds(duration: Duration) -> i64 {
    let up = u64::from(duration.subsec_millis() > 0);
    i64::try_from(duration.as_secs().saturating_add(up)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<u64, ThrottleError> {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        Throttle::read(words.into_iter(), &mut LimitCache::default())
            .map(|throttle| throttle.quantity)
    }

    #[test]
    fn errors_are_redis_cells_where_it_has_them() {
        assert_eq!(read("15 30").unwrap_err(), USAGE);
        assert_eq!(read("15 30 60 1 1").unwrap_err(), USAGE);
        assert_eq!(read("a 30 60").unwrap_err(), "Cell error: Couldn't parse as integer: a");
        assert_eq!(
            read("15 30 9223372036854775808").unwrap_err(),
            "Cell error: Couldn't parse as integer: 9223372036854775808"
        );
        for zero in ["15 0 60", "15 30 0"] {
            assert_eq!(read(zero).unwrap_err(), "Cell error: Zero rates are not supported");
        }
    }

    #[test]
    fn numbers_are_read_as_rust_reads_them() {
        let texts =
            ["0", "7", "007", "+5", "-0", "123456789", "1234567890", "00000000000000000001"];
        for text in texts.into_iter().chain(["9223372036854775807"]) {
            assert_eq!(read_integer(text.as_bytes()), Ok(text.parse::<i64>().unwrap()), "{text}");
        }
        for text in ["", "+", "-", " 1", "1 ", "1a", "1:", "1/", "0x1", "99999999999999999999999"] {
            assert!(read_integer(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn values_that_would_crash_are_refused() {
        for bad in [
            "-1 30 60",
            "15 -30 60",
            "15 30 -60",
            "15 30 60 -1",
            "9223372036854775807 1 1",
            "1 9223372036854775807 1",
            "1 1 9223372036854775807",
            "-9223372036854775808 1 1",
            "1000000000 1 31536000",
        ] {
            assert!(read(bad).unwrap_err().starts_with("Cell error: "), "{bad}");
        }
        assert!(read("0 1 1 9223372036854775807").is_ok(), "can never pass, and is told so");
    }

    #[test]
    fn one_limit_is_made_once_and_never_mistaken() {
        let mut limits = LimitCache::default();
        for burst in 0..1_000 {
            for count in [1, 30, 64, 128] {
                let made = make([burst, count, 60]);
                assert_eq!(limits.limit([burst, count, 60]).cloned(), made);
                assert_eq!(limits.limit([burst, count, 60]).cloned(), made);
            }
        }
    }

    #[test]
    fn seconds_are_rounded_as_redis_cell_rounds_them() {
        let of = |micros: u64| seconds(Duration::from_micros(micros));
        assert_eq!(
            [of(0), of(999), of(1_000), of(1_000_000), of(1_000_999), of(1_001_000)],
            [0, 0, 1, 1, 1, 2]
        );
    }
}
