//! `local-guard`: a limiter of this process in front of the store, at a multiple of the limit.
//!
//! It spares the store what one process asks beyond, say, 1.2 times a limit. What passes here is
//! still charged there, so it admits nobody. What the guarded limit then refuses stays spent here, so
//! under a flood the guard lets through questions, not requests. Given back is what only another limit
//! refuses, or one client that another rule refuses could use up the guard of all; and what the store
//! does not answer, as the outage fallback decides then and not the guard in front of it; and what
//! a reservation turns out not to have cost.

use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{
    Answer, Charge, Clock, Cost, Decision, Key, Limit, Op, Request, Timestamp, Verdict,
};
use tollgate_embedded::EmbeddedStore;

use super::plan::{Plan, spent, under};
use crate::clock::LocalClock;

/// How many counters may have a guard at a time.
const PLACES: usize = 65_536;

/// All guards of this process.
#[derive(Debug)]
pub(crate) struct LocalGuards {
    local: EmbeddedStore<LocalClock>,
    clock: LocalClock,
}

/// The answer of the guards to a request.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives on the stack of one request")]
pub(crate) enum Guarded {
    /// No guard refuses. Holds what was taken here, and when.
    Passed(Taken),
    Refused(Answer),
}

/// For each guard that was charged: the index of its charge, and the moment.
pub(crate) type Taken = SmallVec<[(usize, Timestamp); 4]>;

impl LocalGuards {
    pub(crate) fn new() -> Self {
        let clock = LocalClock::new();
        let local = EmbeddedStore::builder().max_keys(PLACES).with_clock(clock.clone());
        Self { local, clock }
    }

    /// Charges the guards of a plan, all or none. Peeks ask them.
    pub(crate) fn charge(&self, plan: &Plan<'_>) -> Guarded {
        let passed = || Guarded::Passed(Taken::new());
        let guards: SmallVec<[(usize, &Limit); 4]> = plan
            .iter()
            .enumerate()
            .filter(|(_, (charge, _))| matches!(charge.op(), Op::Take(1..) | Op::Peek(1..)))
            .filter_map(|(i, (_, policy))| Some((i, policy.guard?)))
            .collect();
        if guards.is_empty() {
            return passed();
        }
        let charges: SmallVec<[Charge<'_>; 4]> =
            guards.iter().filter_map(|(i, limit)| under(plan.charges.get(*i)?, limit)).collect();
        let request = match Request::new(&charges) {
            Ok(request) if charges.len() == guards.len() => request,
            _ => return passed(),
        };
        let answer = self.local.charge_request(&request);
        let charged = guards.iter().zip(&answer.decisions);
        let Some(by) = answer.refused_by.and_then(|by| guards.get(by)).map(|(i, _)| *i) else {
            let moment = |decision: &Decision| match decision.verdict {
                // A place in the future is given back by the moment that it was granted for.
                Verdict::Wait(wait) => answer.at.checked_add(wait).unwrap_or(answer.at),
                _ => answer.at,
            };
            return Guarded::Passed(charged.map(|((i, _), it)| (*i, moment(it))).collect());
        };
        let mut decisions: SmallVec<[Decision; 4]> = SmallVec::new();
        decisions.resize(plan.charges.len(), Decision::overflow(Verdict::Allow));
        for ((i, _), decision) in charged {
            if let Some(place) = decisions.get_mut(*i) {
                *place = *decision;
            }
        }
        let (verdict, at) = (answer.verdict, Timestamp::EPOCH);
        Guarded::Refused(Answer { verdict, at, refused_by: Some(by), decisions })
    }

    /// Gives back what was taken for the charges that `which` selects.
    pub(crate) fn give_back(&self, plan: &Plan<'_>, taken: &Taken, which: impl Fn(usize) -> bool) {
        for (i, at) in taken.iter().filter(|(i, _)| which(*i)) {
            let charge = plan.charges.get(*i).zip(plan.policies.get(*i));
            if let Some((charge, guard)) = charge.and_then(|(it, policy)| Some((it, policy.guard?)))
            {
                self.credit(charge.key(), guard, spent(charge), *at);
            }
        }
    }

    /// Gives back what a counter was credited for a charge of this age.
    pub(crate) fn give_back_after(&self, key: Key<'_>, guard: &Limit, cost: Cost, age: Duration) {
        let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let at = self.clock.now().as_micros().saturating_sub(age);
        self.credit(key, guard, cost, Timestamp::from_micros(at));
    }

    fn credit(&self, key: Key<'_>, guard: &Limit, cost: Cost, at: Timestamp) {
        if cost > 0
            && let Ok(charge) = Charge::new(key, guard, Op::Credit { cost, at })
        {
            let _ = self.local.charge_one(&charge);
        }
    }
}
