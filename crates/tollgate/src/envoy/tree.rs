//! The descriptors of a domain as a tree, in which a request finds its rule.
//!
//! The search takes one branch for each entry, in order: the branch with this key and value; else
//! the first pattern of this key that matches the value, in the order of the file; else the branch
//! with the key alone. It never turns back. A rule applies only at the branch of the last entry.
//!
//! Each step is one lookup, however large the file is. Requests are only looked up and never
//! stored, so a client cannot make the search longer.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::call::Entry;
use super::pattern::StarPatterns;

/// All levels of a domain; the first is its root.
#[derive(Clone, Debug)]
pub(super) struct DescriptorTree {
    levels: Vec<HashMap<Box<str>, Siblings>>,
}

/// The branches of one key on one level.
#[derive(Clone, Debug, Default)]
struct Siblings {
    /// Branches by value. Values with stars are here as well, because a client's value may contain
    /// stars, too.
    exact: HashMap<Box<str>, Branch>,
    patterns: StarPatterns,
    /// The branches of the patterns, by their numbers.
    starred: Vec<Branch>,
    bare: Option<Branch>,
}

/// A branch of the tree: a deeper level, a rule, or both.
#[derive(Clone, Debug)]
struct Branch {
    level: usize,
    rule: Option<usize>,
    /// The pattern in place of the value in the counter's key, if all matching values share one
    /// counter.
    shared: Option<Box<str>>,
}

/// A descriptor of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewDescriptor<'p> {
    pub(super) key: &'p str,
    /// The value; empty for all values.
    pub(super) value: &'p str,
    pub(super) rule: Option<usize>,
    pub(super) shares: bool,
}

/// The rule of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundRule<'t> {
    pub(super) rule: usize,
    /// The entries that are counted by a pattern in place of their value, and that pattern.
    pub(super) shared: SmallVec<[(usize, &'t str); 1]>,
}

impl DescriptorTree {
    pub(super) fn new() -> Self {
        Self { levels: vec![HashMap::new()] }
    }

    /// Adds a descriptor to a level, and returns the level below it; `None` for a duplicate.
    pub(super) fn add(&mut self, level: usize, place: NewDescriptor<'_>) -> Option<usize> {
        let below = self.levels.len();
        let siblings = self.levels.get_mut(level)?.entry(place.key.into()).or_default();
        let starred = place.value.contains('*');
        let shared = (place.shares && starred).then(|| place.value.into());
        let branch = Branch { level: below, rule: place.rule, shared };
        if place.value.is_empty() {
            if siblings.bare.is_some() {
                return None;
            }
            siblings.bare = Some(branch);
        } else {
            if siblings.exact.contains_key(place.value) {
                return None;
            }
            if starred {
                siblings.patterns.add(place.value);
                siblings.starred.push(branch.clone());
            }
            siblings.exact.insert(place.value.into(), branch);
        }
        self.levels.push(HashMap::new());
        Some(below)
    }

    /// Finds the rule for the entries of a request.
    pub(super) fn find(&self, entries: &[Entry<'_>]) -> Option<FoundRule<'_>> {
        let mut level = self.levels.first()?;
        let mut shared = SmallVec::new();
        let last = entries.len().checked_sub(1)?;
        for (i, entry) in entries.iter().enumerate() {
            let branch = level.get(entry.key)?.branch(entry.value)?;
            if let Some(pattern) = &branch.shared {
                shared.push((i, &**pattern));
            }
            if i == last {
                return branch.rule.map(|rule| FoundRule { rule, shared });
            }
            level = self.levels.get(branch.level)?;
        }
        None
    }
}

impl Siblings {
    fn branch(&self, value: &str) -> Option<&Branch> {
        // No branch is stored under an empty value, so an empty one equals none.
        self.exact
            .get(value)
            .or_else(|| self.patterns.first(value.as_bytes()).and_then(|i| self.starred.get(i)))
            .or(self.bare.as_ref())
    }
}
