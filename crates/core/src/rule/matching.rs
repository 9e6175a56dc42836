//! Finds the rules that match an ask, and those of them that apply.
//!
//! Rules are a set: matches are found first and replacements second, so the order of declaration
//! never matters. `judge.rs` charges the rules that apply, and `explain.rs` describes them.

use smallvec::SmallVec;

use super::active::{ActiveRule, AttributeId, KeyPart, ValueTest};
use super::ask_view::AskView;
use super::charges::BlockedBy;
use super::declaration::{Mode, OnMissing};
use super::domain::ActiveDomain;
use super::key::{Buffer, TokenWriter};
use super::template::Template;

/// A rule that matches, with the template that matched.
#[derive(Clone, Copy)]
pub(super) struct Match<'s> {
    pub(super) rule: &'s ActiveRule,
    pub(super) position: usize,
    pub(super) template: Option<&'s Template>,
}

impl<'s> Match<'s> {
    /// The match, or the first condition that does not hold.
    #[inline]
    pub(super) fn of(
        rule: &'s ActiveRule,
        position: usize,
        view: &AskView<'_>,
    ) -> Result<Self, usize> {
        let mut template = None;
        for (at, condition) in rule.conditions.iter().enumerate() {
            let holds = match &condition.test {
                ValueTest::Templates(templates) => {
                    let route = view.route();
                    template = route.and_then(|route| templates.find(route));
                    template.is_some()
                }
                test => test.holds(view, condition.slot),
            };
            if !holds {
                return Err(at);
            }
        }
        Ok(Self { rule, position, template })
    }

    /// The first attribute of `by` that the ask lacks, as declared. Attributes of the domain's
    /// partition are not checked: asks without one share counters.
    #[inline]
    pub(super) fn missing(&self, view: &AskView<'_>) -> Option<&'s str> {
        let lacks = |part: &KeyPart| match part {
            KeyPart::Value(slot) => view.value(*slot).is_none(),
            KeyPart::Path => view.route().is_none(),
            // A rule that matches by its path has one; a named rule need not have one.
            KeyPart::Template | KeyPart::Capture(_) => self.template.is_none(),
        };
        // Those of the rule itself come first, and of these the ones that a function gives.
        let (given, own) = (view.given.len(), self.rule.by().len());
        let at = self.rule.by.get(given..own)?.iter().position(lacks)? + given;
        self.rule.by().get(at).map(String::as_str)
    }

    /// True if the rule applies to an ask that lacks this attribute of `by`.
    pub(super) fn applies(&self, missing: Option<&str>) -> bool {
        missing.is_none() || self.rule.on_missing() != OnMissing::Skip
    }

    pub(super) fn block(&self, missing: Option<&'s str>) -> Option<BlockedBy<'s>> {
        match missing {
            Some(attribute) if self.rule.on_missing() == OnMissing::Refuse => {
                Some(BlockedBy::Missing { rule: self.rule, attribute })
            }
            _ if self.rule.declaration.block => Some(BlockedBy::Rule(self.rule)),
            _ => None,
        }
    }

    /// Writes the values of `by`.
    pub(super) fn write(&self, view: &AskView<'_>, tokens: TokenWriter<'_>, buffer: &mut Buffer) {
        let mut given = view.given.iter();
        for part in &self.rule.by {
            if let Some(value) = given.next() {
                tokens.value(buffer, Some(*value));
                continue;
            }
            match (part, view.route(), self.template) {
                (KeyPart::Value(slot), ..) => tokens.value(buffer, view.value(*slot)),
                (KeyPart::Path, Some(route), _) => tokens.segments(buffer, route.segments(0)),
                (KeyPart::Template, _, Some(template)) => tokens.template(buffer, template.text()),
                (KeyPart::Capture(name), Some(route), Some(template)) => {
                    match template.captured(name, route) {
                        Some(segment) => tokens.text(buffer, segment),
                        None => tokens.segments(buffer, template.rest(route)),
                    }
                }
                _ => TokenWriter::absent(buffer),
            }
        }
    }
}

impl ValueTest {
    pub(super) fn holds(&self, view: &AskView<'_>, slot: AttributeId) -> bool {
        match self {
            Self::Text { texts, prefixes } => view.text(slot).is_some_and(|value| {
                texts.binary_search_by(|text| (**text).cmp(value)).is_ok()
                    || prefixes.iter().any(|prefix| value.starts_with(prefix))
            }),
            Self::Networks(networks) => view
                .address()
                .is_some_and(|address| networks.iter().any(|network| network.contains(address))),
            Self::Templates(templates) => {
                view.route().is_some_and(|route| templates.find(route).is_some())
            }
            Self::Present => view.value(slot).is_some(),
            Self::Absent => view.value(slot).is_none(),
        }
    }
}

/// A match that applies, and the attribute of `by` that it lacks.
pub(super) type ApplicableRule<'s> = (Match<'s>, Option<&'s str>);

/// Matches that apply. Filled in place, because they are too large to be moved for every ask.
pub(super) type ApplicableRules<'s> = SmallVec<[ApplicableRule<'s>; 8]>;

/// Finds the rules that match and apply, replaced ones included, the most specific first.
#[inline]
pub(super) fn find_applicable<'s>(
    domain: &'s ActiveDomain,
    view: &AskView<'_>,
    applied: &mut ApplicableRules<'s>,
) {
    for position in domain.candidates(view, &mut SmallVec::new()) {
        let rule = &domain.rules[*position];
        if let Ok(found) = Match::of(rule, *position, view) {
            let missing = found.missing(view);
            if found.applies(missing) {
                applied.push((found, missing));
            }
        }
    }
}

impl Match<'_> {
    /// The rule among these that replaces this one.
    pub(super) fn replaced_by<'s>(&self, replacers: &[&'s ActiveRule]) -> Option<&'s ActiveRule> {
        let replaces = |other: &&&ActiveRule| other.replaces.binary_search(&self.position).is_ok();
        replacers.iter().find(replaces).copied()
    }
}

/// The rules among these that replace others. A rule that is itself replaced still counts: there is
/// no chain of replacements, and so no order.
pub(super) fn replacers<'s>(applied: &[ApplicableRule<'s>]) -> SmallVec<[&'s ActiveRule; 4]> {
    let rules = applied.iter().map(|(found, _)| found.rule);
    rules.filter(|rule| rule.mode() == Mode::Enforce && !rule.replaces.is_empty()).collect()
}
