//! `local-guard`: a limiter of this process in front of the store, at a multiple of the limit.
//!
//! It spares the store what one process asks beyond, say, 1.2 times a limit. What passes here is
//! still charged there, so it admits nobody. What the guarded limit then refuses stays spent here, so
//! under a flood the guard lets through questions, not requests. Given back is what only another limit
//! refuses, or one client that another rule refuses could use up the guard of all; and what the store
//! does not answer, as an outage is judged by the ladder and not by what stands in front of it; and what
//! a reservation turns out not to have cost.

use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{
    Answer, Charge, Clock, Cost, Decision, Limit, Op, Request, Timestamp, Verdict,
};
use tollgate_embedded::EmbeddedStore;

use super::toll::Toll;
use crate::clock::LocalClock;

/// How many counters may have a guard at a time.
const PLACES: usize = 65_536;

/// All guards of this process.
#[derive(Debug)]
pub(crate) struct Guards {
    local: EmbeddedStore<LocalClock>,
    clock: LocalClock,
}

/// What guards say to a request.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives on the stack of one request")]
pub(crate) enum Guarded {
    /// None of them refuses; what was taken here, and when.
    Passed(Taken),
    Refused(Answer),
}

/// For each guard that was charged: of which toll, and for which moment.
pub(crate) type Taken = SmallVec<[(usize, Timestamp); 4]>;

impl Guards {
    pub(crate) fn new() -> Self {
        let clock = LocalClock::new();
        let local = EmbeddedStore::builder().max_keys(PLACES).with_clock(clock.clone());
        Self { local, clock }
    }

    /// Charges the guards of these tolls, all or none; asks them, where tolls only ask.
    pub(crate) fn charge(&self, tolls: &[Toll<'_>]) -> Guarded {
        let passed = || Guarded::Passed(Taken::new());
        if tolls.iter().all(|toll| toll.guard.is_none()) {
            return passed();
        }
        let guards: SmallVec<[(usize, &Limit); 4]> = tolls
            .iter()
            .enumerate()
            .filter(|(_, toll)| matches!(toll.op, Op::Take(1..) | Op::Peek(1..)))
            .filter_map(|(i, toll)| Some((i, toll.guard?)))
            .collect();
        let charges: SmallVec<[Charge<'_>; 4]> = guards
            .iter()
            .filter_map(|(i, limit)| Toll { limit, ..*tolls.get(*i)? }.charge())
            .collect();
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
        decisions.resize(tolls.len(), Decision::overflow(Verdict::Allow));
        for ((i, _), decision) in charged {
            if let Some(place) = decisions.get_mut(*i) {
                *place = *decision;
            }
        }
        let (verdict, at) = (answer.verdict, Timestamp::EPOCH);
        Guarded::Refused(Answer { verdict, at, refused_by: Some(by), decisions })
    }

    /// Gives back what was taken for tolls that this is true of.
    pub(crate) fn give_back(
        &self,
        tolls: &[Toll<'_>],
        taken: &Taken,
        which: impl Fn(usize) -> bool,
    ) {
        for (i, at) in taken.iter().filter(|(i, _)| which(*i)) {
            if let Some(toll) = tolls.get(*i) {
                self.credit(toll, toll.spent(), *at);
            }
        }
    }

    /// Gives back what a counter was credited for a charge of this age.
    pub(crate) fn give_back_after(&self, toll: &Toll<'_>, cost: Cost, age: Duration) {
        let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let at = self.clock.now().as_micros().saturating_sub(age);
        self.credit(toll, cost, Timestamp::from_micros(at));
    }

    fn credit(&self, toll: &Toll<'_>, cost: Cost, at: Timestamp) {
        let Some(guard) = toll.guard.filter(|_| cost > 0) else { return };
        if let Some(charge) = Toll::new(toll.key, guard, Op::Credit { cost, at }).charge() {
            let _ = self.local.charge_one(&charge);
        }
    }
}
