//! `Charge::All`: every descriptor by itself, as the reference charges.
//!
//! Each descriptor is a request of its own, all at once. What is refused is then charged all the
//! same, by a debit: counts rise above their limits, a refused cost of N burns N, and a question of
//! cost 0 finds a limit over that was used up by more than it held. Who passed was decided before,
//! so the debit admits nobody.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::{Decision, Op, Quota, Retry, Store, Timestamp, Verdict};

use super::EnvoyRules;
use super::answer::{Code, overall};
use super::call::Conduct;
use super::decide::{Judged, found, tell};
use super::plan::Plan;
use super::rule::Mode;
use crate::admission::Reason;
use crate::engine::{Outcome, Source, Toll};
use crate::limiter::{Limiter, outage};

impl<S: Store + 'static> Limiter<S> {
    pub(super) async fn judge_apart(
        &self,
        plan: &Plan<'_>,
        conduct: Conduct,
        rules: &Arc<EnvoyRules>,
    ) -> Judged {
        let mut judged = self.uncounted(plan, rules);
        for (_, due) in plan.dues().filter(|(_, due)| due.mode == Mode::Shadow && due.blocks()) {
            self.tell_shadow_block(plan, due, rules);
        }
        let mut places: SmallVec<[usize; 4]> = SmallVec::new();
        let mut tolls: SmallVec<[Toll<'_>; 4]> = SmallVec::new();
        for (i, due) in plan.dues() {
            let shadow = due.mode == Mode::Shadow;
            let on_outage = if shadow { OnOutage::Local } else { conduct.on_outage };
            if let Some(toll) = plan.toll(due, on_outage) {
                places.push(i);
                tolls.push(toll);
            }
        }
        let outcomes = self.charge_each(&tolls).await;
        for ((place, toll), outcome) in places.iter().zip(&tolls).zip(&outcomes) {
            self.hear_one(&mut judged, *place, toll, outcome, rules, plan);
        }
        self.burn(&tolls, &outcomes).await;
        self.forget_credited(&tolls);
        if overall(&judged.statuses) == Code::OverLimit {
            let refusals = judged.ruling.findings.iter().enumerate();
            let refusals = refusals.filter(|(_, found)| !found.decision.passes());
            let worst = refusals.max_by_key(|(_, found)| found.decision.verdict);
            let verdict = worst.map(|(_, found)| found.decision.verdict);
            judged.ruling.refused_by = worst.map(|(i, _)| i);
            judged.ruling.verdict = verdict.unwrap_or(Verdict::Deny(Retry::Never));
        }
        judged
    }

    /// Takes over what one descriptor was answered.
    fn hear_one(
        &self,
        judged: &mut Judged,
        place: usize,
        toll: &Toll<'_>,
        outcome: &Outcome,
        rules: &Arc<EnvoyRules>,
        plan: &Plan<'_>,
    ) {
        let Some(status) = judged.statuses.get_mut(place) else { return };
        let Some(decision) = outcome.answer.decisions.first() else { return };
        // A question of cost 0 is over when nothing is left: counts may be above their limits here,
        // and a decision does not tell by how much.
        let nothing_left = matches!(toll.op, Op::Peek(0)) && decision.remaining == 0;
        let decision = match decision.verdict {
            Verdict::Allow if nothing_left => {
                let verdict = Verdict::Deny(Retry::After(decision.reset_after));
                Decision { verdict, ..*decision }
            }
            _ => *decision,
        };
        tell(status, &decision, outcome.answer.at);
        let found = found(status, &decision);
        if status.mode == Mode::Shadow {
            let mut ruling = self.uncounted(plan, rules).ruling;
            ruling.verdict = decision.verdict;
            ruling.reason = Reason::Limits;
            ruling.findings.push(found);
            ruling.refused_by = (!decision.passes()).then_some(0);
            self.shared.tell_shadow(&ruling);
            return;
        }
        let ruling = &mut judged.ruling;
        ruling.reason = Reason::Limits;
        ruling.at = outcome.answer.at;
        ruling.findings.push(found);
        if let Some(outage) = outage(outcome, std::slice::from_ref(toll)) {
            ruling.source = outcome.source;
            let unavailable = outage.unavailable || judged.outage.is_some_and(|it| it.unavailable);
            judged.outage = Some(crate::Outage { unavailable, ..outage });
        } else if judged.outage.is_none() {
            ruling.source = outcome.source;
        }
    }

    /// Charges what the store refused. What is known to be refused has been charged before.
    async fn burn(&self, tolls: &[Toll<'_>], outcomes: &[Outcome]) {
        let mut refused: SmallVec<[Toll<'_>; 4]> = SmallVec::new();
        for (toll, outcome) in tolls.iter().zip(outcomes) {
            if let (Op::Take(cost), Source::Store) = (toll.op, outcome.source)
                && !outcome.answer.passes()
            {
                let cost = cost.min(Quota::MAX_COUNT);
                refused.push(Toll { op: Op::Debit { cost, at: Timestamp::MAX }, ..*toll });
            }
        }
        self.charge_each(&refused).await;
    }

    /// Each toll as a request of its own, all at once: a remote store takes them in one trip.
    async fn charge_each(&self, tolls: &[Toll<'_>]) -> SmallVec<[Outcome; 4]> {
        let engine = &self.shared.engine;
        let alone = |toll| engine.decide(std::slice::from_ref(toll), None);
        all(tolls.iter().map(alone)).await
    }
}

/// The outputs of all futures, in their order.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> SmallVec<[F::Output; 4]> {
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
