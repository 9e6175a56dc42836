//! The plan of a request: its planned charges, each with a failure policy and an origin.
//!
//! A planner knows its own language (rules, Envoy's descriptors, the attributes of a function, one
//! key) and returns a [`Plan`]. It never talks to a store. `run.rs` executes plans and knows no
//! planner. `plan_rules.rs` is the planner of rules; Envoy's is in `envoy/plan.rs`, the one of
//! `#[limit]` in `function/plan.rs`.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::rule::{ActiveRule, RuleSet};
use tollgate_core::{Algorithm, Charge, Cost, Key, Limit, Need, Op, Request};

use super::ruling::{Blocked, Reason};
use crate::envoy::EnvoyRules;

/// The charges of a request, all or none, and what else has to be known to decide it.
#[derive(Debug)]
pub(crate) struct Plan<'p> {
    pub(crate) intent: Intent,
    /// The rules that the origins refer to.
    pub(crate) rules: &'p DecidingRules,
    pub(crate) charges: SmallVec<[Charge<'p>; 4]>,
    /// One for each charge.
    pub(crate) policies: SmallVec<[ChargePolicy<'p>; 4]>,
    /// True if a charge acquires a permit.
    pub(crate) acquires: bool,
    /// True if a limit has a local guard.
    pub(crate) has_guards: bool,
    pub(crate) partition: Option<&'p [u8]>,
    /// The reason of the verdict where nothing is charged.
    pub(crate) uncharged: Reason,
    pub(crate) blocked_by: Option<Box<Blocked>>,
    /// Charged if the request passes. Their answers reach observers only.
    pub(crate) shadow: Vec<Self>,
}

/// The purpose of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Charge now, or grant a place in the future within this patience.
    Charge { patience: Duration },
    /// Answer without charging, counting, or telling observers.
    Peek,
    /// Charge shadow rules.
    Shadow,
}

impl Intent {
    /// Charge now or not at all.
    pub(crate) const CHARGE: Self = Self::Charge { patience: Duration::ZERO };
}

/// The failure policy and the origin of a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargePolicy<'p> {
    pub(crate) origin: Origin,
    pub(crate) on_outage: OnOutage,
    /// A local limiter in front of the store, at a multiple of the limit.
    pub(crate) guard: Option<&'p Limit>,
    /// True if refusals of this charge count towards a ban.
    pub(crate) bans: bool,
    /// True if an attribute of the request measured the cost.
    pub(crate) measured: bool,
    /// For the charge of a ban: the counter of refusals that leads to the ban.
    pub(crate) refusals: Option<Key<'p>>,
}

impl ChargePolicy<'_> {
    /// The policy of a charge without a rule: in an outage this process's share answers.
    pub(crate) const fn new(origin: Origin) -> Self {
        Self {
            origin,
            on_outage: OnOutage::Local,
            guard: None,
            bans: false,
            measured: false,
            refusals: None,
        }
    }
}

/// The limit that a charge comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A limit of a rule, by its indices. A ban has the index behind the rule's limits.
    Rule { set: Set, rule: u32, limit: u32 },
    /// A rule of Envoy's, by its index; `None` for a limit that came with the call.
    Envoy(Option<u32>),
    /// A key that the caller chose.
    Key,
}

impl Origin {
    pub(crate) fn rule(set: Set, rule: usize, limit: u32) -> Self {
        Self::Rule { set, rule: u32::try_from(rule).unwrap_or(u32::MAX), limit }
    }

    pub(crate) fn envoy(rule: Option<usize>) -> Self {
        Self::Envoy(rule.and_then(|rule| u32::try_from(rule).ok()))
    }

    /// True if both are limits or the ban of one rule.
    pub(crate) fn same_rule(self, other: Self) -> bool {
        match (self, other) {
            (Self::Rule { set: a, rule: x, .. }, Self::Rule { set: b, rule: y, .. }) => {
                a == b && x == y
            }
            _ => false,
        }
    }
}

/// The rule set that an origin refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// The limiter's.
    Limiter,
    /// The limits that stand at a function.
    #[cfg_attr(not(feature = "macros"), expect(dead_code, reason = "only functions have some"))]
    Function,
}

/// The rules behind a ruling: those of the version that decided.
#[derive(Clone, Debug)]
pub(crate) enum DecidingRules {
    /// None: the plan charges keys that the caller chose.
    None,
    /// The limiter's rules.
    Rules(Arc<RuleSet>),
    /// The limiter's rules and those of a function.
    #[cfg_attr(not(feature = "macros"), expect(dead_code, reason = "only functions have some"))]
    WithFunction(Arc<RuleSet>, Arc<RuleSet>),
    /// Envoy's rules.
    Envoy(Arc<EnvoyRules>),
}

impl DecidingRules {
    pub(crate) fn version(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Rules(rules) | Self::WithFunction(rules, _) => rules.version(),
            Self::Envoy(rules) => rules.version(),
        }
    }

    /// The limiter's rules, unless Envoy's decided.
    #[cfg(any(feature = "tower", feature = "macros"))]
    pub(crate) const fn rules(&self) -> Option<&Arc<RuleSet>> {
        match self {
            Self::Rules(rules) | Self::WithFunction(rules, _) => Some(rules),
            Self::None | Self::Envoy(_) => None,
        }
    }

    /// The rule of an origin.
    pub(crate) fn rule(&self, origin: Origin) -> Option<&ActiveRule> {
        let Origin::Rule { set, rule, .. } = origin else { return None };
        let rules = match (set, self) {
            (Set::Limiter, Self::Rules(rules) | Self::WithFunction(rules, _))
            | (Set::Function, Self::WithFunction(_, rules)) => Some(rules),
            _ => None,
        };
        rules?.rule(usize::try_from(rule).ok()?)
    }
}

impl<'p> Plan<'p> {
    /// A plan that charges nothing, for this reason.
    #[inline(always)]
    pub(crate) fn empty(rules: &'p DecidingRules, intent: Intent, uncharged: Reason) -> Self {
        Self {
            intent,
            rules,
            charges: SmallVec::new(),
            policies: SmallVec::new(),
            acquires: false,
            has_guards: false,
            partition: None,
            uncharged,
            blocked_by: None,
            shadow: Vec::new(),
        }
    }

    /// Adds a charge. An operation that does not fit its limit, which no planner builds, makes the
    /// plan one that [cannot be requested](Plan::request), so that nothing is charged in part.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        key: Key<'p>,
        limit: &'p Limit,
        op: Op,
        need: Need,
        policy: ChargePolicy<'p>,
    ) {
        if let Ok(charge) = Charge::new(key, limit, op) {
            self.charges.push(if need == Need::AnyOf { charge.any_of() } else { charge });
        }
        self.acquires |= matches!(op, Op::Acquire { .. });
        self.has_guards |= policy.guard.is_some();
        self.policies.push(policy);
    }

    /// The request to a store; `None` if a charge could not be built.
    #[inline]
    pub(crate) fn request(&self) -> Option<Request<'_>> {
        let whole = self.charges.len() == self.policies.len();
        let request = Request::new(&self.charges).ok().filter(|_| whole)?;
        Some(self.partition.map_or(request, |partition| request.within(partition)))
    }

    /// The charges with their policies.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Charge<'p>, &ChargePolicy<'p>)> {
        self.charges.iter().zip(&self.policies)
    }

    /// True if every charge only asks.
    pub(crate) fn only_peeks(&self) -> bool {
        self.charges.iter().all(|charge| matches!(charge.op(), Op::Peek(_)))
    }

    /// Lets one charge wait for a place in the future. Only one can: two places cannot be promised
    /// for one moment. A queue goes first, as nobody overtakes there; then the other limits that keep
    /// a time line.
    pub(crate) fn be_patient(&mut self, patience: Duration) {
        let rank = |charge: &&mut Charge<'_>| match charge.limit().algorithm() {
            Algorithm::LeakyQueue(_) => Some(3),
            Algorithm::LeakyMeter(_) => Some(2),
            Algorithm::Smooth(_) | Algorithm::TokenBucket(_) => Some(1),
            _ => None,
        };
        let can_wait = |charge: &&mut Charge<'_>| spent(charge) > 0 && rank(charge).is_some();
        if let Some(charge) = self.charges.iter_mut().filter(can_wait).max_by_key(rank) {
            *charge = charge.with_patience(patience);
        }
    }
}

/// The cost that is spent if the charge passes.
pub(crate) const fn spent(charge: &Charge<'_>) -> Cost {
    match charge.op() {
        Op::Take(cost) => cost,
        _ => 0,
    }
}

pub(crate) const fn counts_holders(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::Concurrency(_))
}

/// The same charge under another limit of its algorithm.
pub(crate) fn under<'a>(charge: &Charge<'a>, limit: &'a Limit) -> Option<Charge<'a>> {
    let other = Charge::new(charge.key(), limit, charge.op()).ok()?;
    let other = if charge.need() == Need::AnyOf { other.any_of() } else { other };
    Some(other.with_patience(charge.patience()))
}

/// A counter that outlives the request: its key, limit and partition.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCounter {
    pub(crate) key: Box<[u8]>,
    pub(crate) limit: Limit,
    pub(crate) partition: Option<Box<[u8]>>,
}

impl OwnedCounter {
    pub(crate) fn new(key: Key<'_>, limit: &Limit, partition: Option<&[u8]>) -> Self {
        Self { key: key.as_bytes().into(), limit: *limit, partition: partition.map(Into::into) }
    }

    pub(crate) fn of(charge: &Charge<'_>, partition: Option<&[u8]>) -> Self {
        Self::new(charge.key(), charge.limit(), partition)
    }

    /// The key, which was one when this was made.
    pub(crate) fn key(&self) -> Option<Key<'_>> {
        Key::new(&self.key).ok()
    }

    /// This operation on the counter; `None` if it does not fit the limit.
    pub(crate) fn charge(&self, op: Op) -> Option<Charge<'_>> {
        Charge::new(self.key()?, &self.limit, op).ok()
    }
}
