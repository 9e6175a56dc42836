//! Checks `replaces`: names must exist, and cycles are errors.

use super::super::bounds::MAX_REPLACES;
use super::super::declaration::Rule;
use super::super::error::{ErrorReport, Place};
use super::super::hash::Table;
use super::{at_most, names};

/// Reports unknown names, rules that replace themselves, and cycles.
pub(super) fn check(
    rules: &[Rule],
    by_name: &Table<&str, usize>,
    place: Place,
    report: &mut ErrorReport,
) {
    for (at, rule) in rules.iter().enumerate() {
        let place = Place { rule: Some(at), ..place }.field("replaces");
        at_most(rule.replaces.len(), MAX_REPLACES, "replaced rules", place, report);
        let mut seen = Table::default();
        for (item, name) in rule.replaces.iter().enumerate() {
            if report.is_full() {
                return;
            }
            let place = place.item(item);
            if *name == rule.name {
                report.add(place, "a rule cannot replace itself");
            } else if !by_name.contains_key(name.as_str()) {
                let message = format!("there is no rule `{}` in this domain", names::shown(name));
                let meant = names::nearest(name, rules.iter().map(|other| other.name.as_str()));
                let hint = meant.map(|meant| format!("did you mean `{meant}`?"));
                report.add(place, message).some_hint(hint);
            } else if seen.insert(name.as_str(), ()).is_some() {
                let message = format!("`{}` is here twice", names::shown(name));
                report.add(place, message);
            }
        }
    }
    circles(rules, by_name, place, report);
}

/// The state of a rule in the search for cycles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VisitState {
    Not,
    /// It is on the path of the search.
    Open,
    Done,
}

/// Reports each cycle once, at the rule that closes it. Follows the names without recursion,
/// because a chain may be as long as the set.
fn circles(rules: &[Rule], by_name: &Table<&str, usize>, place: Place, report: &mut ErrorReport) {
    let mut followed = vec![VisitState::Not; rules.len()];
    for start in 0..rules.len() {
        let mut way = vec![(start, 0)];
        while let Some((at, next)) = way.pop() {
            if followed[at] == VisitState::Done {
                continue;
            }
            followed[at] = VisitState::Open;
            let Some(name) = rules[at].replaces.get(next) else {
                followed[at] = VisitState::Done;
                continue;
            };
            way.push((at, next + 1));
            let Some(&target) = by_name.get(name.as_str()).filter(|target| **target != at) else {
                continue;
            };
            match followed[target] {
                VisitState::Not => way.push((target, 0)),
                VisitState::Open => {
                    let place = Place { rule: Some(at), ..place }.field("replaces").item(next);
                    let hint = "if all of them match, none would apply";
                    report.add(place, circle(rules, &way, target)).hint(hint);
                }
                VisitState::Done => {}
            }
        }
    }
}

fn circle(rules: &[Rule], way: &[(usize, usize)], target: usize) -> String {
    let names = way.iter().skip_while(|(at, _)| *at != target).map(|(at, _)| at);
    let mut names: Vec<String> = names.map(|at| names::shown(&rules[*at].name)).collect();
    if names.len() > 5 {
        names.truncate(4);
        names.push("…".to_owned());
    }
    names.push(names::shown(&rules[target].name));
    format!("rules replace each other in a circle: {}", names.join(" → "))
}
