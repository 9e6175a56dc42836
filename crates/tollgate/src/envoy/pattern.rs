//! Values with `*`, and the first pattern that matches a value.
//!
//! A `*` stands for any bytes, or for none. A pattern consists of a prefix before its first star, a
//! suffix after its last, and pieces in between, which are searched from left to right. Patterns
//! are indexed by prefix and suffix, so a thousand of them cost little more than one. If several
//! match, the first in the file applies.

use std::collections::HashMap;

use smallvec::SmallVec;

/// A value with at least one `*`.
#[derive(Clone, Debug)]
struct StarPattern {
    prefix: Box<[u8]>,
    between: Box<[Box<[u8]>]>,
    suffix: Box<[u8]>,
}

impl StarPattern {
    fn new(text: &str) -> Self {
        let mut pieces = text.split('*').map(|piece| piece.as_bytes().into());
        let prefix = pieces.next().unwrap_or_default();
        let suffix = pieces.next_back().unwrap_or_default();
        Self { prefix, between: pieces.collect(), suffix }
    }

    /// True if the pieces between prefix and suffix match. The caller has compared those two.
    fn matches_between(&self, value: &[u8]) -> bool {
        let end = value.len().saturating_sub(self.suffix.len());
        let mut rest = value.get(self.prefix.len()..end).unwrap_or_default();
        self.between.iter().all(|piece| {
            let Some(at) = find(rest, piece) else { return false };
            rest = rest.get(at.saturating_add(piece.len())..).unwrap_or_default();
            true
        })
    }
}

fn find(text: &[u8], piece: &[u8]) -> Option<usize> {
    if piece.is_empty() {
        return Some(0);
    }
    text.windows(piece.len()).position(|window| window == piece)
}

/// Patterns in the order of their file.
#[derive(Clone, Debug, Default)]
pub(super) struct StarPatterns {
    shapes: Vec<PatternShape>,
    count: usize,
}

/// All patterns with a prefix and a suffix of these lengths.
#[derive(Clone, Debug)]
struct PatternShape {
    prefix: usize,
    suffix: usize,
    /// By prefix followed by suffix; each list in the order of the file.
    table: HashMap<Box<[u8]>, Vec<(usize, StarPattern)>>,
}

impl StarPatterns {
    /// Adds a pattern after all others, and returns its number.
    pub(super) fn add(&mut self, text: &str) -> usize {
        let order = self.count;
        self.count = self.count.saturating_add(1);
        let pattern = StarPattern::new(text);
        let (prefix, suffix) = (pattern.prefix.len(), pattern.suffix.len());
        let ends = [&*pattern.prefix, &*pattern.suffix].concat().into_boxed_slice();
        let known = |shape: &&mut PatternShape| shape.prefix == prefix && shape.suffix == suffix;
        match self.shapes.iter_mut().find(known) {
            Some(shape) => shape.table.entry(ends).or_default().push((order, pattern)),
            None => {
                let table = HashMap::from([(ends, vec![(order, pattern)])]);
                self.shapes.push(PatternShape { prefix, suffix, table });
            }
        }
        order
    }

    /// The number of the first pattern that matches.
    pub(super) fn first(&self, value: &[u8]) -> Option<usize> {
        self.shapes.iter().filter_map(|shape| shape.first(value)).min()
    }
}

impl PatternShape {
    fn first(&self, value: &[u8]) -> Option<usize> {
        let middle = value.len().checked_sub(self.suffix)?.checked_sub(self.prefix)?;
        let prefix = value.get(..self.prefix)?;
        let suffix = value.get(self.prefix.saturating_add(middle)..)?;
        let candidates = if suffix.is_empty() {
            self.table.get(prefix)
        } else {
            let ends: SmallVec<[u8; 128]> = prefix.iter().chain(suffix).copied().collect();
            self.table.get(&ends[..])
        }?;
        candidates.iter().find(|(_, it)| it.matches_between(value)).map(|(order, _)| *order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, value: &str) -> bool {
        let mut patterns = StarPatterns::default();
        patterns.add(pattern);
        patterns.first(value.as_bytes()).is_some()
    }

    #[test]
    fn a_star_stands_for_any_bytes_also_none() {
        for (pattern, value) in [
            ("*", ""),
            ("*", "anything"),
            ("a*", "a"),
            ("*a", "ba"),
            ("a*c", "ac"),
            ("a*b*c", "a-b-b-c"),
            ("a**c", "abc"),
            ("*x*", "x"),
            ("a*a", "aa"),
        ] {
            assert!(matches(pattern, value), "{pattern} {value}");
        }
        for (pattern, value) in
            [("a*a", "a"), ("a*b*c", "acb"), ("a*", "ba"), ("*bb*b", "bb"), ("ab*ba", "aba")]
        {
            assert!(!matches(pattern, value), "{pattern} {value}");
        }
    }

    #[test]
    fn of_several_that_match_the_first_counts() {
        let mut patterns = StarPatterns::default();
        for text in ["b*x", "ab*", "a*", "*", "ab*x"] {
            patterns.add(text);
        }

        assert_eq!(patterns.first(b"abx"), Some(1));
        assert_eq!(patterns.first(b"ax"), Some(2));
        assert_eq!(patterns.first(b"bx"), Some(0));
        assert_eq!(patterns.first(b""), Some(3));
    }
}
