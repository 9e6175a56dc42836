//! Runs the charges of one call as requests of their own, and concludes the call once.
//!
//! All are sent at once. Those that the store refused are then charged by debits. So counts rise
//! above their limits, a refused cost of N uses up N, and a cost of 0 is refused once nothing is
//! left. The decision comes before the debit, so the debit admits no request.

use std::future::poll_fn;
use std::task::Poll;

use smallvec::SmallVec;
use tollgate_core::{Charge, Op, Quota, Retry, Store, Timestamp, Verdict};

use super::plan::{Intent, Plan};
use super::ruling::{Reason, Ruling, Source};
use crate::limiter::Limiter;

impl<S: Store + 'static> Limiter<S> {
    /// Runs plans of one charge each. `ruling` is the one on the call before anything is charged;
    /// `refuses` says whether the rulings on the plans refuse the call.
    pub(crate) async fn run_each(
        &self,
        plans: &[Plan<'_>],
        ruling: &mut Ruling,
        refuses: impl FnOnce(&[Ruling]) -> bool,
    ) {
        let mut decided = self.charge_each(plans).await;
        self.charge_refused(plans, &decided).await;
        for (plan, one) in plans.iter().zip(&mut decided) {
            refuse_spent(plan, one);
            if plan.intent == Intent::Shadow {
                self.shared.tell_shadow(one);
            } else {
                ruling.join(one);
            }
        }
        if refuses(&decided) {
            let all = ruling.answer.decisions.iter().enumerate();
            let worst = all.filter(|(_, it)| !it.passes()).max_by_key(|(_, it)| it.verdict);
            ruling.answer.refused_by = worst.map(|(i, _)| i);
            ruling.answer.verdict = worst.map_or(Verdict::Deny(Retry::Never), |(_, it)| it.verdict);
        }
        self.shared.tell_request(None, ruling);
    }

    /// Charges the plans that the store refused. Those that the deny cache refused were charged
    /// before.
    async fn charge_refused(&self, plans: &[Plan<'_>], decided: &[Ruling]) {
        let mut debits: SmallVec<[Plan<'_>; 2]> = SmallVec::new();
        for (plan, ruling) in plans.iter().zip(decided) {
            if let ([charge], [policy]) = (plan.charges.as_slice(), plan.policies.as_slice())
                && let (Op::Take(cost), Source::Store) = (charge.op(), ruling.source)
                && !ruling.passes()
            {
                let mut debit = Plan::empty(plan.rules, Intent::CHARGE, Reason::NoRule);
                let op = Op::Debit { cost: cost.min(Quota::MAX_COUNT), at: Timestamp::MAX };
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

impl Ruling {
    /// Adds the ruling on one plan of a call to the ruling on the call.
    fn join(&mut self, one: &Self) {
        self.reason = Reason::Limits;
        self.answer.at = one.answer.at;
        self.origins.extend_from_slice(&one.origins);
        self.answer.decisions.extend_from_slice(&one.answer.decisions);
        self.unavailable |= one.unavailable;
        if one.outage().is_some() || self.outage().is_none() {
            self.source = one.source;
        }
    }
}

/// Refuses a cost of 0 if nothing is left: counts may be above their limits here, and a decision
/// does not tell by how much.
fn refuse_spent(plan: &Plan<'_>, ruling: &mut Ruling) {
    let asks = plan.charges.first().map(Charge::op) == Some(Op::Peek(0));
    let Some(decision) = ruling.answer.decisions.first_mut() else { return };
    if asks && decision.verdict == Verdict::Allow && decision.remaining == 0 {
        let verdict = Verdict::Deny(Retry::After(decision.reset_after));
        decision.verdict = verdict;
        (ruling.answer.verdict, ruling.answer.refused_by) = (verdict, Some(0));
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
