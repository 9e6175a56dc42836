//! Compiles a declaration into active rules.
//!
//! It parses values with a grammar of their own (templates, networks, hosts), builds limits, and
//! reports those that cannot be built. `check` ran before and reports all other errors; parts that
//! it rejects are skipped here without a second report.

use std::sync::Arc;

use super::active::{
    ActiveBan, ActiveLimit, ActiveRule, AttributeId, KeyPart, LimitKind, ValueTest,
};
use super::ask::folded;
use super::bounds;
use super::declaration::{
    Ban, Domain, Limitation, PathCase, Pattern, Rule, Scenario, Subject, Value,
};
use super::domain::{ActiveDomain, AttributeIds, SubjectList};
use super::error::{ErrorReport, Place};
use super::hash::Table;
use super::index::Index;
use super::key;
use super::template::Template;
use super::trie::Templates;
use crate::algorithm::{Anchor, FixedWindow, SlidingLog, TokenBucket};
use crate::{Algorithm, Limit, OnChange, Quota, Revision};

/// The place of a declaration, which separates counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// In a set of this version.
    Set { version: u64 },
    /// In code, at a function.
    Code,
}

/// Compiles one domain. `first` is the index of its first rule in the set.
pub(super) fn domain(
    declared: &Domain,
    place: Place,
    first: usize,
    origin: Origin,
    report: &mut ErrorReport,
) -> ActiveDomain {
    let mut compiler = Compiler {
        domain: declared.name.as_str().into(),
        case: declared.path_case,
        origin,
        slots: AttributeIds::new(),
        report,
    };
    let partition: Vec<String> =
        declared.partition.iter().map(|name| folded(name).into_owned()).collect();
    let mut rules = Vec::with_capacity(declared.rules.len());
    for (at, rule) in declared.rules.iter().enumerate() {
        let place = Place { rule: Some(at), ..place };
        let mut active = compiler.rule(rule, &partition, place);
        active.index = first + at;
        rules.push(active);
    }
    let names = link(&mut rules);
    let partition = partition.iter().map(|name| compiler.slots.take(name)).collect();
    let block = compiler.list(&declared.block, place.field("block"));
    let exempt = compiler.list(&declared.exempt, place.field("exempt"));
    let mut domain = ActiveDomain {
        wants: compiler.slots.wanted(),
        slots: compiler.slots,
        rules,
        first,
        names,
        ranked: Vec::new(),
        has_replacers: false,
        index: Index::default(),
        partition,
        ipv6_prefix: declared.ipv6_prefix,
        path_case: declared.path_case,
        block,
        exempt,
    };
    domain.build_index();
    domain
}

/// Resolves the rules that each rule replaces. Returns their indices by name.
fn link(rules: &mut [ActiveRule]) -> Table<Box<str>, usize> {
    let names: Table<Box<str>, usize> =
        rules.iter().enumerate().map(|(at, rule)| (rule.name().into(), at)).collect();
    for rule in rules {
        let replaced = rule.declaration.replaces.iter();
        rule.replaces = replaced.filter_map(|name| names.get(name.as_str()).copied()).collect();
        rule.replaces.sort_unstable();
    }
    names
}

pub(super) struct Compiler<'r> {
    domain: Arc<str>,
    pub(super) case: PathCase,
    origin: Origin,
    pub(super) slots: AttributeIds,
    pub(super) report: &'r mut ErrorReport,
}

impl Compiler<'_> {
    fn rule(&mut self, rule: &Rule, partition: &[String], place: Place) -> ActiveRule {
        let mut conditions = Vec::with_capacity(rule.matches.len());
        for (at, (name, pattern)) in rule.matches.iter().enumerate() {
            conditions.push(self.condition(name, pattern, place.field("match").item(at)));
        }
        let templates = conditions.iter().find_map(|condition| match &condition.test {
            ValueTest::Templates(templates) => Some(templates),
            _ => None,
        });
        let by = rule.by.iter().enumerate();
        let by = by.map(|(at, name)| self.part(name, templates, place.field("by").item(at)));
        let mut by: Vec<KeyPart> = by.collect();
        for name in partition {
            // A counter lives in one partition, so the partition is part of its key as well.
            if !rule.block && rule.by.iter().all(|by| folded(by) != *name) {
                by.push(KeyPart::Value(self.slots.take(name)));
            }
        }
        let limits = rule.limits.iter().enumerate();
        let limits = limits
            .filter_map(|(at, limit)| self.limit(rule, limit, Place { limit: Some(at), ..place }));
        let mut limits: Vec<ActiveLimit> = limits.collect();
        for (index, limit) in (0_u32..).zip(&mut limits) {
            limit.index = index;
        }
        let ban = rule.ban.and_then(|ban| self.ban(rule, ban, place.field("ban")));
        let cost = rule.cost.attribute.as_ref().map(|name| self.slots.take(&folded(name)));
        ActiveRule {
            declaration: rule.clone(),
            domain: self.domain.clone(),
            index: 0,
            limits,
            ban,
            conditions,
            verbatim: key::verbatim(by.len()),
            by,
            replaces: Vec::new(),
            cost,
        }
    }

    fn part(&mut self, name: &str, templates: Option<&Templates>, place: Place) -> KeyPart {
        if let Some(captured) = name.strip_prefix("path.") {
            let captures = |template: &Template| template.captures(captured);
            match templates {
                Some(templates) if templates.iter().all(captures) => {}
                Some(_) => self
                    .report
                    .add(place, format!("a path of this rule captures no `{captured}`"))
                    .hint(format!("write `{{{captured}}}` into each path of `match`")),
                None => self
                    .report
                    .add(place, format!("no path is matched that captures `{captured}`"))
                    .hint(format!("match a path such as `/orders/{{{captured}}}`")),
            }
            return KeyPart::Capture(captured.into());
        }
        match (self.slots.take(&folded(name)), templates) {
            (AttributeId::PATH, Some(_)) => KeyPart::Template,
            (AttributeId::PATH, None) => KeyPart::Path,
            (slot, _) => KeyPart::Value(slot),
        }
    }

    fn list(&mut self, subjects: &[Subject], place: Place) -> SubjectList {
        let entries = subjects.iter().enumerate().map(|(at, subject)| {
            let (name, value) = match subject {
                Subject::Network(network) => ("ip", Value::Network(*network)),
                Subject::Attribute { name, value } => (name.as_str(), value.clone()),
            };
            let pattern = Pattern::Any(vec![value]);
            (subject.clone(), self.condition(name, &pattern, place.item(at)))
        });
        SubjectList::new(entries.collect())
    }

    fn limit(&mut self, rule: &Rule, declared: &Limitation, place: Place) -> Option<ActiveLimit> {
        let algorithm = declared.algorithm.unwrap_or_else(|| inferred(rule));
        let limit = match Limit::new(algorithm, declared.quota) {
            Ok(limit) => limit,
            Err(error) => {
                let hint = declared.algorithm.is_none().then(|| {
                    let scenario = scenario(rule);
                    format!(
                        "{algorithm} is what {scenario} rules use unless they name an algorithm"
                    )
                });
                self.report.add(place, error.to_string()).some_hint(hint);
                return None;
            }
        };
        let mut active = self.active(rule, limit_name(declared), limit, LimitKind::Limit);
        active.guard = self.guard(rule, &active.limit, place);
        Some(active)
    }

    fn active(&self, rule: &Rule, name: String, limit: Limit, kind: LimitKind) -> ActiveLimit {
        let (letter, version) = match (self.origin, kind) {
            (Origin::Set { version }, LimitKind::Limit) => (b'r', version),
            (Origin::Set { version }, LimitKind::Ban) => (b'b', version),
            (Origin::Set { version }, LimitKind::Refusals) => (b'c', version),
            (Origin::Code, LimitKind::Limit) => (b'f', 0),
            (Origin::Code, LimitKind::Ban) => (b'g', 0),
            (Origin::Code, LimitKind::Refusals) => (b'h', 0),
        };
        let limit = limit
            .with_revision(Revision(version))
            .with_on_change(rule.on_change)
            .with_on_full(rule.on_full);
        let head = key::head(letter, &self.domain, &rule.name, &name);
        // Of what was before, only that this edit keeps it is known.
        let since = match rule.on_change {
            OnChange::Keep => Revision::default(),
            OnChange::Scale | OnChange::Reset => limit.revision(),
        };
        let text = limit.to_string().into();
        // That of a ban; `rule` numbers the limits.
        let index = u32::try_from(rule.limits.len()).unwrap_or(u32::MAX);
        ActiveLimit { name, index, limit, text, kind, guard: None, since, head }
    }

    fn ban(&mut self, rule: &Rule, ban: Ban, place: Place) -> Option<ActiveBan> {
        let window = FixedWindow { anchor: Anchor::FirstHit };
        let counts: Algorithm =
            if ban.after > SlidingLog::MAX_COUNT { window.into() } else { SlidingLog.into() };
        let mut built = |field, algorithm, count, period| {
            let limit = match Quota::new(count, period) {
                Ok(quota) => Limit::new(algorithm, quota).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(message) = &limit {
                self.report.add(place, format!("`{field}`: {message}"));
            }
            limit.ok()
        };
        let lasting = built("for", window.into(), 1, ban.lasts);
        let refusals = built("after … within", counts, ban.after, ban.within);
        Some(ActiveBan {
            declaration: ban,
            ban: self.active(rule, "ban".to_owned(), lasting?, LimitKind::Ban),
            refusals: self.active(rule, "ban".to_owned(), refusals?, LimitKind::Refusals),
        })
    }

    /// The local guard of a limit. Concurrency limits have none, because only the store knows the
    /// holders.
    fn guard(&mut self, rule: &Rule, limit: &Limit, place: Place) -> Option<Limit> {
        let allowed = 1_000..=bounds::MAX_LOCAL_GUARD;
        let thousandths = rule.local_guard.filter(|guard| allowed.contains(guard))?;
        if matches!(limit.algorithm(), Algorithm::Concurrency(_)) {
            return None;
        }
        let refused = |error| {
            let message = format!("`local-guard` cannot be kept: {error}");
            let hint = "lower `local-guard`, or name an algorithm that counts as far";
            self.report.add(place, message).hint(hint);
        };
        limit.scaled(u64::from(thousandths), 1_000).map_err(refused).ok()
    }
}

/// The name of a limit within its rule: the declared one, else its period.
pub(super) fn limit_name(limitation: &Limitation) -> String {
    limitation.name.clone().unwrap_or_else(|| limitation.quota.period_text())
}

/// The scenario of a rule: the declared one, else one inferred from its conditions and its `by`.
pub(super) fn scenario(rule: &Rule) -> Scenario {
    let matches = |name: &str| rule.matches.iter().any(|(matched, _)| matched == name);
    let by = |name: &str| rule.by.iter().any(|attribute| attribute == name);
    match rule.scenario {
        Some(scenario) => scenario,
        None if matches("path") => Scenario::Interface,
        None if by("user") => Scenario::User,
        None if by("ip") => Scenario::Ip,
        None if matches("service") => Scenario::Service,
        None => Scenario::Global,
    }
}

/// The default algorithm of a rule's limits.
fn inferred(rule: &Rule) -> Algorithm {
    match scenario(rule) {
        Scenario::Interface | Scenario::Login | Scenario::Payment => SlidingLog.into(),
        Scenario::Global | Scenario::Service | Scenario::Ip | Scenario::User => TokenBucket.into(),
    }
}
