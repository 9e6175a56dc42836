//! A domain at work: its rules, its lists, and the attributes that they look at.

use std::slice;

use smallvec::SmallVec;

use super::active::{ActiveRule, Condition, Slot};
use super::ask::Name;
use super::declaration::{Mode, PathCase, Subject};
use super::hash::Table;
use super::index::Index;
use super::view::View;

/// The rules of a domain, ready to judge.
#[derive(Clone, Debug)]
pub(super) struct ActiveDomain {
    pub(super) slots: Slots,
    pub(super) rules: Vec<ActiveRule>,
    /// Positions of rules, by name.
    pub(super) names: Table<Box<str>, usize>,
    pub(super) index: Index,
    pub(super) partition: Vec<Slot>,
    pub(super) ipv6_prefix: u8,
    pub(super) path_case: PathCase,
    pub(super) block: List,
    pub(super) exempt: List,
}

impl ActiveDomain {
    /// Positions of rules among which are all that match, each once and in order.
    pub(super) fn candidates(&self, view: &View<'_>) -> SmallVec<[u32; 16]> {
        let mut found: SmallVec<[u32; 16]> = SmallVec::new();
        self.index.candidates(view, |position| found.push(position));
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Files the rules, which do not change any more.
    pub(super) fn file(&mut self) {
        let at_work = |rule: &ActiveRule| rule.mode() != Mode::Off;
        let implied: Vec<Vec<Condition>> = self.rules.iter().map(ActiveRule::implied).collect();
        let rules = self.rules.iter().zip(&implied);
        self.index =
            Index::new(rules.map(|(rule, implied)| {
                at_work(rule).then(|| rule.conditions.iter().chain(implied))
            }));
    }
}

/// The attributes that a domain looks at.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    by_name: Table<Box<str>, Slot>,
    /// By position in [`Name::KNOWN`].
    known: [Option<Slot>; Name::KNOWN.len()],
    next: u32,
}

impl Slots {
    /// `path` and `ip` have their slots from the start, but are looked at only if a rule does.
    pub(super) fn new() -> Self {
        Self { by_name: Table::default(), known: Default::default(), next: 2 }
    }

    /// The slot of this attribute, from now on looked at.
    pub(super) fn take(&mut self, name: &str) -> Slot {
        if let Some(slot) = self.by_name.get(name) {
            return *slot;
        }
        let slot = match name {
            "path" => Slot::PATH,
            "ip" => Slot::IP,
            _ => {
                let slot = Slot(self.next);
                self.next = self.next.saturating_add(1);
                slot
            }
        };
        self.by_name.insert(name.into(), slot);
        if let Name::Known(at) = Name::new(name)
            && let Some(known) = self.known.get_mut(usize::from(at))
        {
            *known = Some(slot);
        }
        slot
    }

    /// The slot of this attribute, if it is looked at.
    #[inline]
    pub(super) fn of(&self, name: &Name<'_>) -> Option<Slot> {
        match name {
            Name::Known(at) => self.known.get(usize::from(*at)).copied().flatten(),
            Name::Other(name) => self.by_name.get(&**name).copied(),
        }
    }

    /// What is looked at, in alphabetical order.
    pub(super) fn wanted(&self) -> Vec<String> {
        let mut wanted: Vec<String> = self.by_name.keys().map(|name| name.to_string()).collect();
        wanted.sort_unstable();
        wanted
    }
}

/// A list at work: who is exempt, or blocked.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    entries: Vec<(Subject, Condition)>,
    index: Index,
}

impl List {
    pub(super) fn new(entries: Vec<(Subject, Condition)>) -> Self {
        let index =
            Index::new(entries.iter().map(|(_, condition)| Some(slice::from_ref(condition))));
        Self { entries, index }
    }

    /// The first entry that the ask falls under. Most lists are empty.
    #[inline(always)]
    pub(super) fn find(&self, view: &View<'_>) -> Option<&Subject> {
        if self.entries.is_empty() { None } else { self.look_up(view) }
    }

    fn look_up(&self, view: &View<'_>) -> Option<&Subject> {
        let mut first: Option<u32> = None;
        self.index.candidates(view, |number| {
            let holds = || {
                let entry = usize::try_from(number).ok().and_then(|at| self.entries.get(at));
                entry.is_some_and(|(_, condition)| condition.test.holds(view, condition.slot))
            };
            if first.is_none_or(|first| number < first) && holds() {
                first = Some(number);
            }
        });
        let (subject, _) = self.entries.get(usize::try_from(first?).ok()?)?;
        Some(subject)
    }
}
