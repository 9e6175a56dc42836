//! Errors in a declaration that are visible without parsing templates and networks: bounds, names,
//! references, and fields that contradict each other.
//!
//! Every message has the problem and its value; a hint has the fix. `compile.rs` parses values with
//! a grammar of their own, and reports their errors.

mod names;
mod replaces;
mod rule;

use super::bounds;
use super::declaration::{Declaration, Domain, Mode, OnMissing, Rule, Subject, Value};
use super::error::{ErrorReport, Place};
use super::hash::Table;
use crate::Request;

pub use names::edit_distance;

/// Reports all errors.
pub(super) fn check(declaration: &Declaration, report: &mut ErrorReport) {
    let place = Place::default();
    if declaration.version == 0 {
        report
            .add(place.field("version"), "version 0 is the empty set")
            .hint("number edits from 1 on");
    }
    let domains = &declaration.domains;
    at_most(domains.len(), bounds::MAX_DOMAINS, "domains", place.field("domains"), report);
    let rules = domains.iter().map(|domain| domain.rules.len()).sum();
    at_most(rules, bounds::MAX_RULES, "rules", place.field("rules"), report);
    let mut seen = Table::default();
    for (at, domain) in domains.iter().enumerate() {
        let place = Place { domain: Some(at), ..place };
        if seen.insert(domain.name.as_str(), ()).is_some() {
            let message = format!("there are two domains `{}`", names::shown(&domain.name));
            report.add(place.field("domain"), message);
        }
        check_domain(domain, place, report);
    }
}

fn check_domain(domain: &Domain, place: Place, report: &mut ErrorReport) {
    names::check(&domain.name, bounds::MAX_NAME, place.field("domain"), report);
    if !(1..=128).contains(&domain.ipv6_prefix) {
        let message = format!("{} is not a number of leading bits", domain.ipv6_prefix);
        report
            .add(place.field("ipv6-prefix"), message)
            .hint("64 is what one client gets; at most 128");
    }
    let field = place.field("partition");
    at_most(domain.partition.len(), bounds::MAX_PARTITION, "attributes", field, report);
    names::check_attributes(&domain.partition, field, report);
    for (at, name) in domain.partition.iter().enumerate() {
        if name == "path" || name.starts_with("path.") {
            report
                .add(field.item(at), format!("`{name}` cannot be a partition"))
                .hint("a partition is known before any rule, such as a tenant");
        }
    }
    for (field, list) in [("exempt", &domain.exempt), ("block", &domain.block)] {
        check_list(list, place.field(field), report);
    }
    let mut seen = Table::default();
    for (at, rule) in domain.rules.iter().enumerate() {
        let place = Place { rule: Some(at), ..place };
        if seen.insert(rule.name.as_str(), at).is_some() {
            let message = format!("there are two rules `{}`", names::shown(&rule.name));
            report
                .add(place.field("name"), message)
                .hint("a name tells the counters of one from the other's");
        }
        rule::check(rule, place, report);
        if report.is_full() {
            return;
        }
    }
    replaces::check(&domain.rules, &seen, place, report);
    check_sum(&domain.rules, place, report);
}

/// Reports rules that together refuse every request: more limits apply to all requests than one
/// request may charge. If that depends on the request, only judging can find it.
fn check_sum(rules: &[Rule], place: Place, report: &mut ErrorReport) {
    let enforced = || rules.iter().filter(|rule| rule.mode == Mode::Enforce);
    let mut replaced = Table::default();
    enforced().flat_map(|rule| &rule.replaces).for_each(|name| {
        replaced.insert(name.as_str(), ());
    });
    let always = |rule: &Rule| {
        let counts = rule.by.is_empty() || rule.on_missing == OnMissing::Share;
        rule.mode == Mode::Enforce && rule.matches.is_empty() && counts && !rule.block
    };
    let mut sum = 0_usize;
    for (at, rule) in rules.iter().enumerate() {
        if !always(rule) || replaced.contains_key(rule.name.as_str()) {
            continue;
        }
        sum += rule.limits.len() + usize::from(rule.ban.is_some());
        if sum > Request::MAX_CHARGES {
            let message = format!("with this rule, {sum} limits apply to every request");
            report
                .add(Place { rule: Some(at), ..place }.field("limits"), message)
                .hint("one request is charged on at most 64: narrow some `match`");
            return;
        }
    }
}

fn check_list(list: &[Subject], place: Place, report: &mut ErrorReport) {
    at_most(list.len(), bounds::MAX_LIST, "entries", place, report);
    for (at, subject) in list.iter().enumerate() {
        let Subject::Attribute { name, value } = subject else { continue };
        names::check_attribute(name, place.item(at), report);
        names::refuse_captured(name, place.item(at), report);
        check_value(value, place.item(at), report);
    }
}

fn check_value(value: &Value, place: Place, report: &mut ErrorReport) {
    let len = match value {
        Value::Network(_) => return,
        Value::Prefix(prefix) if prefix.is_empty() => {
            let hint = "require the attribute to be present instead";
            return report.add(place, "`*` accepts any value").hint(hint);
        }
        Value::Text(text) | Value::Prefix(text) => text.len(),
    };
    if len > bounds::MAX_VALUE_LEN {
        let message = format!("a value of {len} bytes is above {}", bounds::MAX_VALUE_LEN);
        report.add(place, message);
    }
}

fn at_most(count: usize, most: usize, what: &str, place: Place, report: &mut ErrorReport) {
    if count > most {
        report.add(place, format!("{count} {what} are more than {most}"));
    }
}
