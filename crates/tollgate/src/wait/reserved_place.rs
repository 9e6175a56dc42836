//! A booking: what rules charged for a place in the future, given back by whoever does not wait.
//!
//! A [`Gate`](super::Gate) keeps a line for its one counter, in which those behind move up. Rules
//! choose other counters for each ask, so here everybody keeps the place that it was granted: one
//! that is left is free again while it is the store's last, and a hole otherwise.

use std::time::Duration;

use tollgate_core::rule::{Ask, Judgement};
use tollgate_core::{Algorithm, Cost, Op, Store, Timestamp};

use crate::decision::{Background, Intent, Job, OwnedCounter, Plan, RuleSource, Ruling, Source};
use crate::{Admission, Limiter};

/// What was charged for a place in the future. Nothing, for whoever passes at once or not at all.
#[derive(Debug, Default)]
#[must_use = "the place is given back as soon as this is dropped"]
pub(crate) struct ReservedPlace(Option<Box<PlaceCharges>>);

#[derive(Debug)]
struct PlaceCharges {
    wait: Duration,
    charged: Vec<(OwnedCounter, Cost, Timestamp)>,
    background: Background,
}

impl ReservedPlace {
    /// Waits until the time has come; not at all if nothing was booked. Dropping the future gives
    /// the place back.
    pub(crate) async fn wait(mut self) {
        let Some(booked) = &self.0 else { return };
        tokio::time::sleep(booked.wait).await;
        if let Some(mut booked) = self.0.take() {
            // It is used, and nothing goes back.
            booked.charged.clear();
        }
    }
}

impl Drop for PlaceCharges {
    fn drop(&mut self) {
        for (counter, cost, at) in self.charged.drain(..) {
            self.background.queue(Job::Credit { counter, cost, at });
        }
    }
}

impl<S: Store + 'static> Limiter<S> {
    /// As [`Limiter::admit_within`] under given rules, with the place that was granted.
    pub(crate) async fn admit_with_place(
        &self,
        ask: &Ask<'_>,
        patience: Duration,
        rules: &RuleSource,
    ) -> (Admission, ReservedPlace) {
        let mut judgement = Judgement::UnknownDomain;
        self.judge(ask, rules, &mut judgement);
        let plan = self.plan(&judgement, rules, Intent::Charge { patience });
        let mut ruling = Ruling::of(&plan);
        let permits = self.run(&plan, Some(ask), &mut ruling).await;
        let reserved_place = self.reserve_place(&plan, &ruling);
        drop(plan);
        (Admission { ruling, permits }, reserved_place)
    }

    /// The place in the future that a ruling grants, if it does.
    pub(crate) fn reserve_place(&self, plan: &Plan<'_>, ruling: &Ruling) -> ReservedPlace {
        let wait = ruling.wait();
        if wait.is_zero() {
            return ReservedPlace::default();
        }
        let at = ruling.at();
        let then = at.checked_add(wait).unwrap_or(Timestamp::MAX);
        let charged = plan.charges.iter().filter_map(|charge| match charge.op() {
            // Smooth limiters price permits by what is stored, so their places stay taken.
            Op::Take(cost) if !matches!(charge.limit().algorithm(), Algorithm::Smooth(_)) => {
                let at = if charge.patience().is_zero() { at } else { then };
                Some((OwnedCounter::of(charge, plan.partition), cost, at))
            }
            _ => None,
        });
        // Places that the outage fallback granted do not go back.
        let charged = charged.filter(|_| ruling.source() == Source::Store).collect();
        let background = self.shared.background.clone();
        ReservedPlace(Some(Box::new(PlaceCharges { wait, charged, background })))
    }
}
