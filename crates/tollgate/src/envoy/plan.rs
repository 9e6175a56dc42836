//! The planner of Envoy's calls: from descriptors to charges. Pure.
//!
//! A descriptor either has no rule, is unlimited, or is limited. The planner drops rules that
//! another rule of the call replaces, and applies limits that come with the call.

use std::ops::Range;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::rule::{KeySecret, KeyWriter};
use tollgate_core::{Cost, Limit, Need, Op, Timestamp};

use super::answer::{Code, Status};
use super::call::{Call, CallError, Descriptor};
use super::rule::{EnvoyMode, EnvoyRule, RateLimit};
use super::{EnvoyRules, key};
use crate::decision::{Blocked, ChargePolicy, DecidingRules, Intent, Origin, Plan, Reason};

/// The descriptors of a call with their rules.
pub(super) struct MatchedCall<'k> {
    descriptors: SmallVec<[DescriptorMatch; 4]>,
    keys: KeyWriter<'k>,
    pub(super) knows_domain: bool,
}

/// A descriptor with its rule.
#[expect(clippy::large_enum_variant, reason = "lives on the stack: a box would allocate each time")]
enum DescriptorMatch {
    NoRule,
    Unlimited { rule: usize },
    Limited(LimitedDescriptor),
}

/// A descriptor under a limit.
pub(super) struct LimitedDescriptor {
    rule: Option<usize>,
    /// The limit in the status.
    rate: RateLimit,
    /// The limit that is charged; `None` for a block.
    limit: Option<Limit>,
    pub(super) mode: EnvoyMode,
    op: Op,
    key: Range<usize>,
}

impl LimitedDescriptor {
    /// True if it refuses without counting. A credit is never refused.
    pub(super) const fn blocks(&self) -> bool {
        self.limit.is_none() && !matches!(self.op, Op::Credit { .. })
    }

    /// Its status before anything is counted.
    fn status(&self) -> Status {
        let over = self.blocks() && self.mode != EnvoyMode::Shadow;
        Status {
            code: if over { Code::OverLimit } else { Code::Ok },
            limit: Some(self.rate),
            remaining: 0,
            reset_after: None,
            rule: self.rule,
            mode: self.mode,
        }
    }
}

impl<'k> MatchedCall<'k> {
    pub(super) fn new(
        call: &Call<'_>,
        rules: &EnvoyRules,
        secret: &'k KeySecret,
    ) -> Result<Self, CallError> {
        let knows_domain = rules.has_domain(call.domain);
        let mut plan =
            Self { descriptors: SmallVec::new(), keys: KeyWriter::new(secret), knows_domain };
        for (i, descriptor) in call.descriptors.iter().enumerate() {
            let matched = match descriptor.limit {
                _ if !knows_domain => DescriptorMatch::NoRule,
                Some(limit) => {
                    let unit = limit.unit.ok_or(CallError::UnknownUnit { descriptor: i })?;
                    plan.overridden(
                        call,
                        descriptor,
                        RateLimit::new(limit.requests_per_unit, unit),
                    )?
                }
                None => plan.ruled(call, descriptor, rules),
            };
            plan.descriptors.push(matched);
        }
        plan.replace(rules);
        if call.descriptors.iter().any(|descriptor| descriptor.limit.is_some()) {
            plan.agree();
        }
        Ok(plan)
    }

    fn overridden(
        &mut self,
        call: &Call<'_>,
        asked: &Descriptor<'_>,
        rate: RateLimit,
    ) -> Result<DescriptorMatch, CallError> {
        let limit = rate.limit().map_err(CallError::TooFast)?;
        let key = key::write(&mut self.keys, call.domain, rate.unit(), asked.entries, &[]);
        let op = op(call, asked);
        Ok(DescriptorMatch::Limited(LimitedDescriptor {
            rule: None,
            rate,
            limit,
            mode: EnvoyMode::Enforce,
            op,
            key,
        }))
    }

    fn ruled(
        &mut self,
        call: &Call<'_>,
        asked: &Descriptor<'_>,
        rules: &EnvoyRules,
    ) -> DescriptorMatch {
        let Some(found) = rules.search(call.domain, asked.entries) else {
            return DescriptorMatch::NoRule;
        };
        let Some(rule) = rules.rules().get(found.rule) else { return DescriptorMatch::NoRule };
        let Some(rate) = rule.rate_limit() else {
            return DescriptorMatch::Unlimited { rule: found.rule };
        };
        let (domain, unit) = (call.domain, rate.unit());
        let key = key::write(&mut self.keys, domain, unit, asked.entries, &found.shared);
        let (limit, op) = (rule.limit, op(call, asked));
        // Where nothing passes there is nothing to give back to: that is always OK, and so must
        // not speak for the others of its group.
        let mode = match (rule.mode(), limit, op) {
            (EnvoyMode::Quota, None, Op::Credit { .. }) => EnvoyMode::Enforce,
            (mode, _, _) => mode,
        };
        DescriptorMatch::Limited(LimitedDescriptor {
            rule: Some(found.rule),
            rate,
            limit,
            mode,
            op,
            key,
        })
    }

    /// Drops rules that another rule of the call replaces, in any order of descriptors.
    fn replace(&mut self, rules: &EnvoyRules) {
        let matched = |item: &DescriptorMatch| match item {
            DescriptorMatch::Unlimited { rule }
            | DescriptorMatch::Limited(LimitedDescriptor { rule: Some(rule), .. }) => {
                rules.rules().get(*rule)
            }
            _ => None,
        };
        let replacing: SmallVec<[&EnvoyRule; 4]> = self
            .descriptors
            .iter()
            .filter_map(matched)
            .filter(|rule| !rule.replaces.is_empty())
            .collect();
        if replacing.is_empty() {
            return;
        }
        for item in &mut self.descriptors {
            let DescriptorMatch::Limited(LimitedDescriptor { rule: Some(rule), .. }) = item else {
                continue;
            };
            let name = rules.rules().get(*rule).map_or("", EnvoyRule::name);
            if !name.is_empty() && replacing.iter().any(|other| other.replaces(name)) {
                *item = DescriptorMatch::NoRule;
            }
        }
    }

    /// Judges a counter that a call names twice, under different limits, by the stricter one: no
    /// request can charge it under both.
    fn agree(&mut self) {
        let counted = |item: &DescriptorMatch| match item {
            DescriptorMatch::Limited(limited) => {
                limited.limit.map(|limit| (limited.key.clone(), limit))
            }
            _ => None,
        };
        let all: SmallVec<[(Range<usize>, Limit); 4]> =
            self.descriptors.iter().filter_map(counted).collect();
        for item in &mut self.descriptors {
            let DescriptorMatch::Limited(LimitedDescriptor { limit: Some(limit), key, .. }) = item
            else {
                continue;
            };
            let same = |other: &&(Range<usize>, Limit)| {
                self.keys.key(other.0.clone()) == self.keys.key(key.clone())
            };
            let strictest = all.iter().filter(same).min_by_key(|(_, it)| it.quota().count());
            *limit = strictest.map_or(*limit, |(_, strictest)| *strictest);
        }
    }

    /// Turns the call into a question that charges nothing.
    pub(super) fn peeking(mut self) -> Self {
        for matched in &mut self.descriptors {
            if let DescriptorMatch::Limited(limited) = matched {
                limited.op = match limited.op {
                    Op::Take(cost) => Op::Peek(cost),
                    // Giving back always passes.
                    _ => Op::Peek(0),
                };
            }
        }
        self
    }

    /// The limited descriptors, with their indices in the call.
    pub(super) fn limited(&self) -> impl Iterator<Item = (usize, &LimitedDescriptor)> {
        self.descriptors.iter().enumerate().filter_map(|(i, matched)| match matched {
            DescriptorMatch::Limited(limited) => Some((i, limited)),
            _ => None,
        })
    }

    /// The plan of the chosen descriptors, and their indices in the call.
    pub(super) fn plan<'p>(
        &'p self,
        rules: &'p DecidingRules,
        intent: Intent,
        on_outage: OnOutage,
        which: impl Fn(usize, &LimitedDescriptor) -> bool,
    ) -> (SmallVec<[usize; 4]>, Plan<'p>) {
        let reason = if self.knows_domain { Reason::NoRule } else { Reason::UnknownDomain };
        let (mut indices, mut plan) = (SmallVec::new(), Plan::empty(rules, intent, reason));
        for (i, limited) in self.limited().filter(|(i, limited)| which(*i, limited)) {
            let key = self.keys.key(limited.key.clone());
            let (Ok(key), Some(limit)) = (key, limited.limit.as_ref()) else { continue };
            let need = if limited.mode == EnvoyMode::Quota { Need::AnyOf } else { Need::Must };
            let origin = Origin::envoy(limited.rule);
            let policy = ChargePolicy { on_outage, ..ChargePolicy::new(origin) };
            plan.push(key, limit, limited.op, need, policy);
            indices.push(i);
        }
        (indices, plan)
    }

    /// The plan of a call that is refused without counting: because one rule blocks it, or because
    /// all rules of its `quota_mode` group do.
    pub(super) fn block<'p>(&'p self, rules: &'p DecidingRules) -> Option<Plan<'p>> {
        let of = |mode: EnvoyMode| {
            self.limited().map(|(_, limited)| limited).filter(move |limited| limited.mode == mode)
        };
        let all_of_group = || of(EnvoyMode::Quota).all(LimitedDescriptor::blocks);
        let group = || all_of_group().then(|| of(EnvoyMode::Quota).next()).flatten();
        let by = of(EnvoyMode::Enforce).find(|limited| limited.blocks()).or_else(group)?;
        Some(by.blocked(rules, Intent::CHARGE))
    }

    /// The statuses of all descriptors before anything is counted.
    pub(super) fn statuses(&self) -> SmallVec<[Status; 4]> {
        let status = |matched: &DescriptorMatch| match matched {
            DescriptorMatch::NoRule => Status::NO_RULE,
            DescriptorMatch::Unlimited { rule } => {
                Status { remaining: u32::MAX, rule: Some(*rule), ..Status::NO_RULE }
            }
            DescriptorMatch::Limited(limited) => limited.status(),
        };
        self.descriptors.iter().map(status).collect()
    }
}

impl LimitedDescriptor {
    /// A plan in which this descriptor's rule refuses without counting.
    pub(super) fn blocked<'p>(&self, rules: &'p DecidingRules, intent: Intent) -> Plan<'p> {
        let mut plan = Plan::empty(rules, intent, Reason::Blocked);
        let rule = match (rules, self.rule) {
            (DecidingRules::Envoy(rules), Some(rule)) => rules.rules().get(rule),
            _ => None,
        };
        let rule = rule.map_or("", EnvoyRule::path).to_owned();
        plan.blocked_by = Some(Box::new(Blocked::Rule { rule }));
        plan
    }
}

/// The operation of a descriptor on its counter.
fn op(call: &Call<'_>, descriptor: &Descriptor<'_>) -> Op {
    let cost: Cost = descriptor.hits.unwrap_or(u64::from(call.hits.max(1)));
    match cost {
        0 => Op::Peek(0),
        // Nothing says when it was charged, so it is worth its full cost in this window.
        cost if descriptor.gives_back => Op::Credit { cost, at: Timestamp::MAX },
        cost => Op::Take(cost),
    }
}
