//! JSON of checks and their answers.
//!
//! Strict: unknown and repeated fields, invalid and too large numbers, and anything behind the object are
//! errors with their position. Nothing nests deeper than it has to.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use tollgate::{Admission, Blocked, Finding, Source};
use tollgate::{Ask, AskError};

use crate::http::problem::Problem;
use crate::state::ceil_millis;
use crate::telemetry::refusals::reason;

/// A check, a peek or a reservation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckRequest<'b> {
    #[serde(borrow)]
    pub(crate) domain: Cow<'b, str>,
    #[serde(borrow, default)]
    pub(crate) attributes: Attributes<'b>,
    #[serde(default = "one")]
    pub(crate) cost: u64,
    /// Longest wait for a grant.
    #[serde(default)]
    pub(crate) patience_ms: u64,
    /// Time until a reservation expires.
    #[serde(default)]
    pub(crate) lifetime_ms: Option<u64>,
}

const fn one() -> u64 {
    1
}

/// Several checks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchRequest<'b> {
    #[serde(borrow)]
    pub(super) checks: Vec<CheckRequest<'b>>,
}

/// A reservation that is settled.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleRequest {
    pub(super) reservation: String,
    #[serde(default)]
    pub(super) actual: Option<u64>,
}

/// Names and values, none of them twice.
#[derive(Debug, Default)]
pub(crate) struct Attributes<'b>(Vec<(Cow<'b, str>, Cow<'b, str>)>);

/// A text, copied only if it was escaped.
#[derive(Deserialize)]
struct Text<'b>(#[serde(borrow)] Cow<'b, str>);

impl<'de: 'b, 'b> Deserialize<'de> for Attributes<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Attributes<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object whose values are strings")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut pairs: Vec<(Cow<'de, str>, Cow<'de, str>)> = Vec::new();
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    if pairs.len() >= Ask::MAX_ATTRIBUTES {
                        return Err(de::Error::custom("at most 64 attributes are allowed"));
                    }
                    if pairs.iter().any(|(known, _)| *known == name) {
                        return Err(de::Error::custom(format_args!("duplicate field {name:?}")));
                    }
                    pairs.push((name, value));
                }
                Ok(Attributes(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Reads an object. An error has its line and column.
pub(crate) fn read<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Problem> {
    // Validates UTF-8 once for the whole body, so that serde_json need not for each string.
    let read = match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(bytes),
    };
    read.map_err(|error| {
        let message = error.to_string();
        // `line` and `column` carry the position.
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        Problem::new(400, format!("invalid body: {message}"))
            .with("line", error.line())
            .with("column", error.column())
    })
}

impl CheckRequest<'_> {
    /// The ask that it describes.
    pub(crate) fn ask(&self) -> Result<Ask<'_>, Problem> {
        let mut ask = Ask::new(&self.domain).cost(self.cost);
        for (name, value) in &self.attributes.0 {
            ask.push(name, value.as_bytes()).map_err(|error| wrong(name, error))?;
        }
        Ok(ask)
    }
}

fn wrong(name: &str, error: AskError) -> Problem {
    use std::error::Error as _;
    let why = error.source().map_or_else(String::new, |source| format!(": {source}"));
    Problem::new(400, format!("{error}{why}")).with("attribute", name)
}

/// Answer to a check.
#[derive(Debug, Serialize)]
pub(crate) struct CheckAnswer<'r> {
    pub(crate) allowed: bool,
    pub(crate) reason: &'static str,
    pub(crate) rules_version: u64,
    pub(crate) degraded: bool,
    /// Origin of the decision: the store, the deny cache, a local guard, or the outage fallback.
    pub(crate) source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refused_by: Option<RefusedBy<'r>>,
    /// Time until a retry can pass; null on a refusal that never clears.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_ms: Option<Option<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wait_ms: Option<u64>,
    pub(crate) limits: Vec<LimitState<'r>>,
}

/// Rule, limit or list that refuses.
#[derive(Debug, Serialize)]
pub(crate) struct RefusedBy<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) list: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missing: Option<&'r str>,
}

/// State of one limit.
#[derive(Debug, Serialize)]
pub(crate) struct LimitState<'r> {
    pub(super) rule: &'r str,
    pub(super) limit: &'r str,
    pub(super) allows: &'r str,
    pub(super) allowed: bool,
    pub(super) remaining: u64,
    pub(super) reset_after_ms: u64,
}

impl<'r> CheckAnswer<'r> {
    pub(crate) fn new(admission: &'r Admission) -> Self {
        let ruling = admission.ruling();
        let wait = admission.wait();
        Self {
            allowed: admission.passes(),
            reason: reason(ruling.reason()),
            rules_version: ruling.version(),
            degraded: admission.outage().is_some(),
            source: source(ruling.source()),
            refused_by: (!admission.passes()).then(|| RefusedBy::new(admission)),
            retry_after_ms: (!admission.passes()).then(|| admission.retry_after().map(ceil_millis)),
            wait_ms: (wait > Duration::ZERO).then(|| ceil_millis(wait)),
            limits: ruling.findings().filter_map(|finding| LimitState::new(&finding)).collect(),
        }
    }
}

impl<'r> RefusedBy<'r> {
    fn new(admission: &'r Admission) -> Self {
        let ruling = admission.ruling();
        let finding = ruling.refusing();
        let mut by = Self {
            rule: finding.and_then(|finding| finding.rule).map(|rule| rule.name()),
            limit: finding.and_then(|finding| finding.limit).map(|limit| limit.name()),
            list: None,
            missing: None,
        };
        match ruling.blocked_by() {
            Some(Blocked::List { entry }) => by.list = Some(entry),
            Some(Blocked::Rule { rule }) => by.rule = Some(rule),
            Some(Blocked::Missing { rule, attribute }) => {
                by.rule = Some(rule);
                by.missing = Some(attribute);
            }
            _ => {}
        }
        by
    }
}

impl<'r> LimitState<'r> {
    fn new(finding: &Finding<'r>) -> Option<Self> {
        let (rule, limit) = (finding.rule?, finding.limit?);
        Some(Self {
            rule: rule.name(),
            limit: limit.name(),
            allows: limit.text(),
            allowed: finding.decision.passes(),
            remaining: finding.decision.remaining,
            reset_after_ms: ceil_millis(finding.decision.reset_after),
        })
    }
}

const fn source(source: Source) -> &'static str {
    match source {
        Source::Store => "store",
        Source::DenyCache => "deny-cache",
        Source::Guard => "guard",
        Source::Outage(_) => "outage",
        _ => "other",
    }
}
