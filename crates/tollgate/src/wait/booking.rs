//! A booking: what rules charged for a place in the future, given back by whoever does not wait.
//!
//! A [`Gate`](super::Gate) keeps a line for its one counter, in which those behind move up. Rules
//! choose other counters for each ask, so here everybody keeps the place that it was granted: one
//! that is left is free again while it is the store's last, and a hole otherwise.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::rule::{Ask, RuleSet};
use tollgate_core::{Algorithm, Cost, Op, Store, Timestamp};

use crate::engine::{Chore, Keeper, OwnedToll, Source, Toll};
use crate::limiter::Manner;
use crate::{Admission, Limiter};

/// What was charged for a place in the future. Nothing, for whoever passes at once or not at all.
#[derive(Debug, Default)]
#[must_use = "the place is given back as soon as this is dropped"]
pub(crate) struct Booking(Option<Box<Booked>>);

#[derive(Debug)]
struct Booked {
    wait: Duration,
    charged: Vec<(OwnedToll, Cost, Timestamp)>,
    keeper: Keeper,
}

impl Booking {
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

impl Drop for Booked {
    fn drop(&mut self) {
        for (toll, cost, at) in self.charged.drain(..) {
            self.keeper.ask(Chore::Credit { toll, cost, at });
        }
    }
}

impl<S: Store + 'static> Limiter<S> {
    /// As [`Limiter::admit_within`] under given rules, with what is to be waited for.
    pub(crate) async fn admit_and_book(
        &self,
        ask: &Ask<'_>,
        patience: Duration,
        rules: Arc<RuleSet>,
    ) -> (Admission, Booking) {
        let mut charged = Vec::new();
        let note = |toll: &Toll<'_>, partition: Option<&[u8]>| match toll.op {
            // Smooth limiters price permits by what is stored, so their places stay taken.
            Op::Take(cost)
                if !patience.is_zero()
                    && !matches!(toll.limit.algorithm(), Algorithm::Smooth(_)) =>
            {
                charged.push((OwnedToll::new(toll, partition), cost, toll.patience));
            }
            _ => {}
        };
        let admission = self.rule_on(ask, Manner::Charge { patience }, rules, note).await;
        let wait = admission.wait();
        if wait.is_zero() {
            return (admission, Booking::default());
        }
        // What this process granted itself, in an outage, does not go back.
        if admission.ruling().source() != Source::Store {
            charged.clear();
        }
        let at = admission.ruling().at();
        let then = at.checked_add(wait).unwrap_or(Timestamp::MAX);
        let due = |patience: Duration| if patience.is_zero() { at } else { then };
        let charged = charged.into_iter().map(|(toll, cost, waits)| (toll, cost, due(waits)));
        let keeper = self.shared.keeper.clone();
        let booked = Booked { wait, charged: charged.collect(), keeper };
        (admission, Booking(Some(Box::new(booked))))
    }
}
