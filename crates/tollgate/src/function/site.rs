//! A function under `#[limit]` as the macro wrote it, and the rules that are built from it once.

use std::sync::{Arc, OnceLock};

use tollgate_core::Algorithm;
use tollgate_core::rule::declaration::{Limitation, OnMissing, Rule, Scenario};
use tollgate_core::rule::{RuleError, RuleSet};

use crate::{Refused, RefusedKind};

/// A function under `#[limit]`.
#[derive(Debug)]
pub struct Site {
    path: fn() -> &'static str,
    name: &'static str,
    pub(super) attributes: &'static [LimitAttribute],
    function_rules: OnceLock<Result<FunctionRules, String>>,
}

/// One attribute of a function.
#[derive(Clone, Copy, Debug)]
pub enum LimitAttribute {
    /// Limits of its own.
    Limits {
        /// The limits.
        limits: &'static [QuotaText],
        /// The key of their counters.
        by: &'static [KeyPart],
        /// The message for a refused caller.
        message: Option<&'static str>,
    },
    /// A rule of the limiter.
    Rule {
        /// The domain; that of the scope by default.
        domain: Option<&'static str>,
        /// The name of the rule.
        rule: &'static str,
        /// The values of its `by`; those of the request by default.
        by: Option<&'static [KeyPart]>,
        /// The message for a refused caller.
        message: Option<&'static str>,
    },
}

/// A limit as text, checked by the macro.
#[derive(Clone, Copy, Debug)]
pub struct QuotaText {
    /// The name; that of the period by default.
    pub name: Option<&'static str>,
    /// The quota.
    pub quota: &'static str,
    /// The name of the algorithm; that of the `interface` scenario by default.
    pub algorithm: Option<&'static str>,
}

/// The source of a value in a counter's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The request's attribute of this name.
    Attribute(&'static str),
    /// The next of the values that the call brings.
    Value,
}

impl LimitAttribute {
    pub(super) const fn message(&self) -> Option<&'static str> {
        match self {
            Self::Limits { message, .. } | Self::Rule { message, .. } => *message,
        }
    }

    pub(super) fn by(&self) -> &'static [KeyPart] {
        match self {
            Self::Limits { by, .. } => by,
            Self::Rule { by, .. } => by.unwrap_or_default(),
        }
    }
}

/// The limits that stand at a function, as rules.
#[derive(Debug)]
pub(super) struct FunctionRules {
    pub(super) rules: Arc<RuleSet>,
    /// The index of the attribute behind each rule.
    pub(super) attributes: Vec<usize>,
}

impl FunctionRules {
    /// The name of the function's domain.
    pub(super) fn domain(&self) -> &str {
        self.rules.declaration().domains.first().map_or("", |domain| &domain.name)
    }

    /// The attributes that a rule counts by, in the order of its `by`.
    pub(super) fn by(&self, rule: usize) -> &[String] {
        self.rules.rule(rule).map_or(&[], |rule| rule.by())
    }
}

impl Site {
    /// A site for the function of this name. `path` returns its path.
    pub const fn new(
        path: fn() -> &'static str,
        name: &'static str,
        attributes: &'static [LimitAttribute],
    ) -> Self {
        Self { path, name, attributes, function_rules: OnceLock::new() }
    }

    /// The function's path.
    pub(super) fn path(&self) -> &'static str {
        (self.path)()
    }

    /// The limits at the function; `None` if it only names rules.
    pub(super) fn function_rules(&self) -> Result<Option<&FunctionRules>, Refused> {
        let has_limits =
            |attribute: &LimitAttribute| matches!(attribute, LimitAttribute::Limits { .. });
        if !self.attributes.iter().any(has_limits) {
            return Ok(None);
        }
        let made = self.function_rules.get_or_init(|| self.make());
        match made {
            Ok(function_rules) => Ok(Some(function_rules)),
            Err(problem) => Err(self.misconfigured(problem.clone())),
        }
    }

    fn make(&self) -> Result<FunctionRules, String> {
        let (mut rules, mut attributes, mut values) = (Vec::new(), Vec::new(), 0_usize);
        for (at, attribute) in self.attributes.iter().enumerate() {
            let names = attribute.by().iter().map(|by| match by {
                KeyPart::Attribute(name) => (*name).to_owned(),
                KeyPart::Value => {
                    values = values.saturating_add(1);
                    format!("value.{values}")
                }
            });
            let by = names.collect();
            if let LimitAttribute::Limits { limits, .. } = attribute {
                attributes.push(at);
                rules.push(rule(self.name, attributes.len(), by, limits)?);
            }
        }
        let told = |errors: Vec<RuleError>| errors.first().map(RuleError::to_string);
        let rules = RuleSet::in_code(self.path(), rules)
            .map_err(|errors| told(errors).unwrap_or_default())?;
        Ok(FunctionRules { rules: Arc::new(rules), attributes })
    }

    /// A refusal because the program has this error.
    pub(super) fn misconfigured(&self, problem: impl Into<String>) -> Refused {
        Refused::unjudged(self.path(), RefusedKind::Misconfigured, problem.into())
    }

    /// A refusal because the request has this error.
    pub(super) fn malformed(&self, problem: impl Into<String>) -> Refused {
        Refused::unjudged(self.path(), RefusedKind::Malformed, problem.into())
    }
}

/// The longest part of a function's name in the name of its rule. A number may follow it.
const MAX_FUNCTION: usize = 48;

/// The rule of the `nth` attribute with limits. Calls that lack a value of the key share one
/// counter, so every call is counted.
fn rule(
    function: &str,
    nth: usize,
    by: Vec<String>,
    limits: &'static [QuotaText],
) -> Result<Rule, String> {
    let end = function.floor_char_boundary(MAX_FUNCTION);
    let name = function.get(..end).unwrap_or_default();
    let name = if nth > 1 { format!("{name}-{nth}") } else { name.to_owned() };
    let mut rule = Rule::new(name);
    rule.by = by;
    rule.scenario = Some(Scenario::Interface);
    rule.on_missing = OnMissing::Share;
    for limit in limits {
        rule.limits.push(Limitation {
            name: limit.name.map(str::to_owned),
            quota: limit.quota.parse().map_err(|error| format!("{error}"))?,
            algorithm: limit.algorithm.map(algorithm).transpose()?,
        });
    }
    Ok(rule)
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    let found = Algorithm::defaults().into_iter().find(|algorithm| algorithm.name() == name);
    found.ok_or_else(|| format!("`{name}` is not an algorithm"))
}

/// The path of a function, taken from the type of an item that the macro declares in its body.
pub fn path<F>(_: &F) -> &'static str {
    let path = std::any::type_name::<F>();
    let path = path.rsplit_once("::").map_or(path, |(path, _)| path);
    path.strip_suffix("::{{closure}}").unwrap_or(path)
}
