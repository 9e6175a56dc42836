//! Files of envoyproxy/ratelimit into rules.
//!
//! Every file that the reference service loads is loaded here, with four exceptions. Each is
//! reported with its place: a known key in a place where it has no meaning (the reference ignores
//! it, so the file does less than it seems to), sizes beyond the bounds below, anchors and aliases,
//! and rates above 10⁹ a second. The reader continues after a problem, so one run reports many.
//!
//! Scalars follow the reference's parser. Where a text is expected, a number or `true` is read as
//! the text in the file; an empty value counts as absent.

use std::sync::Arc;

use tollgate_core::Limit;

use super::rule::{EnvoyMode, EnvoyRule, RateLimit};
use super::tree::{DescriptorTree, NewDescriptor};
use super::{EnvoyRules, Metadata, Unit};
use crate::rules::node::{Fields, MapEntry, Node, Value};
use crate::rules::problem::{Position, Problems, did_you_mean, quoted};

/// The deepest nesting of descriptors. Envoy's actions produce three or four entries. A request
/// with more entries than this finds no rule.
const MAX_DEPTH: usize = 12;

/// The most descriptors in all files together: as many as Tollgate's own rules.
const MAX_DESCRIPTORS: usize = tollgate_core::rule::bounds::MAX_RULES;

/// The most files: one domain for each service of a large company.
pub(super) const MAX_FILES: usize = tollgate_core::rule::bounds::MAX_DOMAINS;

/// The longest domain, key, value or name, in bytes.
const MAX_TEXT: usize = 1_024;

/// The most rules that one rule replaces.
const MAX_REPLACES: usize = 1_000;

const FILE: &[&str] = &["domain", "descriptors"];
const DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const RATE_LIMIT: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACES: &[&str] = &["name"];

/// Reads one more file into the rules.
pub(super) fn file(
    rules: &mut EnvoyRules,
    text: &str,
    root: &Node<'_>,
    duplicates: DuplicateDomain,
) -> Result<(), Problems> {
    let mut reader =
        DescriptorReader { lines: text.split('\n').collect(), problems: Problems::default() };
    reader.file(rules, root, duplicates);
    reader.problems.none_or(())
}

/// The treatment of a second file for one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DuplicateDomain {
    /// An error.
    Refuse,
    /// More descriptors for the domain, as with `MERGE_DOMAIN_CONFIG`.
    Merge,
}

struct DescriptorReader<'t> {
    lines: Vec<&'t str>,
    problems: Problems,
}

/// The reader's place in the tree.
struct TreePosition<'p> {
    domain: &'p Arc<str>,
    level: usize,
    path: &'p str,
    depth: usize,
}

impl DescriptorReader<'_> {
    fn file(&mut self, rules: &mut EnvoyRules, root: &Node<'_>, duplicates: DuplicateDomain) {
        let Some(fields) = self.fields(root, "a file", FILE) else { return };
        let domain: Arc<str> = self.text_of(&fields, "domain").into();
        if domain.is_empty() {
            let hint = Some("write `domain: shop`, as Envoy's filter names it".to_owned());
            return self.problems.add(fields.at, "a file without `domain`", hint);
        }
        let at = fields.get_filled("domain").map_or(fields.at, |node| node.at);
        if rules.domains.contains_key(&*domain) && duplicates == DuplicateDomain::Refuse {
            let hint = Some("write its descriptors into one file, or merge domains".to_owned());
            let message = format!("the domain {} is in another file as well", quoted(&domain));
            self.problems.add(at, message, hint);
            return;
        }
        let mut tree = rules.domains.remove(&*domain).unwrap_or_else(DescriptorTree::new);
        if let Some(list) = fields.get_filled("descriptors") {
            let trail = TreePosition { domain: &domain, level: 0, path: "", depth: 1 };
            self.descriptors(rules, &mut tree, list, &trail);
        }
        rules.domains.insert(domain, tree);
    }

    fn descriptors(
        &mut self,
        rules: &mut EnvoyRules,
        tree: &mut DescriptorTree,
        node: &Node<'_>,
        trail: &TreePosition<'_>,
    ) {
        if trail.depth > MAX_DEPTH {
            let message = format!("descriptors nested deeper than {MAX_DEPTH} levels");
            return self.problems.add(node.at, message, None);
        }
        for item in self.list(node, "descriptors") {
            rules.descriptors = rules.descriptors.saturating_add(1);
            if rules.descriptors > MAX_DESCRIPTORS {
                let message = format!("more than {MAX_DESCRIPTORS} descriptors");
                return self.problems.add(item.at, message, None);
            }
            self.descriptor(rules, tree, item, trail);
        }
    }

    fn descriptor(
        &mut self,
        rules: &mut EnvoyRules,
        tree: &mut DescriptorTree,
        node: &Node<'_>,
        trail: &TreePosition<'_>,
    ) {
        let Some(fields) = self.fields(node, "a descriptor", DESCRIPTOR) else { return };
        let key = self.text_of(&fields, "key");
        if key.is_empty() {
            let hint = Some("write `key: remote_address`".to_owned());
            return self.problems.add(node.at, "a descriptor without `key`", hint);
        }
        let value = self.text_of(&fields, "value");
        let own = if value.is_empty() { key.clone() } else { format!("{key}_{value}") };
        let path = if trail.path.is_empty() { own } else { format!("{}.{own}", trail.path) };
        let shares = self.flag(&fields, "share_threshold");
        if shares && !value.contains('*') {
            let at = fields.get_filled("share_threshold").map_or(node.at, |node| node.at);
            let hint = Some("it makes all values of a pattern share one counter".to_owned());
            self.problems.add(at, "`share_threshold` without a `*` in `value`", hint);
        }
        // How statistics are named; ours have no label by value, so there is nothing to switch.
        self.flag(&fields, "detailed_metric");
        self.flag(&fields, "value_to_metric");
        let rule = self.rule(&fields, trail.domain, &path).map(|rule| {
            rules.rules.push(rule);
            rules.rules.len().saturating_sub(1)
        });
        let place = NewDescriptor { key: &key, value: &value, rule, shares };
        let Some(level) = tree.add(trail.level, place) else {
            let hint = Some("keep one of the two, with the descriptors of both".to_owned());
            let message = format!("duplicate descriptor composite key {}", quoted(&path));
            return self.problems.add(node.at, message, hint);
        };
        if let Some(list) = fields.get_filled("descriptors") {
            let depth = trail.depth.saturating_add(1);
            let below = TreePosition { domain: trail.domain, level, path: &path, depth };
            self.descriptors(rules, tree, list, &below);
        }
    }

    /// The rule of a descriptor, if it has a rate limit.
    fn rule(
        &mut self,
        fields: &Fields<'_, '_>,
        domain: &Arc<str>,
        path: &str,
    ) -> Option<EnvoyRule> {
        let (shadow, quota) = (self.flag(fields, "shadow_mode"), self.flag(fields, "quota_mode"));
        let metadata = fields.get_filled("metadata").and_then(|node| self.metadata_map(node));
        let node = fields.get_filled("rate_limit")?;
        let limit = self.fields(node, "a rate limit", RATE_LIMIT)?;
        let name = self.text_of(&limit, "name");
        let replaces = self.replaces(&limit, &name);
        let (rate, limit) = self.rate(&limit)?;
        let mode = match (shadow, quota) {
            (true, _) => EnvoyMode::Shadow,
            (false, true) => EnvoyMode::Quota,
            (false, false) => EnvoyMode::Enforce,
        };
        let (domain, path, name) = (Arc::clone(domain), path.into(), name.into());
        Some(EnvoyRule { domain, path, name, rate, limit, mode, replaces, metadata })
    }

    /// The rate, unless the limit is `unlimited`, and the limit that is charged.
    fn rate(&mut self, limit: &Fields<'_, '_>) -> Option<(Option<RateLimit>, Option<Limit>)> {
        let name = self.text_of(limit, "unit");
        let unit = Unit::named(&name);
        let at = limit.get_filled("unit").map_or(limit.at, |node| node.at);
        let requests = limit.get_filled("requests_per_unit");
        let requests = requests.map_or(Some(0), |node| self.number(node, "requests_per_unit"));
        if self.flag(limit, "unlimited") {
            if unit.is_some() {
                let hint = Some("leave `unit` out, or `unlimited`".to_owned());
                self.problems.add(at, "a `unit` of a limit that is `unlimited`", hint);
            }
            return Some((None, None));
        }
        let Some(unit) = unit else {
            let units = "second, minute, hour, day, week, month, year";
            let hint = did_you_mean(&name, units.split(", "));
            let message = if name.is_empty() {
                "a rate limit without `unit`".to_owned()
            } else {
                format!("invalid rate limit unit {}", quoted(&name))
            };
            let hint = hint.or_else(|| Some(format!("write one of {units}")));
            self.problems.add(at, message, hint);
            return None;
        };
        let rate = RateLimit::new(requests?, unit);
        match rate.limit() {
            Ok(limit) => Some((Some(rate), limit)),
            Err(error) => {
                let hint = Some("count in larger units, or write `unlimited: true`".to_owned());
                self.problems.add(limit.at, error.to_string(), hint);
                None
            }
        }
    }

    fn replaces(&mut self, limit: &Fields<'_, '_>, own: &str) -> Box<[Box<str>]> {
        let Some(node) = limit.get_filled("replaces") else { return Box::default() };
        let mut names: Vec<Box<str>> = Vec::new();
        let items = self.list(node, "replaces");
        if items.len() > MAX_REPLACES {
            let message = format!("`replaces` has more than {MAX_REPLACES} names");
            self.problems.add(node.at, message, None);
            return Box::default();
        }
        for item in items {
            let Some(fields) = self.fields(item, "`replaces`", REPLACES) else { continue };
            match self.text_of(&fields, "name") {
                name if name.is_empty() => {
                    let hint = Some("write `- name: other-rule`".to_owned());
                    self.problems.add(item.at, "an empty entry of `replaces`", hint);
                }
                name if name == own => {
                    let message = format!("the rule {} replaces itself", quoted(own));
                    self.problems.add(item.at, message, None);
                }
                name => names.push(name.into()),
            }
        }
        names.into()
    }

    fn metadata_map(&mut self, node: &Node<'_>) -> Option<Metadata> {
        if !matches!(node.value, Value::Map(_)) {
            self.wrong(node, "metadata", "a map");
            return None;
        }
        self.metadata(node)
    }

    fn metadata(&mut self, node: &Node<'_>) -> Option<Metadata> {
        Some(match &node.value {
            Value::Null => Metadata::Null,
            Value::Bool(flag) => Metadata::Bool(*flag),
            Value::Text(text) => Metadata::Text(text.as_ref().to_owned()),
            Value::Number(text) => match double(text) {
                Some(number) => Metadata::Number(number),
                None => {
                    self.wrong(node, "metadata", "a finite number");
                    return None;
                }
            },
            Value::List(items) => {
                Metadata::List(items.iter().filter_map(|item| self.metadata(item)).collect())
            }
            Value::Map(entries) => {
                let field = |entry: &MapEntry<'_>, value| (entry.key.as_ref().to_owned(), value);
                let fields = entries.iter();
                let read = fields.filter_map(|e| self.metadata(&e.node).map(|v| field(e, v)));
                Metadata::Map(read.collect())
            }
        })
    }
}

/// Scalars.
impl DescriptorReader<'_> {
    fn fields<'n, 't>(
        &mut self,
        node: &'n Node<'t>,
        what: &str,
        known: &[&str],
    ) -> Option<Fields<'n, 't>> {
        let Value::Map(entries) = &node.value else {
            let message = format!("{what} is {}, where a map is wanted", node.described());
            self.problems.add(node.at, message, None);
            return None;
        };
        for entry in entries.iter().filter(|entry| !known.contains(&&*entry.key)) {
            let elsewhere = [FILE, DESCRIPTOR, RATE_LIMIT].concat().contains(&&*entry.key);
            let (message, hint) = if elsewhere {
                let message = format!("{} means nothing in {what}", quoted(&entry.key));
                (message, belongs(&entry.key).map(str::to_owned))
            } else {
                let known = known.iter().copied();
                let hint = did_you_mean(&entry.key, known.clone());
                let all = || format!("{what} has {}", known.collect::<Vec<_>>().join(", "));
                (format!("unknown key {}", quoted(&entry.key)), hint.or_else(|| Some(all())))
            };
            self.problems.add(entry.at, message, hint);
        }
        Some(Fields { at: node.at, entries })
    }

    fn list<'n, 't>(&mut self, node: &'n Node<'t>, field: &str) -> &'n [Node<'t>] {
        if let Value::List(items) = &node.value {
            return items;
        }
        self.wrong(node, field, "a list of maps");
        &[]
    }

    /// The text of a field; empty if the field is absent.
    fn text_of(&mut self, fields: &Fields<'_, '_>, field: &str) -> String {
        let node = fields.get_filled(field);
        node.and_then(|node| self.text(node, field)).unwrap_or_default()
    }

    /// The text of a node. Numbers and truth values keep the spelling of the file.
    fn text(&mut self, node: &Node<'_>, field: &str) -> Option<String> {
        let text = match &node.value {
            Value::Text(text) | Value::Number(text) => text.as_ref(),
            Value::Bool(_) => self.written(node.at).unwrap_or_default(),
            Value::Null => "",
            Value::List(_) | Value::Map(_) => {
                self.wrong(node, field, "a text");
                return None;
            }
        };
        if text.len() > MAX_TEXT {
            let message = format!("`{field}` of {} bytes is above {MAX_TEXT}", text.len());
            self.problems.add(node.at, message, None);
            return None;
        }
        if matches!(node.value, Value::Bool(_)) && text.is_empty() {
            let hint = Some("write it in quotes".to_owned());
            self.problems.add(node.at, format!("`{field}` is not a text"), hint);
            return None;
        }
        Some(text.to_owned())
    }

    /// The word at this place: `True` and `true` are one truth value but two texts.
    fn written(&self, at: Position) -> Option<&str> {
        let line = self.lines.get(usize::try_from(at.line).ok()?.checked_sub(1)?)?;
        let column = usize::try_from(at.column).ok()?.checked_sub(1)?;
        let (start, _) = line.char_indices().nth(column)?;
        let rest = line.get(start..)?;
        let end = rest.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(rest.len());
        let word = rest.get(..end)?;
        let truth = word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false");
        truth.then_some(word)
    }

    /// The truth value of a field, also in the spellings of YAML 1.1; false if the field is absent.
    fn flag(&mut self, fields: &Fields<'_, '_>, field: &str) -> bool {
        let Some(node) = fields.get_filled(field) else { return false };
        match &node.value {
            Value::Bool(flag) => *flag,
            Value::Text(text) if ["yes", "Yes", "YES", "on", "On", "ON"].contains(&&**text) => true,
            Value::Text(text) if ["no", "No", "NO", "off", "Off", "OFF"].contains(&&**text) => {
                false
            }
            _ => {
                self.wrong(node, field, "`true` or `false`");
                false
            }
        }
    }

    fn number(&mut self, node: &Node<'_>, field: &str) -> Option<u32> {
        let number = match &node.value {
            Value::Number(text) => whole(text),
            _ => None,
        };
        if number.is_none() {
            self.wrong(node, field, "a whole number from 0 to 4294967295");
        }
        number
    }

    fn wrong(&mut self, node: &Node<'_>, field: &str, wanted: &str) {
        let message = format!("`{field}` is {}, where {wanted} is wanted", node.described());
        self.problems.add(node.at, message, None);
    }
}

/// The place in which a known key has a meaning.
fn belongs(key: &str) -> Option<&'static str> {
    Some(match key {
        "domain" => "it stands at the top of the file",
        "unit" | "requests_per_unit" | "unlimited" | "name" | "replaces" => {
            "it belongs into `rate_limit`"
        }
        "descriptors" => "it belongs into a descriptor, beside `key`",
        _ => "it belongs beside `rate_limit`, not into it",
    })
}

fn whole(text: &str) -> Option<u32> {
    let text = text.strip_prefix('+').unwrap_or(text);
    match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(digits), _) => u32::from_str_radix(digits, 16).ok(),
        (_, Some(digits)) => u32::from_str_radix(digits, 8).ok(),
        // Digits behind a zero are eights to some parsers and tens to others.
        _ if text.len() > 1 && text.starts_with('0') => None,
        _ => text.parse().ok(),
    }
}

fn double(text: &str) -> Option<f64> {
    let number = match whole(text) {
        Some(number) => f64::from(number),
        None => text.parse().ok()?,
    };
    number.is_finite().then_some(number)
}
