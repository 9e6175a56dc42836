//! Charges shadow rules, after the answer is known. Envoy's shadow rules are charged in
//! `envoy/decide.rs`, because their statuses are part of the answer.
//!
//! A shadow rule counts as an enforced rule does, its ban included, and refuses nobody. When it becomes
//! an enforced rule, its counters keep what they have counted.

use std::sync::Arc;

use tollgate_core::{Answer, Store};

use super::background::{Job, OnAnswer};
use super::bans::refuses;
use super::plan::{OwnedCounter, Plan};
use super::ruling::Ruling;
use crate::limiter::{Limiter, Shared};
use crate::observer::Event;
use crate::permits::Permits;

impl<S: Store + 'static> Limiter<S> {
    /// Charges shadow rules by a request of their own, whose answer only observers see. A remote
    /// store is asked in the background. The permits last as long as those of enforced rules.
    pub(super) fn charge_shadow_rules(&self, plan: &Plan<'_>) -> Permits {
        let mut ruling = Ruling::of(plan);
        if plan.policies.is_empty() {
            self.shared.tell_shadow(&ruling);
            return Permits::none();
        }
        let permits = self.permits(plan);
        if self.store().is_remote() {
            self.charge_shadow_later(plan, ruling);
        } else if let Some(request) = plan.request()
            && self.shared.runner.ask_now(&request, &mut ruling.answer).is_ok()
        {
            if !ruling.passes() {
                self.count_refusals(plan, &ruling);
            }
            self.shared.tell_shadow(&ruling);
        }
        permits.granted();
        permits
    }

    fn charge_shadow_later(&self, plan: &Plan<'_>, mut ruling: Ruling) {
        let owned = |charge| (OwnedCounter::of(charge, plan.partition), charge.op());
        let charges = plan.charges.iter().map(owned).collect();
        let (shared, bans) = (Arc::clone(&self.shared), self.bans(plan, &ruling));
        let answered = OnAnswer::new(move |answer: Answer| {
            ruling.answer = answer;
            for (origin, job) in bans {
                if refuses(&ruling, origin) {
                    shared.background.queue(job);
                }
            }
            shared.tell_shadow(&ruling);
        });
        self.shared.background.queue(Job::Shadow { charges, answered });
    }
}

impl<S> Shared<S> {
    /// Counts a request under shadow rules, and tells observers what they would have refused.
    pub(crate) fn tell_shadow(&self, ruling: &Ruling) {
        self.counts.add_shadow(ruling.passes());
        if !ruling.passes() {
            self.observers.tell(|| Event::ShadowRefused { ruling: ruling.clone() });
        }
    }
}
