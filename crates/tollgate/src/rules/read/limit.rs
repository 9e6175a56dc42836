//! Limits: a quota as a text, or a map with an algorithm and its parameters.

use std::time::Duration;

use tollgate_core::algorithm::{Concurrency, Estimate, FixedWindow, SlidingWindow, Smooth};
use tollgate_core::rule::declaration::Limitation;
use tollgate_core::{Algorithm, ParseQuotaError, Quota, QuotaError};

use super::super::names::{self, owner_of};
use super::super::node::{Fields, Node, Value};
use super::super::problem::{Position, quoted};
use super::RuleReader;

impl RuleReader {
    pub(super) fn limits(&mut self, fields: &Fields<'_, '_>) -> Vec<Limitation> {
        let Some(node) = fields.get("limits") else { return Vec::new() };
        if let Value::Text(_) | Value::Map(_) = node.value {
            let hint = "write a list: `limits: [5 per 1m]`".to_owned();
            self.wrong(node, "`limits`", "a list", Some(hint));
            return Vec::new();
        }
        self.list(fields, "limits").iter().filter_map(|node| self.limit(node)).collect()
    }

    fn limit(&mut self, node: &Node<'_>) -> Option<Limitation> {
        match &node.value {
            Value::Text(text) => {
                let quota = text.parse::<Quota>().map_err(|error| {
                    let (message, hint) = match &error {
                        ParseQuotaError::Quota(reason) => refusal(text, reason),
                        _ => (error.to_string(), None),
                    };
                    self.problems.add(node.at, message, hint);
                });
                Some(Limitation { name: None, quota: quota.ok()?, algorithm: None })
            }
            Value::Map(_) => self.limit_of_fields(node),
            _ => {
                let hint = "write `5 per 1m`".to_owned();
                self.wrong(node, "a limit", "a text or a map", Some(hint));
                None
            }
        }
    }

    fn limit_of_fields(&mut self, node: &Node<'_>) -> Option<Limitation> {
        let fields = self.fields(node, "a limit", names::LIMIT)?;
        let name = self.text(&fields, "name");
        let named = match fields.get("algorithm") {
            Some(_) => Some(self.choice(&fields, "algorithm", names::ALGORITHM)?),
            None => fields.get("concurrent").map(|_| Concurrency.into()),
        };
        self.refuse_foreign(&fields, named);
        let quota = self.quota(&fields, named);
        let algorithm = named.map(|named| self.with_parameters(&fields, named));
        Some(Limitation { name, quota: quota?, algorithm })
    }

    /// Reports parameters of other algorithms. They would have no effect.
    fn refuse_foreign(&mut self, fields: &Fields<'_, '_>, named: Option<Algorithm>) {
        let used = named.map(|named| named.name());
        for entry in fields.entries {
            let Some(owner) = owner_of(&entry.key) else { continue };
            if used != Some(owner) {
                let message = format!("`{}` belongs to {owner}", entry.key);
                let hint = match used {
                    Some(used) => format!("{used} has no such parameter: remove it"),
                    None => format!("add `algorithm: {owner}`"),
                };
                self.problems.add(entry.at, message, Some(hint));
            }
        }
    }

    fn quota(&mut self, fields: &Fields<'_, '_>, named: Option<Algorithm>) -> Option<Quota> {
        let holders = matches!(named, Some(Algorithm::Concurrency(_)));
        let (at, field) = match (fields.entry("concurrent"), fields.entry("count")) {
            (Some(concurrent), None) => {
                if !holders {
                    let hint = "write `count`, or drop `algorithm`".to_owned();
                    let message = "`concurrent` beside another algorithm";
                    self.problems.add(concurrent.at, message, Some(hint));
                }
                (concurrent.node.at, "concurrent")
            }
            (None, Some(count)) => (count.node.at, "count"),
            (Some(_), Some(count)) => {
                let hint = "one of them is enough".to_owned();
                self.problems.add(count.at, "`count` beside `concurrent`", Some(hint));
                return None;
            }
            (None, None) => {
                let hint = "write `5 per 1m`, or `{ count: 5, per: 1m }`".to_owned();
                self.problems.add(fields.at, "a limit without `count`", Some(hint));
                return None;
            }
        };
        let count = self.number(fields, field, 0);
        let time = if holders { self.lease(fields) } else { self.period(fields) };
        let quota = self.built(at, Quota::new(count?, time?), count?)?;
        let Some(node) = fields.get("burst") else { return Some(quota) };
        let burst = self.number(fields, "burst", 0)?;
        self.built(node.at, quota.with_burst(burst), burst)
    }

    fn period(&mut self, fields: &Fields<'_, '_>) -> Option<Duration> {
        self.require(fields, "a limit", "per", "`{ count: 5, per: 1m }`");
        self.time(fields, "per")
    }

    fn lease(&mut self, fields: &Fields<'_, '_>) -> Option<Duration> {
        if let Some(entry) = fields.entry("per") {
            let hint = "write `lease`, the longest that a permit is held".to_owned();
            self.problems.add(entry.at, "concurrency has no `per`", Some(hint));
            return None;
        }
        let example = "`{ concurrent: 10, lease: 30s }`";
        self.require(fields, "a limit by concurrency", "lease", example);
        self.time(fields, "lease")
    }

    fn built(
        &mut self,
        at: Position,
        quota: Result<Quota, QuotaError>,
        value: u64,
    ) -> Option<Quota> {
        let refused = |error| {
            let (message, hint) = refusal(&value.to_string(), &error);
            self.problems.add(at, message, hint);
        };
        quota.map_err(refused).ok()
    }

    /// The named algorithm, with parameters from the fields.
    fn with_parameters(&mut self, fields: &Fields<'_, '_>, named: Algorithm) -> Algorithm {
        match named {
            Algorithm::FixedWindow(_) => {
                let anchor = self.choice(fields, "anchor", names::ANCHOR).unwrap_or_default();
                FixedWindow { anchor }.into()
            }
            Algorithm::SlidingWindow(_) => self.sliding_window(fields).into(),
            Algorithm::Smooth(_) => self.smooth(fields).into(),
            other => other,
        }
    }

    fn sliding_window(&mut self, fields: &Fields<'_, '_>) -> SlidingWindow {
        let estimate = self.choice(fields, "estimate", names::ESTIMATE).unwrap_or_default();
        let mut window = match estimate {
            Estimate::Conservative => SlidingWindow::conservative(),
            Estimate::Weighted => SlidingWindow::weighted(),
        };
        let panes = self.small(fields, "panes", SlidingWindow::MAX_PANES);
        window.panes = panes.unwrap_or(window.panes);
        window
    }

    fn smooth(&mut self, fields: &Fields<'_, '_>) -> Smooth {
        let warm_up = self.time(fields, "warm-up");
        let mut smooth = warm_up.map_or_else(Smooth::bursty, Smooth::warming_up);
        if let Some(factor) = self.small(fields, "cold-factor", 100) {
            smooth = smooth.with_cold_factor(factor);
        }
        if let Some(payment) = self.choice(fields, "payment", names::PAYMENT) {
            smooth = smooth.with_payment(payment);
        }
        if let Some(permits) = self.number(fields, "max-debt", 1) {
            smooth = smooth.with_max_debt(permits);
        }
        smooth
    }
}

/// The message for numbers that do not make a quota, with a hint.
fn refusal(written: &str, error: &QuotaError) -> (String, Option<String>) {
    match error {
        QuotaError::ZeroCount => {
            let message = format!("{}: a limit of 0 is a block", quoted(written));
            (message, Some("write `block: true` in place of `limits`".to_owned()))
        }
        other => (other.to_string(), None),
    }
}
