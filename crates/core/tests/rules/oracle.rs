//! A matcher that looks at every rule, reads declarations only and knows no trick.
//!
//! It is told the segments of a path, not a text: the text that the set under test gets is one
//! of their many spellings.

use std::net::IpAddr;

use tollgate_core::rule::declaration::{Domain, Mode, OnMissing, Pattern, Rule, Subject, Value};
use tollgate_core::testing::Rng;

/// The attributes of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// In small letters.
    pub(crate) path: Option<Vec<&'static str>>,
    pub(crate) ip: Option<IpAddr>,
    pub(crate) others: Vec<(&'static str, &'static str)>,
}

/// The judgement that a request should get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Blocked(String),
    Exempt,
    /// The rules that are charged, in alphabetical order.
    Charges {
        enforced: Vec<String>,
        shadow: Vec<String>,
    },
}

impl Facts {
    fn has(&self, name: &str) -> bool {
        match name {
            "path" => self.path.is_some(),
            "ip" => self.ip.is_some(),
            _ => self.others.iter().any(|(known, _)| *known == name),
        }
    }

    fn accepted(&self, name: &str, value: &Value) -> bool {
        match (name, value) {
            ("path", Value::Text(template)) => {
                let pieces: Vec<&str> = template.split('/').filter(|p| !p.is_empty()).collect();
                self.path.as_ref().is_some_and(|path| fits(&pieces, path))
            }
            ("ip", Value::Network(network)) => self.ip.is_some_and(|ip| {
                let same = |a: &[u8], b: &[u8]| {
                    (0..usize::from(network.prefix))
                        .all(|bit| (a[bit / 8] ^ b[bit / 8]) & (0x80 >> (bit % 8)) == 0)
                };
                match (ip, network.address) {
                    (IpAddr::V4(a), IpAddr::V4(b)) => same(&a.octets(), &b.octets()),
                    (IpAddr::V6(a), IpAddr::V6(b)) => same(&a.octets(), &b.octets()),
                    _ => false,
                }
            }),
            (_, value) => self.others.iter().any(|(known, text)| {
                *known == name
                    && match value {
                        Value::Text(wanted) => wanted == text,
                        Value::Prefix(prefix) => text.starts_with(prefix),
                        Value::Network(_) => false,
                    }
            }),
        }
    }

    fn matches(&self, rule: &Rule) -> bool {
        rule.matches.iter().all(|(name, pattern)| match pattern {
            Pattern::Any(values) => values.iter().any(|value| self.accepted(name, value)),
            Pattern::Present => self.has(name),
            Pattern::Absent => !self.has(name),
        })
    }

    fn is_listed(&self, list: &[Subject]) -> bool {
        list.iter().any(|subject| match subject {
            Subject::Network(network) => self.accepted("ip", &Value::Network(*network)),
            Subject::Attribute { name, value } => self.accepted(name, value),
        })
    }
}

fn fits(pieces: &[&str], path: &[&str]) -> bool {
    match (pieces, path) {
        ([rest], _) if rest.starts_with("{*") => true,
        ([], []) => true,
        ([piece, pieces @ ..], [segment, path @ ..]) => {
            (piece.starts_with('{') || piece.to_ascii_lowercase() == **segment)
                && fits(pieces, path)
        }
        _ => false,
    }
}

pub(crate) fn judge(domain: &Domain, facts: &Facts) -> Expected {
    if facts.is_listed(&domain.block) {
        return Expected::Blocked("a list".to_owned());
    }
    if facts.is_listed(&domain.exempt) {
        return Expected::Exempt;
    }
    let lacks = |rule: &Rule| rule.by.iter().any(|name| !facts.has(name));
    let applied: Vec<&Rule> = domain
        .rules
        .iter()
        .filter(|rule| rule.mode != Mode::Off && facts.matches(rule))
        .filter(|rule| !lacks(rule) || rule.on_missing != OnMissing::Skip)
        .collect();
    let replaced = |rule: &Rule| {
        applied
            .iter()
            .any(|other| other.mode == Mode::Enforce && other.replaces.contains(&rule.name))
    };
    let stay: Vec<&Rule> = applied.iter().copied().filter(|rule| !replaced(rule)).collect();
    let blocks = |rule: &Rule| rule.block || (lacks(rule) && rule.on_missing == OnMissing::Refuse);
    if stay.iter().any(|rule| rule.mode == Mode::Enforce && blocks(rule)) {
        return Expected::Blocked("a rule".to_owned());
    }
    let names = |mode: Mode| {
        let of_mode = stay.iter().filter(|rule| rule.mode == mode && !blocks(rule));
        let mut names: Vec<String> = of_mode.map(|rule| rule.name.clone()).collect();
        names.sort();
        names
    };
    Expected::Charges { enforced: names(Mode::Enforce), shadow: names(Mode::Shadow) }
}

/// One of the many ways to write a path of these segments.
pub(crate) fn spelled(segments: &[&str], rng: &mut Rng) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push_str(rng.pick(&["/", "/", "/", "//", "/./", "/x/../", "/;p/", "/%2e/"]));
        for letter in segment.chars() {
            match rng.below(8) {
                0 => path.push_str(&format!("%{:02x}", u32::from(letter))),
                1 => path.push_str(&format!("%{:02X}", u32::from(letter.to_ascii_uppercase()))),
                2 => path.push(letter.to_ascii_uppercase()),
                _ => path.push(letter),
            }
        }
        path.push_str(rng.pick(&["", "", "", ";v=1", ";a;b=%2e"]));
    }
    path.push_str(rng.pick(&["", "", "/", "//", "/."]));
    if path.is_empty() {
        path.push('/');
    }
    path.push_str(rng.pick(&["", "", "?", "?a=/b/../c"]));
    path
}
