//! Answers a call: one decision over all its descriptors, or one for each.
//!
//! The descriptors that are charged make one all-or-none request. Those in `quota_mode` form a
//! group that passes if any one of them passes. Rules in `shadow_mode` make a second request, after
//! the first has passed; its refusal is reported to observers only. Descriptors that are unlimited,
//! blocked or without a rule never reach the store.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::{Decision, Store, Timestamp};

use super::EnvoyRules;
use super::answer::{Code, EnvoyAnswer, Status, overall};
use super::call::{Call, CallError, CallPolicy, ChargeMode};
use super::plan::{LimitedDescriptor, MatchedCall};
use super::rule::EnvoyMode;
use crate::decision::{DecidingRules, Intent, Plan, Ruling};
use crate::limiter::{Limiter, StaleRules, replace_older};
use crate::observer::Event;

impl<S: Store + 'static> Limiter<S> {
    /// Answers a call of Envoy's by the rules of [`Limiter::set_envoy_rules`], and charges its
    /// cost.
    ///
    /// By default a call is one decision: if one descriptor is over its limit, none is charged.
    /// Each descriptor still gets a status of its own. [`Limiter::stats`] and observers see the
    /// call like any other request; its `Ruling::version` is the version of these rules.
    ///
    /// # Errors
    ///
    /// When the call is malformed, or when the store does not answer and the policy is to refuse
    /// then.
    pub async fn should_rate_limit(
        &self,
        call: &Call<'_>,
        policy: CallPolicy,
    ) -> Result<EnvoyAnswer, CallError> {
        call.check()?;
        let rules = self.envoy_rules();
        let source = DecidingRules::Envoy(Arc::clone(&rules));
        let matched = MatchedCall::new(call, &rules, &self.shared.secret)?;
        let (statuses, ruling) = match policy.charge {
            ChargeMode::AllOrNone => self.decide_together(&matched, policy, &source).await,
            ChargeMode::All => self.decide_each(&matched, policy, &source).await,
        };
        let code = if ruling.passes() { Code::Ok } else { Code::OverLimit };
        let (outage, at, knows_domain) = (ruling.outage(), ruling.at(), matched.knows_domain);
        match outage {
            Some(outage) if outage.unavailable => Err(CallError::Unavailable(outage.cause)),
            _ => Ok(EnvoyAnswer { code, statuses, knows_domain, rules, outage, at }),
        }
    }

    /// Returns the answer that a call would get, and charges nothing. Calls of this function are
    /// not counted and not reported to observers.
    ///
    /// A counter that the call names twice is read twice, each time in its current state.
    ///
    /// # Errors
    ///
    /// As [`Limiter::should_rate_limit`], except that this process's share answers in an outage.
    pub async fn explain_rate_limit(&self, call: &Call<'_>) -> Result<EnvoyAnswer, CallError> {
        call.check()?;
        let rules = self.envoy_rules();
        let source = DecidingRules::Envoy(Arc::clone(&rules));
        let matched = MatchedCall::new(call, &rules, &self.shared.secret)?.peeking();
        let all = |_, _: &LimitedDescriptor| true;
        let (indices, plan) = matched.plan(&source, Intent::Peek, OnOutage::Local, all);
        let mut ruling = Ruling::of(&plan);
        drop(self.run(&plan, None, &mut ruling).await);
        let mut statuses = matched.statuses();
        tell_all(&mut statuses, &indices, &ruling);
        let (code, outage, at) = (overall(&statuses), ruling.outage(), ruling.at());
        Ok(EnvoyAnswer { code, statuses, knows_domain: matched.knows_domain, rules, outage, at })
    }

    /// The current rules for Envoy's calls. Before the first it is an empty set of version 0.
    pub fn envoy_rules(&self) -> Arc<EnvoyRules> {
        self.shared.envoy.load_full()
    }

    /// Replaces the rules for Envoy's calls. A call in progress keeps the rules that it began with,
    /// and no caller waits. Counts stay, under the new limits.
    ///
    /// # Errors
    ///
    /// When the version of the rules is not above the current one.
    pub fn set_envoy_rules(&self, rules: EnvoyRules) -> Result<(), StaleRules> {
        let to = rules.version();
        let rules = Arc::new(rules);
        let next = |_: &Arc<EnvoyRules>| Arc::clone(&rules);
        let from = replace_older(&self.shared.envoy, to, EnvoyRules::version, next)?;
        self.shared.observers.tell(|| Event::EnvoyRulesChanged { from, to });
        Ok(())
    }

    async fn decide_together(
        &self,
        matched: &MatchedCall<'_>,
        policy: CallPolicy,
        rules: &DecidingRules,
    ) -> (Statuses, Ruling) {
        let enforced = |_, limited: &LimitedDescriptor| limited.mode != EnvoyMode::Shadow;
        let (indices, plan) = match matched.block(rules) {
            Some(block) => (SmallVec::new(), block),
            None => matched.plan(rules, Intent::CHARGE, policy.on_outage, enforced),
        };
        let mut ruling = Ruling::of(&plan);
        drop(self.run(&plan, None, &mut ruling).await);
        let mut statuses = matched.statuses();
        tell_all(&mut statuses, &indices, &ruling);
        if ruling.passes() {
            self.charge_shadow(matched, rules, &mut statuses).await;
        }
        (statuses, ruling)
    }

    /// Charges each descriptor by itself, as the reference service does.
    async fn decide_each(
        &self,
        matched: &MatchedCall<'_>,
        policy: CallPolicy,
        rules: &DecidingRules,
    ) -> (Statuses, Ruling) {
        self.tell_shadow_blocks(matched, rules);
        let mut indices: SmallVec<[usize; 4]> = SmallVec::new();
        let mut plans: SmallVec<[Plan<'_>; 2]> = SmallVec::new();
        for (i, limited) in matched.limited() {
            let (intent, on_outage) = match limited.mode {
                EnvoyMode::Shadow => (Intent::Shadow, OnOutage::Local),
                _ => (Intent::CHARGE, policy.on_outage),
            };
            let (own, plan) = matched.plan(rules, intent, on_outage, |at, _| at == i);
            plans.extend((!own.is_empty()).then_some(plan));
            indices.extend(own);
        }
        let uncharged = matched.plan(rules, Intent::CHARGE, OnOutage::Local, |_, _| false).1;
        let (mut statuses, mut ruling) = (matched.statuses(), Ruling::of(&uncharged));
        let over = |decided: &[Ruling]| {
            for (index, one) in indices.iter().zip(decided) {
                tell_all(&mut statuses, &[*index], one);
            }
            overall(&statuses) == Code::OverLimit
        };
        self.run_each(&plans, &mut ruling, over).await;
        (statuses, ruling)
    }

    /// Charges the rules in shadow mode, and writes the results to their statuses.
    async fn charge_shadow(
        &self,
        matched: &MatchedCall<'_>,
        rules: &DecidingRules,
        statuses: &mut Statuses,
    ) {
        self.tell_shadow_blocks(matched, rules);
        let shadow = |_, limited: &LimitedDescriptor| limited.mode == EnvoyMode::Shadow;
        // In an outage a shadow rule refuses no request, so this process's share is good enough.
        let (indices, plan) = matched.plan(rules, Intent::Shadow, OnOutage::Local, shadow);
        if !indices.is_empty() {
            let mut ruling = Ruling::of(&plan);
            drop(self.run(&plan, None, &mut ruling).await);
            tell_all(statuses, &indices, &ruling);
        }
    }

    /// Reports rules in shadow mode that would block to observers.
    fn tell_shadow_blocks(&self, matched: &MatchedCall<'_>, rules: &DecidingRules) {
        for (_, limited) in matched.limited() {
            if limited.mode == EnvoyMode::Shadow && limited.blocks() {
                let plan = limited.blocked(rules, Intent::Shadow);
                drop(self.run_now(&plan, None, &mut Ruling::of(&plan)));
            }
        }
    }
}

/// The statuses of a call, in the order of its descriptors.
type Statuses = SmallVec<[Status; 4]>;

/// Writes the decisions of a ruling to the statuses of these descriptors.
fn tell_all(statuses: &mut Statuses, indices: &[usize], ruling: &Ruling) {
    for (index, decision) in indices.iter().zip(&ruling.answer.decisions) {
        if let Some(status) = statuses.get_mut(*index) {
            tell(status, decision, ruling.at());
        }
    }
}

/// Writes a decision to a status.
fn tell(status: &mut Status, decision: &Decision, at: Timestamp) {
    let passes = decision.passes();
    status.code =
        if passes || status.mode == EnvoyMode::Shadow { Code::Ok } else { Code::OverLimit };
    let remaining = if passes { decision.remaining } else { 0 };
    status.remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
    status.reset_after = status.limit.and_then(|rate| reset(rate.unit().period(), decision, at));
}

/// The time until the window ends; `None` if neither the decision nor the clock gives it.
fn reset(period: Duration, decision: &Decision, at: Timestamp) -> Option<Duration> {
    let whole = |left: Duration| {
        Duration::from_secs(left.as_secs().saturating_add(u64::from(left.subsec_nanos() > 0)))
    };
    if !decision.reset_after.is_zero() {
        return Some(whole(decision.reset_after));
    }
    // Nothing is counted yet, so only the clock knows; without the store there is none.
    let into = u128::from(at.as_micros()).checked_rem(period.as_micros())?;
    let into = Duration::from_micros(u64::try_from(into).ok()?);
    (at != Timestamp::EPOCH).then(|| whole(period.saturating_sub(into)))
}
