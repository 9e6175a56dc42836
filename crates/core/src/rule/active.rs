//! Active rules: checked, with their limits built and their names resolved.
//!
//! Only `compile.rs` creates them; a [`RuleSet`](super::RuleSet) hands out references.

use std::sync::Arc;

use super::declaration::{Ban, Mode, Network, OnMissing, OnOutage, Rule};
use super::trie::Templates;
use crate::{Cost, Limit, Revision};

/// A compiled rule.
#[derive(Clone, Debug)]
pub struct ActiveRule {
    pub(super) declaration: Rule,
    pub(super) domain: Arc<str>,
    pub(super) index: usize,
    pub(super) limits: Vec<ActiveLimit>,
    pub(super) ban: Option<ActiveBan>,
    pub(super) conditions: Vec<Condition>,
    /// The declared attributes, followed by the domain's partition.
    pub(super) by: Vec<KeyPart>,
    /// The longest value of `by` that enters a key unhashed.
    pub(super) verbatim: usize,
    /// The rules that it replaces, by their index in the domain, sorted.
    pub(super) replaces: Vec<usize>,
    pub(super) cost: Option<AttributeId>,
}

impl ActiveRule {
    /// Its name, unique within its domain.
    pub fn name(&self) -> &str {
        &self.declaration.name
    }

    /// The domain of the rule.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// A number of its own, without gaps from 0 on within its set. Another set may number its rules
    /// differently.
    pub const fn index(&self) -> usize {
        self.index
    }

    /// Its mode: enforced, shadow or off.
    pub const fn mode(&self) -> Mode {
        self.declaration.mode
    }

    /// The answer while the store is unreachable.
    pub const fn on_outage(&self) -> OnOutage {
        self.declaration.on_outage
    }

    /// The attributes whose values select a counter, as declared.
    pub fn by(&self) -> &[String] {
        &self.declaration.by
    }

    /// Its limits. A rule that blocks has none.
    pub fn limits(&self) -> &[ActiveLimit] {
        &self.limits
    }

    /// The ban after refusals, if it has one.
    pub const fn ban(&self) -> Option<&ActiveBan> {
        self.ban.as_ref()
    }

    /// The multiple of the local guard, in thousandths of the limit.
    pub const fn local_guard(&self) -> Option<u32> {
        self.declaration.local_guard
    }

    /// The declaration of the rule.
    pub const fn declaration(&self) -> &Rule {
        &self.declaration
    }

    /// The cost of an ask with this own cost and this value of the cost's attribute.
    pub(super) fn cost(&self, own: Cost, value: Option<&[u8]>) -> Cost {
        let from = &self.declaration.cost;
        let cost = match self.cost {
            None => own,
            Some(_) => {
                let said = value.and_then(number).filter(|number| *number > 0);
                said.unwrap_or(from.default)
            }
        };
        cost.min(from.max.unwrap_or(Cost::MAX))
    }

    /// The number of counters that the rule charges.
    pub(super) fn charge_count(&self) -> usize {
        self.limits.len() + usize::from(self.ban.is_some())
    }

    /// Conditions besides the declared ones: an ask that lacks an attribute of `by` is skipped,
    /// unless the rule declares otherwise.
    pub(super) fn implied(&self) -> Vec<Condition> {
        let own = self.by.iter().take(self.declaration.by.len());
        let own = own.filter(|_| self.on_missing() == OnMissing::Skip);
        own.filter_map(|part| match part {
            KeyPart::Value(slot) => Some(Condition { slot: *slot, test: ValueTest::Present }),
            KeyPart::Path | KeyPart::Template | KeyPart::Capture(_) => None,
        })
        .collect()
    }

    pub(super) const fn on_missing(&self) -> OnMissing {
        self.declaration.on_missing
    }
}

/// The number that these digits make. An overflow yields the largest number.
fn number(digits: &[u8]) -> Option<Cost> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let text = std::str::from_utf8(digits).ok()?;
    Some(text.parse().unwrap_or(Cost::MAX))
}

/// The purpose of a compiled limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitKind {
    /// Requests that pass spend it.
    Limit,
    /// One permit for the duration of a ban. Every request asks for it at cost 1; only the request
    /// that starts the ban spends it.
    Ban,
    /// One permit for each refusal. Refused requests spend it; the one that spends the last permit
    /// starts the ban.
    Refusals,
}

/// A compiled limit.
#[derive(Clone, Debug)]
pub struct ActiveLimit {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) limit: Limit,
    /// The displayed limit, which is part of each answer of a server.
    pub(super) text: Box<str>,
    pub(super) kind: LimitKind,
    pub(super) guard: Option<Limit>,
    pub(super) since: Revision,
    pub(super) head: Box<[u8]>,
}

impl ActiveLimit {
    /// Its name within the rule: the declared one, else its period, such as `1m`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its position among the limits of its rule; that behind all of them for a ban.
    #[inline]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The limit. Its revision is the version of the set.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The limit as text, such as `5 per 1m (token-bucket)`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The first revision whose charges still count in full. Before it, an edit may have scaled or
    /// reset the counter: see [`RuleSet::following`](super::RuleSet::following).
    pub const fn since(&self) -> Revision {
        self.since
    }

    /// The local guard in front of the store, if the rule declares a `local-guard` and this limit
    /// does not count holders.
    pub const fn guard(&self) -> Option<&Limit> {
        self.guard.as_ref()
    }

    /// Its purpose.
    pub const fn kind(&self) -> LimitKind {
        self.kind
    }
}

/// A compiled ban: two counters beside those of the limits.
#[derive(Clone, Debug)]
pub struct ActiveBan {
    pub(super) declaration: Ban,
    pub(super) ban: ActiveLimit,
    pub(super) refusals: ActiveLimit,
}

impl ActiveBan {
    /// The declaration: the number of refusals, the time within which they count, and the length of
    /// the ban.
    pub const fn declaration(&self) -> Ban {
        self.declaration
    }

    /// The counter that refuses while the ban lasts: a fixed window of 1, from its first hit.
    pub const fn ban(&self) -> &ActiveLimit {
        &self.ban
    }

    /// The counter of refusals.
    pub const fn refusals(&self) -> &ActiveLimit {
        &self.refusals
    }
}

/// The number of an attribute in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct AttributeId(pub(super) usize);

impl AttributeId {
    /// The `path`, even if no rule uses it.
    pub(super) const PATH: Self = Self(0);
    /// The `ip`, even if no rule uses it.
    pub(super) const IP: Self = Self(1);
}

/// A compiled condition.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    pub(super) slot: AttributeId,
    pub(super) test: ValueTest,
}

/// The test of a condition on a value.
#[derive(Clone, Debug)]
pub(super) enum ValueTest {
    /// One of the texts, which are sorted, or a value with one of the prefixes.
    Text { texts: Vec<Box<[u8]>>, prefixes: Vec<Box<[u8]>> },
    /// An address in one of these networks.
    Networks(Vec<Network>),
    /// A path of one of these templates.
    Templates(Templates),
    /// Any value.
    Present,
    /// No value.
    Absent,
}

/// The source of a value of `by`.
#[derive(Clone, Debug)]
pub(super) enum KeyPart {
    /// An attribute.
    Value(AttributeId),
    /// The whole path.
    Path,
    /// The template that the path matched.
    Template,
    /// The capture of this name.
    Capture(Box<str>),
}
