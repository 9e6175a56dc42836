//! Finds the rules that may match an ask without looking at every rule.
//!
//! Each rule is indexed by one of its conditions: the one that it shares with the fewest other
//! rules. It is indexed under every value of that condition: texts in tables, prefixes in a table
//! for each length, networks likewise, templates in a [`Trie`]. Looking up the values of an ask
//! yields *candidates*. All rules that match are among them, but not every candidate matches. The
//! caller verifies them fully, so an error here could only miss a rule: the tests compare with a
//! scan of all rules.
//!
//! The presence of an attribute of `by`, without which a rule is skipped, is a condition as well.
//!
//! The cost of a lookup depends on the number of prefix lengths and on the number of rules that
//! share their rarest condition, not on the number of rules.

use super::active::{AttributeId, Condition, ValueTest};
use super::ask::Attribute;
use super::ask_view::AskView;
use super::declaration::Network;
use super::hash::Table;
use super::network::masked;
use super::template::{Template, TemplateSegment};
use super::trie::Trie;

/// Sets of conditions, indexed by the values that they accept. Each set has a number.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// Sets without a condition that a lookup could use.
    always: Vec<usize>,
    /// By id of the attribute.
    texts: Vec<TextIndex>,
    /// By number of leading bits.
    networks: Vec<(u8, Postings<Network>)>,
    paths: Trie,
}

/// The numbers of sets, by a value that one of their conditions accepts.
type Postings<K> = Table<K, Vec<usize>>;

/// Conditions on one attribute.
#[derive(Clone, Debug, Default)]
struct TextIndex {
    whole: Postings<Box<[u8]>>,
    /// The longest key of `whole`: longer values need not be hashed.
    longest: usize,
    prefixes: Vec<(usize, Postings<Box<[u8]>>)>,
    present: Vec<usize>,
}

impl Index {
    /// Indexes each of these sets of conditions under its rarest one. Its number is its position. A
    /// set without conditions always matches.
    pub(super) fn new<'c, C>(sets: impl Iterator<Item = C> + Clone) -> Self
    where
        C: IntoIterator<Item = &'c Condition>,
    {
        let mut census = Selectivity::default();
        sets.clone().flatten().for_each(|condition| census.count(condition));
        let mut index = Self::default();
        for (number, conditions) in sets.enumerate() {
            let rarest = conditions
                .into_iter()
                .filter_map(|condition| Some((census.rarity(condition)?, condition)))
                .min_by_key(|(rarity, _)| *rarity);
            match rarest {
                Some((_, condition)) => index.file(condition, number),
                None => index.always.push(number),
            }
        }
        index
    }

    fn file(&mut self, condition: &Condition, number: usize) {
        match &condition.test {
            ValueTest::Text { texts, prefixes } => {
                let slot = self.texts(condition.slot);
                for text in texts {
                    slot.longest = slot.longest.max(text.len());
                    slot.whole.entry(text.clone()).or_default().push(number);
                }
                for prefix in prefixes {
                    let table = table_of(&mut slot.prefixes, prefix.len());
                    table.entry(prefix.clone()).or_default().push(number);
                }
            }
            ValueTest::Networks(networks) => {
                for network in networks {
                    let table = table_of(&mut self.networks, network.prefix);
                    table.entry(*network).or_default().push(number);
                }
            }
            ValueTest::Templates(templates) => {
                for template in templates.iter() {
                    self.paths.insert(template, number);
                }
            }
            ValueTest::Present => self.texts(condition.slot).present.push(number),
            ValueTest::Absent => self.always.push(number),
        }
    }

    fn texts(&mut self, slot: AttributeId) -> &mut TextIndex {
        if self.texts.len() <= slot.0 {
            self.texts.resize_with(slot.0 + 1, TextIndex::default);
        }
        &mut self.texts[slot.0]
    }

    /// Calls `each` with the candidates. A candidate may come several times.
    pub(super) fn candidates(&self, view: &AskView<'_>, mut each: impl FnMut(usize)) {
        self.always.iter().copied().for_each(&mut each);
        for (slot, value) in view.values() {
            if let Some(texts) = self.texts.get(slot.0) {
                texts.candidates(*value, &mut each);
            }
            if let Attribute::Address(address) = value {
                for (prefix, table) in &self.networks {
                    let network = Network { address: masked(*address, *prefix), prefix: *prefix };
                    let found = table.get(&network).into_iter().flatten();
                    found.copied().for_each(&mut each);
                }
            }
        }
        if let Some(route) = view.route().filter(|_| !self.paths.is_empty()) {
            self.paths.walk(route, each);
        }
    }
}

impl TextIndex {
    fn candidates(&self, value: Attribute<'_>, each: &mut impl FnMut(usize)) {
        self.present.iter().copied().for_each(&mut *each);
        let Attribute::Text(text) = value else { return };
        let whole = if text.len() <= self.longest { self.whole.get(text) } else { None };
        whole.into_iter().flatten().copied().for_each(&mut *each);
        for (len, table) in &self.prefixes {
            let found = text.get(..*len).and_then(|prefix| table.get(prefix));
            found.into_iter().flatten().copied().for_each(&mut *each);
        }
    }
}

/// The table of this length. There are few lengths.
fn table_of<L: Copy + Eq, K>(tables: &mut Vec<(L, Postings<K>)>, len: L) -> &mut Postings<K> {
    let at = tables.iter().position(|(known, _)| *known == len).unwrap_or_else(|| {
        tables.push((len, Table::default()));
        tables.len() - 1
    });
    &mut tables[at].1
}

/// The number of conditions that accept each value.
#[derive(Default)]
struct Selectivity {
    accepting: Table<AcceptedValue, u64>,
}

/// A value that conditions accept.
#[derive(PartialEq, Eq, Hash)]
enum AcceptedValue {
    Text(AttributeId, Box<[u8]>),
    Prefix(AttributeId, Box<[u8]>),
    Network(Network),
    Path(Vec<Option<Box<[u8]>>>),
    Any(AttributeId),
}

impl Selectivity {
    fn count(&mut self, condition: &Condition) {
        for_each_accepted(condition, |accepted, _| {
            *self.accepting.entry(accepted).or_default() += 1;
        });
    }

    /// The most candidates of an ask that meets the condition; conditions that many asks meet weigh
    /// more. `None` for conditions that a lookup cannot use.
    fn rarity(&self, condition: &Condition) -> Option<u64> {
        let mut worst = None;
        for_each_accepted(condition, |accepted, weight| {
            let count = self.accepting.get(&accepted).copied().unwrap_or(0);
            worst = worst.max(Some(count * weight));
        });
        worst
    }
}

fn for_each_accepted(condition: &Condition, mut each: impl FnMut(AcceptedValue, u64)) {
    let slot = condition.slot;
    match &condition.test {
        ValueTest::Text { texts, prefixes } => {
            texts.iter().for_each(|text| each(AcceptedValue::Text(slot, text.clone()), 2));
            prefixes.iter().for_each(|prefix| each(AcceptedValue::Prefix(slot, prefix.clone()), 4));
        }
        ValueTest::Networks(networks) => {
            networks.iter().for_each(|network| each(AcceptedValue::Network(*network), 4));
        }
        ValueTest::Templates(templates) => {
            templates.iter().for_each(|template| each(shape(template), weight(template)));
        }
        ValueTest::Present => each(AcceptedValue::Any(slot), 1_000),
        ValueTest::Absent => {}
    }
}

/// A template without the names of its captures.
fn shape(template: &Template) -> AcceptedValue {
    let segment = |piece: &TemplateSegment| match piece {
        TemplateSegment::Literal(literal) => Some(literal.clone()),
        TemplateSegment::Capture(_) => None,
        // No segment is empty.
        TemplateSegment::Rest(_) => Some(Box::default()),
    };
    AcceptedValue::Path(template.pieces().iter().map(segment).collect())
}

/// The weight of a template. One that begins with a capture is met by as many asks as `present`.
fn weight(template: &Template) -> u64 {
    match (template.pieces().first(), template.pieces().last()) {
        (Some(TemplateSegment::Capture(_) | TemplateSegment::Rest(_)), _) => 1_000,
        (_, Some(TemplateSegment::Rest(_))) => 4,
        _ => 3,
    }
}
