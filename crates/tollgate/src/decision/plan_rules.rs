//! The planner of rules: from what the rules say about an ask to a plan.

use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::rule::{Charges, Judgement, LimitKind, RuleCharge};
use tollgate_core::{Cost, Holder, Need, Op};

use super::plan::{ChargePolicy, Intent, Origin, Plan, Set, counts_holders};
use super::ruling::{Blocked, Reason};
use crate::random::IdGenerator;

impl<'p> Plan<'p> {
    /// Plans an ask that the limiter's rules judged. The plan is filled in place, because it is too
    /// large to be moved.
    #[inline]
    pub(crate) fn push_judgement<'s: 'p>(
        &mut self,
        judgement: &'p Judgement<'s>,
        names: &IdGenerator,
    ) {
        match judgement {
            Judgement::Charges(charges) => {
                self.partition = charges.partition();
                for charge in charges.enforced() {
                    self.push_charge(charges, charge, charge.cost, Set::Limiter, names);
                }
                if charges.has_shadow() {
                    self.push_shadow(charges, Set::Limiter, names);
                }
            }
            other => (self.uncharged, self.blocked_by) = uncharged(other),
        }
        if let Intent::Charge { patience } = self.intent
            && !patience.is_zero()
        {
            self.be_patient(patience);
        }
    }

    /// Adds the charge of one limit or ban of a rule.
    #[inline]
    pub(crate) fn push_charge<'s: 'p>(
        &mut self,
        charges: &'p Charges<'s>,
        charge: &'p RuleCharge<'s>,
        cost: Cost,
        set: Set,
        names: &IdGenerator,
    ) {
        let (limit, kind) = (charge.limit.limit(), charge.limit.kind());
        let op = match (self.intent, kind) {
            // A cost of 0 asks and holds nothing.
            (_, LimitKind::Limit) if counts_holders(limit) && cost == 0 => Op::Peek(0),
            (Intent::Peek, LimitKind::Limit) if counts_holders(limit) => Op::Peek(1),
            (Intent::Peek, LimitKind::Limit) => Op::Peek(cost),
            (_, LimitKind::Limit) if counts_holders(limit) => {
                Op::Acquire { holder: Holder(names.draw()), lease: limit.quota().period() }
            }
            (_, LimitKind::Limit) => Op::Take(cost),
            (_, LimitKind::Ban | LimitKind::Refusals) => Op::Peek(cost),
        };
        let policy = ChargePolicy {
            origin: Origin::rule(set, charge.rule.index(), charge.limit.index()),
            on_outage: match (charge.rule.on_outage(), kind) {
                // A client that the store last called banned stays banned; all others pass.
                (OnOutage::Admit, LimitKind::Ban) => OnOutage::Local,
                (on_outage, _) => on_outage,
            },
            guard: charge.limit.guard(),
            bans: charge.rule.ban().is_some() && kind == LimitKind::Limit,
            measured: charge.rule.declaration().cost.attribute.is_some(),
            refusals: charges.refusals_key(charge),
        };
        self.push(charges.key(charge), limit, op, Need::Must, policy);
    }

    /// Plans shadow rules, unless the request only asks.
    pub(crate) fn push_shadow<'s: 'p>(
        &mut self,
        charges: &'p Charges<'s>,
        set: Set,
        names: &IdGenerator,
    ) {
        if self.intent == Intent::Peek {
            return;
        }
        if let Some(by) = charges.shadow_block() {
            let mut block = Self::empty(self.rules, Intent::Shadow, Reason::Blocked);
            block.blocked_by = Some(Blocked::new(&by));
            self.shadow.push(block);
        }
        if !charges.shadow().is_empty() {
            let mut shadow = Self::empty(self.rules, Intent::Shadow, Reason::NoRule);
            shadow.partition = charges.partition();
            for charge in charges.shadow() {
                shadow.push_charge(charges, charge, charge.cost, set, names);
            }
            self.shadow.push(shadow);
        }
    }
}

/// The reason of the verdict where the rules charge nothing.
pub(crate) fn uncharged(judgement: &Judgement<'_>) -> (Reason, Option<Box<Blocked>>) {
    match judgement {
        Judgement::UnknownDomain => (Reason::UnknownDomain, None),
        Judgement::Blocked(by) => (Reason::Blocked, Some(Blocked::new(by))),
        Judgement::Exempt(_) => (Reason::Exempt, None),
        Judgement::TooMany { .. } => (Reason::TooManyLimits, None),
        Judgement::Charges(_) => (Reason::NoRule, None),
    }
}
