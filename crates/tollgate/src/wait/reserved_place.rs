//! A reserved place: the charges for a place in the future, given back by a caller that stops
//! waiting.
//!
//! A [`Gate`](super::Gate) has one counter and a queue for it, in which later callers move up. With
//! rules, each ask may have other counters, so a caller keeps the place that it was granted. A
//! place that is given back is free again while it is the store's last, and a hole otherwise.

use std::time::Duration;

use tollgate_core::rule::Ask;
use tollgate_core::{Algorithm, Cost, Op, Store, Timestamp};

use crate::decision::{Background, DecidingRules, Intent, Job, OwnedCounter, Plan, Ruling, Source};
use crate::{Admission, Limiter};

/// The charges for a place in the future. Empty for a request that passes at once or is refused.
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
    /// Waits until the place is due. Returns at once without a place. Dropping the future gives the
    /// place back.
    pub(crate) async fn wait(mut self) {
        let Some(place) = &self.0 else { return };
        tokio::time::sleep(place.wait).await;
        if let Some(mut place) = self.0.take() {
            // It is used, and nothing goes back.
            place.charged.clear();
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
    /// [`Limiter::admit_within`] under given rules, with the place that was granted.
    pub(crate) async fn admit_with_place(
        &self,
        ask: &Ask<'_>,
        patience: Duration,
        rules: &DecidingRules,
    ) -> (Admission, ReservedPlace) {
        let intent = Intent::Charge { patience };
        self.admit_with(ask, intent, rules, |plan, ruling| self.reserve_place(plan, ruling)).await
    }

    /// The place in the future that a ruling grants; an empty one if it grants none.
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
