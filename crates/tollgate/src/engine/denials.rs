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

use tollgate_core::{Basis, Cost, Decision, Quota, Retry, Revision, Verdict};

use super::slots::{Print, Slots};
use super::toll::Toll;
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
    slots: Slots<Known>,
}

impl Denials {
    pub(crate) fn new() -> Self {
        Self { slots: Slots::new(PLACES) }
    }

    /// The refusal of this cost, if it is known without asking.
    pub(crate) fn known(&self, print: Print, toll: &Toll<'_>, now: Instant) -> Option<Decision> {
        let cost = asked(toll)?;
        let Known::Refuses(denial) = self.slots.get(print)? else { return None };
        if cost < denial.cost || now >= denial.until || edit(toll) != denial.edit {
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
    pub(crate) fn learn(&self, print: Print, toll: &Toll<'_>, decision: &Decision, sent: Instant) {
        let Verdict::Deny(Retry::After(retry)) = decision.verdict else { return };
        let Some(cost) = asked(toll) else { return };
        if decision.basis != Basis::Counted {
            return;
        }
        let denial = Denial {
            edit: edit(toll),
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
        if !self.slots.get(print).is_some_and(outdone) {
            self.slots.put(print, Known::Refuses(denial));
        }
    }

    /// Forgets what a credit may have changed, which has arrived at `now`.
    pub(crate) fn forget(&self, print: Print, now: Instant) {
        self.slots.put(print, Known::Credited(now));
    }
}

/// What is asked for, if its refusal may be repeated. More than can ever pass is refused for good,
/// which only the store says.
fn asked(toll: &Toll<'_>) -> Option<Cost> {
    let most = toll.limit.quota().burst().get();
    toll.asked().filter(|cost| *cost <= most && !toll.counts_holders())
}

fn edit(toll: &Toll<'_>) -> (Revision, Quota) {
    (toll.limit.revision(), toll.limit.quota())
}

#[cfg(test)]
mod tests {
    use super::super::slots::Printer;
    use super::*;
    use crate::clock::now;
    use tollgate_core::algorithm::SlidingLog;
    use tollgate_core::{Key, Limit, Op};

    #[test]
    fn so_many_refusals_are_known_as_have_places_and_the_last_always_is() {
        let (denials, printer, sent) = (Denials::new(), Printer::new(), now());
        let limit = Limit::new(SlidingLog, "1 per 1h".parse().unwrap()).unwrap();
        let verdict = Verdict::Deny(Retry::After(Duration::from_secs(60)));
        let refusal = Decision { basis: Basis::Counted, ..Decision::overflow(verdict) };
        let known = |i: usize| {
            let key = i.to_le_bytes();
            let toll = Toll::new(Key::new(&key).unwrap(), &limit, Op::Take(1));
            denials.known(printer.print(toll.key, &limit), &toll, sent).is_some()
        };

        for i in 0..200_000_usize {
            let key = i.to_le_bytes();
            let toll = Toll::new(Key::new(&key).unwrap(), &limit, Op::Take(1));
            denials.learn(printer.print(toll.key, &limit), &toll, &refusal, sent);
            assert!(known(i), "whoever comes later takes the place");
        }

        let remembered = (0..200_000).filter(|i| known(*i)).count();
        assert!((58_000..=65_536).contains(&remembered), "{remembered}");
    }
}
