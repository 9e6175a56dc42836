//! Answering a call: one decision over all its descriptors.
//!
//! Descriptors that are charged make one request, all or none; those of `quota_mode` are a group of
//! which any one suffices. Rules in `shadow_mode` are a second request, made if the first passed,
//! whose refusal is told to observers alone. What is unlimited, blocked or without a rule never
//! reaches the store.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::{Decision, Op, Retry, Store, Timestamp, Verdict};

use super::answer::{Answer, Code, Status, overall};
use super::call::{Call, CallError, Charge, Conduct};
use super::plan::{Due, Plan};
use super::rule::Mode;
use super::{EnvoyRules, Rule};
use crate::admission::{Admission, Blocked, Found, Of, Outage, Reason, Ruling};
use crate::engine::{Outcome, Source, Toll};
use crate::limiter::{Limiter, Manner, StaleRules, outage};
use crate::observer::Event;
use crate::permits::Permits;

impl<S: Store + 'static> Limiter<S> {
    /// Answers a call of Envoy's by the rules of [`Limiter::set_envoy_rules`], and charges what it
    /// costs.
    ///
    /// By default a call is one decision: if one descriptor is over its limit, none is charged. Each
    /// still has a status of its own. Counted in [`Limiter::stats`] and told to observers as other
    /// requests are; `Ruling::version` is then that of these rules.
    ///
    /// # Errors
    ///
    /// When the call says nothing that can be answered; and when the store does not answer and the
    /// conduct is to refuse then.
    pub async fn should_rate_limit(
        &self,
        call: &Call<'_>,
        conduct: Conduct,
    ) -> Result<Answer, CallError> {
        call.check()?;
        let rules = self.envoy_rules();
        let plan = Plan::new(call, &rules, &self.shared.secret)?;
        let judged = match conduct.charge {
            Charge::AllOrNone => self.judge_together(&plan, conduct, &rules).await,
            Charge::All => self.judge_apart(&plan, conduct, &rules).await,
        };
        let Judged { statuses, ruling, outage } = judged;
        let code = if ruling.verdict.passes() { Code::Ok } else { Code::OverLimit };
        let at = ruling.at;
        drop(self.conclude::<Admission>(ruling, Permits::none(), outage, Manner::CHARGE));
        match outage {
            Some(outage) if outage.unavailable => Err(CallError::Unavailable(outage.cause)),
            _ => Ok(Answer { code, statuses, knows_domain: plan.knows_domain, rules, outage, at }),
        }
    }

    /// What a call would be answered: nothing is charged, nor counted, nor told to observers.
    ///
    /// A counter that the call names twice is looked at twice, each time as it is now.
    ///
    /// # Errors
    ///
    /// As [`Limiter::should_rate_limit`], but that in an outage this process's share answers.
    pub async fn explain_rate_limit(&self, call: &Call<'_>) -> Result<Answer, CallError> {
        call.check()?;
        let rules = self.envoy_rules();
        let plan = Plan::new(call, &rules, &self.shared.secret)?.peeking();
        let mut judged = self.uncounted(&plan, &rules);
        let (places, tolls) = gather(&plan, |_| true, OnOutage::Local);
        if !tolls.is_empty() {
            let outcome = self.shared.engine.decide(&tolls, None).await;
            judged.outage = outage(&outcome, &tolls);
            judged.hear(&places, &outcome);
        }
        let Judged { statuses, ruling, outage } = judged;
        let (code, at) = (overall(&statuses), ruling.at);
        Ok(Answer { code, statuses, knows_domain: plan.knows_domain, rules, outage, at })
    }

    /// Envoy's rules that apply now: none, of version 0, before the first.
    pub fn envoy_rules(&self) -> Arc<EnvoyRules> {
        self.shared.envoy.load_full()
    }

    /// Applies other rules to Envoy's calls from now on. Whoever is being answered keeps those it
    /// began with, and nobody waits. What was counted stays counted, under the new limits.
    ///
    /// # Errors
    ///
    /// When their version is not above the present one.
    pub fn set_envoy_rules(&self, rules: EnvoyRules) -> Result<(), StaleRules> {
        let to = rules.version();
        let rules = Arc::new(rules);
        let mut stale = None;
        let before = self.shared.envoy.rcu(|present| {
            stale = (present.version() >= to).then(|| present.version());
            Arc::clone(if stale.is_some() { present } else { &rules })
        });
        if let Some(present) = stale {
            return Err(StaleRules { present, offered: to });
        }
        let from = before.version();
        self.shared.observers.tell(|| Event::EnvoyRulesChanged { from, to });
        Ok(())
    }

    async fn judge_together(
        &self,
        plan: &Plan<'_>,
        conduct: Conduct,
        rules: &Arc<EnvoyRules>,
    ) -> Judged {
        let mut judged = self.uncounted(plan, rules);
        if let Some(by) = plan.blocked_by() {
            let rule = by.rule.and_then(|rule| rules.rules().get(rule)).map_or("", Rule::path);
            judged.ruling.verdict = Verdict::Deny(Retry::Never);
            judged.ruling.reason = Reason::Blocked;
            judged.ruling.blocked_by = Some(Box::new(Blocked::Rule { rule: rule.to_owned() }));
            return judged;
        }
        let enforced = |due: &Due| due.mode != Mode::Shadow;
        let (places, tolls) = gather(plan, enforced, conduct.on_outage);
        if !tolls.is_empty() {
            let outcome = self.shared.engine.decide(&tolls, None).await;
            judged.outage = outage(&outcome, &tolls);
            judged.hear(&places, &outcome);
            if outcome.answer.passes() {
                self.forget_credited(&tolls);
            }
        }
        if judged.ruling.verdict.passes() {
            self.judge_shadow(plan, rules, &mut judged.statuses).await;
        }
        judged
    }

    /// Charges rules in shadow mode, and says how they stand.
    async fn judge_shadow(
        &self,
        plan: &Plan<'_>,
        rules: &Arc<EnvoyRules>,
        statuses: &mut SmallVec<[Status; 4]>,
    ) {
        let shadow = |due: &Due| due.mode == Mode::Shadow;
        for (_, due) in plan.dues().filter(|(_, due)| shadow(due) && due.blocks()) {
            self.tell_shadow_block(plan, due, rules);
        }
        // In an outage nobody asks what a shadow rule would do; its share is as good as any.
        let (places, tolls) = gather(plan, shadow, OnOutage::Local);
        if tolls.is_empty() {
            return;
        }
        let outcome = self.shared.engine.decide(&tolls, None).await;
        if outcome.answer.passes() {
            self.forget_credited(&tolls);
        }
        let mut judged = self.uncounted(plan, rules);
        judged.hear(&places, &outcome);
        for place in &places {
            if let (Some(known), Some(new)) =
                (statuses.get_mut(*place), judged.statuses.get(*place))
            {
                *known = *new;
            }
        }
        self.shared.tell_shadow(&judged.ruling);
    }

    pub(super) fn tell_shadow_block(&self, plan: &Plan<'_>, due: &Due, rules: &Arc<EnvoyRules>) {
        let mut ruling = self.uncounted(plan, rules).ruling;
        let rule = due.rule.and_then(|rule| rules.rules().get(rule)).map_or("", Rule::path);
        ruling.verdict = Verdict::Deny(Retry::Never);
        ruling.reason = Reason::Blocked;
        ruling.blocked_by = Some(Box::new(Blocked::Rule { rule: rule.to_owned() }));
        self.shared.tell_shadow(&ruling);
    }

    /// A refusal that was known may not hold once something was given back.
    pub(super) fn forget_credited(&self, tolls: &[Toll<'_>]) {
        for toll in tolls.iter().filter(|toll| matches!(toll.op, Op::Credit { .. })) {
            self.shared.engine.forget_denials(std::slice::from_ref(toll));
        }
    }

    /// What is said where nothing is counted.
    pub(super) fn uncounted(&self, plan: &Plan<'_>, rules: &Arc<EnvoyRules>) -> Judged {
        let reason = if plan.knows_domain { Reason::NoRule } else { Reason::UnknownDomain };
        let ruling = Ruling {
            verdict: Verdict::Allow,
            reason,
            at: Timestamp::EPOCH,
            source: Source::Store,
            rules: self.rules(),
            beside: None,
            envoy: Some(Arc::clone(rules)),
            refused_by: None,
            findings: SmallVec::new(),
            blocked_by: None,
        };
        Judged { statuses: plan.statuses(), ruling, outage: None }
    }
}

/// What was decided about a call.
pub(super) struct Judged {
    pub(super) statuses: SmallVec<[Status; 4]>,
    pub(super) ruling: Ruling,
    pub(super) outage: Option<Outage>,
}

impl Judged {
    /// Takes over what a request on these places was answered.
    fn hear(&mut self, places: &[usize], outcome: &Outcome) {
        let answer = &outcome.answer;
        self.ruling.verdict = answer.verdict;
        self.ruling.reason = Reason::Limits;
        self.ruling.at = answer.at;
        self.ruling.source = outcome.source;
        self.ruling.refused_by = answer.refused_by;
        for (place, decision) in places.iter().zip(&answer.decisions) {
            let Some(status) = self.statuses.get_mut(*place) else { continue };
            tell(status, decision, answer.at);
            self.ruling.findings.push(found(status, decision));
        }
    }
}

/// Where a decision belongs.
pub(super) fn found(status: &Status, decision: &Decision) -> Found {
    let limit = status.rule.unwrap_or(usize::MAX);
    Found { of: Of::Rules, rule: usize::MAX, limit, decision: *decision }
}

/// The tolls of some dues, and their places in the call.
fn gather<'p>(
    plan: &'p Plan<'_>,
    of: impl Fn(&Due) -> bool,
    on_outage: OnOutage,
) -> (SmallVec<[usize; 4]>, SmallVec<[Toll<'p>; 4]>) {
    let dues = plan.dues().filter(|(_, due)| of(due));
    dues.filter_map(|(i, due)| Some((i, plan.toll(due, on_outage)?))).unzip()
}

/// Says in a status what a decision says.
pub(super) fn tell(status: &mut Status, decision: &Decision, at: Timestamp) {
    let passes = decision.passes();
    status.code = if passes || status.mode == Mode::Shadow { Code::Ok } else { Code::OverLimit };
    let remaining = if passes { decision.remaining } else { 0 };
    status.remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
    status.reset_after = status.limit.and_then(|rate| reset(rate.unit().period(), decision, at));
}

/// How long until the window ends; `None` if neither the decision nor the moment says.
fn reset(period: Duration, decision: &Decision, at: Timestamp) -> Option<Duration> {
    let whole = |left: Duration| {
        Duration::from_secs(left.as_secs().saturating_add(u64::from(left.subsec_nanos() > 0)))
    };
    if !decision.reset_after.is_zero() {
        return Some(whole(decision.reset_after));
    }
    // Nothing is counted yet, so only the clock knows; and whoever did not ask the store has none.
    let into = u128::from(at.as_micros()).checked_rem(period.as_micros())?;
    let into = Duration::from_micros(u64::try_from(into).ok()?);
    (at != Timestamp::EPOCH).then(|| whole(period.saturating_sub(into)))
}
