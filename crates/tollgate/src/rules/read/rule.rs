//! One rule.

use tollgate_core::rule::declaration::{Ban, CostFrom, Rule};

use super::super::names;
use super::super::node::{Node, Value};
use super::RuleReader;

impl RuleReader {
    pub(super) fn rule(&mut self, node: &Node<'_>) -> Option<Rule> {
        let fields = self.fields(node, "a rule", names::RULE)?;
        self.require(&fields, "a rule", "name", "`name: login-per-ip`");
        let mut rule = Rule::new(self.text(&fields, "name").unwrap_or_default());
        rule.matches = fields.get("match").map_or_else(Vec::new, |node| self.patterns(node));
        rule.by = self.texts(&fields, "by");
        rule.limits = self.limits(&fields);
        rule.block = self.flag(&fields, "block").unwrap_or_default();
        rule.scenario = self.choice(&fields, "scenario", names::SCENARIO);
        rule.replaces = self.texts(&fields, "replaces");
        rule.ban = fields.get("ban").and_then(|node| self.ban(node));
        rule.cost = fields.get("cost").map_or_else(CostFrom::default, |node| self.cost(node));
        rule.local_guard = self.thousandths(&fields, "local-guard");
        rule.mode = self.choice(&fields, "mode", names::MODE).unwrap_or_default();
        rule.on_outage = self.choice(&fields, "on-outage", names::ON_OUTAGE).unwrap_or_default();
        rule.on_change = self.choice(&fields, "on-change", names::ON_CHANGE).unwrap_or_default();
        rule.on_full = self.choice(&fields, "on-full", names::ON_FULL).unwrap_or_default();
        rule.on_missing = self.choice(&fields, "on-missing", names::ON_MISSING).unwrap_or_default();
        Some(rule)
    }

    fn ban(&mut self, node: &Node<'_>) -> Option<Ban> {
        const EXAMPLE: &str = "`ban: { after: 10, within: 1m, for: 15m }`";
        let fields = self.fields(node, "a ban", names::BAN)?;
        for field in names::BAN {
            self.require(&fields, "a ban", field, EXAMPLE);
        }
        let after = self.number(&fields, "after", 1);
        let (within, lasts) = (self.time(&fields, "within"), self.time(&fields, "for"));
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
        cost.attribute = self.text(&fields, "from");
        if let Some(entry) = fields.entry("default") {
            cost.default = self.number(&fields, "default", 1).unwrap_or(1);
            if fields.get("from").is_none() {
                let hint = "add `from: tokens`, the attribute that may be missing".to_owned();
                self.problems.add(entry.at, "`default` without `from`", Some(hint));
            }
        }
        cost.max = self.number(&fields, "max", 1);
        cost
    }
}
