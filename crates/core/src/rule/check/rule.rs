//! One rule: its fields one by one, and contradictions between them.

use super::super::ask::folded;
use super::super::bounds;
use super::super::compile::limit_name;
use super::super::declaration::{Limitation, OnMissing, Pattern, Rule};
use super::super::error::{ErrorReport, Place};
use super::super::hash::Table;
use super::{at_most, check_value, names};
use crate::Algorithm;

/// Reports errors in a rule, except in its `replaces`.
pub(super) fn check(rule: &Rule, place: Place, report: &mut ErrorReport) {
    names::check(&rule.name, bounds::MAX_NAME, place.field("name"), report);
    check_matches(rule, place.field("match"), report);
    let by = place.field("by");
    at_most(rule.by.len(), bounds::MAX_BY, "attributes", by, report);
    names::check_attributes(&rule.by, by, report);
    check_limits(rule, place, report);
    check_block(rule, place, report);
    check_cost(rule, place.field("cost"), report);
    check_guard(rule, place.field("local-guard"), report);
}

fn check_guard(rule: &Rule, place: Place, report: &mut ErrorReport) {
    let Some(guard) = rule.local_guard else { return };
    if !(1_000..=bounds::MAX_LOCAL_GUARD).contains(&guard) {
        let message = format!("a local guard of {guard} thousandths of the limit");
        report.add(place, message).hint("from 1, where it refuses what the limit would, to 1000");
    }
    let holders = |limit: &Limitation| matches!(limit.algorithm, Some(Algorithm::Concurrency(_)));
    if !rule.limits.is_empty() && rule.limits.iter().all(holders) {
        report
            .add(place, "the rule has no limit that could be guarded")
            .hint("a limit of how many at once has no guard: leave it out");
    }
}

fn check_matches(rule: &Rule, place: Place, report: &mut ErrorReport) {
    at_most(rule.matches.len(), bounds::MAX_CONDITIONS, "conditions", place, report);
    let mut seen = Table::default();
    for (at, (name, pattern)) in rule.matches.iter().enumerate() {
        let place = place.item(at);
        names::check_attribute(name, place, report);
        names::refuse_captured(name, place, report);
        if seen.insert(folded(name), ()).is_some() {
            let message = format!("there are two conditions on `{}`", names::shown(name));
            let hint = "list all values that one condition accepts";
            report.add(place, message).hint(hint);
        }
        let Pattern::Any(values) = pattern else { continue };
        at_most(values.len(), bounds::MAX_VALUES, "values", place, report);
        if values.is_empty() {
            report
                .add(place, "the condition accepts no value at all")
                .hint("list values, or require the attribute to be present or absent");
        }
        for (at, value) in values.iter().enumerate() {
            check_value(value, place.value(at), report);
        }
    }
}

fn check_limits(rule: &Rule, place: Place, report: &mut ErrorReport) {
    let field = place.field("limits");
    at_most(rule.limits.len(), bounds::MAX_LIMITS, "limits", field, report);
    if rule.limits.is_empty() && !rule.block {
        report
            .add(field, "the rule limits nothing")
            .hint("give it a limit such as `100 per 1m`, or let it block");
    }
    let mut seen = Table::default();
    for (at, limitation) in rule.limits.iter().enumerate() {
        let place = Place { limit: Some(at), ..place };
        if let Some(name) = &limitation.name {
            names::check(name, bounds::MAX_LIMIT_NAME, place.field("name"), report);
        }
        let name = limit_name(limitation);
        let message = format!("there are two limits `{}` in this rule", names::shown(&name));
        if seen.insert(name, ()).is_some() {
            report
                .add(place, message)
                .hint("a limit is named by its period unless it has a `name`");
        }
    }
}

/// Reports fields about counting in a rule that blocks, because it counts nothing.
fn check_block(rule: &Rule, place: Place, report: &mut ErrorReport) {
    let has_cost = rule.cost.attribute.is_some() || rule.cost.max.is_some();
    let has_on_missing = rule.on_missing != OnMissing::default();
    let contradictions = [
        (!rule.limits.is_empty(), "limits", "a rule that blocks has no limits"),
        (!rule.by.is_empty(), "by", "a rule that blocks counts nothing"),
        (rule.ban.is_some(), "ban", "a rule that blocks cannot ban"),
        (rule.local_guard.is_some(), "local-guard", "a rule that blocks needs no guard"),
        (has_cost, "cost", "a rule that blocks costs nothing"),
        (has_on_missing, "on-missing", "a rule that blocks needs no attribute"),
    ];
    for (_, field, message) in contradictions.into_iter().filter(|(there, ..)| rule.block && *there)
    {
        report.add(place.field(field), message).hint("drop it, or drop `block`");
    }
}

fn check_cost(rule: &Rule, place: Place, report: &mut ErrorReport) {
    let cost = &rule.cost;
    if let Some(name) = &cost.attribute {
        names::check_attribute(name, place, report);
        if name == "path" || name == "ip" || name.starts_with("path.") {
            report.add(place, format!("`{name}` is not a number"));
        }
    } else if cost.default != 1 {
        let message = format!("a default of {} has no effect without an attribute", cost.default);
        report.add(place, message).hint("name the attribute with the cost");
    }
    if cost.default == 0 {
        report.add(place, "a default of 0 would cost nothing").hint("use at least 1");
    }
    if let Some(max) = cost.max.filter(|max| *max < cost.default) {
        let message = format!("`max` is {max}, below the default {}", cost.default);
        report.add(place, message);
    }
}
