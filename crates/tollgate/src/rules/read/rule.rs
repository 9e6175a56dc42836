//! One rule.

use tollgate_core::rule::declaration::{Ban, CostFrom, Rule};

use super::super::names;
use super::super::node::{Node, Value};
use super::{Fields, RuleReader};

impl RuleReader {
    pub(super) fn rule(&mut self, node: &Node<'_>) -> Option<Rule> {
        let fields = self.fields(node, "a rule", names::RULE)?;
        let name = self
            .required(&fields, "a rule", "name", "`name: login-per-ip`")
            .and_then(|node| self.text(node, "name"));
        let mut rule = Rule::new(name.unwrap_or_default());
        if let Some(node) = fields.get("match") {
            rule.matches = self.patterns(node);
        }
        if let Some(node) = fields.get("by") {
            rule.by = self.texts(node, "by");
        }
        if let Some(node) = fields.get("limits") {
            rule.limits = self.limits(node);
        }
        if let Some(node) = fields.get("block") {
            rule.block = self.flag(node, "block").unwrap_or_default();
        }
        if let Some(node) = fields.get("scenario") {
            rule.scenario = self.choice(node, "scenario", names::SCENARIO);
        }
        if let Some(node) = fields.get("replaces") {
            rule.replaces = self.texts(node, "replaces");
        }
        if let Some(node) = fields.get("ban") {
            rule.ban = self.ban(node);
        }
        if let Some(node) = fields.get("cost") {
            rule.cost = self.cost(node);
        }
        if let Some(node) = fields.get("local-guard") {
            rule.local_guard = self.thousandths(node, "local-guard");
        }
        self.policies(&fields, &mut rule);
        Some(rule)
    }

    fn policies(&mut self, fields: &Fields<'_, '_>, rule: &mut Rule) {
        if let Some(node) = fields.get("mode") {
            rule.mode = self.choice(node, "mode", names::MODE).unwrap_or_default();
        }
        if let Some(node) = fields.get("on-outage") {
            rule.on_outage = self.choice(node, "on-outage", names::ON_OUTAGE).unwrap_or_default();
        }
        if let Some(node) = fields.get("on-change") {
            rule.on_change = self.choice(node, "on-change", names::ON_CHANGE).unwrap_or_default();
        }
        if let Some(node) = fields.get("on-full") {
            rule.on_full = self.choice(node, "on-full", names::ON_FULL).unwrap_or_default();
        }
        if let Some(node) = fields.get("on-missing") {
            rule.on_missing =
                self.choice(node, "on-missing", names::ON_MISSING).unwrap_or_default();
        }
    }

    fn ban(&mut self, node: &Node<'_>) -> Option<Ban> {
        const EXAMPLE: &str = "`ban: { after: 10, within: 1m, for: 15m }`";
        let fields = self.fields(node, "a ban", names::BAN)?;
        let after = self
            .required(&fields, "a ban", "after", EXAMPLE)
            .and_then(|node| self.number(node, "after", 1));
        let within = self
            .required(&fields, "a ban", "within", EXAMPLE)
            .and_then(|node| self.time(node, "within"));
        let lasts =
            self.required(&fields, "a ban", "for", EXAMPLE).and_then(|node| self.time(node, "for"));
        Some(Ban { after: after?, within: within?, lasts: lasts? })
    }

    fn cost(&mut self, node: &Node<'_>) -> CostFrom {
        let mut cost = CostFrom::default();
        if let Value::Text(attribute) = &node.value {
            cost.attribute = Some(attribute.as_ref().to_owned());
            return cost;
        }
        let Value::Map(_) = &node.value else {
            let hint = "write `cost: tokens`, or `cost: { from: tokens, default: 1, max: 1000 }`";
            self.wrong(node, "`cost`", "an attribute", Some(hint.to_owned()));
            return cost;
        };
        let Some(fields) = self.fields(node, "a cost", names::COST) else { return cost };
        cost.attribute = fields.get("from").and_then(|node| self.text(node, "from"));
        if let Some(entry) = fields.entry("default") {
            cost.default = self.number(&entry.node, "default", 1).unwrap_or(1);
            if fields.get("from").is_none() {
                let hint = "add `from: tokens`, the attribute that may be missing".to_owned();
                self.problems.add(entry.at, "`default` without `from`", Some(hint));
            }
        }
        cost.max = fields.get("max").and_then(|node| self.number(node, "max", 1));
        cost
    }
}
