//! A declaration as a tree of maps and lists.

use std::time::Duration;

use tollgate_core::algorithm::{Estimate, SlidingWindow, Smooth};
use tollgate_core::rule::declaration::{
    Ban, CostFrom, Declaration, Domain, Limitation, Pattern, Rule, Subject, Value,
};
use tollgate_core::{Algorithm, Quota};

use super::super::names::{self, Choices, name_of};
use super::OutputTree;

pub(super) fn file(declaration: &Declaration) -> OutputTree {
    let mut map = MapBuilder::default();
    map.put("version", number(declaration.version));
    match declaration.domains.as_slice() {
        [only] => domain_fields(&mut map, only),
        several => map.put("domains", list(several, domain)),
    }
    map.done()
}

fn domain(domain: &Domain) -> OutputTree {
    let mut map = MapBuilder::default();
    domain_fields(&mut map, domain);
    map.done()
}

fn domain_fields(map: &mut MapBuilder, domain: &Domain) {
    map.put("domain", text(&domain.name));
    map.put_some("partition", texts(&domain.partition));
    if domain.ipv6_prefix != 64 {
        map.put("ipv6-prefix", number(domain.ipv6_prefix));
    }
    map.put_choice("path-case", names::PATH_CASE, &domain.path_case);
    map.put_some("rules", list(&domain.rules, rule));
    let mut lists = MapBuilder::default();
    lists.put_some("exempt", list(&domain.exempt, subject));
    lists.put_some("block", list(&domain.block, subject));
    map.put_some("lists", lists.done());
}

fn rule(rule: &Rule) -> OutputTree {
    let mut map = MapBuilder::default();
    map.put("name", text(&rule.name));
    map.put_choice("mode", names::MODE, &rule.mode);
    let matches =
        rule.matches.iter().map(|(name, pattern)| (name.clone(), pattern_tree(pattern))).collect();
    map.put_some("match", OutputTree::Map(matches));
    map.put_some("by", texts(&rule.by));
    map.put_option("scenario", rule.scenario.map(|it| text(name_of(names::SCENARIO, &it))));
    map.put_some("limits", list(&rule.limits, limit));
    map.put_option("block", rule.block.then_some(OutputTree::Bool(true)));
    map.put_some("cost", cost(&rule.cost));
    map.put_option("ban", rule.ban.as_ref().map(ban_tree));
    map.put_some("replaces", texts(&rule.replaces));
    map.put_choice("on-outage", names::ON_OUTAGE, &rule.on_outage);
    map.put_choice("on-change", names::ON_CHANGE, &rule.on_change);
    map.put_choice("on-full", names::ON_FULL, &rule.on_full);
    map.put_choice("on-missing", names::ON_MISSING, &rule.on_missing);
    map.put_option("local-guard", rule.local_guard.map(|it| OutputTree::Number(thousandths(it))));
    map.done()
}

fn limit(limit: &Limitation) -> OutputTree {
    if limit.name.is_none() && limit.algorithm.is_none() {
        return OutputTree::Text(limit.quota.to_string());
    }
    let mut map = MapBuilder::default();
    map.put_option("name", limit.name.as_deref().map(text));
    let time = || text(&time(limit.quota.period()));
    if matches!(limit.algorithm, Some(Algorithm::Concurrency(_))) {
        map.put("concurrent", number(limit.quota.count().get()));
        map.put("lease", time());
    } else {
        map.put("count", number(limit.quota.count().get()));
        map.put("per", time());
    }
    if limit.quota.has_own_burst() {
        map.put("burst", number(limit.quota.burst().get()));
    }
    if let Some(algorithm) = &limit.algorithm {
        algorithm_fields(&mut map, algorithm);
    }
    map.done()
}

fn algorithm_fields(map: &mut MapBuilder, algorithm: &Algorithm) {
    match algorithm {
        // Said by `concurrent` already.
        Algorithm::Concurrency(_) => return,
        other => map.put("algorithm", text(other.name())),
    }
    match algorithm {
        Algorithm::FixedWindow(window) => {
            map.put_choice("anchor", names::ANCHOR, &window.anchor);
        }
        Algorithm::SlidingWindow(window) => {
            map.put_choice("estimate", names::ESTIMATE, &window.estimate);
            let usual = match window.estimate {
                Estimate::Conservative => SlidingWindow::conservative(),
                Estimate::Weighted => SlidingWindow::weighted(),
            };
            if window.panes != usual.panes {
                map.put("panes", number(window.panes));
            }
        }
        Algorithm::Smooth(smooth) => {
            map.put_option("warm-up", smooth.warm_up.map(|period| text(&time(period))));
            if smooth.cold_factor != Smooth::bursty().cold_factor {
                map.put("cold-factor", number(smooth.cold_factor));
            }
            map.put_choice("payment", names::PAYMENT, &smooth.payment);
            map.put_option("max-debt", smooth.max_debt.map(|permits| number(permits.get())));
        }
        _ => {}
    }
}

fn ban_tree(ban: &Ban) -> OutputTree {
    let mut map = MapBuilder::default();
    map.put("after", number(ban.after));
    map.put("within", text(&time(ban.within)));
    map.put("for", text(&time(ban.lasts)));
    map.done()
}

/// The cost of a rule; empty if the ask alone has the cost.
fn cost(cost: &CostFrom) -> OutputTree {
    let mut map = MapBuilder::default();
    if let Some(attribute) = &cost.attribute {
        if cost.default == 1 && cost.max.is_none() {
            return text(attribute);
        }
        map.put("from", text(attribute));
    }
    if cost.default != 1 {
        map.put("default", number(cost.default));
    }
    map.put_option("max", cost.max.map(number));
    map.done()
}

fn pattern_tree(pattern: &Pattern) -> OutputTree {
    match pattern {
        Pattern::Present => text("*"),
        Pattern::Absent => OutputTree::Map(vec![("absent".to_owned(), OutputTree::Bool(true))]),
        Pattern::Any(values) => match values.as_slice() {
            [only] => value(only),
            several => list(several, value),
        },
    }
}

/// A value in its short form, or spelled out if the short form would read as another value.
fn value(value: &Value) -> OutputTree {
    let spelled_out = |key: &str, inner: &str| OutputTree::Map(vec![(key.to_owned(), text(inner))]);
    match value {
        Value::Text(inner) if inner.ends_with('*') => spelled_out("text", inner),
        Value::Text(inner) => text(inner),
        Value::Prefix(inner) if inner.is_empty() => spelled_out("prefix", inner),
        Value::Prefix(inner) => OutputTree::Text(format!("{inner}*")),
        Value::Network(network) => OutputTree::Text(network.to_string()),
    }
}

fn subject(subject: &Subject) -> OutputTree {
    match subject {
        Subject::Network(network) => OutputTree::Text(network.to_string()),
        Subject::Attribute { name, value: accepted } => {
            OutputTree::Map(vec![(name.clone(), value(accepted))])
        }
    }
}

/// A duration as core prints periods. A duration that cannot be a period is printed for people
/// only.
fn time(time: Duration) -> String {
    let quota = Quota::new(1, time).map(|quota| quota.to_string());
    let period = quota.as_deref().ok().and_then(|text| text.strip_prefix("1 per "));
    period.map_or_else(|| format!("{time:?}"), str::to_owned)
}

fn thousandths(guard: u32) -> String {
    let digits = format!("{}.{:03}", guard / 1_000, guard % 1_000);
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn text(text: &str) -> OutputTree {
    OutputTree::Text(text.to_owned())
}

fn number(number: impl Into<u64>) -> OutputTree {
    OutputTree::Number(number.into().to_string())
}

fn texts(items: &[String]) -> OutputTree {
    list(items, |item| text(item))
}

fn list<T>(items: &[T], one: impl Fn(&T) -> OutputTree) -> OutputTree {
    OutputTree::List(items.iter().map(one).collect())
}

#[derive(Default)]
struct MapBuilder(Vec<(String, OutputTree)>);

impl MapBuilder {
    fn put(&mut self, name: &str, tree: OutputTree) {
        self.0.push((name.to_owned(), tree));
    }

    fn put_some(&mut self, name: &str, tree: OutputTree) {
        self.put_option(name, Some(tree).filter(|tree| !tree.is_empty()));
    }

    fn put_option(&mut self, name: &str, tree: Option<OutputTree>) {
        self.0.extend(tree.map(|tree| (name.to_owned(), tree)));
    }

    fn put_choice<T: PartialEq + Default>(&mut self, name: &str, names: Choices<T>, value: &T) {
        let unusual = *value != T::default();
        self.put_option(name, unusual.then(|| text(name_of(names, value))));
    }

    fn done(self) -> OutputTree {
        OutputTree::Map(self.0)
    }
}
