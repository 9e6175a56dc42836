//! The deny cache: refusals that need not be asked for again.
//!
//! A store that refuses a cost says after how long it could pass. Until then it refuses that cost
//! and any higher one, whoever asks, so this process can say so itself. The time is counted from
//! the moment of *sending*, so that it ends here no later than at the store.
//!
//! Only a credit by another node, or a store's clock that jumps forth, could let the cost pass
//! earlier. So nothing is repeated for longer than [`LONGEST`]. Credits of this process forget
//! the refusal at once, and with it what was asked before them and is answered later; and another
//! edit of a rule is another limit.
//!
//! Not here: concurrency, where a release may come at any moment, and shadow rules, which must
//! count what they would refuse.

use std::time::Duration;

use tollgate_core::{Basis, Charge, Cost, Decision, Op, Quota, Retry, Revision, Verdict};

use super::lossy_map::{CounterHash, LossyMap};
use super::plan::counts_holders;
use crate::clock::{Instant, after};

/// The longest that a refusal is repeated without asking.
pub(crate) const LONGEST: Duration = Duration::from_millis(50);

/// How many counters are remembered: about 6 MB, when that many refuse at once.
const PLACES: usize = 65_536;

/// A refusal that may be repeated.
#[derive(Clone, Copy, Debug)]
struct Denial {
    /// By which edit of the limit it was judged: another one may let it pass.
    edit: (Revision, Quota),
    /// What was refused, and with it everything above.
    cost: Cost,
    /// No longer than this.
    until: Instant,
    /// When the store would let it pass: what callers are told.
    retry_at: Instant,
    reset_at: Instant,
    remaining: u64,
}

/// What is known of a counter.
#[derive(Clone, Copy, Debug)]
enum Known {
    Refuses(Denial),
    /// It was credited: what was asked no later says nothing.
    Credited(Instant),
}

/// Remembers refusals.
#[derive(Debug)]
pub(crate) struct Denials {
    known: LossyMap<Known>,
}

impl Denials {
    pub(crate) fn new() -> Self {
        Self { known: LossyMap::new(PLACES) }
    }

    /// The refusal of this cost, if it is known without asking.
    pub(crate) fn known(
        &self,
        hash: CounterHash,
        charge: &Charge<'_>,
        now: Instant,
    ) -> Option<Decision> {
        let cost = asked(charge)?;
        let Known::Refuses(denial) = self.known.get(hash)? else { return None };
        if cost < denial.cost || now >= denial.until || edit(charge) != denial.edit {
            return None;
        }
        let retry = denial.retry_at.saturating_duration_since(now);
        Some(Decision {
            verdict: Verdict::Deny(Retry::After(retry.max(Duration::from_micros(1)))),
            remaining: denial.remaining,
            reset_after: denial.reset_at.saturating_duration_since(now),
            basis: Basis::Counted,
        })
    }

    /// Learns from what the store decided about a question sent at `sent`.
    pub(crate) fn learn(
        &self,
        hash: CounterHash,
        charge: &Charge<'_>,
        decision: &Decision,
        sent: Instant,
    ) {
        let Verdict::Deny(Retry::After(retry)) = decision.verdict else { return };
        let Some(cost) = asked(charge) else { return };
        if decision.basis != Basis::Counted {
            return;
        }
        let denial = Denial {
            edit: edit(charge),
            cost,
            until: after(sent, retry.min(LONGEST)),
            retry_at: after(sent, retry),
            reset_at: after(sent, decision.reset_after),
            remaining: decision.remaining,
        };
        let outdone = |known: Known| match known {
            Known::Refuses(known) => {
                known.edit == denial.edit && known.cost < cost && known.until >= denial.until
            }
            Known::Credited(then) => sent <= then,
        };
        if !self.known.get(hash).is_some_and(outdone) {
            self.known.put(hash, Known::Refuses(denial));
        }
    }

    /// Forgets what a credit may have changed, which has arrived at `now`.
    pub(crate) fn forget(&self, hash: CounterHash, now: Instant) {
        self.known.put(hash, Known::Credited(now));
    }
}

/// What is asked for, if its refusal may be repeated. More than can ever pass is refused for good,
/// which only the store says.
fn asked(charge: &Charge<'_>) -> Option<Cost> {
    let most = charge.limit().quota().burst().get();
    match charge.op() {
        // With patience, a longer wait may still pass.
        Op::Take(cost) | Op::Peek(cost) if cost > 0 && charge.patience().is_zero() => {
            (cost <= most && !counts_holders(charge.limit())).then_some(cost)
        }
        _ => None,
    }
}

fn edit(charge: &Charge<'_>) -> (Revision, Quota) {
    (charge.limit().revision(), charge.limit().quota())
}

#[cfg(test)]
mod tests {
    use super::super::lossy_map::CounterHasher;
    use super::*;
    use crate::clock::now;
    use tollgate_core::algorithm::SlidingLog;
    use tollgate_core::{Key, Limit};

    #[test]
    fn so_many_refusals_are_known_as_have_places_and_the_last_always_is() {
        let (denials, hasher, sent) = (Denials::new(), CounterHasher::new(), now());
        let limit = Limit::new(SlidingLog, "1 per 1h".parse().unwrap()).unwrap();
        let verdict = Verdict::Deny(Retry::After(Duration::from_secs(60)));
        let refusal = Decision { basis: Basis::Counted, ..Decision::overflow(verdict) };
        let known = |i: usize| {
            let key = i.to_le_bytes();
            let charge = Charge::take(Key::new(&key).unwrap(), &limit, 1).unwrap();
            denials.known(hasher.hash(charge.key(), &limit), &charge, sent).is_some()
        };

        for i in 0..200_000_usize {
            let key = i.to_le_bytes();
            let charge = Charge::take(Key::new(&key).unwrap(), &limit, 1).unwrap();
            denials.learn(hasher.hash(charge.key(), &limit), &charge, &refusal, sent);
            assert!(known(i), "whoever comes later takes the place");
        }

        let remembered = (0..200_000).filter(|i| known(*i)).count();
        assert!((58_000..=65_536).contains(&remembered), "{remembered}");
    }
}
