//! From an ask to a judgement: which rules match, which of them apply, and their keys.
//!
//! The order is lists (`block`, then `exempt`), then rules. Rules are judged as a set: which ones
//! match is found first, which of them are replaced second, so that their order never matters.
//! Nothing here allocates unless an ask is unusual: many attributes, long paths, long keys.
//!
//! `consider.rs` tells the same in words for one rule after the other; change them together.

use std::net::IpAddr;

use smallvec::SmallVec;

use super::active::{ActiveRule, Part, Slot, Test};
use super::ask::{Ask, Attribute};
use super::charges::{BlockedBy, Charges, Due, Judgement, Stretch};
use super::declaration::{Mode, OnMissing};
use super::domain::ActiveDomain;
use super::key::{Buffer, KeySecret, Scribe, verbatim};
use super::template::{Route, Template};
use crate::{Cost, Request};

/// What a domain can see of an ask.
pub(super) struct View<'v> {
    values: SmallVec<[(Slot, Attribute<'v>); 8]>,
    pub(super) route: Option<Route>,
    pub(super) cost: Cost,
}

impl<'v> View<'v> {
    pub(super) fn new(domain: &ActiveDomain, ask: &'v Ask<'_>) -> Self {
        let mut view = Self { values: SmallVec::new(), route: None, cost: ask.own_cost() };
        for (name, value) in ask.named() {
            let Some(slot) = domain.slots.of(name) else { continue };
            if let (Slot::PATH, Attribute::Text(path)) = (slot, value) {
                // Filled in place: a route is too large to be moved about for every ask.
                view.route.insert(Route::default()).read(path, domain.path_case);
            }
            view.values.push((slot, value));
        }
        view
    }

    pub(super) fn values(&self) -> &[(Slot, Attribute<'v>)] {
        &self.values
    }

    pub(super) fn value(&self, slot: Slot) -> Option<Attribute<'v>> {
        self.values.iter().find(|(known, _)| *known == slot).map(|(_, value)| *value)
    }

    pub(super) fn text(&self, slot: Slot) -> Option<&'v [u8]> {
        match self.value(slot) {
            Some(Attribute::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.value(Slot::IP) {
            Some(Attribute::Address(address)) => Some(address),
            _ => None,
        }
    }
}

/// A rule that matches, and by which of its templates.
#[derive(Clone, Copy)]
pub(super) struct Match<'s> {
    pub(super) rule: &'s ActiveRule,
    pub(super) position: usize,
    pub(super) template: Option<&'s Template>,
}

impl<'s> Match<'s> {
    /// The match, or which condition is the first that does not hold.
    pub(super) fn of(
        rule: &'s ActiveRule,
        position: usize,
        view: &View<'_>,
    ) -> Result<Self, usize> {
        let mut template = None;
        for (at, condition) in rule.conditions.iter().enumerate() {
            let holds = match &condition.test {
                Test::Templates(templates) => {
                    let route = view.route.as_ref();
                    template = route.and_then(|route| templates.iter().find(|t| t.matches(route)));
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

    /// The first attribute of `by` that the ask lacks, as declared.
    pub(super) fn missing(&self, view: &View<'_>) -> Option<&'s str> {
        let lacks = |part: &Part| match part {
            Part::Value(slot) => view.value(*slot).is_none(),
            Part::Path => view.route.is_none(),
            Part::Template | Part::Capture(_) => false,
        };
        let at = self.rule.by.iter().position(lacks)?;
        self.rule.declaration.by.get(at).map(String::as_str)
    }

    /// Whether anything of the rule happens to an ask that lacks this attribute of `by`.
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
    fn write(&self, view: &View<'_>, scribe: Scribe<'_>, buffer: &mut Buffer) {
        for part in &self.rule.by {
            match (part, view.route.as_ref(), self.template) {
                (Part::Value(slot), ..) => scribe.value(buffer, view.value(*slot)),
                (Part::Path, Some(route), _) => scribe.segments(buffer, route.segments(0)),
                (Part::Template, _, Some(template)) => scribe.template(buffer, template.text()),
                (Part::Capture(name), Some(route), Some(template)) => {
                    match template.captured(name, route) {
                        Some(segment) => scribe.text(buffer, segment),
                        None => scribe.segments(buffer, template.rest(route)),
                    }
                }
                _ => Scribe::absent(buffer),
            }
        }
    }
}

impl Test {
    pub(super) fn holds(&self, view: &View<'_>, slot: Slot) -> bool {
        match self {
            Self::Text { texts, prefixes } => view.text(slot).is_some_and(|value| {
                texts.binary_search_by(|text| (**text).cmp(value)).is_ok()
                    || prefixes.iter().any(|prefix| value.starts_with(prefix))
            }),
            Self::Networks(networks) => view
                .address()
                .is_some_and(|address| networks.iter().any(|network| network.contains(address))),
            Self::Templates(templates) => view
                .route
                .as_ref()
                .is_some_and(|route| templates.iter().any(|template| template.matches(route))),
            Self::Present => view.value(slot).is_some(),
            Self::Absent => view.value(slot).is_none(),
        }
    }
}

/// A match that applies, and the attribute of `by` that it does without.
pub(super) type Applied<'s> = (Match<'s>, Option<&'s str>);

/// The rules that match and apply, replaced or not, the most specific first.
pub(super) fn applied<'s>(domain: &'s ActiveDomain, view: &View<'_>) -> SmallVec<[Applied<'s>; 8]> {
    let mut applied: SmallVec<[Applied<'s>; 8]> = SmallVec::new();
    for position in domain.candidates(view) {
        let Ok(position) = usize::try_from(position) else { continue };
        let Some(rule) = domain.rules.get(position) else { continue };
        if let Ok(found) = Match::of(rule, position, view) {
            let missing = found.missing(view);
            if found.applies(missing) {
                applied.push((found, missing));
            }
        }
    }
    applied.sort_unstable_by_key(|(found, _)| found.rank());
    applied
}

impl Match<'_> {
    fn rank(&self) -> usize {
        self.rule.rank
    }

    /// Who of these replaces this one.
    pub(super) fn replaced_by<'s>(&self, replacers: &[&'s ActiveRule]) -> Option<&'s ActiveRule> {
        let replaces = |other: &&&ActiveRule| other.replaces.binary_search(&self.position).is_ok();
        replacers.iter().find(replaces).copied()
    }
}

/// Who of these replaces anyone. Whether somebody replaces them in turn does not matter: no
/// chain of replacements, so no order.
pub(super) fn replacers<'s>(applied: &[Applied<'s>]) -> SmallVec<[&'s ActiveRule; 4]> {
    let rules = applied.iter().map(|(found, _)| found.rule);
    rules.filter(|rule| rule.mode() == Mode::Enforce && !rule.replaces.is_empty()).collect()
}

/// What the rules of a domain say about an ask.
pub(super) fn judge<'s>(
    domain: &'s ActiveDomain,
    ask: &Ask<'_>,
    secret: &KeySecret,
) -> Judgement<'s> {
    let view = View::new(domain, ask);
    if let Some(subject) = domain.block.find(&view) {
        return Judgement::Blocked(BlockedBy::List(subject));
    }
    if let Some(subject) = domain.exempt.find(&view) {
        return Judgement::Exempt(subject);
    }
    let mut applied = applied(domain, &view);
    let replacers = replacers(&applied);
    if !replacers.is_empty() {
        applied.retain(|(found, _)| found.replaced_by(&replacers).is_none());
    }
    let mut charges = Charges::default();
    let mut enforced = 0_usize;
    for (found, missing) in &applied {
        let shadow = found.rule.mode() == Mode::Shadow;
        match found.block(*missing) {
            Some(block) if shadow => charges.shadow_block = charges.shadow_block.or(Some(block)),
            Some(block) => return Judgement::Blocked(block),
            None if !shadow => enforced = enforced.saturating_add(found.rule.dues()),
            None => {}
        }
    }
    if enforced > Request::MAX_CHARGES {
        return Judgement::TooMany { charges: enforced };
    }
    let mut writer = Writer { domain, view: &view, secret, charges: &mut charges };
    for mode in [Mode::Enforce, Mode::Shadow] {
        for (found, missing) in &applied {
            if found.rule.mode() == mode && found.block(*missing).is_none() {
                writer.charge(found);
            }
        }
        if mode == Mode::Enforce {
            writer.charges.enforced = writer.charges.dues.len();
        }
    }
    writer.partition();
    Judgement::Charges(charges)
}

/// Writes dues and their keys.
struct Writer<'w, 'v, 's> {
    domain: &'s ActiveDomain,
    view: &'w View<'v>,
    secret: &'w KeySecret,
    charges: &'w mut Charges<'s>,
}

impl<'w, 's> Writer<'w, '_, 's> {
    fn scribe(&self, verbatim: usize) -> Scribe<'w> {
        Scribe { verbatim, ipv6_prefix: self.domain.ipv6_prefix, secret: self.secret }
    }

    /// Adds the dues of a rule; those of a shadow rule only if they all fit.
    fn charge(&mut self, found: &Match<'s>) {
        let rule = found.rule;
        let shadow = self.charges.dues.len().saturating_sub(self.charges.enforced);
        if rule.mode() == Mode::Shadow && shadow.saturating_add(rule.dues()) > Request::MAX_CHARGES
        {
            let left_out = &mut self.charges.shadow_left_out;
            *left_out = left_out.saturating_add(rule.dues());
            return;
        }
        let value = rule.cost.and_then(|slot| self.view.text(slot));
        let cost = rule.cost(self.view.cost, value);
        if let ([limit], None) = (rule.limits.as_slice(), &rule.ban) {
            let scribe = self.scribe(rule.verbatim);
            let bytes = &mut self.charges.bytes;
            let start = bytes.len();
            bytes.extend_from_slice(&limit.head);
            found.write(self.view, scribe, bytes);
            let key = Stretch::since(start, bytes);
            self.charges.dues.push(Due { rule, limit, cost, key, refusals: None });
            return;
        }
        let mut values = Buffer::new();
        found.write(self.view, self.scribe(rule.verbatim), &mut values);
        for limit in &rule.limits {
            let key = self.key(&limit.head, &values);
            self.charges.dues.push(Due { rule, limit, cost, key, refusals: None });
        }
        if let Some(ban) = &rule.ban {
            let key = self.key(&ban.ban.head, &values);
            let refusals = Some(self.key(&ban.refusals.head, &values));
            self.charges.dues.push(Due { rule, limit: &ban.ban, cost: 1, key, refusals });
        }
    }

    fn key(&mut self, head: &[u8], values: &[u8]) -> Stretch {
        let bytes = &mut self.charges.bytes;
        let start = bytes.len();
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(values);
        Stretch::since(start, bytes)
    }

    fn partition(&mut self) {
        if self.domain.partition.is_empty() {
            return;
        }
        let scribe = self.scribe(verbatim(self.domain.partition.len()));
        let bytes = &mut self.charges.bytes;
        let start = bytes.len();
        for slot in &self.domain.partition {
            scribe.value(bytes, self.view.value(*slot));
        }
        self.charges.partition = Some(Stretch::since(start, bytes));
    }
}

impl Scribe<'_> {
    fn value(&self, buffer: &mut Buffer, value: Option<Attribute<'_>>) {
        match value {
            Some(Attribute::Text(text)) => self.text(buffer, text),
            Some(Attribute::Address(address)) => self.address(buffer, address),
            None => Self::absent(buffer),
        }
    }
}
