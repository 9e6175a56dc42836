//! What follows an answer, off the caller's path: shadow rules are charged, and refusals counted
//! towards bans.
//!
//! A shadow rule counts as an enforced one does, its ban included, and answers nobody. What it counted
//! is what it starts with when it is enforced.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::Mode;
use tollgate_core::rule::{Charges, Due, LimitKind, RuleSet};
use tollgate_core::{Answer, Key, Limit, Store};

use crate::admission::{Blocked, Found, Reason, Ruling};
use crate::engine::{Chore, Outcome, OwnedToll, Source, Teller, Toll};
use crate::limiter::{Limiter, Manner, Shared, place, ruling, toll, uncounted};
use crate::observer::Event;
use crate::permits::Permits;

impl<S: Store + 'static> Limiter<S> {
    /// Charges shadow rules: a second request, whose answer only observers see. Their permits last
    /// as long as those of other rules.
    pub(crate) async fn shadow(&self, charges: &Charges<'_>, rules: &Arc<RuleSet>) -> Permits {
        if let Some(by) = charges.shadow_block() {
            let ruling = uncounted(Reason::Blocked, Arc::clone(rules));
            let blocked_by = Some(Blocked::new(&by));
            self.shared.tell_shadow(&Ruling { blocked_by, ..ruling });
        }
        if charges.shadow().is_empty() {
            return Permits::none();
        }
        let names = &self.shared.engine.names;
        let mut tolls: SmallVec<[Toll<'_>; 4]> = SmallVec::new();
        let mut found: SmallVec<[Found; 4]> = SmallVec::new();
        let (dues, mut bans) = (charges.shadow(), Vec::new());
        for due in dues {
            tolls.push(toll(charges, due, Manner::CHARGE, || names.draw()));
            found.push(place(due));
            bans.extend(self.ban(charges, due));
        }
        let permits = self.permits(&tolls, charges.partition());
        let owned = tolls.iter().map(|toll| (OwnedToll::new(toll, charges.partition()), toll.op));
        let (owned, shared, rules) = (owned.collect(), Arc::clone(&self.shared), Arc::clone(rules));
        let kinds: SmallVec<[LimitKind; 4]> = dues.iter().map(|due| due.limit.kind()).collect();
        let told = Teller::new(move |outcome: Outcome| {
            let counters = found.iter().map(|found| found.rule).zip(kinds.iter().copied());
            let refusing = refusing(counters, &outcome.answer);
            for ban in bans.into_iter().filter(|ban: &Banning| refusing.contains(&ban.rule)) {
                shared.keeper.ask(ban.chore());
            }
            for (found, decision) in found.iter_mut().zip(&outcome.answer.decisions) {
                found.decision = *decision;
            }
            let ruling = ruling(Reason::Limits, &outcome, rules);
            shared.tell_shadow(&Ruling { findings: found, ..ruling });
        });
        if self.store().is_remote() {
            self.shared.keeper.ask(Chore::Shadow { tolls: owned, told });
        } else {
            // It takes no trip, so nobody waits for it.
            self.shared.engine.shadow(owned, told).await;
        }
        permits.granted();
        permits
    }

    /// Has refusals counted towards bans, off the caller's path.
    pub(crate) fn count_refusals(&self, charges: &Charges<'_>, outcome: &Outcome) {
        if let Source::Outage(_) = outcome.source {
            // Nobody is banned for what the store's absence refuses.
            return;
        }
        let dues = charges.enforced();
        let counters = dues.iter().map(|due| (due.rule.index(), due.limit.kind()));
        let refusing = refusing(counters, &outcome.answer);
        for due in dues.iter().filter(|due| refusing.contains(&due.rule.index())) {
            if let Some(ban) = self.ban(charges, due) {
                self.shared.keeper.ask(ban.chore());
            }
        }
    }

    /// The counters of a ban, if this is the due of one, and whom to tell when it begins.
    fn ban<'s>(&self, charges: &Charges<'s>, due: &Due<'s>) -> Option<Banning> {
        let (active, key) = (due.rule.ban()?, charges.refusals_key(due)?);
        let owned = |key: Key<'_>, limit: &Limit| OwnedToll {
            key: key.as_bytes().into(),
            limit: *limit,
            partition: charges.partition().map(Into::into),
        };
        let refusals = owned(key, active.refusals().limit());
        let ban = owned(charges.key(due), active.ban().limit());
        let shadow = due.rule.mode() == Mode::Shadow;
        let (observers, key) = (self.shared.observers.clone(), ban.key.clone());
        let (rule, domain): (Arc<str>, Arc<str>) =
            (due.rule.name().into(), due.rule.domain().into());
        let told = move |_| {
            // In a shadow nobody is kept out, so there is nothing to tell.
            if !shadow {
                observers.tell(|| Event::Banned { rule, domain, key });
            }
        };
        Some(Banning { rule: due.rule.index(), refusals, ban, told: Teller::new(told) })
    }
}

/// The counters of a rule's ban.
struct Banning {
    rule: usize,
    refusals: OwnedToll,
    ban: OwnedToll,
    told: Teller,
}

impl Banning {
    /// One more refusal, and a ban if that is one too many.
    fn chore(self) -> Chore {
        Chore::Refused { refusals: self.refusals, ban: self.ban, told: self.told }
    }
}

/// The rules whose limits refuse, each once: one request is one refusal. A ban that refuses counts
/// none.
fn refusing(
    counters: impl Iterator<Item = (usize, LimitKind)>,
    answer: &Answer,
) -> SmallVec<[usize; 4]> {
    let mut rules: SmallVec<[usize; 4]> = SmallVec::new();
    for ((rule, kind), decision) in counters.zip(&answer.decisions) {
        // The limits of a rule follow each other.
        if !decision.passes() && kind == LimitKind::Limit && rules.last() != Some(&rule) {
            rules.push(rule);
        }
    }
    rules
}

impl<S> Shared<S> {
    pub(crate) fn tell_shadow(&self, ruling: &Ruling) {
        self.counts.add_shadow(ruling.verdict.passes());
        if !ruling.verdict.passes() {
            self.observers.tell(|| Event::ShadowRefused { ruling: ruling.clone() });
        }
    }
}
