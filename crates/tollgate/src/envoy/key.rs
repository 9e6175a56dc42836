//! The keys of descriptors' counters.
//!
//! ```text
//! e m t4:shop t4:path t6:/login t14:remote_address t11:203.0.113.9
//! │ │ └ domain, and then keys and values in turn, by the tokens of `core::rule`
//! │ └── the unit
//! └──── a descriptor
//! ```
//!
//! A key contains the values of the request. Where a rule shares its threshold, a `p` token with
//! the pattern replaces the value. Neither the rule nor its threshold is part of the key, so a
//! count survives an edit of the file, and a limit that comes with a call uses the same count as
//! the file's. Two different descriptors never share a key. In the reference service they can,
//! since it joins the parts with underscores. `docs/keys.md` shows these bytes to operators: change
//! them together.

use std::ops::Range;

use tollgate_core::rule::KeyWriter;

use super::call::Entry;
use super::unit::Unit;
use crate::decision::keys;

/// Writes the key of a descriptor.
pub(super) fn write(
    keys: &mut KeyWriter<'_>,
    domain: &str,
    unit: Unit,
    entries: &[Entry<'_>],
    shared: &[(usize, &str)],
) -> Range<usize> {
    let values = entries.len().saturating_mul(2).saturating_add(1);
    keys.begin(&[keys::ENVOY, unit.letter()], values);
    keys.text(domain.as_bytes());
    for (i, entry) in entries.iter().enumerate() {
        keys.text(entry.key.as_bytes());
        match shared.iter().find(|(place, _)| *place == i) {
            Some((_, pattern)) => keys.pattern(pattern),
            None => keys.text(entry.value.as_bytes()),
        }
    }
    keys.end()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tollgate_core::rule::KeySecret;

    use super::*;

    /// Every list of up to two entries, with parts that look like tokens and like each other run
    /// together.
    #[test]
    fn different_descriptors_have_different_keys() {
        let long = "x".repeat(300);
        let parts = ["", "a", "b", "ab", "a_b", "t1:a", "1:a", "p1:a", "*", "a*", "\0", &long];
        let entry = |k: usize, v: usize| Entry { key: parts[k], value: parts[v] };
        let mut lists: Vec<Vec<Entry<'_>>> = vec![Vec::new()];
        for pair in 0..parts.len() * parts.len() {
            let first = entry(pair / parts.len(), pair % parts.len());
            lists.push(vec![first]);
            for second in 0..parts.len() * parts.len() {
                lists.push(vec![first, entry(second / parts.len(), second % parts.len())]);
            }
        }
        let secret = KeySecret::new([3; 16]);
        let mut seen: HashMap<Vec<u8>, String> = HashMap::new();
        for list in &lists {
            // The key alone, and with its first value under a pattern.
            let none: &[(usize, &str)] = &[];
            let pattern = if list.is_empty() { none } else { &[(0, "a*")] };
            for (domain, unit, shared) in [
                ("a", Unit::Minute, none),
                ("ab", Unit::Minute, none),
                ("a", Unit::Month, none),
                ("a", Unit::Minute, pattern),
            ] {
                let mut keys = KeyWriter::new(&secret);
                let place = write(&mut keys, domain, unit, list, shared);
                let values: Vec<&str> = list.iter().map(|entry| entry.value).collect();
                let told = shared.first().map_or(values.first().copied(), |_| Some("pattern"));
                let names: Vec<&str> = list.iter().map(|entry| entry.key).collect();
                let rest = values.get(1..).unwrap_or_default();
                let name = format!("{domain:?} {unit:?} {names:?} {told:?} {rest:?}");
                let bytes = keys.key(place).unwrap().as_bytes().to_vec();
                if let Some(other) = seen.insert(bytes, name.clone()) {
                    assert_eq!(other, name, "one key");
                }
            }
        }
        assert!(seen.len() > 60_000, "{} keys", seen.len());
    }
}
