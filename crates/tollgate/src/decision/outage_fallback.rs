//! The outage fallback: answers requests while the store does not.
//!
//! Each rule says so itself: `admit`, `refuse`, or its share of the limit in this process
//! (`local`). Under `local`, a limit of L shared by N live nodes becomes ⌈L ÷ N⌉ here, and a
//! counter starts with its part of what the store last said was left. So with N nodes at most
//! L + N × share pass, across both switches; when all had seen the counter just before, it is L
//! and a rounding.
//!
//! What passes is owed to the store (`debts.rs`), which is told before it answers again. What a
//! counter started without is given back when the store said that it would be, so that an outage
//! prolongs neither a window that was nearly over nor a ban.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::{
    Answer, Basis, Charge, Clock, Cost, Decision, Key, Limit, Op, Request, Retry, Revision,
    Timestamp, Verdict,
};
use tollgate_embedded::EmbeddedStore;

use super::debts::{Debts, Met, Settlement};
use super::lossy_map::{CounterHash, LossyMap};
use super::plan::{OwnedCounter, Plan, counts_holders, spent, under};
use crate::chance::Names;
use crate::clock::{self, Instant, LocalClock, after};

/// How many counters' last known remains are remembered, and how many may have local shares.
pub(crate) const PLACES: usize = 65_536;

/// When to ask again, if nothing better is known: a breaker probes about as often.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What the store last said of a counter.
#[derive(Clone, Copy, Debug)]
struct Hint {
    remaining: u64,
    /// Under which edit of its limit the store met it.
    revision: Revision,
    /// From then on the counter is full, unless others charged it.
    reset_at: Instant,
}

/// What a local counter started without.
#[derive(Clone, Copy, Debug)]
struct Seed {
    cost: Cost,
    /// When it was taken away, by the clock of the local counters.
    at: Timestamp,
    /// From then on the store would count nothing of it.
    until: Instant,
    revision: Revision,
}

/// Answers in the store's place.
#[derive(Debug)]
pub(crate) struct OutageFallback {
    local: EmbeddedStore<LocalClock>,
    clock: LocalClock,
    places: usize,
    hints: LossyMap<Hint>,
    /// Made in the first outage.
    seeds: OnceLock<LossyMap<Seed>>,
    pub(crate) debts: Debts,
    /// What passed and could not be remembered as owed.
    pub(crate) forgotten: AtomicU64,
    nodes: AtomicU64,
    store_time: Mutex<Option<(Timestamp, Instant)>>,
}

impl OutageFallback {
    /// A fallback that remembers about so many counters.
    pub(crate) fn new(places: usize) -> Self {
        let clock = LocalClock::new();
        Self {
            local: EmbeddedStore::builder().max_keys(places).with_clock(clock.clone()),
            clock,
            places,
            hints: LossyMap::new(places),
            seeds: OnceLock::new(),
            debts: Debts::default(),
            forgotten: AtomicU64::new(0),
            nodes: AtomicU64::new(1),
            store_time: Mutex::new(None),
        }
    }

    /// How many nodes share the limits, as last counted.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nodes(&self, nodes: u64) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    /// This process's part of a limit that all nodes share, rounded up; `None` if so little cannot be
    /// represented.
    fn share_of(&self, limit: &Limit) -> Option<Limit> {
        limit.scaled(1, self.nodes()).ok()
    }

    /// Remembers what the store said of a counter.
    pub(crate) fn learn(
        &self,
        hash: CounterHash,
        limit: &Limit,
        decision: &Decision,
        seen: Instant,
    ) {
        let hint = Hint {
            remaining: decision.remaining,
            revision: limit.revision(),
            reset_at: after(seen, decision.reset_after),
        };
        self.hints.put(hash, hint);
    }

    /// Whether the store has met this counter under this edit of its limit, as far as is known.
    pub(crate) fn has_met(&self, hash: CounterHash, limit: &Limit) -> bool {
        self.hints.get(hash).is_some_and(|hint| hint.revision == limit.revision())
    }

    /// Remembers the store's time.
    pub(crate) fn learn_time(&self, at: Timestamp, seen: Instant) {
        let mut known = self.store_time.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            // So that windows that follow the epoch begin here when they begin there.
            self.clock.align(at, seen);
        }
        *known = Some((at, seen));
    }

    /// What the store's clock showed at `then`, as far as this process can tell.
    pub(crate) fn store_time(&self, then: Instant) -> Option<Timestamp> {
        let (at, seen) = (*self.store_time.lock().unwrap_or_else(PoisonError::into_inner))?;
        let since = then.saturating_duration_since(seen);
        let before = seen.saturating_duration_since(then);
        let later = at.checked_add(since)?;
        let micros = u64::try_from(before.as_micros()).ok()?;
        Some(Timestamp::from_micros(later.as_micros().saturating_sub(micros)))
    }

    /// Answers a request in the store's place.
    pub(crate) fn answer(&self, plan: &Plan<'_>, hashes: &[CounterHash]) -> Answer {
        let (now, count) = (clock::now(), plan.policies.len());
        let refuses = |on_outage: OnOutage| on_outage == OnOutage::Refuse;
        if let Some(by) = plan.policies.iter().position(|policy| refuses(policy.on_outage)) {
            return refusal(count, by, refusing());
        }
        let mut shares: SmallVec<[(usize, Limit, CounterHash); 4]> = SmallVec::new();
        let mut told: SmallVec<[(usize, Decision); 4]> = SmallVec::new();
        for (i, ((charge, policy), hash)) in plan.iter().zip(hashes).enumerate() {
            if policy.on_outage != OnOutage::Local {
                continue;
            }
            let Some(share) = self.share_of(charge.limit()) else {
                return refusal(count, i, refusing());
            };
            match self.debts.meet(*hash, charge, plan.partition, &share, now) {
                Met::First => self.seed(*hash, charge, &share, now),
                Met::Asked => told.extend(self.told(*hash, charge, now).map(|told| (i, told))),
                Met::Again | Met::Unknown => {
                    self.unseed(*hash, charge.key(), &share, |seed| seed.until <= now)
                }
            }
            shares.push((i, share, *hash));
        }
        let refuses = |(_, told): &&(usize, Decision)| !told.passes();
        if let Some((by, decision)) = told.iter().find(refuses) {
            return refusal(count, *by, *decision);
        }
        let mut answer = self.charge(plan, &shares);
        for (i, told) in told {
            if let Some(decision) = answer.decisions.get_mut(i) {
                decision.remaining = decision.remaining.min(told.remaining);
            }
        }
        if answer.passes() {
            for (i, _, hash) in &shares {
                // Of a group of which any one suffices, some may refuse, and are not charged.
                let decision = answer.decisions.get(*i).filter(|decision| decision.passes());
                let charge = plan.charges.get(*i).filter(|_| decision.is_some());
                let spent = charge.map_or(0, spent);
                // Of a counter without a place of its own nobody knows later what still counts.
                let has_place = decision.is_some_and(|it| it.basis == Basis::Counted);
                if spent > 0 && !(has_place && self.debts.add(*hash, spent, now)) {
                    self.forgotten.fetch_add(spent, Ordering::Relaxed);
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

    /// What a counter would start with that is only asked about, as bans are: nothing is kept of it.
    fn told(&self, hash: CounterHash, charge: &Charge<'_>, now: Instant) -> Option<Decision> {
        let hint = self.hints.get(hash).filter(|hint| now < hint.reset_at)?;
        let Op::Peek(cost) = charge.op() else { return None };
        if counts_holders(charge.limit()) {
            return None;
        }
        let remaining = hint.remaining.div_ceil(self.nodes().max(1));
        let reset_after = hint.reset_at.saturating_duration_since(now);
        let verdict = if cost > remaining {
            Verdict::Deny(Retry::After(reset_after))
        } else {
            Verdict::Allow
        };
        Some(Decision { verdict, remaining, reset_after, basis: Basis::Counted })
    }

    /// Starts a counter with its part of what the store last said was left.
    fn seed(&self, hash: CounterHash, charge: &Charge<'_>, share: &Limit, now: Instant) {
        // Of an outage before.
        self.unseed(hash, charge.key(), share, |_| true);
        let Some(hint) = self.hints.get(hash).filter(|hint| now < hint.reset_at) else { return };
        if counts_holders(charge.limit()) {
            return;
        }
        let level = hint.remaining.div_ceil(self.nodes().max(1));
        let Some(excess) = self.remaining(charge.key(), share).checked_sub(level) else { return };
        let seed = Seed {
            cost: excess,
            at: self.clock.now(),
            until: hint.reset_at,
            revision: share.revision(),
        };
        let debit = Op::Debit { cost: excess, at: Timestamp::MAX };
        if let Ok(debit) = Charge::new(charge.key(), share, debit) {
            let _ = self.local.charge_one(&debit);
            self.seeds.get_or_init(|| LossyMap::new(self.places)).put(hash, seed);
        }
    }

    /// Gives back what a counter started without, as far as time has not, if it is `due`.
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
        // What another edit made of it is not known.
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

    /// What is to be told of a counter's debt, if it has one: what of it still counts, as time has
    /// taken the rest.
    pub(crate) fn settlement(&self, hash: CounterHash, names: &Names) -> Option<Settlement> {
        let used = |counter: &OwnedCounter, share: &Limit| {
            let Some(key) = counter.key() else { return 0 };
            share.quota().burst().get().saturating_sub(self.remaining(key, share))
        };
        self.debts.settlement(hash, used, || names.draw())
    }

    /// Holds a permit here while the store cannot, or gives one back that was taken here.
    pub(crate) fn charge_share(&self, charge: &Charge<'_>) {
        let Some(share) = self.share_of(charge.limit()) else { return };
        if let Some(charge) = under(charge, &share) {
            let _ = self.local.charge_one(&charge);
        }
    }
}

/// What is above the share may pass once the store is back.
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

/// What a counter says that cannot be asked.
const fn refusing() -> Decision {
    Decision { verdict: Verdict::Deny(Retry::After(ASK_AGAIN)), ..passing() }
}

/// Nothing is known of a counter that nobody asks.
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
    fn what_was_last_seen_has_so_many_places() {
        let (fallback, hasher) = (OutageFallback::new(PLACES), CounterHasher::new());
        let seen = clock::now();
        let limit = Limit::new(SlidingLog, "1 per 1h".parse().unwrap()).unwrap();
        let hash = |i: usize| hasher.hash(Key::new(&i.to_le_bytes()).unwrap(), &limit);

        for i in 0..200_000_usize {
            fallback.learn(hash(i), &limit, &Decision::overflow(Verdict::Allow), seen);
            assert!(fallback.has_met(hash(i), &limit));
        }

        let remembered = (0..200_000).filter(|i| fallback.has_met(hash(*i), &limit)).count();
        assert!((58_000..=65_536).contains(&remembered), "{remembered}");
    }
}
