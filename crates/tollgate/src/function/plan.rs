//! The planner of `#[limit]`: the limits at the function, and the rules that it names, as one plan.
//!
//! Pure: rules, the call and its scope in, charges out.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::Mode;
use tollgate_core::rule::{Ask, Attribute, Charges, Judgement, KeySecret, NamedRuleError, RuleSet};
use tollgate_core::{Cost, Request};

use super::call::Call;
use super::site::{By, Gate, Inline};
use crate::chance::Names;
use crate::decision::{Blocked, Intent, Plan, Reason, RuleSource, Set, uncharged};
use crate::scope::{Scope, Unseen};
use crate::seen::Seen;
use crate::{Refused, Ruling};

/// The rules that a call is judged by.
pub(super) struct Planner<'s> {
    pub(super) rules: &'s RuleSet,
    pub(super) inline: Option<&'s Inline>,
    pub(super) secret: &'s KeySecret,
    /// The limiter's own number.
    pub(super) limiter: u128,
}

/// One judgement about a call: by the limits at the function, or by a rule that it names.
pub(super) struct Part<'s> {
    judgement: Judgement<'s>,
    set: Set,
    /// The attribute, where all of the judgement comes from one.
    gate: Option<usize>,
}

impl<'s> Part<'s> {
    /// The charges, if there are any.
    const fn charges(&self) -> Option<&Charges<'s>> {
        match &self.judgement {
            Judgement::Charges(charges) => Some(charges),
            _ => None,
        }
    }

    /// The attribute of a rule of this part.
    fn gate(&self, rule: usize, inline: Option<&Inline>) -> Option<usize> {
        self.gate.or_else(|| inline?.gates.get(rule).copied())
    }
}

/// Values by name.
type Attributes<'a> = SmallVec<[(&'a str, Seen<'a>); 4]>;

impl<'s> Planner<'s> {
    /// Judges a call by each attribute. Rules that a layer has charged for this request are left out.
    pub(super) fn judge(&self, call: &Call) -> Result<SmallVec<[Part<'s>; 1]>, Refused> {
        let mut parts = SmallVec::new();
        if let Some(inline) = self.inline {
            parts.push(self.inline(inline, call)?);
        }
        let mut first_value = 0_usize;
        for (at, gate) in call.site.gates.iter().enumerate() {
            let is_value = |by: &&By| matches!(by, By::Value);
            let values = gate.by().iter().filter(is_value).count();
            if let Gate::Rule { domain, rule, by, .. } = gate {
                let given = by.map(|by| Given { by, first_value });
                parts.extend(self.named(call, at, *domain, rule, given)?);
            }
            first_value = first_value.saturating_add(values);
        }
        Ok(parts)
    }

    /// The limits that stand at the function.
    fn inline(&self, inline: &'s Inline, call: &Call) -> Result<Part<'s>, Refused> {
        let mut attributes = Attributes::new();
        let mut values = call.values.iter();
        for (at, gate) in call.site.gates.iter().enumerate() {
            let rule = inline.gates.iter().position(|gate| *gate == at);
            let names = rule.map_or(&[][..], |rule| inline.by(rule));
            let mut names = names.iter();
            for by in gate.by() {
                let name = names.next();
                match by {
                    By::Value => {
                        let value = values.next();
                        let seen = value.map(|value| Seen::Text(value.as_slice().into()));
                        attributes.extend(name.map(String::as_str).zip(seen));
                    }
                    By::Attribute(_) => {
                        let Some(name) = name else { continue };
                        let known = attributes.iter().any(|(known, _)| known == name);
                        if !known && let Some(seen) = needed(call, name)? {
                            attributes.push((name, seen));
                        }
                    }
                }
            }
        }
        let ask = ask(call, inline.domain(), &attributes, 1)?;
        let judgement = inline.rules.judge(&ask, self.secret);
        Ok(Part { judgement, set: Set::Function, gate: None })
    }

    /// A rule of the limiter; `None` if the request was charged by it already.
    fn named(
        &self,
        call: &Call,
        gate: usize,
        domain: Option<&str>,
        rule: &str,
        given: Option<Given>,
    ) -> Result<Option<Part<'s>>, Refused> {
        let scope = call.scope.as_ref();
        let domain = domain.or_else(|| scope.and_then(Scope::own_domain)).ok_or_else(|| {
            call.site.misconfigured(format!(
                "the domain of the rule `{rule}` is not known: write `domain = \"…\"` into the \
                 attribute, or say it with `tollgate::scope::Scope::domain`"
            ))
        })?;
        let wrong = |error: NamedRuleError| call.site.misconfigured(complaint(domain, rule, error));
        let active = self.rules.named(domain, rule).ok_or_else(|| {
            let known = !self.rules.wants(domain).is_empty()
                || self.rules.declaration().domains.iter().any(|known| known.name == domain);
            wrong(if known { NamedRuleError::Rule } else { NamedRuleError::Domain })
        })?;
        let values = given.map(|given| given.values(call)).transpose()?;
        // Where these are what the rule counts by, it is to count as it does without them: `/A` may
        // be `/a`.
        let values = values.filter(|_| !given.is_some_and(|given| given.are(active.by())));
        let mut attributes = Attributes::new();
        if let Some(scope) = scope {
            for name in self.rules.wants(domain) {
                match scope.find(name) {
                    Ok(seen) => attributes.extend(seen.map(|seen| (name.as_str(), seen))),
                    Err(Unseen::NotTold) => {}
                    Err(unseen) => return Err(complain(call, name, unseen)),
                }
            }
        }
        if values.is_none() && active.mode() != Mode::Off {
            for name in active.by() {
                let name = if name.starts_with("path.") { "path" } else { name };
                if !attributes.iter().any(|(known, _)| *known == name) {
                    needed(call, name)?;
                }
            }
        }
        let ask = ask(call, domain, &attributes, call.cost_at(gate))?;
        let slices: Option<SmallVec<[&[u8]; 2]>> =
            values.as_ref().map(|values| values.iter().map(|value| value.as_slice()).collect());
        let judged = self.rules.judge_named(&ask, rule, slices.as_deref(), self.secret);
        let judgement = judged.map_err(wrong)?;
        let charged = |ruling: &Ruling| charged(ruling, &ask, domain, rule, self.secret);
        if scope.is_some_and(|scope| scope.judged(self.limiter, domain, charged)) {
            // The layer has charged what it knows of; the function may know of somebody else.
            let by_layer = slices.map(|_| self.rules.judge_named(&ask, rule, None, self.secret));
            let by_layer = by_layer.transpose().map_err(wrong)?;
            if by_layer.is_none_or(|by_layer| count_alike(&by_layer, &judgement)) {
                return Ok(None);
            }
        }
        Ok(Some(Part { judgement, set: Set::Limiter, gate: Some(gate) }))
    }
}

/// The plan of a call, and the attribute that each of its charges comes from.
pub(super) struct CallPlan<'p> {
    pub(super) plan: Plan<'p>,
    pub(super) gates: SmallVec<[Option<usize>; 4]>,
}

impl<'p> CallPlan<'p> {
    /// Plans the parts of a call as one request.
    ///
    /// # Errors
    ///
    /// When the parts lie in different partitions: a counter is always charged within one.
    pub(super) fn new<'s: 'p>(
        call: &Call,
        inline: Option<&Inline>,
        parts: &'p [Part<'s>],
        rules: &'p RuleSource,
        names: &Names,
    ) -> Result<Self, Refused> {
        let unjudged = parts.first().map_or(Reason::NoRule, |part| uncharged(&part.judgement).0);
        let mut plan = Plan::empty(rules, Intent::CHARGE, unjudged);
        if let Some((reason, blocked_by, gate)) = blocking(parts, inline) {
            (plan.uncharged, plan.blocked_by) = (reason, blocked_by);
            return Ok(Self { plan, gates: SmallVec::from_elem(gate, 1) });
        }
        // The function's rules stand alone where the call meets no others.
        let alone = matches!(rules, RuleSource::Rules(_));
        let mut gates = SmallVec::new();
        for part in parts {
            let Some(charges) = part.charges() else { continue };
            let set = if alone { Set::Limiter } else { part.set };
            for due in charges.enforced() {
                let gate = part.gate(due.rule.index(), inline);
                // A rule knows the cost of the call already; a limit at the function does not.
                let cost = match (part.set, gate) {
                    (Set::Function, Some(gate)) => call.cost_at(gate),
                    _ => due.cost,
                };
                plan.push_charge(charges, due, cost, set, names);
                gates.push(gate);
            }
            plan.push_shadow(charges, set, names);
        }
        plan.partition = call.partition(parts)?;
        if plan.policies.len() > Request::MAX_CHARGES {
            plan = Plan::empty(rules, Intent::CHARGE, Reason::TooManyLimits);
            gates.clear();
        }
        Ok(Self { plan, gates })
    }
}

/// The part that refuses without counting, and its attribute.
fn blocking(
    parts: &[Part<'_>],
    inline: Option<&Inline>,
) -> Option<(Reason, Option<Box<Blocked>>, Option<usize>)> {
    parts.iter().find_map(|part| match uncharged(&part.judgement) {
        (reason @ (Reason::Blocked | Reason::TooManyLimits), blocked_by) => {
            Some((reason, blocked_by, part.gate(0, inline)))
        }
        _ => None,
    })
}

/// The rules that a ruling on these parts refers to: the limiter's and, beside them, the function's;
/// or the function's alone.
pub(super) fn rule_source(
    rules: &Arc<RuleSet>,
    inline: Option<&Inline>,
    parts: &[Part<'_>],
) -> RuleSource {
    let own = inline.map(|inline| Arc::clone(&inline.rules));
    let alone = parts.iter().all(|part| part.set == Set::Function);
    match own {
        Some(own) if alone => RuleSource::Rules(own),
        Some(own) => RuleSource::WithFunction(Arc::clone(rules), own),
        None => RuleSource::Rules(Arc::clone(rules)),
    }
}

impl Call {
    /// The partition of all counters of a call.
    fn partition<'p>(&self, parts: &'p [Part<'_>]) -> Result<Option<&'p [u8]>, Refused> {
        let mut partitions = parts
            .iter()
            .filter_map(Part::charges)
            .filter(|charges| !charges.enforced().is_empty())
            .map(Charges::partition);
        let first = partitions.next().flatten();
        if partitions.any(|partition| partition != first) {
            return Err(self.site.misconfigured(
                "a rule of a domain with a `partition` cannot be decided together with limits \
                 outside of it: put them at different functions",
            ));
        }
        Ok(first)
    }
}

/// The values that an attribute gives for a rule's `by`.
#[derive(Clone, Copy)]
struct Given {
    by: &'static [By],
    /// The first of the call's values that is its own.
    first_value: usize,
}

impl Given {
    /// Whether these are the request's own attributes of these names.
    fn are(self, names: &[String]) -> bool {
        let is = |(by, name): (&By, &String)| matches!(by, By::Attribute(own) if own == name);
        self.by.len() == names.len() && self.by.iter().zip(names).all(is)
    }

    fn values(self, call: &Call) -> Result<SmallVec<[super::call::Text; 2]>, Refused> {
        let mut values = call.values.iter().skip(self.first_value);
        let mut given = SmallVec::new();
        for by in self.by {
            let text = match by {
                By::Value => values.next().cloned().unwrap_or_default(),
                By::Attribute(name) => match needed(call, name)? {
                    Some(Seen::Text(text)) => spelt(call, name, text.as_ref())?,
                    Some(Seen::Address(address)) => address.to_string().into_bytes().into(),
                    None => {
                        return Err(call.site.malformed(format!("the request has no `{name}`")));
                    }
                },
            };
            given.push(text);
        }
        Ok(given)
    }
}

/// A value of the request in its one spelling, by which nobody has two counters.
fn spelt(call: &Call, name: &str, text: &[u8]) -> Result<super::call::Text, Refused> {
    if !matches!(name, "path" | "host" | "method") {
        return Ok(text.into());
    }
    let mut ask = Ask::new("");
    ask.push(name, text).map_err(|error| call.site.malformed(error.to_string()))?;
    Ok(match ask.attribute(name) {
        Some(Attribute::Text(text)) => text.into(),
        _ => text.into(),
    })
}

/// Whether a layer's ruling has charged this rule for the request, in shadow or not.
fn charged(ruling: &Ruling, ask: &Ask<'_>, domain: &str, rule: &str, secret: &KeySecret) -> bool {
    let named = |name: &str, of: &str| name == rule && of == domain;
    let mut findings = ruling.findings().filter_map(|finding| finding.rule);
    if findings.any(|active| named(active.name(), active.domain())) {
        return true;
    }
    let Some(rules) = ruling.rules.rules() else { return false };
    let is_shadow = rules.named(domain, rule).is_some_and(|it| it.mode() == Mode::Shadow);
    if !is_shadow {
        return false;
    }
    match rules.judge(ask, secret) {
        Judgement::Charges(charges) => charges.shadow().iter().any(|due| due.rule.name() == rule),
        _ => false,
    }
}

/// Whether both are charges on the same counters.
fn count_alike(one: &Judgement<'_>, other: &Judgement<'_>) -> bool {
    let (Judgement::Charges(one), Judgement::Charges(other)) = (one, other) else { return false };
    let ours = one.enforced().iter().chain(one.shadow()).map(|due| one.key(due));
    ours.eq(other.enforced().iter().chain(other.shadow()).map(|due| other.key(due)))
}

fn ask<'a>(
    call: &Call,
    domain: &'a str,
    attributes: &'a Attributes<'_>,
    cost: Cost,
) -> Result<Ask<'a>, Refused> {
    let mut ask = Ask::new(domain).cost(cost);
    for (name, seen) in attributes {
        match seen {
            Seen::Address(address) => ask.set_ip(*address),
            Seen::Text(text) => {
                let pushed = ask.push(name, &**text);
                pushed.map_err(|error| call.site.malformed(error.to_string()))?;
            }
        }
    }
    Ok(ask)
}

/// An attribute of the request that something is counted by. Not to know whether there is one would
/// be to count nobody.
fn needed<'c>(call: &'c Call, name: &str) -> Result<Option<Seen<'c>>, Refused> {
    let found = match &call.scope {
        Some(scope) => scope.find(name),
        None => Err(Unseen::NotTold),
    };
    found.map_err(|unseen| complain(call, name, unseen))
}

fn complain(call: &Call, name: &str, unseen: Unseen) -> Refused {
    match unseen {
        Unseen::Malformed(problem) => call.site.malformed(problem),
        Unseen::NoPeer => call.site.misconfigured(
            "the server does not tell who its peer is: serve with \
             `into_make_service_with_connect_info::<SocketAddr>()`, or add `LimitLayer::peer`",
        ),
        Unseen::NotTold if name == "ip" => call.site.misconfigured(
            "no request is in scope that has an `ip`: add `LimitLayer::with_scope` to the router, \
             or say it with `tollgate::scope::Scope::ip`",
        ),
        Unseen::NotTold => call.site.misconfigured(format!(
            "nobody tells the request's `{name}`: add `LimitLayer::attribute(\"{name}\", …)` and \
             `LimitLayer::with_scope`, or say it with `tollgate::scope::Scope::attribute`"
        )),
    }
}

fn complaint(domain: &str, rule: &str, error: NamedRuleError) -> String {
    match error {
        NamedRuleError::Domain => format!("the limiter's rules have no domain `{domain}`"),
        NamedRuleError::Rule => {
            format!(
                "the limiter has no rule `{rule}` in the domain `{domain}`: add it to the rules"
            )
        }
        other => format!("{other} (`{rule}` in `{domain}`)"),
    }
}
