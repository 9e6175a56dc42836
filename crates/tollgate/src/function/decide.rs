//! From a call to permits or a refusal: one request, all or none.

use std::pin::Pin;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::rule::{Charges, RuleSet};
use tollgate_core::{Answer, Clock, Request, Store};
use tollgate_embedded::EmbeddedStore;

use super::call::Call;
use super::site::Inline;
use super::weigh::{Part, Scale};
use crate::admission::{Admission, Found, Of, Reason, Ruling};
use crate::engine::{Outcome, Toll, at_once};
use crate::limiter::{Manner, found, outage, reason, ruling, toll, uncounted};
use crate::{Limiter, Permits, Refused};

/// A store that answers within a call, which is what a function that is not `async` needs.
#[diagnostic::on_unimplemented(
    message = "a function under `#[limit]` that is not `async` cannot wait for `{Self}`",
    label = "takes a trip",
    note = "make the function `async`, or use a limiter on an `EmbeddedStore`"
)]
pub trait AnswersAtOnce: Store {}

impl<C: Clock> AnswersAtOnce for EmbeddedStore<C> {}
impl<S: AnswersAtOnce> AnswersAtOnce for Arc<S> {}

/// A decision that is under way.
type Deciding<'a> = Pin<Box<dyn Future<Output = Result<Permits, Refused>> + Send + 'a>>;

/// A limiter on whatever store.
pub(crate) trait AnyLimiter: Send + Sync {
    /// Decides a call within the call; `None` if the store takes a trip.
    fn decide_now(&self, call: &Call) -> Option<Result<Permits, Refused>>;

    /// Decides a call.
    fn decide<'a>(&'a self, call: &'a Call) -> Deciding<'a>;
}

impl<S: Store + 'static> AnyLimiter for Limiter<S> {
    fn decide_now(&self, call: &Call) -> Option<Result<Permits, Refused>> {
        if self.store().is_remote() { None } else { at_once(self.decide_call(call)) }
    }

    fn decide<'a>(&'a self, call: &'a Call) -> Deciding<'a> {
        Box::pin(self.decide_call(call))
    }
}

impl<S: Store + 'static> Limiter<S> {
    async fn decide_call(&self, call: &Call) -> Result<Permits, Refused> {
        let inline = call.site.inline()?;
        let rules = self.rules();
        let parts = {
            let secret = &self.shared.secret;
            let limiter = self.identity();
            Scale { rules: &rules, inline, secret, limiter }.weigh(call)?
        };
        let sets = Sets::new(&rules, inline, &parts);
        for part in &parts {
            let (reason, blocked_by) = reason(&part.judgement);
            if let Reason::Blocked | Reason::TooManyLimits = reason {
                let ruling = Ruling { blocked_by, ..uncounted(reason, Arc::clone(&rules)) };
                let admission: Admission =
                    self.conclude(ruling, Permits::none(), None, Manner::CHARGE);
                let message = part.gate(0, inline).and_then(|gate| call.message(gate));
                return Err(call.refused(message, admission.ruling().clone(), None));
            }
        }
        self.charge(call, inline, &sets, &parts).await
    }

    /// Charges what the parts say, all or none.
    async fn charge(
        &self,
        call: &Call,
        inline: Option<&Inline>,
        sets: &Sets,
        parts: &[Part<'_>],
    ) -> Result<Permits, Refused> {
        let names = &self.shared.engine.names;
        let mut tolls: SmallVec<[Toll<'_>; 4]> = SmallVec::new();
        let mut gates: SmallVec<[Option<usize>; 4]> = SmallVec::new();
        for (part, charges) in charged(parts) {
            for due in charges.enforced() {
                let gate = part.gate(due.rule.index(), inline);
                // A rule knows what the call costs already; a limit at the function does not.
                let cost = match (part.of, gate) {
                    (Of::Beside, Some(gate)) => call.cost_at(gate),
                    _ => due.cost,
                };
                let mut due = *due;
                due.cost = cost;
                tolls.push(toll(charges, &due, Manner::CHARGE, || names.draw()));
                gates.push(gate);
            }
        }
        let partition = call.partition(parts)?;
        let mut permits = Permits::none();
        if tolls.is_empty() {
            for (_, charges) in charged(parts) {
                permits.join(self.shadow(charges, &sets.rules).await);
            }
            // Nothing is counted where a layer has counted.
            let Some(part) = parts.first() else { return Ok(permits) };
            let ruling = uncounted(reason(&part.judgement).0, Arc::clone(&sets.rules));
            let admission: Admission = self.conclude(ruling, permits, None, Manner::CHARGE);
            return Ok(admission.into_permits());
        }
        if tolls.len() > Request::MAX_CHARGES {
            let ruling = uncounted(Reason::TooManyLimits, Arc::clone(&sets.rules));
            return Err(call.refused(None, ruling, None));
        }
        permits = self.permits(&tolls, partition);
        let decided = self.shared.engine.decide(&tolls, partition).await;
        let outage = outage(&decided, &tolls);
        drop(tolls);
        let mut findings: SmallVec<[Found; 4]> = SmallVec::new();
        for (part, charges) in charged(parts) {
            let own = slice_of(&decided, findings.len(), charges.enforced().len());
            let of = sets.place(part.of);
            let found = found(charges.enforced(), &own).into_iter();
            findings.extend(found.map(|found| Found { of, ..found }));
            if !decided.answer.passes() {
                self.count_refusals(charges, &own);
            }
        }
        if decided.answer.passes() {
            permits.granted();
            for (_, charges) in charged(parts) {
                permits.join(self.shadow(charges, &sets.rules).await);
            }
        } else {
            permits.refused();
        }
        let by = decided.answer.refused_by.and_then(|by| gates.get(by).copied().flatten());
        let ruling = ruling(Reason::Limits, &decided, Arc::clone(&sets.rules));
        let ruling = Ruling { beside: sets.beside.clone(), findings, ..ruling };
        let admission: Admission = self.conclude(ruling, permits, outage, Manner::CHARGE);
        if admission.passes() {
            return Ok(admission.into_permits());
        }
        let message = by.and_then(|gate| call.message(gate));
        Err(call.refused(message, admission.ruling().clone(), outage))
    }
}

/// Which rules a ruling speaks of.
struct Sets {
    rules: Arc<RuleSet>,
    beside: Option<Arc<RuleSet>>,
}

impl Sets {
    /// The limiter's rules and, beside them, the function's; or the function's alone.
    fn new(rules: &Arc<RuleSet>, inline: Option<&Inline>, parts: &[Part<'_>]) -> Self {
        let beside = inline.map(|inline| Arc::clone(&inline.rules));
        let alone = parts.iter().all(|part| part.of == Of::Beside);
        match beside {
            Some(own) if alone => Self { rules: own, beside: None },
            beside => Self { rules: Arc::clone(rules), beside },
        }
    }

    fn place(&self, of: Of) -> Of {
        if self.beside.is_none() { Of::Rules } else { of }
    }
}

/// The parts that charge something.
fn charged<'p, 's>(parts: &'p [Part<'s>]) -> impl Iterator<Item = (&'p Part<'s>, &'p Charges<'s>)> {
    parts.iter().filter_map(|part| part.charges().map(|charges| (part, charges)))
}

/// What became of some of the charges.
fn slice_of(outcome: &Outcome, first: usize, count: usize) -> Outcome {
    let decisions = outcome.answer.decisions.iter().skip(first).take(count).copied().collect();
    let answer = Answer { decisions, ..outcome.answer.clone() };
    Outcome { answer, source: outcome.source }
}

impl Call {
    fn message(&self, gate: usize) -> Option<&'static str> {
        self.site.gates.get(gate)?.message()
    }

    fn refused(
        &self,
        message: Option<&'static str>,
        ruling: Ruling,
        outage: Option<crate::Outage>,
    ) -> Refused {
        Refused::judged(self.site.path(), message, ruling, outage)
    }

    /// What all counters have in common. A counter is always charged within one partition, so what
    /// is of different ones cannot be decided at once.
    fn partition<'p>(&self, parts: &'p [Part<'_>]) -> Result<Option<&'p [u8]>, Refused> {
        let mut partitions = charged(parts)
            .filter(|(_, charges)| !charges.enforced().is_empty())
            .map(|(_, charges)| charges.partition());
        let first = partitions.next().flatten();
        if partitions.any(|partition| partition != first) {
            return Err(self.site.misconfigured(
                "a rule of a domain with a `partition` cannot be decided together with limits \
                 outside of it: put them at different functions",
            ));
        }
        Ok(first)
    }
}
