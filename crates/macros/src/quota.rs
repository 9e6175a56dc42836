//! Limits in attributes, such as `"5 per 1m"` or `"10 concurrent"`, checked at compile time.

use syn::{Error, LitStr};
use tollgate_core::algorithm::{Concurrency, SlidingLog};
use tollgate_core::{Algorithm, Limit, Quota};

use crate::nearest::nearest;

/// A checked limit.
pub(crate) struct CheckedLimit {
    /// The name; that of the period by default.
    pub(crate) name: Option<&'static str>,
    pub(crate) quota: String,
    /// The name of the algorithm; that of the `interface` scenario by default.
    pub(crate) algorithm: Option<&'static str>,
    pub(crate) text: LitStr,
}

/// The default lease: the longest time for which a process that died holds a permit.
const LEASE: &str = "1m";

/// Checks a limit under the algorithm that the attribute names, if any.
pub(crate) fn check(text: LitStr, named: Option<Algorithm>) -> syn::Result<CheckedLimit> {
    let written = text.value();
    let words: Vec<&str> = written.split_whitespace().collect();
    let lease = match words.as_slice() {
        [_, concurrent] if is(concurrent, "concurrent") => Some(LEASE),
        [_, concurrent, word, lease] if is(concurrent, "concurrent") && is(word, "lease") => {
            Some(*lease)
        }
        _ => None,
    };
    let holders = lease.is_some();
    let quota = match (lease, words.first()) {
        (Some(lease), Some(count)) => format!("{count} per {lease}"),
        _ => written,
    };
    let parsed: Quota = quota.parse().map_err(|error| Error::new(text.span(), error))?;
    let (algorithm, name) = match (holders, named) {
        (true, _) => (Concurrency.into(), Some("concurrent")),
        (false, Some(named)) => (named, None),
        (false, None) => (SlidingLog.into(), None),
    };
    if let Err(error) = Limit::new(algorithm, parsed) {
        let unsaid = named.is_none() && !holders;
        let hint = if unsaid { " (`algorithm = token-bucket`)" } else { "" };
        return Err(Error::new(text.span(), format!("{error}{hint}")));
    }
    let named = holders || named.is_some();
    let algorithm = named.then(|| algorithm.name());
    Ok(CheckedLimit { name, quota, algorithm, text })
}

/// Rejects limits of one attribute that have the same name.
pub(crate) fn refuse_twins(limits: &[CheckedLimit]) -> syn::Result<()> {
    let name = |limit: &CheckedLimit| {
        let period = limit.quota.parse::<Quota>().ok().map(|quota| quota.period());
        (limit.name, period.filter(|_| limit.name.is_none()))
    };
    for (at, limit) in limits.iter().enumerate() {
        if limits.iter().take(at).any(|earlier| name(earlier) == name(limit)) {
            let message = "two limits of one period: the lower one always refuses first. Drop one, \
                           or put it into another `#[limit(…)]` with another `algorithm` or `by`";
            return Err(Error::new(limit.text.span(), message));
        }
    }
    Ok(())
}

/// The algorithm of this name.
pub(crate) fn algorithm(name: &str) -> Result<Algorithm, String> {
    let concurrency = Algorithm::from(Concurrency).name();
    if name == concurrency {
        return Err("name concurrency in the limit itself: write `\"10 concurrent\"`".to_owned());
    }
    let known = Algorithm::defaults();
    if let Some(found) = known.iter().find(|algorithm| algorithm.name() == name) {
        return Ok(*found);
    }
    let names = known.iter().map(Algorithm::name).filter(|name| *name != concurrency);
    let names: Vec<&str> = names.collect();
    Err(match nearest(name, &names) {
        Some(meant) => format!("`{name}` is not an algorithm: did you mean `{meant}`?"),
        None => format!("`{name}` is not an algorithm: write one of {}", names.join(", ")),
    })
}

fn is(word: &str, expected: &str) -> bool {
    word.eq_ignore_ascii_case(expected)
}
