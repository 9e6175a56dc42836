//! A rule set: one version of all rules, ready to judge.
//!
//! A set never changes; an edit creates another one. Exactly one set, and so one version, judges a
//! request.

use super::active::{ActiveLimit, ActiveRule};
use super::ask::Ask;
use super::charges::Judgement;
use super::declaration::{Declaration, Domain, Rule};
use super::domain::ActiveDomain;
use super::error::{ErrorReport, Place, RuleError};
use super::explain::RuleExplanation;
use super::hash::Table;
use super::key::{self, KeySecret};
use super::named::{self, NamedRuleError};
use super::{check, compile, explain, judge};
use crate::OnChange;

/// Rules, checked and ready to judge.
///
/// ```
/// use tollgate_core::rule::declaration::{Declaration, Domain, Limitation, Rule};
/// use tollgate_core::rule::{Ask, Judgement, KeySecret, RuleSet};
///
/// let mut rule = Rule::new("per-user");
/// rule.by.push("user".to_owned());
/// rule.limits.push(Limitation { name: None, quota: "5 per 1m".parse()?, algorithm: None });
/// let mut shop = Domain::new("shop");
/// shop.rules.push(rule);
/// let set = RuleSet::new(Declaration { version: 1, domains: vec![shop] }).map_err(|e| e[0].clone())?;
///
/// let ask = Ask::new("shop").with("user", "alice")?;
/// let Judgement::Charges(charges) = set.judge(&ask, &KeySecret::new([7; 16])) else { panic!() };
///
/// let [charge] = charges.enforced() else { panic!() };
/// assert_eq!(charge.limit.limit().to_string(), "5 per 1m (token-bucket)");
/// assert_eq!(charges.key(charge).as_bytes(), b"r4:shop8:per-user2:1mt5:alice");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RuleSet {
    declaration: Declaration,
    domains: Vec<ActiveDomain>,
    by_name: Table<Box<str>, usize>,
}

impl RuleSet {
    /// Checks a declaration as a whole and compiles it.
    ///
    /// # Errors
    ///
    /// With all errors in it, from one to [`RuleError::MAX`].
    pub fn new(declaration: Declaration) -> Result<Self, Vec<RuleError>> {
        let origin = compile::Origin::Set { version: declaration.version };
        Self::build(declaration, origin)
    }

    /// Compiles rules in code, at the function of this path: one domain, whose name is in
    /// [`Declaration::domains`]. Their counters never collide with those of a declared set,
    /// whatever its names. The set has version 0.
    ///
    /// ```
    /// use tollgate_core::rule::declaration::{Limitation, Rule};
    /// use tollgate_core::rule::{Ask, Judgement, KeySecret, RuleSet};
    ///
    /// let mut rule = Rule::new("pay");
    /// rule.limits.push(Limitation { name: None, quota: "5 per 1m".parse()?, algorithm: None });
    /// let set = RuleSet::in_code("shop::pay", vec![rule]).map_err(|errors| errors[0].clone())?;
    ///
    /// let ask = Ask::new(&set.declaration().domains[0].name);
    /// let Judgement::Charges(charges) = set.judge(&ask, &KeySecret::new([7; 16])) else { panic!() };
    /// assert_eq!(charges.key(&charges.enforced()[0]).as_bytes(), b"f9:shop::pay3:pay2:1m");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// With all errors in the rules, as [`RuleSet::new`].
    pub fn in_code(path: &str, rules: Vec<Rule>) -> Result<Self, Vec<RuleError>> {
        let domain = Domain { rules, ..Domain::new(key::path_name(path)) };
        let declaration = Declaration { version: 1, domains: vec![domain] };
        let mut set = Self::build(declaration, compile::Origin::Code)?;
        set.declaration.version = 0;
        Ok(set)
    }

    fn build(declaration: Declaration, origin: compile::Origin) -> Result<Self, Vec<RuleError>> {
        let mut report = ErrorReport::default();
        check::check(&declaration, &mut report);
        let mut domains = Vec::with_capacity(declaration.domains.len());
        let mut by_name = Table::default();
        let mut first = 0_usize;
        for (at, domain) in declaration.domains.iter().enumerate() {
            if report.is_full() {
                break;
            }
            let place = Place { domain: Some(at), ..Place::default() };
            domains.push(compile::domain(domain, place, first, origin, &mut report));
            first += domain.rules.len();
            by_name.insert(domain.name.as_str().into(), at);
        }
        report.finish(Self { declaration, domains, by_name })
    }

    /// The set without domains, of version 0, before the first one is loaded.
    pub fn empty() -> Self {
        let declaration = Declaration { version: 0, domains: Vec::new() };
        Self { declaration, domains: Vec::new(), by_name: Table::default() }
    }

    /// Returns the set as the successor of another. It records for each limit the version since
    /// which no edit has scaled or reset its counter ([`ActiveLimit::since`]).
    pub fn following(mut self, before: &Self) -> Self {
        let before: Table<&[u8], &ActiveLimit> = before
            .rules()
            .flat_map(ActiveRule::limits)
            .map(|limit| (&*limit.head, limit))
            .collect();
        let rules = self.domains.iter_mut().flat_map(|domain| &mut domain.rules);
        for limit in rules.flat_map(|rule| &mut rule.limits) {
            if let Some(older) = before.get(&*limit.head)
                && limit.limit.change_from(&older.limit) == OnChange::Keep
            {
                limit.since = older.since;
            }
        }
        self
    }

    /// The version of the set.
    pub const fn version(&self) -> u64 {
        self.declaration.version
    }

    /// The declaration of the set.
    pub const fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// All rules, including those that are off, in the order of their [`ActiveRule::index`].
    pub fn rules(&self) -> impl Iterator<Item = &ActiveRule> {
        self.domains.iter().flat_map(|domain| &domain.rules)
    }

    /// The rule with this [`ActiveRule::index`].
    pub fn rule(&self, index: usize) -> Option<&ActiveRule> {
        let after = self.domains.partition_point(|domain| domain.first <= index);
        let domain = self.domains.get(after.checked_sub(1)?)?;
        domain.rules.get(index - domain.first)
    }

    /// The limit whose counter has this key; `None` if no rule has one.
    pub fn limit_of_key(&self, key: &[u8]) -> Option<&ActiveLimit> {
        let limits = self.rules().flat_map(ActiveRule::limits);
        // Heads are read from the front, so only one can be the beginning of a key.
        limits.into_iter().find(|limit| key.starts_with(&limit.head))
    }

    /// Judges an ask by the rules of its domain.
    ///
    /// The domain's `block` list comes first, then `exempt`, then its rules, whose order does not
    /// matter. Allocates nothing for up to 8 charges with up to 512 bytes of keys.
    pub fn judge<'s>(&'s self, ask: &Ask<'_>, secret: &KeySecret) -> Judgement<'s> {
        let mut judgement = Judgement::UnknownDomain;
        self.judge_into(ask, secret, &mut judgement);
        judgement
    }

    /// Judges an ask in place, and overwrites the earlier judgement. A judgement has room for many
    /// charges, so moving it for every ask would be expensive.
    pub fn judge_into<'s>(
        &'s self,
        ask: &Ask<'_>,
        secret: &KeySecret,
        judgement: &mut Judgement<'s>,
    ) {
        match self.domain(ask.domain()) {
            Some(domain) => judge::judge(domain, ask, secret, judgement),
            None => *judgement = Judgement::UnknownDomain,
        }
    }

    /// Judges an ask by one rule, for callers that know its name. The rule's conditions and all
    /// other rules are ignored; the domain's lists apply.
    ///
    /// `values` are those of the rule's `by`, in its order, and precede the ask's values of the
    /// same names. They are taken byte for byte, except for an `ip`, which must be an address.
    ///
    /// # Errors
    ///
    /// When there is no such rule, or the values do not fit its `by`.
    pub fn judge_named<'s>(
        &'s self,
        ask: &Ask<'_>,
        rule: &str,
        values: Option<&[&[u8]]>,
        secret: &KeySecret,
    ) -> Result<Judgement<'s>, NamedRuleError> {
        let domain = self.domain(ask.domain()).ok_or(NamedRuleError::Domain)?;
        named::judge(domain, ask, rule, values, secret)
    }

    /// True if there are rules for this domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domain(domain).is_some()
    }

    /// The rule of this name in this domain.
    pub fn named(&self, domain: &str, rule: &str) -> Option<&ActiveRule> {
        let domain = self.domain(domain)?;
        domain.names.get(rule).and_then(|at| domain.rules.get(*at))
    }

    /// The attributes that the rules and lists of the domain use, in alphabetical order: all that a
    /// caller must provide. For captured ones, `path`.
    pub fn wants(&self, domain: &str) -> &[String] {
        self.domain(domain).map_or(&[], |domain| &domain.wants)
    }

    /// The reason why each rule of the ask's domain applies or not, in the order of declaration;
    /// none for an unknown domain. Lists are ignored here; [`RuleSet::judge`] applies them.
    pub fn explain<'s>(&'s self, ask: &Ask<'_>) -> Vec<RuleExplanation<'s>> {
        self.domain(ask.domain()).map_or_else(Vec::new, |domain| explain::explain(domain, ask))
    }

    fn domain(&self, name: &str) -> Option<&ActiveDomain> {
        // One domain is the usual case, and needs no hash.
        match self.declaration.domains.as_slice() {
            [only] if only.name == name => self.domains.first(),
            _ => self.by_name.get(name).and_then(|at| self.domains.get(*at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask_view::AskView;
    use super::super::declaration::{Limitation, OnMissing, Pattern, Value};
    use super::*;

    fn rule(name: String, matches: &[(&str, String)]) -> Rule {
        let mut rule = Rule::new(name);
        let quota = "5 per 1m".parse().unwrap();
        rule.limits.push(Limitation { name: None, quota, algorithm: None });
        for (name, value) in matches {
            let value = match value.strip_suffix('*') {
                Some(prefix) => Value::Prefix(prefix.to_owned()),
                None => Value::Text(value.clone()),
            };
            rule.matches.push(((*name).to_owned(), Pattern::Any(vec![value])));
        }
        rule
    }

    /// One rule for all asks, and others of which an ask meets at most one of each kind.
    fn set_of(rules: usize) -> RuleSet {
        let mut domain = Domain::new("shop");
        domain.rules.push(rule("all".to_owned(), &[]));
        for i in 1..rules {
            let matches: &[(&str, String)] = match i % 5 {
                0 => &[("path", format!("/api/items{i}/{{id}}")), ("method", "GET".to_owned())],
                1 => &[("service", "auth".to_owned()), ("user", format!("user{i}"))],
                2 => &[("ip", format!("10.{}.{}.0/24", i >> 8, i & 0xff))],
                3 => &[("header.x", format!("key{i}-*"))],
                _ => &[("path", "/api/{*rest}".to_owned()), ("tenant", format!("tenant{i}"))],
            };
            domain.rules.push(rule(format!("r{i}"), matches));
        }
        RuleSet::new(Declaration { version: 1, domains: vec![domain] }).unwrap()
    }

    /// The indices of the candidates, in order.
    fn positions(domain: &ActiveDomain, ask: &Ask<'_>) -> Vec<usize> {
        let mut found = smallvec::SmallVec::new();
        let mut positions = domain.candidates(&AskView::new(domain, ask), &mut found).to_vec();
        positions.sort_unstable();
        positions
    }

    /// Counts the candidates as the cost of a judgement, because a clock would measure the machine.
    #[test]
    fn an_ask_looks_at_no_more_of_ten_thousand_rules_than_of_a_hundred() {
        let asked = Ask::new("shop")
            .ip([10, 0, 12, 1].into())
            .with("path", "/api/items15/7")
            .and_then(|ask| ask.with("method", "GET"))
            .and_then(|ask| ask.with("service", "auth"))
            .and_then(|ask| ask.with("user", "user16"))
            .and_then(|ask| ask.with("tenant", "tenant14"))
            .and_then(|ask| ask.with("header.x", "key13-7"))
            .unwrap();
        for rules in [100, 10_000] {
            let set = set_of(rules);
            let domain = &set.domains[0];

            let candidates = positions(domain, &asked);

            assert_eq!(candidates, [0, 12, 13, 14, 15, 16], "of {rules}");
        }
    }

    /// Regression: ten thousand rules that count by attributes which the ask lacks were all looked
    /// at.
    #[test]
    fn an_ask_looks_at_no_rule_whose_by_it_lacks() {
        let mut domain = Domain::new("shop");
        for i in 0..10_000 {
            let mut rule = rule(format!("r{i}"), &[]);
            rule.by.push(format!("attr{i}"));
            domain.rules.push(rule);
        }
        domain.rules[7].on_missing = OnMissing::Share;
        let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).unwrap();
        let domain = &set.domains[0];
        let asked = Ask::new("shop").with("attr77", "x").unwrap();

        let candidates = positions(domain, &asked);

        assert_eq!(candidates, [7, 77]);
    }
}
