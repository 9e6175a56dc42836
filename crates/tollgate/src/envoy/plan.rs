//! From a call to what is charged: pure.
//!
//! Every descriptor becomes an item: no rule, unlimited, or due. Rules that another rule of the call
//! replaces are dropped here, and limits that come with the call take their place.

use std::ops::Range;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::rule::{KeySecret, KeyWriter};
use tollgate_core::{Cost, Limit, Need, Op, Timestamp};

use super::answer::{Code, Status};
use super::call::{Call, CallError, Descriptor};
use super::rule::{Mode, RateLimit, Rule};
use super::{EnvoyRules, key};
use crate::engine::Toll;

/// What a call is charged on.
pub(super) struct Plan<'k> {
    pub(super) items: SmallVec<[Item; 4]>,
    keys: KeyWriter<'k>,
    pub(super) knows_domain: bool,
}

/// What becomes of a descriptor.
#[expect(clippy::large_enum_variant, reason = "lives on the stack: a box would allocate each time")]
pub(super) enum Item {
    NoRule,
    Unlimited { rule: usize },
    Due(Due),
}

/// A descriptor under a limit.
pub(super) struct Due {
    pub(super) rule: Option<usize>,
    /// What is said to apply.
    pub(super) rate: RateLimit,
    /// What is charged; `None` for a block.
    pub(super) limit: Option<Limit>,
    pub(super) mode: Mode,
    pub(super) op: Op,
    key: Range<usize>,
}

impl Due {
    /// Whether it refuses without counting. Who gives back is never refused.
    pub(super) const fn blocks(&self) -> bool {
        self.limit.is_none() && !matches!(self.op, Op::Credit { .. })
    }

    /// What is said before anything is counted.
    pub(super) fn status(&self) -> Status {
        let over = self.blocks() && self.mode != Mode::Shadow;
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

impl<'k> Plan<'k> {
    pub(super) fn new(
        call: &Call<'_>,
        rules: &EnvoyRules,
        secret: &'k KeySecret,
    ) -> Result<Self, CallError> {
        let knows_domain = rules.has_domain(call.domain);
        let mut plan = Self { items: SmallVec::new(), keys: KeyWriter::new(secret), knows_domain };
        for (i, descriptor) in call.descriptors.iter().enumerate() {
            let item = match descriptor.limit {
                _ if !knows_domain => Item::NoRule,
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
            plan.items.push(item);
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
    ) -> Result<Item, CallError> {
        let limit = rate.limit().map_err(CallError::TooFast)?;
        let key = key::write(&mut self.keys, call.domain, rate.unit(), asked.entries, &[]);
        let op = op(call, asked);
        Ok(Item::Due(Due { rule: None, rate, limit, mode: Mode::Enforce, op, key }))
    }

    fn ruled(&mut self, call: &Call<'_>, asked: &Descriptor<'_>, rules: &EnvoyRules) -> Item {
        let Some(found) = rules.search(call.domain, asked.entries) else { return Item::NoRule };
        let Some(rule) = rules.rules().get(found.rule) else { return Item::NoRule };
        let Some(rate) = rule.rate_limit() else { return Item::Unlimited { rule: found.rule } };
        let (domain, unit) = (call.domain, rate.unit());
        let key = key::write(&mut self.keys, domain, unit, asked.entries, &found.shared);
        let (limit, op) = (rule.limit, op(call, asked));
        // Where nothing passes there is nothing to give back to: that is always OK, and so must
        // not speak for the others of its group.
        let mode = match (rule.mode(), limit, op) {
            (Mode::Quota, None, Op::Credit { .. }) => Mode::Enforce,
            (mode, _, _) => mode,
        };
        Item::Due(Due { rule: Some(found.rule), rate, limit, mode, op, key })
    }

    /// Drops what another rule of the call replaces, wherever it stands.
    fn replace(&mut self, rules: &EnvoyRules) {
        let matched = |item: &Item| match item {
            Item::Unlimited { rule } | Item::Due(Due { rule: Some(rule), .. }) => {
                rules.rules().get(*rule)
            }
            _ => None,
        };
        let replacing: SmallVec<[&Rule; 4]> = self
            .items
            .iter()
            .filter_map(matched)
            .filter(|rule| !rule.replaces.is_empty())
            .collect();
        if replacing.is_empty() {
            return;
        }
        for item in &mut self.items {
            let Item::Due(Due { rule: Some(rule), .. }) = item else { continue };
            let name = rules.rules().get(*rule).map_or("", Rule::name);
            if !name.is_empty() && replacing.iter().any(|other| other.replaces(name)) {
                *item = Item::NoRule;
            }
        }
    }

    /// A counter that a call names twice under different limits is judged by the stricter one: no
    /// request can charge it under both.
    fn agree(&mut self) {
        let counted = |item: &Item| match item {
            Item::Due(due) => due.limit.map(|limit| (due.key.clone(), limit)),
            _ => None,
        };
        let all: SmallVec<[(Range<usize>, Limit); 4]> =
            self.items.iter().filter_map(counted).collect();
        for item in &mut self.items {
            let Item::Due(Due { limit: Some(limit), key, .. }) = item else { continue };
            let same = |other: &&(Range<usize>, Limit)| {
                self.keys.key(other.0.clone()) == self.keys.key(key.clone())
            };
            let strictest = all.iter().filter(same).min_by_key(|(_, it)| it.quota().count());
            *limit = strictest.map_or(*limit, |(_, strictest)| *strictest);
        }
    }

    /// The same, asking whether it would pass, and charging nothing.
    pub(super) fn peeking(mut self) -> Self {
        for item in &mut self.items {
            if let Item::Due(due) = item {
                due.op = match due.op {
                    Op::Take(cost) => Op::Peek(cost),
                    // Who gives back always may.
                    _ => Op::Peek(0),
                };
            }
        }
        self
    }

    /// The dues that count, by their places.
    pub(super) fn dues(&self) -> impl Iterator<Item = (usize, &Due)> {
        self.items.iter().enumerate().filter_map(|(i, item)| match item {
            Item::Due(due) => Some((i, due)),
            _ => None,
        })
    }

    /// Who refuses without counting: a rule, or all of those of which any one suffices.
    pub(super) fn blocked_by(&self) -> Option<&Due> {
        let of = |mode: Mode| self.dues().map(|(_, due)| due).filter(move |due| due.mode == mode);
        let group = || of(Mode::Quota).all(Due::blocks).then(|| of(Mode::Quota).next()).flatten();
        of(Mode::Enforce).find(|due| due.blocks()).or_else(group)
    }

    /// The toll of a due that is charged.
    pub(super) fn toll<'p>(&'p self, due: &'p Due, on_outage: OnOutage) -> Option<Toll<'p>> {
        let key = self.keys.key(due.key.clone()).ok()?;
        let mut toll = Toll::new(key, due.limit.as_ref()?, due.op);
        toll.need = if due.mode == Mode::Quota { Need::AnyOf } else { Need::Must };
        toll.on_outage = on_outage;
        Some(toll)
    }

    /// What is said before anything is counted.
    pub(super) fn statuses(&self) -> SmallVec<[Status; 4]> {
        let status = |item: &Item| match item {
            Item::NoRule => Status::NO_RULE,
            Item::Unlimited { rule } => {
                Status { remaining: u32::MAX, rule: Some(*rule), ..Status::NO_RULE }
            }
            Item::Due(due) => due.status(),
        };
        self.items.iter().map(status).collect()
    }
}

/// What a descriptor asks for.
fn op(call: &Call<'_>, descriptor: &Descriptor<'_>) -> Op {
    let cost: Cost = descriptor.hits.unwrap_or(u64::from(call.hits.max(1)));
    match cost {
        0 => Op::Peek(0),
        // Nothing says when it was charged, so it is worth its full cost in this window.
        cost if descriptor.gives_back => Op::Credit { cost, at: Timestamp::MAX },
        cost => Op::Take(cost),
    }
}
