//! Conditions on attributes, and entries of lists.

use tollgate_core::rule::NetworkError;
use tollgate_core::rule::declaration::{Network, Pattern, Subject, Value as Accepted};

use super::super::names;
use super::super::node::{Fields, MapEntry, Node, Value};
use super::super::problem::quoted;
use super::RuleReader;

impl RuleReader {
    /// The conditions of `match`, in the order of the file.
    pub(super) fn patterns(&mut self, node: &Node<'_>) -> Vec<(String, Pattern)> {
        let Value::Map(entries) = &node.value else {
            let hint = "write `match: { path: /login }`".to_owned();
            self.wrong(node, "`match`", "a map of attributes", Some(hint));
            return Vec::new();
        };
        let named = |entry: &MapEntry<'_>, pattern| (entry.key.as_ref().to_owned(), pattern);
        entries.iter().filter_map(|it| self.pattern(it).map(|found| named(it, found))).collect()
    }

    fn pattern(&mut self, entry: &MapEntry<'_>) -> Option<Pattern> {
        let attribute = entry.key.as_ref();
        match &entry.node.value {
            Value::Text(text) if text == "*" => Some(Pattern::Present),
            Value::List(items) => {
                let values: Vec<_> =
                    items.iter().filter_map(|item| self.accepted(attribute, item)).collect();
                (values.len() == items.len()).then_some(Pattern::Any(values))
            }
            Value::Map(_) => {
                for (name, pattern) in [("present", Pattern::Present), ("absent", Pattern::Absent)]
                {
                    let Some(node) = entry.node.get(name) else { continue };
                    let fields = self.fields(&entry.node, "a condition", &[name])?;
                    if self.flag(&fields, name)? {
                        return (fields.entries.len() == 1).then_some(pattern);
                    }
                    let hint = format!("write `{name}: true`, or drop the condition");
                    self.problems.add(node.at, format!("`{name}` is false"), Some(hint));
                    return None;
                }
                self.accepted(attribute, &entry.node).map(|value| Pattern::Any(vec![value]))
            }
            _ => self.accepted(attribute, &entry.node).map(|value| Pattern::Any(vec![value])),
        }
    }

    /// A value that a condition accepts: `text`, `begin*`, `{ text: … }`, `{ prefix: … }`.
    fn accepted(&mut self, attribute: &str, node: &Node<'_>) -> Option<Accepted> {
        // Names of attributes have no case.
        if attribute.eq_ignore_ascii_case("ip") {
            return self.network(node).map(Accepted::Network);
        }
        if let Value::Map(entries) = &node.value {
            return self.spelled_out(attribute, node, entries);
        }
        let text = self.text_of(node, attribute)?;
        if text == "*" {
            let hint = format!("write `{attribute}: \"*\"` by itself for any value");
            self.problems.add(node.at, "`*` among other values", Some(hint));
            return None;
        }
        Some(match text.strip_suffix('*') {
            Some(prefix) => Accepted::Prefix(prefix.to_owned()),
            None => Accepted::Text(text),
        })
    }

    fn spelled_out(
        &mut self,
        attribute: &str,
        node: &Node<'_>,
        entries: &[MapEntry<'_>],
    ) -> Option<Accepted> {
        match entries {
            [only] if only.key == "text" => self.text_of(&only.node, "text").map(Accepted::Text),
            [only] if only.key == "prefix" => {
                self.text_of(&only.node, "prefix").map(Accepted::Prefix)
            }
            [only] if !names::PATTERN.contains(&&*only.key) => {
                let whole = format!("{attribute}.{}", only.key);
                let hint = format!("write an attribute with a dot in quotes: {}", quoted(&whole));
                let message = format!("unknown kind of condition {}", quoted(&only.key));
                self.problems.add(only.at, message, Some(hint));
                None
            }
            _ => {
                let wanted = "a text, a list of texts, or one of text, prefix, present, absent";
                self.wrong(node, &quoted(attribute), wanted, None);
                None
            }
        }
    }

    /// The entries of one of the lists.
    pub(super) fn subjects(&mut self, lists: &Fields<'_, '_>, name: &str) -> Vec<Subject> {
        self.list(lists, name).iter().filter_map(|node| self.subject(node)).collect()
    }

    fn subject(&mut self, node: &Node<'_>) -> Option<Subject> {
        let Value::Map(entries) = &node.value else {
            return self.network(node).map(Subject::Network);
        };
        let [entry] = entries.as_slice() else {
            let hint = "write `{ user: mallory }`, each in an entry of its own".to_owned();
            self.wrong(node, "an entry of a list", "a map of one attribute", Some(hint));
            return None;
        };
        let name = entry.key.as_ref().to_owned();
        let anybody = match &entry.node.value {
            Value::Text(text) => text == "*",
            Value::Map(_) => {
                ["present", "absent"].iter().any(|kind| entry.node.get(kind).is_some())
            }
            Value::List(_) => true,
            _ => false,
        };
        if anybody && !name.eq_ignore_ascii_case("ip") {
            let message = format!("an entry of a list names one value of {}", quoted(&name));
            let hint = "write one value an entry, or a rule with `block: true` for a condition";
            self.problems.add(entry.node.at, message, Some(hint.to_owned()));
            return None;
        }
        Some(match self.accepted(&name, &entry.node)? {
            Accepted::Network(network) => Subject::Network(network),
            value => Subject::Attribute { name, value },
        })
    }

    fn network(&mut self, node: &Node<'_>) -> Option<Network> {
        let hint = "write `10.0.0.0/8`, or `{ user: mallory }` for another attribute".to_owned();
        let Value::Text(text) = &node.value else {
            self.wrong(node, "an address", "an address or network", Some(hint));
            return None;
        };
        match text.parse() {
            Ok(network) => Some(network),
            Err(error) => {
                let (message, hint) = explained(text, error, hint);
                self.problems.add(node.at, message, Some(hint));
                None
            }
        }
    }
}

/// The message for a text that is not a network, with a hint.
fn explained(text: &str, error: NetworkError, hint: String) -> (String, String) {
    let meant = text.split_once('/').and_then(|(address, prefix)| {
        Network::new(address.parse().ok()?, prefix.parse().ok()?).ok()
    });
    let hint = meant.map_or(hint, |network| format!("write `{network}`"));
    (format!("{}: {error}", quoted(text)), hint)
}
