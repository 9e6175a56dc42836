//! A domain at work: its rules, its lists, and the attributes that they look at.

use super::active::{ActiveRule, Condition, Slot};
use super::declaration::{PathCase, Subject};
use super::hash::Table;
use super::judge::View;

/// The rules of a domain, ready to judge.
#[derive(Clone, Debug)]
pub(super) struct ActiveDomain {
    pub(super) slots: Slots,
    pub(super) rules: Vec<ActiveRule>,
    pub(super) partition: Vec<Slot>,
    pub(super) ipv6_prefix: u8,
    pub(super) path_case: PathCase,
    pub(super) block: List,
    pub(super) exempt: List,
}

impl ActiveDomain {
    pub(super) fn slot(&self, name: &str) -> Option<Slot> {
        self.slots.by_name.get(name).copied()
    }

    /// Calls `each` with rules among which are all that match, each once.
    pub(super) fn candidates<'s>(
        &'s self,
        _view: &View<'_>,
        mut each: impl FnMut(&'s ActiveRule, usize),
    ) {
        for (position, rule) in self.rules.iter().enumerate() {
            if rule.mode() != super::declaration::Mode::Off {
                each(rule, position);
            }
        }
    }
}

/// The attributes that a domain looks at.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    by_name: Table<Box<str>, Slot>,
    /// In order of their slots.
    pub(super) names: Vec<String>,
}

impl Slots {
    /// `path` and `ip` have their slots from the start, but are looked at only if a rule does.
    pub(super) fn new() -> Self {
        Self { by_name: Table::default(), names: vec!["path".to_owned(), "ip".to_owned()] }
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
                self.names.push(name.to_owned());
                Slot(u32::try_from(self.names.len().saturating_sub(1)).unwrap_or(u32::MAX))
            }
        };
        self.by_name.insert(name.into(), slot);
        slot
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
    pub(super) entries: Vec<(Subject, Condition)>,
}

impl List {
    /// The first entry that the ask falls under.
    pub(super) fn find(&self, view: &View<'_>) -> Option<&Subject> {
        let (subject, _) = self
            .entries
            .iter()
            .find(|(_, condition)| condition.test.holds(view, condition.slot))?;
        Some(subject)
    }
}
