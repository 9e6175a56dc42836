//! Compiles conditions.
//!
//! The values of a condition are normalized like those of asks: hosts and methods as in `ask.rs`,
//! paths as templates, `ip` as networks.

use super::active::{AttributeId, Condition, ValueTest};
use super::ask::{folded, method};
use super::compile::Compiler;
use super::declaration::{Network, PathCase, Pattern, Value};
use super::error::{ErrorReport, Place};
use super::host;
use super::template::Template;
use super::trie::Templates;

impl Compiler<'_> {
    /// Compiles a condition on this attribute.
    pub(super) fn condition(&mut self, name: &str, pattern: &Pattern, place: Place) -> Condition {
        let name = folded(name);
        let slot = self.slots.take(&name);
        let (case, report) = (self.case, &mut *self.report);
        let test = match (pattern, slot) {
            (Pattern::Present, _) => ValueTest::Present,
            (Pattern::Absent, _) => ValueTest::Absent,
            (Pattern::Any(values), AttributeId::PATH) => {
                let templates = collect(values, place, report, |value| template(value, case));
                ValueTest::Templates(Templates::new(templates))
            }
            (Pattern::Any(values), AttributeId::IP) => {
                ValueTest::Networks(collect(values, place, report, network))
            }
            (Pattern::Any(values), _) => texts(&name, values, place, report),
        };
        Condition { slot, test }
    }
}

/// A mistake in a value, and a hint.
type Problem = (String, Option<String>);

fn collect<T>(
    values: &[Value],
    place: Place,
    report: &mut ErrorReport,
    read: impl Fn(&Value) -> Result<T, Problem>,
) -> Vec<T> {
    let mut good = Vec::with_capacity(values.len());
    for (at, value) in values.iter().enumerate() {
        match read(value) {
            Ok(value) => good.push(value),
            Err((message, hint)) => report.add(place.value(at), message).some_hint(hint),
        }
    }
    good
}

fn template(value: &Value, case: PathCase) -> Result<Template, Problem> {
    let text = match value {
        Value::Text(text) => text.clone(),
        Value::Prefix(prefix) => match prefix.strip_suffix('/') {
            Some(parent) => format!("{parent}/{{*rest}}"),
            None => {
                let hint = format!("write `{prefix}/{{*rest}}` for all below it");
                return Err((format!("`{prefix}*` ends within a segment of the path"), Some(hint)));
            }
        },
        Value::Network(network) => {
            return Err((format!("`path` cannot be the network {network}"), None));
        }
    };
    Template::parse(&text, case).map_err(|error| {
        (format!("the path `{text}` {}", error.message), error.hint.map(str::to_owned))
    })
}

fn network(value: &Value) -> Result<Network, Problem> {
    let hint = || Some("write an address or a network such as 10.0.0.0/8".to_owned());
    match value {
        Value::Network(network) => match Network::new(network.address, network.prefix) {
            Ok(clean) if clean == *network => Ok(clean),
            Ok(clean) => Err((
                format!("{}/{} has bits set after its prefix", network.address, network.prefix),
                Some(format!("write {clean}")),
            )),
            Err(error) => Err((format!("{}/{}: {error}", network.address, network.prefix), hint())),
        },
        Value::Text(text) => text.parse().map_err(|error| (format!("`{text}`: {error}"), hint())),
        Value::Prefix(prefix) => Err((format!("`{prefix}*` is not a network"), hint())),
    }
}

fn texts(name: &str, values: &[Value], place: Place, report: &mut ErrorReport) -> ValueTest {
    let spelled = collect(values, place, report, |value| match value {
        Value::Text(text) => spell(name, text).map(|text| (text, true)),
        Value::Prefix(prefix) => Ok((spell_prefix(name, prefix), false)),
        Value::Network(network) => {
            let hint = "only `ip` has networks".to_owned();
            Err((format!("`{name}` cannot be the network {network}"), Some(hint)))
        }
    });
    let (texts, prefixes): (Vec<_>, Vec<_>) = spelled.into_iter().partition(|(_, whole)| *whole);
    let bare = |list: Vec<(Box<[u8]>, bool)>| list.into_iter().map(|(text, _)| text);
    let mut texts: Vec<Box<[u8]>> = bare(texts).collect();
    texts.sort_unstable();
    texts.dedup();
    ValueTest::Text { texts, prefixes: bare(prefixes).collect() }
}

fn spell(name: &str, text: &str) -> Result<Box<[u8]>, Problem> {
    match name {
        "host" => match host::canonical(text) {
            Ok(host) => Ok(host.as_bytes().into()),
            Err(error) => Err((format!("`{text}`: {error}"), None)),
        },
        "method" => match method(text.as_bytes()) {
            Some(method) => Ok((*method).into()),
            None => Err((format!("`{text}` is not a method"), None)),
        },
        _ => Ok(text.as_bytes().into()),
    }
}

fn spell_prefix(name: &str, prefix: &str) -> Box<[u8]> {
    match name {
        "host" => prefix.to_ascii_lowercase().into_bytes().into(),
        "method" => prefix.to_ascii_uppercase().into_bytes().into(),
        _ => prefix.as_bytes().into(),
    }
}
