//! Charges shadow rules, and counts refusals towards bans: both after the answer is known. Shadow rules of
//! Envoy's are charged in `envoy/decide.rs`.
//!
//! A shadow rule counts as an enforced rule does, its ban included, and refuses nobody. When it becomes
//! an enforced rule, its counters keep what they have counted.

use std::sync::Arc;

use tollgate_core::rule::declaration::Mode;
use tollgate_core::{Answer, Store};

use super::background::{Job, OnAnswer};
use super::plan::{Origin, OwnedCounter, Plan};
use super::ruling::{Ruling, Source};
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

    /// Counts refusals towards bans, in the background.
    pub(super) fn count_refusals(&self, plan: &Plan<'_>, ruling: &Ruling) {
        if let Source::Outage(_) = ruling.source {
            // A refusal for the store's absence bans nobody.
            return;
        }
        for (origin, job) in self.bans(plan, ruling) {
            if refuses(ruling, origin) {
                self.shared.background.queue(job);
            }
        }
    }

    /// A job for each ban of a plan: it counts one refusal, and begins the ban if that is the last one
    /// that the rule allows.
    fn bans(&self, plan: &Plan<'_>, ruling: &Ruling) -> Vec<(Origin, Job)> {
        let mut bans = Vec::new();
        for (charge, policy) in plan.iter() {
            let Some(key) = policy.refusals else { continue };
            let rule = ruling.rules.rule(policy.origin);
            let Some((rule, active)) = rule.and_then(|rule| Some((rule, rule.ban()?))) else {
                continue;
            };
            let refusals = OwnedCounter::new(key, active.refusals().limit(), plan.partition);
            let ban = OwnedCounter::of(charge, plan.partition);
            let shadow = rule.mode() == Mode::Shadow;
            let (observers, key) = (self.shared.observers.clone(), ban.key.clone());
            let (rule, domain): (Arc<str>, Arc<str>) = (rule.name().into(), rule.domain().into());
            let banned = OnAnswer::new(move |_| {
                // A shadow rule bans nobody, so there is no event.
                if !shadow {
                    observers.tell(|| Event::Banned { rule, domain, key });
                }
            });
            bans.push((policy.origin, Job::CountRefusal { refusals, ban, banned }));
        }
        bans
    }
}

/// True if a limit of this ban's rule refuses. The refusal of a ban itself does not count.
fn refuses(ruling: &Ruling, ban: Origin) -> bool {
    let rows = ruling.origins.iter().zip(&ruling.answer.decisions);
    let mut limits = rows.filter(|(origin, _)| **origin != ban && origin.same_rule(ban));
    limits.any(|(_, decision)| !decision.passes())
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
