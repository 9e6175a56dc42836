//! The deny cache: repeats refusals of a remote store without asking it.
//!
//! A store that refuses a cost says after which time the cost could pass. Until then it refuses that
//! cost and any higher one, so this process can repeat the refusal. The time runs from the moment of
//! *sending*, so it ends here no later than at the store.
//!
//! Only a credit by another node, or a jump of the store's clock, could let the cost pass earlier. So no
//! refusal is repeated for longer than [`LONGEST`]. A credit of this process removes the refusal at once,
//! and outdates the answers to questions that were sent before it. Another revision of a limit is another
//! limit.
//!
//! Not cached: refusals of concurrency limits, because a permit may be released at any moment. Shadow
//! rules are charged without this cache (`shadow.rs`), because they must count every refusal.

use std::time::Duration;

use tollgate_core::{Basis, Charge, Cost, Decision, Op, Quota, Retry, Revision, Verdict};

use super::lossy_map::{CounterHash, LossyMap};
use super::plan::counts_holders;
use crate::clock::{Instant, after};

/// The longest time for which a refusal is repeated.
pub(crate) const LONGEST: Duration = Duration::from_millis(50);

/// The most counters that are remembered: about 6 MB.
const CAPACITY: usize = 65_536;

/// A refusal that may be repeated.
#[derive(Clone, Copy, Debug)]
struct Denial {
    /// The revision and the quota of the limit that refused. Limits without rules have revision 0 and
    /// differ by their quota.
    edit: (Revision, Quota),
    /// The lowest cost that was refused.
    cost: Cost,
    /// The end of repeating it.
    until: Instant,
    /// The moment at which the store would let the cost pass.
    retry_at: Instant,
    reset_at: Instant,
    remaining: u64,
}

/// The last event of a counter.
#[derive(Clone, Copy, Debug)]
enum LastEvent {
    Refused(Denial),
    /// A credit outdates the answers to questions that were sent no later.
    Credited(Instant),
}

/// The refusals of a remote store.
#[derive(Debug)]
pub(crate) struct DenyCache {
    events: LossyMap<LastEvent>,
}

impl DenyCache {
    pub(crate) fn new() -> Self {
        Self { events: LossyMap::new(CAPACITY) }
    }

    /// The refusal of this charge, if it may be repeated.
    pub(crate) fn refusal(
        &self,
        hash: CounterHash,
        charge: &Charge<'_>,
        now: Instant,
    ) -> Option<Decision> {
        let cost = asked(charge)?;
        let LastEvent::Refused(denial) = self.events.get(hash)? else { return None };
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

    /// Remembers the store's decision on a charge that was sent at `sent`.
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
        let covers = |event: LastEvent| match event {
            LastEvent::Refused(last) => {
                last.edit == denial.edit && last.cost < cost && last.until >= denial.until
            }
            LastEvent::Credited(at) => sent <= at,
        };
        if !self.events.get(hash).is_some_and(covers) {
            self.events.put(hash, LastEvent::Refused(denial));
        }
    }

    /// Forgets the refusals of a counter, because a credit arrived at `now`.
    pub(crate) fn forget(&self, hash: CounterHash, now: Instant) {
        self.events.put(hash, LastEvent::Credited(now));
    }
}

/// The cost of a charge whose refusal may be repeated. A cost above the burst is refused for good, and
/// only the store says so.
fn asked(charge: &Charge<'_>) -> Option<Cost> {
    let most = charge.limit().quota().burst().get();
    match charge.op() {
        // With patience, the charge may be granted a place in the future.
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
    fn the_newest_refusals_are_kept_up_to_the_capacity() {
        let (denials, hasher, sent) = (DenyCache::new(), CounterHasher::new(), now());
        let limit = Limit::new(SlidingLog, "1 per 1h".parse().unwrap()).unwrap();
        let verdict = Verdict::Deny(Retry::After(Duration::from_secs(60)));
        let refusal = Decision { basis: Basis::Counted, ..Decision::overflow(verdict) };
        let known = |i: usize| {
            let key = i.to_le_bytes();
            let charge = Charge::take(Key::new(&key).unwrap(), &limit, 1).unwrap();
            denials.refusal(hasher.hash(charge.key(), &limit), &charge, sent).is_some()
        };

        for i in 0..200_000_usize {
            let key = i.to_le_bytes();
            let charge = Charge::take(Key::new(&key).unwrap(), &limit, 1).unwrap();
            denials.learn(hasher.hash(charge.key(), &limit), &charge, &refusal, sent);
            assert!(known(i), "a later refusal replaces an earlier one");
        }

        let remembered = (0..200_000).filter(|i| known(*i)).count();
        assert!((58_000..=65_536).contains(&remembered), "{remembered}");
    }
}
