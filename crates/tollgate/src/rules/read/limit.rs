//! Limits: a quota as a text, or a map with an algorithm and its parameters.

use std::time::Duration;

use tollgate_core::algorithm::{
    Concurrency, Estimate, FixedWindow, LeakyMeter, LeakyQueue, SlidingLog, SlidingWindow, Smooth,
    TokenBucket,
};
use tollgate_core::rule::declaration::Limitation;
use tollgate_core::{Algorithm, ParseQuotaErrorKind, Quota, QuotaError};

use super::super::names::{self, Kind, owner_of};
use super::super::node::{Node, Value};
use super::super::problem::{Position, quoted};
use super::{Fields, RuleReader};

impl RuleReader {
    pub(super) fn limits(&mut self, node: &Node<'_>) -> Vec<Limitation> {
        if let Value::Text(_) | Value::Map(_) = node.value {
            let hint = "write a list: `limits: [5 per 1m]`".to_owned();
            self.wrong(node, "`limits`", "a list", Some(hint));
            return Vec::new();
        }
        self.list(node, "limits").iter().filter_map(|node| self.limit(node)).collect()
    }

    fn limit(&mut self, node: &Node<'_>) -> Option<Limitation> {
        match &node.value {
            Value::Text(text) => {
                let quota = match text.parse::<Quota>() {
                    Ok(quota) => quota,
                    Err(error) => {
                        let (message, hint) = match error.kind() {
                            ParseQuotaErrorKind::Quota(reason) => refusal(text, reason),
                            _ => (error.to_string(), None),
                        };
                        self.problems.add(node.at, message, hint);
                        return None;
                    }
                };
                Some(Limitation { name: None, quota, algorithm: None })
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
        let name = fields.get("name").and_then(|node| self.text(node, "name"));
        let kind = match fields.get("algorithm") {
            Some(node) => Some(self.choice(node, "algorithm", names::ALGORITHM)?),
            None if fields.get("concurrent").is_some() => Some(Kind::Concurrency),
            None => None,
        };
        self.refuse_foreign(&fields, kind);
        let quota = self.quota(&fields, kind);
        let algorithm = kind.map(|kind| self.algorithm(&fields, kind));
        Some(Limitation { name, quota: quota?, algorithm })
    }

    /// A parameter of another algorithm would mean nothing; that is said, not ignored.
    fn refuse_foreign(&mut self, fields: &Fields<'_, '_>, kind: Option<Kind>) {
        let used = kind.map(|kind| names::name_of(names::ALGORITHM, &kind));
        for entry in fields.entries {
            let Some(owner) = owner_of(&entry.key) else { continue };
            if used != Some(owner) {
                let message = format!("`{}` belongs to {owner}", entry.key);
                let hint = match used {
                    Some(used) => format!("{used} has no such thing: drop it"),
                    None => format!("add `algorithm: {owner}`"),
                };
                self.problems.add(entry.at, message, Some(hint));
            }
        }
    }

    fn quota(&mut self, fields: &Fields<'_, '_>, kind: Option<Kind>) -> Option<Quota> {
        let holders = kind == Some(Kind::Concurrency);
        let count = match (fields.entry("concurrent"), fields.entry("count")) {
            (Some(concurrent), None) => {
                if !holders {
                    let hint = "write `count`, or drop `algorithm`".to_owned();
                    let message = "`concurrent` beside another algorithm";
                    self.problems.add(concurrent.at, message, Some(hint));
                }
                (concurrent, "concurrent")
            }
            (None, Some(count)) => (count, "count"),
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
        let (entry, field) = count;
        let count = self.number(&entry.node, field, 0);
        let time = if holders { self.lease(fields) } else { self.period(fields) };
        let quota = self.built(entry.node.at, Quota::new(count?, time?), count?)?;
        let Some(node) = fields.get("burst") else { return Some(quota) };
        let burst = self.number(node, "burst", 0)?;
        self.built(node.at, quota.with_burst(burst), burst)
    }

    fn period(&mut self, fields: &Fields<'_, '_>) -> Option<Duration> {
        let node = self.required(fields, "a limit", "per", "`{ count: 5, per: 1m }`")?;
        self.time(node, "per")
    }

    fn lease(&mut self, fields: &Fields<'_, '_>) -> Option<Duration> {
        if let Some(entry) = fields.entry("per") {
            let hint = "write `lease`, the longest that a permit is held".to_owned();
            self.problems.add(entry.at, "concurrency has no `per`", Some(hint));
            return None;
        }
        let example = "`{ concurrent: 10, lease: 30s }`";
        let node = self.required(fields, "a limit by concurrency", "lease", example)?;
        self.time(node, "lease")
    }

    fn built(
        &mut self,
        at: Position,
        quota: Result<Quota, QuotaError>,
        value: u64,
    ) -> Option<Quota> {
        match quota {
            Ok(quota) => Some(quota),
            Err(error) => {
                let (message, hint) = refusal(&value.to_string(), &error);
                self.problems.add(at, message, hint);
                None
            }
        }
    }

    fn algorithm(&mut self, fields: &Fields<'_, '_>, kind: Kind) -> Algorithm {
        match kind {
            Kind::FixedWindow => {
                let anchor = fields
                    .get("anchor")
                    .and_then(|node| self.choice(node, "anchor", names::ANCHOR))
                    .unwrap_or_default();
                FixedWindow { anchor }.into()
            }
            Kind::SlidingWindow => self.sliding_window(fields).into(),
            Kind::Smooth => self.smooth(fields).into(),
            Kind::SlidingLog => SlidingLog.into(),
            Kind::TokenBucket => TokenBucket.into(),
            Kind::LeakyMeter => LeakyMeter.into(),
            Kind::LeakyQueue => LeakyQueue.into(),
            Kind::Concurrency => Concurrency.into(),
        }
    }

    fn sliding_window(&mut self, fields: &Fields<'_, '_>) -> SlidingWindow {
        let estimate = fields
            .get("estimate")
            .and_then(|node| self.choice(node, "estimate", names::ESTIMATE))
            .unwrap_or_default();
        let mut window = match estimate {
            Estimate::Conservative => SlidingWindow::conservative(),
            Estimate::Weighted => SlidingWindow::weighted(),
        };
        if let Some(node) = fields.get("panes") {
            window.panes =
                self.small(node, "panes", SlidingWindow::MAX_PANES).unwrap_or(window.panes);
        }
        window
    }

    fn smooth(&mut self, fields: &Fields<'_, '_>) -> Smooth {
        let warm_up = fields.get("warm-up").and_then(|node| self.time(node, "warm-up"));
        let mut smooth = warm_up.map_or_else(Smooth::bursty, Smooth::warming_up);
        if let Some(node) = fields.get("cold-factor")
            && let Some(factor) = self.small(node, "cold-factor", 100)
        {
            smooth = smooth.with_cold_factor(factor);
        }
        if let Some(node) = fields.get("payment")
            && let Some(payment) = self.choice(node, "payment", names::PAYMENT)
        {
            smooth = smooth.with_payment(payment);
        }
        if let Some(node) = fields.get("max-debt")
            && let Some(permits) = self.number(node, "max-debt", 1)
        {
            smooth = smooth.with_max_debt(permits);
        }
        smooth
    }
}

/// Why numbers make no quota, with the way out.
fn refusal(written: &str, error: &QuotaError) -> (String, Option<String>) {
    match error {
        QuotaError::ZeroCount => {
            let message = format!("{}: a limit of 0 is a block", quoted(written));
            (message, Some("write `block: true` in place of `limits`".to_owned()))
        }
        other => (other.to_string(), None),
    }
}
