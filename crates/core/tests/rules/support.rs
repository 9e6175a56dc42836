//! Short ways to declare rules and to ask.

use tollgate_core::rule::declaration::{
    Declaration, Domain, Limitation, Pattern, Rule, Subject, Value,
};
use tollgate_core::rule::{Ask, Charges, Judgement, KeySecret, RuleError, RuleSet};

/// A rule of `5 per 1m` with this name.
pub(crate) fn rule(name: &str) -> Rule {
    let mut rule = Rule::new(name);
    rule.limits.push(limitation("5 per 1m"));
    rule
}

pub(crate) fn limitation(quota: &str) -> Limitation {
    Limitation { name: None, quota: quota.parse().unwrap(), algorithm: None }
}

/// Texts of a condition; those that end in `*` are prefixes, but for paths.
pub(crate) fn any(values: &[&str]) -> Pattern {
    Pattern::Any(values.iter().map(|value| text(value)).collect())
}

pub(crate) fn text(value: &str) -> Value {
    match value.strip_suffix('*') {
        Some(prefix) => Value::Prefix(prefix.to_owned()),
        None => Value::Text(value.to_owned()),
    }
}

pub(crate) fn subject(name: &str, value: &str) -> Subject {
    if name == "ip" {
        return Subject::Network(value.parse().unwrap());
    }
    Subject::Attribute { name: name.to_owned(), value: text(value) }
}

/// Fluent edits of a rule.
pub(crate) trait With: Sized {
    fn with(self, edit: impl FnOnce(&mut Rule)) -> Self;

    fn on(self, name: &str, values: &[&str]) -> Self {
        self.with(|rule| rule.matches.push((name.to_owned(), any(values))))
    }

    fn by(self, names: &[&str]) -> Self {
        self.with(|rule| rule.by = names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn replacing(self, names: &[&str]) -> Self {
        self.with(|rule| rule.replaces = names.iter().map(|name| (*name).to_owned()).collect())
    }
}

impl With for Rule {
    fn with(mut self, edit: impl FnOnce(&mut Self)) -> Self {
        edit(&mut self);
        self
    }
}

/// The domain `shop` with these rules.
pub(crate) fn shop(rules: Vec<Rule>) -> Domain {
    Domain { rules, ..Domain::new("shop") }
}

pub(crate) fn declare(domains: Vec<Domain>) -> Declaration {
    Declaration { version: 1, domains }
}

/// The set of the domain `shop` with these rules, which must be right.
pub(crate) fn set(rules: Vec<Rule>) -> RuleSet {
    set_of(shop(rules))
}

pub(crate) fn set_of(domain: Domain) -> RuleSet {
    RuleSet::new(declare(vec![domain])).unwrap_or_else(|errors| panic!("{}", list(&errors)))
}

pub(crate) fn list(errors: &[RuleError]) -> String {
    errors.iter().map(|error| format!("{error}\n")).collect()
}

/// The errors of the domain `shop` with these rules, one line each.
pub(crate) fn wrong(rules: Vec<Rule>) -> String {
    wrong_of(shop(rules))
}

pub(crate) fn wrong_of(domain: Domain) -> String {
    RuleSet::new(declare(vec![domain])).map_or_else(|errors| list(&errors), |_| String::new())
}

pub(crate) const SECRET: KeySecret = KeySecret::new(*b"a fleet's secret");

/// An ask in `shop` with these attributes, which must be right.
pub(crate) fn ask<'a>(attributes: &[(&'a str, &'a str)]) -> Ask<'a> {
    attributes.iter().fold(Ask::new("shop"), |ask, (name, value)| ask.with(name, *value).unwrap())
}

pub(crate) fn charges<'s>(set: &'s RuleSet, ask: &Ask<'_>) -> Charges<'s> {
    match set.judge(ask, &SECRET) {
        Judgement::Charges(charges) => charges,
        other => panic!("{other:?}"),
    }
}

/// The names of the rules whose limits are charged, the first limit of each, in order.
pub(crate) fn charged<'s>(set: &'s RuleSet, ask: &Ask<'_>) -> Vec<&'s str> {
    let mut names: Vec<&str> =
        charges(set, ask).enforced().iter().map(|charge| charge.rule.name()).collect();
    names.dedup();
    names
}

/// The keys of all that is enforced.
pub(crate) fn keys(set: &RuleSet, ask: &Ask<'_>) -> Vec<Vec<u8>> {
    let charges = charges(set, ask);
    charges.enforced().iter().map(|charge| charges.key(charge).as_bytes().to_vec()).collect()
}

/// The key of the only charge.
pub(crate) fn key(set: &RuleSet, ask: &Ask<'_>) -> Vec<u8> {
    let keys = keys(set, ask);
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys.into_iter().next().unwrap()
}
