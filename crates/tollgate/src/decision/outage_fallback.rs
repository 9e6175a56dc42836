//! The outage fallback: answers requests while the store does not.
//!
//! Each rule says how, by its `on-outage`: `admit`, `refuse`, or `local`, this process's share of the
//! limit. Under `local`, a limit of L shared by N live nodes becomes ⌈L ÷ N⌉ here, and a counter starts
//! with its part of what the store last said was left. So with N nodes at most L + N × share pass, over
//! the start and the end of the outage. If all nodes had seen the counter just before, at most L and a
//! rounding pass.
//!
//! A request that passes here is a debt (`debts.rs`). The store gets it before it answers for the
//! counter again.
//!
//! If the store's last answer left a counter with less than its share, the difference is charged
//! here at the start: the *seed*. It is given back at the moment at which the store no longer counts
//! it, so an outage prolongs neither a window that was nearly over nor a ban.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::{
    Answer, Basis, Charge, Clock, Cost, Decision, Key, Limit, Op, Request, Retry, Revision,
    Timestamp, Verdict, lock_mutex,
};
use tollgate_embedded::EmbeddedStore;

use super::debts::{DebtTracking, Debts, Settlement};
use super::lossy_map::{CounterHash, LossyMap};
use super::plan::{OwnedCounter, Plan, counts_holders, spent, under};
use crate::clock::{self, Instant, LocalClock, after};
use crate::random::IdGenerator;

/// The most counters whose last answer is remembered, and the most local counters.
pub(crate) const CAPACITY: usize = 65_536;

/// The retry of a refusal without a better one: a breaker probes about as often.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The store's last answer about a counter.
#[derive(Clone, Copy, Debug)]
struct LastAnswer {
    remaining: u64,
    /// The revision of the limit that the store counted under.
    revision: Revision,
    /// The moment at which the counter is full, unless other nodes charge it.
    reset_at: Instant,
}

/// The cost that a local counter started with as used.
#[derive(Clone, Copy, Debug)]
struct Seed {
    cost: Cost,
    /// The moment at which it was debited, by the clock of the local counters.
    at: Timestamp,
    /// The moment at which none of it counts in the store any more.
    until: Instant,
    revision: Revision,
}

/// Answers requests while the store does not.
#[derive(Debug)]
pub(crate) struct OutageFallback {
    local: EmbeddedStore<LocalClock>,
    clock: LocalClock,
    capacity: usize,
    last_answers: LossyMap<LastAnswer>,
    /// Created in the first outage.
    seeds: OnceLock<LossyMap<Seed>>,
    pub(crate) debts: Debts,
    /// The cost that passed without becoming a debt, because there was no room for one.
    pub(crate) lost_debt_cost: AtomicU64,
    nodes: AtomicU64,
    /// The last time by the store's clock, and the moment at which it arrived here.
    store_time: Mutex<Option<(Timestamp, Instant)>>,
}

impl OutageFallback {
    /// A fallback that remembers about this many counters.
    pub(crate) fn new(capacity: usize) -> Self {
        let clock = LocalClock::new();
        Self {
            local: EmbeddedStore::builder().max_keys(capacity).with_clock(clock.clone()),
            clock,
            capacity,
            last_answers: LossyMap::new(capacity),
            seeds: OnceLock::new(),
            debts: Debts::default(),
            lost_debt_cost: AtomicU64::new(0),
            nodes: AtomicU64::new(1),
            store_time: Mutex::new(None),
        }
    }

    /// The number of nodes that share the limits, as last counted.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nodes(&self, nodes: u64) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    /// This process's part of a limit that all nodes share, rounded up; `None` if the algorithm cannot
    /// represent such a slow rate.
    fn share_of(&self, limit: &Limit) -> Option<Limit> {
        limit.scaled(1, self.nodes()).ok()
    }

    /// Remembers the store's answer about a counter.
    pub(crate) fn learn(
        &self,
        hash: CounterHash,
        limit: &Limit,
        decision: &Decision,
        seen: Instant,
    ) {
        let answer = LastAnswer {
            remaining: decision.remaining,
            revision: limit.revision(),
            reset_at: after(seen, decision.reset_after),
        };
        self.last_answers.put(hash, answer);
    }

    /// True if the store is known to have counted under this revision of the limit.
    pub(crate) fn has_counted(&self, hash: CounterHash, limit: &Limit) -> bool {
        self.last_answers.get(hash).is_some_and(|last| last.revision == limit.revision())
    }

    /// Remembers the store's time.
    pub(crate) fn learn_time(&self, at: Timestamp, seen: Instant) {
        let mut known = lock_mutex(&self.store_time);
        if known.is_none() {
            // Windows that are anchored at the epoch then begin here when they begin in the store.
            self.clock.align(at, seen);
        }
        *known = Some((at, seen));
    }

    /// The time by the store's clock at `then`, as far as this process can tell.
    pub(crate) fn store_time(&self, then: Instant) -> Option<Timestamp> {
        let (at, seen) = (*lock_mutex(&self.store_time))?;
        let since = then.saturating_duration_since(seen);
        let before = seen.saturating_duration_since(then);
        let later = at.checked_add(since)?;
        let micros = u64::try_from(before.as_micros()).ok()?;
        Some(Timestamp::from_micros(later.as_micros().saturating_sub(micros)))
    }

    /// Answers a request in place of the store.
    pub(crate) fn answer(&self, plan: &Plan<'_>, hashes: &[CounterHash]) -> Answer {
        let (now, count) = (clock::now(), plan.policies.len());
        let refuses = |on_outage: OnOutage| on_outage == OnOutage::Refuse;
        if let Some(by) = plan.policies.iter().position(|policy| refuses(policy.on_outage)) {
            return refusal(count, by, refusing());
        }
        let mut shares: SmallVec<[(usize, Limit, CounterHash); 4]> = SmallVec::new();
        let mut peeks: SmallVec<[(usize, Decision); 4]> = SmallVec::new();
        for (i, ((charge, policy), hash)) in plan.iter().zip(hashes).enumerate() {
            if policy.on_outage != OnOutage::Local {
                continue;
            }
            let Some(share) = self.share_of(charge.limit()) else {
                return refusal(count, i, refusing());
            };
            match self.debts.track(*hash, charge, plan.partition, &share, now) {
                DebtTracking::New => self.seed(*hash, charge, &share, now),
                DebtTracking::NotNeeded => {
                    peeks.extend(self.peek(*hash, charge, now).map(|peek| (i, peek)))
                }
                DebtTracking::Existing | DebtTracking::Untracked => {
                    self.unseed(*hash, charge.key(), &share, |seed| seed.until <= now)
                }
            }
            shares.push((i, share, *hash));
        }
        if let Some((by, decision)) = peeks.iter().find(|(_, peek)| !peek.passes()) {
            return refusal(count, *by, *decision);
        }
        let mut answer = self.charge(plan, &shares);
        for (i, peek) in peeks {
            if let Some(decision) = answer.decisions.get_mut(i) {
                decision.remaining = decision.remaining.min(peek.remaining);
            }
        }
        if answer.passes() {
            for (i, _, hash) in &shares {
                // In a group of which any one suffices, those that refuse are not charged.
                let decision = answer.decisions.get(*i).filter(|decision| decision.passes());
                let charge = plan.charges.get(*i).filter(|_| decision.is_some());
                let spent = charge.map_or(0, spent);
                // A shared counter cannot tell later how much of this charge still counts.
                let own_counter = decision.is_some_and(|it| it.basis == Basis::Counted);
                if spent > 0 && !(own_counter && self.debts.add(*hash, spent, now)) {
                    self.lost_debt_cost.fetch_add(spent, Ordering::Relaxed);
                }
            }
        }
        answer
    }

    /// Charges the shares, all or none, and spreads the answer over all charges of the plan.
    fn charge(&self, plan: &Plan<'_>, shares: &[(usize, Limit, CounterHash)]) -> Answer {
        let count = plan.policies.len();
        let charges: SmallVec<[Charge<'_>; 4]> =
            shares.iter().filter_map(|(i, share, _)| under(plan.charges.get(*i)?, share)).collect();
        let local = match Request::new(&charges) {
            Ok(request) if charges.len() == shares.len() => self.local.charge_request(&request),
            _ => return refusal(count, 0, refusing()),
        };
        let mut decisions: SmallVec<[Decision; 4]> = SmallVec::new();
        decisions.resize(count, passing());
        for ((i, _, _), decision) in shares.iter().zip(&local.decisions) {
            if let Some(place) = decisions.get_mut(*i) {
                *place = Decision { verdict: for_now(decision.verdict), ..*decision };
            }
        }
        let refused_by = local.refused_by.and_then(|by| shares.get(by)).map(|(i, _, _)| *i);
        Answer { verdict: for_now(local.verdict), at: Timestamp::EPOCH, refused_by, decisions }
    }

    /// The decision on a counter that is only asked about, such as a ban, by the store's last answer.
    fn peek(&self, hash: CounterHash, charge: &Charge<'_>, now: Instant) -> Option<Decision> {
        let last = self.last_answers.get(hash).filter(|last| now < last.reset_at)?;
        let Op::Peek(cost) = charge.op() else { return None };
        if counts_holders(charge.limit()) {
            return None;
        }
        let remaining = last.remaining.div_ceil(self.nodes().max(1));
        let reset_after = last.reset_at.saturating_duration_since(now);
        let verdict = if cost > remaining {
            Verdict::Deny(Retry::After(reset_after))
        } else {
            Verdict::Allow
        };
        Some(Decision { verdict, remaining, reset_after, basis: Basis::Counted })
    }

    /// Starts a counter with its part of what the store last said was left.
    fn seed(&self, hash: CounterHash, charge: &Charge<'_>, share: &Limit, now: Instant) {
        // A seed of an earlier outage.
        self.unseed(hash, charge.key(), share, |_| true);
        let last = self.last_answers.get(hash).filter(|last| now < last.reset_at);
        let Some(last) = last else { return };
        if counts_holders(charge.limit()) {
            return;
        }
        let level = last.remaining.div_ceil(self.nodes().max(1));
        let Some(excess) = self.remaining(charge.key(), share).checked_sub(level) else { return };
        let seed = Seed {
            cost: excess,
            at: self.clock.now(),
            until: last.reset_at,
            revision: share.revision(),
        };
        // A debit of the greatest moment counts in full, however late it arrives.
        let debit = Op::Debit { cost: excess, at: Timestamp::MAX };
        if let Ok(debit) = Charge::new(charge.key(), share, debit) {
            let _ = self.local.charge_one(&debit);
            self.seeds.get_or_init(|| LossyMap::new(self.capacity)).put(hash, seed);
        }
    }

    /// Gives back the seed of a counter, as far as it still counts, if it is `due`.
    fn unseed(
        &self,
        hash: CounterHash,
        key: Key<'_>,
        share: &Limit,
        due: impl FnOnce(&Seed) -> bool,
    ) {
        let Some(seeds) = self.seeds.get() else { return };
        let Some(seed) = seeds.get(hash).filter(due) else { return };
        seeds.forget(hash);
        // After an edit of the limit, the worth of the seed is unknown.
        if seed.revision == share.revision() {
            let credit = Op::Credit { cost: seed.cost, at: seed.at };
            if let Ok(charge) = Charge::new(key, share, credit) {
                let _ = self.local.charge_one(&charge);
            }
        }
    }

    fn remaining(&self, key: Key<'_>, share: &Limit) -> u64 {
        let peek = Charge::new(key, share, Op::Peek(0));
        peek.map_or(0, |peek| self.local.charge_one(&peek).remaining)
    }

    /// The settlement of a counter's debt, if it has one, as far as the debt still counts.
    pub(crate) fn settlement(&self, hash: CounterHash, names: &IdGenerator) -> Option<Settlement> {
        let used = |counter: &OwnedCounter, share: &Limit| {
            let Some(key) = counter.key() else { return 0 };
            share.quota().burst().get().saturating_sub(self.remaining(key, share))
        };
        self.debts.settlement(hash, used, || names.draw())
    }

    /// Charges the share of a limit, to hold a permit here while the store cannot, or to release it.
    pub(crate) fn charge_share(&self, charge: &Charge<'_>) {
        let Some(share) = self.share_of(charge.limit()) else { return };
        if let Some(charge) = under(charge, &share) {
            let _ = self.local.charge_one(&charge);
        }
    }
}

/// A cost above the share may pass once the store is back, so a refusal for good becomes one for now.
fn for_now(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Deny(Retry::Never) => Verdict::Deny(Retry::After(ASK_AGAIN)),
        other => other,
    }
}

fn refusal(charges: usize, by: usize, decision: Decision) -> Answer {
    let mut decisions: SmallVec<[Decision; 4]> = SmallVec::new();
    decisions.resize(charges, passing());
    if let Some(refusing) = decisions.get_mut(by) {
        *refusing = decision;
    }
    let verdict = decision.verdict;
    Answer { verdict, at: Timestamp::EPOCH, refused_by: Some(by), decisions }
}

/// The decision of a counter that cannot be asked.
const fn refusing() -> Decision {
    Decision { verdict: Verdict::Deny(Retry::After(ASK_AGAIN)), ..passing() }
}

/// The decision of a counter that is not asked.
const fn passing() -> Decision {
    Decision {
        verdict: Verdict::Allow,
        remaining: 0,
        reset_after: Duration::ZERO,
        basis: Basis::Overflow,
    }
}

#[cfg(test)]
mod tests {
    use super::super::lossy_map::CounterHasher;
    use super::*;
    use tollgate_core::algorithm::SlidingLog;

    #[test]
    fn last_answers_are_kept_up_to_the_capacity() {
        let (fallback, hasher) = (OutageFallback::new(CAPACITY), CounterHasher::new());
        let seen = clock::now();
        let limit = Limit::new(SlidingLog, "1 per 1h".parse().unwrap()).unwrap();
        let hash = |i: usize| hasher.hash(Key::new(&i.to_le_bytes()).unwrap(), &limit);

        for i in 0..200_000_usize {
            fallback.learn(hash(i), &limit, &Decision::overflow(Verdict::Allow), seen);
            assert!(fallback.has_counted(hash(i), &limit));
        }

        let remembered = (0..200_000).filter(|i| fallback.has_counted(hash(*i), &limit)).count();
        assert!((58_000..=65_536).contains(&remembered), "{remembered}");
    }
}
