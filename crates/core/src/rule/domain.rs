//! An active domain: its rules, its lists, and the attributes that they use.

use std::cmp::Reverse;
use std::slice;

use smallvec::SmallVec;

use super::active::{ActiveRule, AttributeId, Condition};
use super::ask::AttributeName;
use super::ask_view::AskView;
use super::declaration::{Mode, PathCase, Subject};
use super::hash::Table;
use super::index::Index;

/// Up to this many rules, looking at every rule takes less time than looking values up.
const UNINDEXED: usize = 8;

/// The rules of a domain, ready to judge.
#[derive(Clone, Debug)]
pub(super) struct ActiveDomain {
    pub(super) slots: AttributeIds,
    /// The attributes in use, in alphabetical order.
    pub(super) wants: Vec<String>,
    pub(super) rules: Vec<ActiveRule>,
    /// The index of its first rule in the set.
    pub(super) first: usize,
    /// The indices of rules, by name.
    pub(super) names: Table<Box<str>, usize>,
    /// The indices of the rules that are not off, the most specific rule first.
    pub(super) ranked: Vec<usize>,
    /// True if a rule replaces others.
    pub(super) has_replacers: bool,
    /// Finds rules by their conditions, where there are many. Its numbers are ranks.
    pub(super) index: Index,
    pub(super) partition: Vec<AttributeId>,
    pub(super) ipv6_prefix: u8,
    pub(super) path_case: PathCase,
    pub(super) block: SubjectList,
    pub(super) exempt: SubjectList,
}

impl ActiveDomain {
    /// The indices of candidates, each once, the most specific rule first. All rules that match are
    /// among them. `found` is empty, and has room for them.
    #[inline]
    pub(super) fn candidates<'c>(
        &'c self,
        view: &AskView<'_>,
        found: &'c mut SmallVec<[usize; 16]>,
    ) -> &'c [usize] {
        if self.ranked.len() > UNINDEXED {
            self.look_up(view, found);
            return found;
        }
        &self.ranked
    }

    fn look_up(&self, view: &AskView<'_>, found: &mut SmallVec<[usize; 16]>) {
        self.index.candidates(view, |rank| found.push(rank));
        found.sort_unstable();
        found.dedup();
        for rank in found {
            *rank = self.ranked[*rank];
        }
    }

    /// Ranks the rules, which do not change any more, and builds the index over them.
    pub(super) fn build_index(&mut self) {
        let rules = &self.rules;
        self.has_replacers = rules.iter().any(|rule| !rule.replaces.is_empty());
        self.ranked = (0..rules.len()).filter(|at| rules[*at].mode() != Mode::Off).collect();
        self.ranked.sort_by_cached_key(|at| {
            let rule = &rules[*at];
            let specific = (rule.by.len(), rule.conditions.len());
            (Reverse(specific), rule.name().to_owned())
        });
        if self.ranked.len() <= UNINDEXED {
            return;
        }
        let ranked = self.ranked.iter().map(|at| &rules[*at]);
        let implied: Vec<Vec<Condition>> = ranked.clone().map(ActiveRule::implied).collect();
        let sets =
            ranked.zip(&implied).map(|(rule, implied)| rule.conditions.iter().chain(implied));
        self.index = Index::new(sets);
    }
}

/// The attributes that a domain uses.
#[derive(Clone, Debug)]
pub(super) struct AttributeIds {
    by_name: Table<Box<str>, AttributeId>,
    /// By position in [`AttributeName::KNOWN`].
    known: [Option<AttributeId>; AttributeName::KNOWN.len()],
    next: usize,
}

impl AttributeIds {
    /// `path` and `ip` always have an id, but are read only if a rule uses them.
    pub(super) fn new() -> Self {
        Self { by_name: Table::default(), known: Default::default(), next: 2 }
    }

    /// The id of this attribute, which is used from now on.
    pub(super) fn take(&mut self, name: &str) -> AttributeId {
        if let Some(slot) = self.by_name.get(name) {
            return *slot;
        }
        let slot = match name {
            "path" => AttributeId::PATH,
            "ip" => AttributeId::IP,
            _ => {
                let slot = AttributeId(self.next);
                self.next += 1;
                slot
            }
        };
        self.by_name.insert(name.into(), slot);
        if let AttributeName::Known(at) = AttributeName::new(name)
            && let Some(known) = self.known.get_mut(usize::from(at))
        {
            *known = Some(slot);
        }
        slot
    }

    /// The id of this attribute; `None` if it is not used.
    #[inline]
    pub(super) fn of(&self, name: &AttributeName<'_>) -> Option<AttributeId> {
        match name {
            AttributeName::Known(at) => self.known.get(usize::from(*at)).copied().flatten(),
            AttributeName::Other(name) => self.by_name.get(&**name).copied(),
        }
    }

    /// The attributes in use, in alphabetical order.
    pub(super) fn wanted(&self) -> Vec<String> {
        let mut wanted: Vec<String> = self.by_name.keys().map(|name| name.to_string()).collect();
        wanted.sort_unstable();
        wanted
    }
}

/// An exempt list or a block list.
#[derive(Clone, Debug, Default)]
pub(super) struct SubjectList {
    entries: Vec<(Subject, Condition)>,
    pub(super) index: Index,
}

impl SubjectList {
    pub(super) fn new(entries: Vec<(Subject, Condition)>) -> Self {
        let index = Index::new(entries.iter().map(|(_, condition)| slice::from_ref(condition)));
        Self { entries, index }
    }

    /// The first entry that matches the ask. Most lists are empty.
    #[inline(always)]
    pub(super) fn find(&self, view: &AskView<'_>) -> Option<&Subject> {
        if self.entries.is_empty() { None } else { self.look_up(view) }
    }

    fn look_up(&self, view: &AskView<'_>) -> Option<&Subject> {
        let mut first: Option<usize> = None;
        self.index.candidates(view, |at| {
            let (_, condition) = &self.entries[at];
            if first.is_none_or(|first| at < first) && condition.test.holds(view, condition.slot) {
                first = Some(at);
            }
        });
        first.map(|at| &self.entries[at].0)
    }
}
