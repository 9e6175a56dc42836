//! `local-guard`: a limiter of this process in front of the store, at a multiple of the limit.
//!
//! With a guard of, say, 1.2, the store is asked at most 1.2 times a limit by each process. The store
//! still charges every request that passes the guard, so a guard admits nobody. A charge that the guarded
//! limit refuses stays spent here: under a flood, the guard bounds the questions to the store. The guard
//! gives back
//!
//! - a charge that only another limit refused. Otherwise one client that another rule refuses could use
//!   up the guard of all clients;
//! - a charge that the store did not answer, because then the outage fallback decides;
//! - the part of a reservation that was not used.

use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{
    Answer, Charge, Clock, Cost, Decision, Key, Limit, Op, Request, Timestamp, Verdict,
};
use tollgate_embedded::EmbeddedStore;

use super::plan::{Plan, spent, under};
use crate::clock::LocalClock;

/// The most counters with a guard at a time.
const CAPACITY: usize = 65_536;

/// The local guards of this process.
#[derive(Debug)]
pub(crate) struct LocalGuards {
    local: EmbeddedStore<LocalClock>,
    clock: LocalClock,
}

/// The answer of the guards to a request.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives on the stack of one request")]
pub(crate) enum GuardAnswer {
    /// No guard refuses.
    Passed(GuardCharges),
    Refused(Answer),
}

/// For each guard that was charged: the index of its charge, and the moment.
pub(crate) type GuardCharges = SmallVec<[(usize, Timestamp); 4]>;

impl LocalGuards {
    pub(crate) fn new() -> Self {
        let clock = LocalClock::new();
        let local = EmbeddedStore::builder().max_keys(CAPACITY).with_clock(clock.clone());
        Self { local, clock }
    }

    /// Charges the guards of a plan, all or none. Peeks only ask them.
    pub(crate) fn charge(&self, plan: &Plan<'_>) -> GuardAnswer {
        let passed = || GuardAnswer::Passed(GuardCharges::new());
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
                // A place in the future is given back by the moment of the place.
                Verdict::Wait(wait) => answer.at.checked_add(wait).unwrap_or(answer.at),
                _ => answer.at,
            };
            return GuardAnswer::Passed(charged.map(|((i, _), it)| (*i, moment(it))).collect());
        };
        let mut decisions: SmallVec<[Decision; 4]> = SmallVec::new();
        decisions.resize(plan.charges.len(), Decision::overflow(Verdict::Allow));
        for ((i, _), decision) in charged {
            if let Some(place) = decisions.get_mut(*i) {
                *place = *decision;
            }
        }
        let (verdict, at) = (answer.verdict, Timestamp::EPOCH);
        GuardAnswer::Refused(Answer { verdict, at, refused_by: Some(by), decisions })
    }

    /// Gives back the guards' charges for those charges of the plan that `which` selects.
    pub(crate) fn give_back(
        &self,
        plan: &Plan<'_>,
        charged: &GuardCharges,
        which: impl Fn(usize) -> bool,
    ) {
        for (i, at) in charged.iter().filter(|(i, _)| which(*i)) {
            let charge = plan.charges.get(*i).zip(plan.policies.get(*i));
            if let Some((charge, guard)) = charge.and_then(|(it, policy)| Some((it, policy.guard?)))
            {
                self.credit(charge.key(), guard, spent(charge), *at);
            }
        }
    }

    /// Gives back a credit for a charge of this age.
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
