//! `local-guard`: a limiter of this process in front of the store, at a multiple of the limit.
//!
//! It spares the store what one process asks beyond, say, 1.2 times a limit. What passes here is
//! still charged there, so it admits nobody. What the guarded limit then refuses stays spent here, so
//! under a flood the guard lets through questions, not requests; what only another limit refuses is
//! given back, or one client that another rule refuses could use up the guard of all.

use smallvec::SmallVec;
use tollgate_core::{Answer, Charge, Clock, Decision, Limit, Op, Request, Timestamp, Verdict};
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

impl Guards {
    pub(crate) fn new() -> Self {
        let clock = LocalClock::new();
        let local = EmbeddedStore::builder().max_keys(PLACES).with_clock(clock.clone());
        Self { local, clock }
    }

    /// The refusal of a guard, if one refuses.
    pub(crate) fn refuse(&self, tolls: &[Toll<'_>]) -> Option<Answer> {
        if tolls.iter().all(|toll| toll.guard.is_none()) {
            return None;
        }
        let limits: SmallVec<[(usize, &Limit); 4]> = tolls
            .iter()
            .enumerate()
            .filter(|(_, toll)| toll.spent() > 0)
            .filter_map(|(i, toll)| Some((i, toll.guard?)))
            .collect();
        let charges: SmallVec<[Charge<'_>; 4]> = limits
            .iter()
            .filter_map(|(i, limit)| Toll { limit, ..*tolls.get(*i)? }.charge())
            .collect();
        let request = Request::new(&charges).ok().filter(|_| charges.len() == limits.len())?;
        let answer = self.local.charge_request(&request);
        let by = answer.refused_by.and_then(|by| limits.get(by)).map(|(i, _)| *i)?;
        let mut decisions: SmallVec<[Decision; 4]> = SmallVec::new();
        decisions.resize(tolls.len(), Decision::overflow(Verdict::Allow));
        for ((i, _), decision) in limits.iter().zip(&answer.decisions) {
            if let Some(place) = decisions.get_mut(*i) {
                *place = *decision;
            }
        }
        Some(Answer {
            verdict: answer.verdict,
            at: Timestamp::EPOCH,
            refused_by: Some(by),
            decisions,
        })
    }

    /// Gives back what the store refused for another reason than the guarded limit.
    pub(crate) fn give_back(&self, tolls: &[Toll<'_>], answer: &Answer) {
        for (toll, decision) in tolls.iter().zip(&answer.decisions) {
            let Some(guard) = toll.guard.filter(|_| decision.passes() && toll.spent() > 0) else {
                continue;
            };
            let credit = Op::Credit { cost: toll.spent(), at: self.clock.now() };
            if let Some(charge) = Toll::new(toll.key, guard, credit).charge() {
                let _ = self.local.charge_one(&charge);
            }
        }
    }
}
