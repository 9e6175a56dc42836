//! From a tree to a declaration: one reader for all formats.
//!
//! The reader continues after a problem, so one run reports many. A value that cannot be read is
//! left at its default; the default is never returned, because a declaration with problems is not.
//! `RuleSet::new` checks everything beyond a single field: duplicate names, templates, the range of
//! an algorithm.

mod limit;
mod rule;
mod scalar;
mod subject;

use tollgate_core::rule::declaration::{Declaration, Domain};

use super::names;
use super::node::{Fields, Node, Value};
use super::problem::{Problems, did_you_mean, quoted};

/// Reads the declaration in a tree.
pub(super) fn declaration(root: &Node<'_>) -> Result<Declaration, Problems> {
    let mut reader = RuleReader::default();
    let declaration = reader.file(root);
    reader.problems.none_or(declaration)
}

#[derive(Default)]
struct RuleReader {
    problems: Problems,
}

impl RuleReader {
    fn file(&mut self, root: &Node<'_>) -> Declaration {
        let mut declaration = Declaration { version: 0, domains: Vec::new() };
        let known: Vec<&str> = names::FILE.iter().chain(names::DOMAIN).copied().collect();
        let Some(file) = self.fields(root, "a rule file", &known) else { return declaration };
        self.text(&file, "$schema");
        self.require(&file, "a rule file", "version", "`version: 1`");
        declaration.version = self.number(&file, "version", 1).unwrap_or(1);
        match file.get("domains") {
            None => declaration.domains.push(self.domain(&file)),
            Some(_) => {
                for entry in file.entries.iter().filter(|e| names::DOMAIN.contains(&&*e.key)) {
                    let message = format!("{} beside `domains`", quoted(&entry.key));
                    let hint = "move it into an entry of `domains`".to_owned();
                    self.problems.add(entry.at, message, Some(hint));
                }
                for node in self.list(&file, "domains") {
                    if let Some(fields) = self.fields(node, "a domain", names::DOMAIN) {
                        declaration.domains.push(self.domain(&fields));
                    }
                }
            }
        }
        declaration
    }

    fn domain(&mut self, fields: &Fields<'_, '_>) -> Domain {
        self.require(fields, "a domain", "domain", "`domain: shop`");
        let mut domain = Domain::new(self.text(fields, "domain").unwrap_or_default());
        domain.partition = self.texts(fields, "partition");
        domain.ipv6_prefix = self.small(fields, "ipv6-prefix", 128).unwrap_or(domain.ipv6_prefix);
        domain.path_case = self.choice(fields, "path-case", names::PATH_CASE).unwrap_or_default();
        for node in self.list(fields, "rules") {
            domain.rules.extend(self.rule(node));
        }
        if let Some(lists) =
            fields.get("lists").and_then(|node| self.fields(node, "`lists`", names::LISTS))
        {
            domain.exempt = self.subjects(&lists, "exempt");
            domain.block = self.subjects(&lists, "block");
        }
        domain
    }

    /// The fields of a map. Reports a value that is not a map, and every unknown key.
    fn fields<'n, 't>(
        &mut self,
        node: &'n Node<'t>,
        what: &str,
        known: &[&str],
    ) -> Option<Fields<'n, 't>> {
        let Value::Map(entries) = &node.value else {
            self.wrong(node, what, "a map of fields", None);
            return None;
        };
        for entry in entries {
            if !known.contains(&&*entry.key) {
                let hint = did_you_mean(&entry.key, known.iter().copied())
                    .unwrap_or_else(|| format!("{what} has {}", known.join(", ")));
                self.problems.add(
                    entry.at,
                    format!("unknown field {}", quoted(&entry.key)),
                    Some(hint),
                );
            }
        }
        Some(Fields { at: node.at, entries })
    }

    /// Reports a field that is missing.
    fn require(&mut self, fields: &Fields<'_, '_>, what: &str, name: &str, example: &str) {
        if fields.get(name).is_none() {
            let hint = format!("write {example}");
            self.problems.add(fields.at, format!("{what} without `{name}`"), Some(hint));
        }
    }

    /// Reports a value of the wrong kind.
    fn wrong(&mut self, node: &Node<'_>, what: &str, wanted: &str, hint: Option<String>) {
        let message = format!("{what} is {}, where {wanted} is wanted", node.described());
        let hint = match node.value {
            Value::Null => Some("leave it out, or give it a value".to_owned()),
            _ => hint,
        };
        self.problems.add(node.at, message, hint);
    }
}
