//! `Charge::All`: charges each descriptor by itself, as the reference service does.
//!
//! Each descriptor is a request of its own; all are sent at once. A refused descriptor is then
//! charged by a debit. So counts rise above their limits, a refused cost of N uses up N, and a cost
//! of 0 is over the limit once the count is above it. The decision comes before the debit, so the
//! debit admits no request.

use std::future::poll_fn;
use std::task::Poll;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::{Charge, Decision, Op, Quota, Retry, Store, Timestamp, Verdict};

use super::answer::{Code, Status, overall};
use super::call::CallPolicy;
use super::decide::{Statuses, tell};
use super::plan::MatchedCall;
use super::rule::Mode;
use crate::decision::{DecidingRules, Intent, Origin, Plan, Reason, Ruling, Source};
use crate::limiter::Limiter;

impl<S: Store + 'static> Limiter<S> {
    pub(super) async fn decide_each(
        &self,
        matched: &MatchedCall<'_>,
        policy: CallPolicy,
        rules: &DecidingRules,
    ) -> (Statuses, Ruling) {
        self.tell_shadow_blocks(matched, rules);
        let mut indices: SmallVec<[usize; 4]> = SmallVec::new();
        let mut plans: SmallVec<[Plan<'_>; 2]> = SmallVec::new();
        for (i, limited) in matched.limited() {
            let shadow = limited.mode == Mode::Shadow;
            let on_outage = if shadow { OnOutage::Local } else { policy.on_outage };
            let (own, plan) = matched.plan(rules, Intent::CHARGE, on_outage, |at, _| at == i);
            if !own.is_empty() {
                indices.push(i);
                plans.push(plan);
            }
        }
        let decided = self.charge_each(&plans).await;
        let none = matched.plan(rules, Intent::CHARGE, OnOutage::Local, |_, _| false).1;
        let (mut statuses, mut all) = (matched.statuses(), Ruling::of(&none));
        for ((i, plan), ruling) in indices.iter().zip(&plans).zip(&decided) {
            if let Some(status) = statuses.get_mut(*i) {
                self.add(status, plan, ruling, &mut all);
            }
        }
        self.charge_refused(&plans, &decided).await;
        if overall(&statuses) == Code::OverLimit {
            let refusals = all.answer.decisions.iter().enumerate();
            let refusals = refusals.filter(|(_, decision)| !decision.passes());
            let worst = refusals.max_by_key(|(_, decision)| decision.verdict);
            let verdict = worst.map(|(_, decision)| decision.verdict);
            all.answer.refused_by = worst.map(|(i, _)| i);
            all.answer.verdict = verdict.unwrap_or(Verdict::Deny(Retry::Never));
        }
        self.shared.tell_request(None, &all);
        (statuses, all)
    }

    /// Adds the ruling on one descriptor to its status, and to the ruling on the call.
    fn add(&self, status: &mut Status, plan: &Plan<'_>, ruling: &Ruling, all: &mut Ruling) {
        let Some(decision) = ruling.answer.decisions.first() else { return };
        let asks = plan.charges.first().map(Charge::op) == Some(Op::Peek(0));
        // A question of cost 0 is over when nothing is left: counts may be above their limits here,
        // and a decision does not tell by how much.
        let decision = match decision.verdict {
            Verdict::Allow if asks && decision.remaining == 0 => {
                let verdict = Verdict::Deny(Retry::After(decision.reset_after));
                Decision { verdict, ..*decision }
            }
            _ => *decision,
        };
        tell(status, &decision, ruling.at());
        if status.mode == Mode::Shadow {
            let mut shadow = ruling.clone();
            shadow.answer.verdict = decision.verdict;
            shadow.answer.refused_by = (!decision.passes()).then_some(0);
            if let Some(own) = shadow.answer.decisions.first_mut() {
                *own = decision;
            }
            self.shared.tell_shadow(&shadow);
            return;
        }
        all.reason = Reason::Limits;
        all.answer.at = ruling.at();
        all.origins.push(ruling.origins.first().copied().unwrap_or(Origin::Envoy(None)));
        all.answer.decisions.push(decision);
        all.unavailable |= ruling.unavailable;
        if ruling.outage().is_some() || all.outage().is_none() {
            all.source = ruling.source;
        }
    }

    /// Charges the descriptors that the store refused. Those that the deny cache refused were
    /// charged before.
    async fn charge_refused(&self, plans: &[Plan<'_>], decided: &[Ruling]) {
        let mut debits: SmallVec<[Plan<'_>; 2]> = SmallVec::new();
        for (plan, ruling) in plans.iter().zip(decided) {
            if let ([charge], [policy]) = (plan.charges.as_slice(), plan.policies.as_slice())
                && let (Op::Take(cost), Source::Store) = (charge.op(), ruling.source)
                && !ruling.passes()
            {
                let cost = cost.min(Quota::MAX_COUNT);
                let mut debit = Plan::empty(plan.rules, Intent::CHARGE, Reason::NoRule);
                let op = Op::Debit { cost, at: Timestamp::MAX };
                debit.push(charge.key(), charge.limit(), op, charge.need(), *policy);
                debits.push(debit);
            }
        }
        self.charge_each(&debits).await;
    }

    /// Decides each plan as a request of its own. A remote store gets all of them in one round
    /// trip.
    async fn charge_each(&self, plans: &[Plan<'_>]) -> SmallVec<[Ruling; 2]> {
        let runner = &self.shared.runner;
        let decide = |plan| async move {
            let mut ruling = Ruling::of(plan);
            runner.decide(plan, &mut ruling).await;
            ruling
        };
        all(plans.iter().map(decide)).await
    }
}

/// Runs all futures at once, and returns their outputs in order.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> SmallVec<[F::Output; 2]> {
    let mut waiting: SmallVec<[_; 4]> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        let mut pending = false;
        for (future, output) in waiting.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(ready) => *output = Some(ready),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    waiting.into_iter().filter_map(|(_, output)| output).collect()
}
