//! Requests that are nothing but takes, from a store in this process: what nearly every request is.
//!
//! [`Limiter::rule_with`](crate::Limiter) knows of outages, guards, bans, permits and shadows, and is a
//! future. Where the rules of a domain have none of these and the store answers at once, what is left is
//! to judge, to charge and to say so. Both ways must say the same; `tests/http/plain.rs` compares them.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::Mode;
use tollgate_core::rule::{ActiveLimit, ActiveRule, Ask, Judgement, RuleSet};
use tollgate_core::{Algorithm, Charge, Request, Store};

use crate::Limiter;
use crate::admission::{Found, Made, Reason, Ruling};
use crate::engine::Outcome;
use crate::limiter::{Manner, place, reason, ruling, uncounted};
use crate::permits::Permits;

/// Whether all that the rules of a domain do to a request is to take from counters.
pub(crate) fn only_takes(rules: &RuleSet, domain: &str) -> bool {
    let takes = |rule: &ActiveRule| {
        let counts = |limit: &ActiveLimit| {
            limit.guard().is_none()
                && !matches!(limit.limit().algorithm(), Algorithm::Concurrency(_))
        };
        rule.mode() != Mode::Shadow && rule.ban().is_none() && rule.limits().iter().all(counts)
    };
    rules.rules().filter(|rule| rule.domain() == domain).all(takes)
}

impl<S: Store + 'static> Limiter<S> {
    /// Judges an ask under rules that do nothing but [take](only_takes), and charges it, now or not at
    /// all. `None`, and nothing was charged, where the store does not answer at once.
    pub(crate) fn take_plainly<R: Made>(&self, ask: &Ask<'_>, rules: &Arc<RuleSet>) -> Option<R> {
        let mut judgement = Judgement::UnknownDomain;
        rules.judge_into(ask, &self.shared.secret, &mut judgement);
        let dues = match &judgement {
            Judgement::Charges(charges) if !charges.enforced().is_empty() => charges,
            other => {
                let (reason, blocked_by) = reason(other);
                let ruling = Ruling { blocked_by, ..uncounted(reason, Arc::clone(rules)) };
                return Some(self.conclude(ruling, Permits::none(), None, Manner::CHARGE));
            }
        };
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        for due in dues.enforced() {
            charges.push(Charge::take(dues.key(due), due.limit.limit(), due.cost).ok()?);
        }
        let mut request = Request::new(&charges).ok()?;
        if let Some(partition) = dues.partition() {
            request = request.within(partition);
        }
        let mut outcome = Outcome::none();
        if !self.shared.engine.take_at_once(&request, &mut outcome.answer) {
            return None;
        }
        let ruling = ruling(Reason::Limits, &outcome, Arc::clone(rules));
        let mut made = R::new(ruling, Permits::none(), None);
        let ruling = made.ruling_mut();
        for (due, decision) in dues.enforced().iter().zip(&outcome.answer.decisions) {
            ruling.findings.push(Found { decision: *decision, ..place(due) });
        }
        self.count(ruling, None, Manner::CHARGE);
        Some(made)
    }
}
