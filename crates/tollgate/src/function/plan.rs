//! The planner of `#[limit]`: the limits at the function, and the rules that it names, as one plan.
//!
//! Pure: rules, the call and its scope in, charges out.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::Mode;
use tollgate_core::rule::{Ask, Attribute, Charges, Judgement, KeySecret, NamedRuleError, RuleSet};
use tollgate_core::{Cost, Request};

use super::call::LimitCall;
use super::site::{FunctionRules, KeyPart, LimitAttribute};
use crate::attribute_value::AttributeValue;
use crate::decision::{Blocked, DecidingRules, Intent, Plan, Reason, Set, uncharged};
use crate::random::IdGenerator;
use crate::scope::{AttributeError, Scope};
use crate::{Refused, Ruling};

/// The rules that judge a call.
pub(super) struct Planner<'s> {
    pub(super) rules: &'s RuleSet,
    pub(super) function_rules: Option<&'s FunctionRules>,
    pub(super) secret: &'s KeySecret,
    /// The unique number of the limiter.
    pub(super) limiter: u128,
}

/// One judgement about a call: by the limits at the function, or by a rule that it names.
pub(super) struct JudgedPart<'s> {
    judgement: Judgement<'s>,
    set: Set,
    /// The attribute, if all of the judgement comes from one.
    attribute: Option<usize>,
}

impl<'s> JudgedPart<'s> {
    /// The charges, if there are any.
    const fn charges(&self) -> Option<&Charges<'s>> {
        match &self.judgement {
            Judgement::Charges(charges) => Some(charges),
            _ => None,
        }
    }

    /// The attribute that a rule of this part comes from.
    fn attribute(&self, rule: usize, function_rules: Option<&FunctionRules>) -> Option<usize> {
        self.attribute.or_else(|| function_rules?.attributes.get(rule).copied())
    }
}

/// Values by name.
type Attributes<'a> = SmallVec<[(&'a str, AttributeValue<'a>); 4]>;

impl<'s> Planner<'s> {
    /// Judges a call, attribute by attribute. Skips rules that a layer has charged for this
    /// request.
    pub(super) fn judge(&self, call: &LimitCall) -> Result<SmallVec<[JudgedPart<'s>; 1]>, Refused> {
        let mut parts = SmallVec::new();
        if let Some(function_rules) = self.function_rules {
            parts.push(self.function_rules(function_rules, call)?);
        }
        let mut first_value = 0_usize;
        for (at, attribute) in call.site.attributes.iter().enumerate() {
            let is_value = |by: &&KeyPart| matches!(by, KeyPart::Value);
            let values = attribute.by().iter().filter(is_value).count();
            if let LimitAttribute::Rule { domain, rule, by, .. } = attribute {
                let given = by.map(|by| GivenValues { by, first_value });
                parts.extend(self.named(call, at, *domain, rule, given)?);
            }
            first_value = first_value.saturating_add(values);
        }
        Ok(parts)
    }

    /// Judges a call by the limits at the function.
    fn function_rules(
        &self,
        function_rules: &'s FunctionRules,
        call: &LimitCall,
    ) -> Result<JudgedPart<'s>, Refused> {
        let mut attributes = Attributes::new();
        let mut values = call.values.iter();
        for (at, attribute) in call.site.attributes.iter().enumerate() {
            let rule = function_rules.attributes.iter().position(|attribute| *attribute == at);
            let names = rule.map_or(&[][..], |rule| function_rules.by(rule));
            let mut names = names.iter();
            for by in attribute.by() {
                let name = names.next();
                match by {
                    KeyPart::Value => {
                        let value = values.next();
                        let seen = value.map(|value| AttributeValue::Text(value.as_slice().into()));
                        attributes.extend(name.map(String::as_str).zip(seen));
                    }
                    KeyPart::Attribute(_) => {
                        let Some(name) = name else { continue };
                        let known = attributes.iter().any(|(known, _)| known == name);
                        if !known && let Some(seen) = needed(call, name)? {
                            attributes.push((name, seen));
                        }
                    }
                }
            }
        }
        let ask = ask(call, function_rules.domain(), &attributes, 1)?;
        let judgement = function_rules.rules.judge(&ask, self.secret);
        Ok(JudgedPart { judgement, set: Set::Function, attribute: None })
    }

    /// Judges a call by a rule of the limiter; `None` if a layer has charged that rule for this
    /// request.
    fn named(
        &self,
        call: &LimitCall,
        attribute: usize,
        domain: Option<&str>,
        rule: &str,
        given: Option<GivenValues>,
    ) -> Result<Option<JudgedPart<'s>>, Refused> {
        let scope = call.scope.as_ref();
        let domain = domain.or_else(|| scope.and_then(Scope::own_domain)).ok_or_else(|| {
            call.site.misconfigured(format!(
                "the domain of the rule `{rule}` is not known: write `domain = \"…\"` into the \
                 attribute, or set it with `tollgate::scope::Scope::domain`"
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
                    Err(AttributeError::Unknown) => {}
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
        let ask = ask(call, domain, &attributes, call.cost_at(attribute))?;
        let slices: Option<SmallVec<[&[u8]; 2]>> =
            values.as_ref().map(|values| values.iter().map(|value| value.as_slice()).collect());
        let judged = self.rules.judge_named(&ask, rule, slices.as_deref(), self.secret);
        let judgement = judged.map_err(wrong)?;
        let charged = |ruling: &Ruling| charged(ruling, &ask, domain, rule, self.secret);
        if scope.is_some_and(|scope| scope.judged(self.limiter, domain, charged)) {
            // The layer has charged the values that it knows; the function may know others.
            let by_layer = slices.map(|_| self.rules.judge_named(&ask, rule, None, self.secret));
            let by_layer = by_layer.transpose().map_err(wrong)?;
            if by_layer.is_none_or(|by_layer| count_alike(&by_layer, &judgement)) {
                return Ok(None);
            }
        }
        Ok(Some(JudgedPart { judgement, set: Set::Limiter, attribute: Some(attribute) }))
    }
}

/// The plan of a call, and the attribute behind each of its charges.
pub(super) struct CallPlan<'p> {
    pub(super) plan: Plan<'p>,
    pub(super) attributes: SmallVec<[Option<usize>; 4]>,
}

impl<'p> CallPlan<'p> {
    /// Plans the parts of a call as one request.
    ///
    /// # Errors
    ///
    /// When the parts are in different partitions: one request cannot span two.
    pub(super) fn new<'s: 'p>(
        call: &LimitCall,
        function_rules: Option<&FunctionRules>,
        parts: &'p [JudgedPart<'s>],
        rules: &'p DecidingRules,
        names: &IdGenerator,
    ) -> Result<Self, Refused> {
        let unjudged = parts.first().map_or(Reason::NoRule, |part| uncharged(&part.judgement).0);
        let mut plan = Plan::empty(rules, Intent::CHARGE, unjudged);
        if let Some((reason, blocked_by, attribute)) = blocking(parts, function_rules) {
            (plan.uncharged, plan.blocked_by) = (reason, blocked_by);
            return Ok(Self { plan, attributes: SmallVec::from_elem(attribute, 1) });
        }
        // The function's rules stand alone where the call meets no others.
        let alone = matches!(rules, DecidingRules::Rules(_));
        let mut attributes = SmallVec::new();
        for part in parts {
            let Some(charges) = part.charges() else { continue };
            let set = if alone { Set::Limiter } else { part.set };
            for due in charges.enforced() {
                let attribute = part.attribute(due.rule.index(), function_rules);
                // A rule knows the cost of the call already; a limit at the function does not.
                let cost = match (part.set, attribute) {
                    (Set::Function, Some(attribute)) => call.cost_at(attribute),
                    _ => due.cost,
                };
                plan.push_charge(charges, due, cost, set, names);
                attributes.push(attribute);
            }
            plan.push_shadow(charges, set, names);
        }
        plan.partition = call.partition(parts)?;
        if plan.policies.len() > Request::MAX_CHARGES {
            plan = Plan::empty(rules, Intent::CHARGE, Reason::TooManyLimits);
            attributes.clear();
        }
        Ok(Self { plan, attributes })
    }
}

/// The part that refuses without counting, with its attribute.
fn blocking(
    parts: &[JudgedPart<'_>],
    function_rules: Option<&FunctionRules>,
) -> Option<(Reason, Option<Box<Blocked>>, Option<usize>)> {
    parts.iter().find_map(|part| match uncharged(&part.judgement) {
        (reason @ (Reason::Blocked | Reason::TooManyLimits), blocked_by) => {
            Some((reason, blocked_by, part.attribute(0, function_rules)))
        }
        _ => None,
    })
}

/// The rules behind a ruling on these parts: the limiter's and the function's, or the function's
/// alone.
pub(super) fn rule_source(
    rules: &Arc<RuleSet>,
    function_rules: Option<&FunctionRules>,
    parts: &[JudgedPart<'_>],
) -> DecidingRules {
    let own = function_rules.map(|function_rules| Arc::clone(&function_rules.rules));
    let alone = parts.iter().all(|part| part.set == Set::Function);
    match own {
        Some(own) if alone => DecidingRules::Rules(own),
        Some(own) => DecidingRules::WithFunction(Arc::clone(rules), own),
        None => DecidingRules::Rules(Arc::clone(rules)),
    }
}

impl LimitCall {
    /// The partition of all counters of a call.
    fn partition<'p>(&self, parts: &'p [JudgedPart<'_>]) -> Result<Option<&'p [u8]>, Refused> {
        let mut partitions = parts
            .iter()
            .filter_map(JudgedPart::charges)
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

/// The values that an attribute provides for the `by` of a rule.
#[derive(Clone, Copy)]
struct GivenValues {
    by: &'static [KeyPart],
    /// The index of its first value among the values of the call.
    first_value: usize,
}

impl GivenValues {
    /// True if the values are the request's own attributes of these names.
    fn are(self, names: &[String]) -> bool {
        let is =
            |(by, name): (&KeyPart, &String)| matches!(by, KeyPart::Attribute(own) if own == name);
        self.by.len() == names.len() && self.by.iter().zip(names).all(is)
    }

    fn values(self, call: &LimitCall) -> Result<SmallVec<[super::call::Text; 2]>, Refused> {
        let mut values = call.values.iter().skip(self.first_value);
        let mut given = SmallVec::new();
        for by in self.by {
            let text = match by {
                KeyPart::Value => values.next().cloned().unwrap_or_default(),
                KeyPart::Attribute(name) => match needed(call, name)? {
                    Some(AttributeValue::Text(text)) => spelt(call, name, text.as_ref())?,
                    Some(AttributeValue::Address(address)) => {
                        address.to_string().into_bytes().into()
                    }
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

/// Normalizes a value of the request, so that one client cannot have two counters.
fn spelt(call: &LimitCall, name: &str, text: &[u8]) -> Result<super::call::Text, Refused> {
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

/// True if a layer's ruling has charged this rule for the request, as a shadow rule or not.
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

/// True if both judgements charge the same counters.
fn count_alike(one: &Judgement<'_>, other: &Judgement<'_>) -> bool {
    let (Judgement::Charges(one), Judgement::Charges(other)) = (one, other) else { return false };
    let ours = one.enforced().iter().chain(one.shadow()).map(|due| one.key(due));
    ours.eq(other.enforced().iter().chain(other.shadow()).map(|due| other.key(due)))
}

fn ask<'a>(
    call: &LimitCall,
    domain: &'a str,
    attributes: &'a Attributes<'_>,
    cost: Cost,
) -> Result<Ask<'a>, Refused> {
    let mut ask = Ask::new(domain).cost(cost);
    for (name, seen) in attributes {
        match seen {
            AttributeValue::Address(address) => ask.set_ip(*address),
            AttributeValue::Text(text) => {
                let pushed = ask.push(name, &**text);
                pushed.map_err(|error| call.site.malformed(error.to_string()))?;
            }
        }
    }
    Ok(ask)
}

/// Returns an attribute of the request that is part of a counter's key. A limiter that does not
/// know the attribute is an error, because the call would then not be counted.
fn needed<'c>(call: &'c LimitCall, name: &str) -> Result<Option<AttributeValue<'c>>, Refused> {
    let found = match &call.scope {
        Some(scope) => scope.find(name),
        None => Err(AttributeError::Unknown),
    };
    found.map_err(|unseen| complain(call, name, unseen))
}

fn complain(call: &LimitCall, name: &str, unseen: AttributeError) -> Refused {
    match unseen {
        AttributeError::Malformed(problem) => call.site.malformed(problem),
        AttributeError::NoPeer => call.site.misconfigured(
            "the server does not provide the address of its peer: serve with \
             `into_make_service_with_connect_info::<SocketAddr>()`, or add `LimitLayer::peer`",
        ),
        AttributeError::Unknown if name == "ip" => call.site.misconfigured(
            "no request with an `ip` is in scope: add `LimitLayer::with_scope` to the router, \
             or set it with `tollgate::scope::Scope::ip`",
        ),
        AttributeError::Unknown => call.site.misconfigured(format!(
            "nothing provides the request's `{name}`: add `LimitLayer::attribute(\"{name}\", …)` and \
             `LimitLayer::with_scope`, or set it with `tollgate::scope::Scope::attribute`"
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
