//! Bans: the jobs that count refusals of rules with a `ban`, and begin a ban at the last refusal that
//! the rule allows. `background.rs` runs them.
//!
//! A ban is a counter beside those of the rule's limits, and is charged with them. Refusals in an outage
//! do not count, nor does the refusal of a ban itself.

use std::sync::Arc;

use tollgate_core::Store;
use tollgate_core::rule::declaration::Mode;

use super::background::{Job, OnAnswer};
use super::plan::{Origin, OwnedCounter, Plan};
use super::ruling::{Ruling, Source};
use crate::limiter::Limiter;
use crate::observer::Event;

impl<S: Store + 'static> Limiter<S> {
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
    pub(super) fn bans(&self, plan: &Plan<'_>, ruling: &Ruling) -> Vec<(Origin, Job)> {
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
pub(super) fn refuses(ruling: &Ruling, ban: Origin) -> bool {
    let rows = ruling.origins.iter().zip(&ruling.answer.decisions);
    let mut limits = rows.filter(|(origin, _)| **origin != ban && origin.same_rule(ban));
    limits.any(|(_, decision)| !decision.passes())
}
