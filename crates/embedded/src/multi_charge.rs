//! Requests with several charges: all their shards are locked, and the request is decided as a
//! whole.
//!
//! Counters are taken out of their shards, judged together by the core, and put back. The shared
//! counter of its limit counts a key without room, so two such keys of one request may share a
//! counter.

use smallvec::SmallVec;
use tollgate_core::state::ImmediateTake;
use tollgate_core::{
    Answer, Basis, Charge, ChargeTarget, Clock, Counter, Limit, Need, Op, Request, Timestamp,
    Verdict,
};

use crate::EmbeddedStore;
use crate::fingerprint::Fingerprint;
use crate::overflow::{Overflow, OverflowTarget};
use crate::shard::{Shard, SlotWrite};
use crate::sync::Guard;

/// A request in progress. Most have at most four charges; more go to the heap.
pub(crate) struct MultiCharge<'s, C> {
    store: &'s EmbeddedStore<C>,
    prints: SmallVec<[Fingerprint; 4]>,
    shards: Guards<'s>,
}

/// The counters of a request that core judges, taken out of the shards and the overflow.
struct TakenCounters<'m, 's, C> {
    request: &'m mut MultiCharge<'s, C>,
    overflow: Option<Guard<'s, Overflow>>,
    counters: SmallVec<[Counter; 4]>,
    locations: SmallVec<[CounterLocation; 4]>,
    targets: SmallVec<[ChargeTarget; 4]>,
}

/// The guards of the shards a request touches, with their indices.
type Guards<'s> = SmallVec<[(usize, Guard<'s, Shard>); 4]>;

/// Finds the locked shard of this index, and the index of its guard.
fn find<'g>(guards: &'g mut Guards<'_>, index: usize) -> (usize, &'g mut Shard) {
    let at = guards.iter().position(|(i, _)| *i == index).unwrap_or(usize::MAX);
    (at, &mut guards[at].1)
}

/// The planned immediate takes of a request.
struct PlannedTakes {
    takes: SmallVec<[PlannedTake; 4]>,
    /// True if a key has no slot yet.
    insert: bool,
    /// True if all of them pass.
    pass: bool,
}

/// A planned immediate take.
struct PlannedTake {
    /// The position of its shard among the guards.
    at: usize,
    write: SlotWrite,
    result: ImmediateTake,
}

/// True if an operation on a key without a counter may create one.
const fn leaves_a_trace(op: Op) -> bool {
    match op {
        Op::Take(cost) => cost > 0,
        Op::Debit { .. } | Op::Acquire { .. } => true,
        Op::Peek(_) | Op::Credit { .. } | Op::Renew { .. } | Op::Release { .. } => false,
    }
}

/// The location that a counter was taken from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CounterLocation {
    /// No location: the key has no counter, and a question creates none.
    Nowhere,
    Shard(Fingerprint),
    Overflow(Limit),
}

impl<'s, C: Clock> MultiCharge<'s, C> {
    pub(crate) fn new(store: &'s EmbeddedStore<C>, request: &Request<'_>) -> Self {
        Self {
            store,
            prints: request.charges().iter().map(|charge| store.fingerprint(charge)).collect(),
            shards: SmallVec::new(),
        }
    }

    /// Decides the request and makes its charges, all or none, and writes an answer without
    /// decisions.
    pub(crate) fn charge(&mut self, request: &Request<'_>, answer: &mut Answer) {
        let early = self.store.now_before_locks();
        self.lock_shards();
        self.demote();
        let now = self.moment(early);
        if !self.charge_immediately(request, now, answer) {
            self.end_reservations();
            TakenCounters::new(self).charge(request, now, answer);
        }
    }

    /// The moment of the decision: never before the last one in these shards, unless the clock
    /// itself may step back.
    fn moment(&mut self, early: Option<Timestamp>) -> Timestamp {
        let Some(early) = early else { return self.store.clock.now() };
        let now = self.shards.iter().fold(early, |now, (_, shard)| now.max(shard.latest));
        for (_, shard) in &mut self.shards {
            shard.latest = now;
        }
        now
    }

    /// Makes immediate takes from different buckets: plans all of them, and writes if all pass.
    /// False, with nothing done, for any other request.
    fn charge_immediately(
        &mut self,
        request: &Request<'_>,
        now: Timestamp,
        answer: &mut Answer,
    ) -> bool {
        let charges = request.charges();
        let mut planned = PlannedTakes { takes: SmallVec::new(), insert: false, pass: true };
        if !self.are_apart(charges) || !self.plan(charges, now, &mut planned) {
            return false;
        }
        let insert = planned.insert;
        if insert && !(self.make_room(charges, now) && self.plan(charges, now, &mut planned)) {
            return false;
        }
        let (takes, passes) = (&planned.takes, planned.pass);
        if passes {
            for ((take, charge), print) in takes.iter().zip(charges).zip(&self.prints) {
                self.shards[take.at].1.write(*print, charge.limit(), take.write);
            }
        }
        if insert {
            self.end_reservations();
        }
        self.shards.clear();
        answer_immediately(request, takes.iter().map(|take| take.result), passes, now, answer);
        true
    }

    /// True if all of these must pass, and no two share a counter.
    fn are_apart(&self, charges: &[Charge<'_>]) -> bool {
        let mut prints = self.prints.as_slice();
        while let [print, others @ ..] = prints {
            if others.contains(print) {
                return false;
            }
            prints = others;
        }
        charges.iter().all(|charge| charge.need() == Need::Must)
    }

    /// Plans immediate takes; false if a charge is anything else.
    fn plan(&mut self, charges: &[Charge<'_>], now: Timestamp, planned: &mut PlannedTakes) -> bool {
        planned.takes.clear();
        (planned.insert, planned.pass) = (false, true);
        for (charge, print) in charges.iter().zip(&self.prints) {
            let (at, shard) = find(&mut self.shards, self.store.index(*print));
            let Some((result, write)) = shard.plan_immediately(*print, charge, now) else {
                return false;
            };
            planned.insert |= matches!(write, SlotWrite::Insert(..));
            planned.pass &= matches!(result, ImmediateTake::Pass(_));
            planned.takes.push(PlannedTake { at, write, result });
        }
        true
    }

    /// Makes room for the keys of immediate takes that have no slot; false if there is none. This
    /// may drop an idle key of the same request, which then needs room itself.
    fn make_room(&mut self, charges: &[Charge<'_>], now: Timestamp) -> bool {
        let mut absent = 0;
        // Once more if making room dropped an idle key of this very request.
        for _ in 0..2 {
            let missing = self.missing();
            if missing.len() == absent {
                return true;
            }
            self.end_reservations();
            for i in &missing {
                let (limit, print) = (charges[*i].limit(), self.prints[*i]);
                let (_, shard) = find(&mut self.shards, self.store.index(print));
                if !shard.make_room(print, limit, now) {
                    self.end_reservations();
                    return false;
                }
            }
            absent = missing.len();
        }
        self.missing().len() == absent
    }

    /// The indices of the charges whose keys have no slot.
    fn missing(&mut self) -> SmallVec<[usize; 4]> {
        let (store, shards) = (self.store, &mut self.shards);
        let mut is_missing = |print| !find(shards, store.index(print)).1.has(print);
        (0..self.prints.len()).filter(|i| is_missing(self.prints[*i])).collect()
    }

    fn end_reservations(&mut self) {
        for (_, shard) in &mut self.shards {
            shard.end_reservations();
        }
    }

    /// Locks every shard of the request once, in ascending order.
    fn lock_shards(&mut self) {
        let mut indices: SmallVec<[usize; 4]> =
            self.prints.iter().map(|print| self.store.index(*print)).collect();
        indices.sort_unstable();
        for index in &indices {
            if self.shards.last().is_none_or(|(last, _)| last != index) {
                self.shards.push((*index, self.store.lock(*index)));
            }
        }
    }

    /// Demotes the promoted slots of this request, and all slots of a shard that is short of room.
    fn demote(&mut self) {
        if self.shards.iter().all(|(_, shard)| !shard.any_promoted()) {
            return;
        }
        let keys = self.prints.len();
        let short: SmallVec<[usize; 4]> = self
            .shards
            .iter()
            .filter_map(|(i, shard)| shard.promoted_may_free_room(keys).then_some(*i))
            .collect();
        let promoted = |print: &Fingerprint| {
            let index = self.store.index(*print);
            self.shards.iter().any(|(i, shard)| *i == index && shard.has_promoted(*print))
        };
        if short.is_empty() && !self.prints.iter().any(promoted) {
            return;
        }
        // Hot slots are locked before shards. While they are held, no slot is promoted.
        self.shards.clear();
        for shard in short {
            self.store.demote_all(shard);
        }
        let hot_slots = self.store.lock_hot_slots(&self.prints);
        self.lock_shards();
        for (print, mut hot_slot) in hot_slots {
            hot_slot.demote_into(find(&mut self.shards, self.store.index(print)).1);
        }
    }
}

impl<'m, 's, C: Clock> TakenCounters<'m, 's, C> {
    fn new(request: &'m mut MultiCharge<'s, C>) -> Self {
        Self {
            request,
            overflow: None,
            counters: SmallVec::new(),
            locations: SmallVec::new(),
            targets: SmallVec::new(),
        }
    }

    fn charge(&mut self, request: &Request<'_>, now: Timestamp, answer: &mut Answer) {
        for (i, charge) in request.charges().iter().enumerate() {
            self.find_target(charge, self.request.prints[i], now);
        }
        let now = self.agree_with_overflow(now);
        *answer = request.judge(&mut self.counters, &self.targets, now);
        for (decision, target) in answer.decisions.iter_mut().zip(&self.targets) {
            if let ChargeTarget::Counter(i) = target
                && let Some(CounterLocation::Overflow(_)) = self.locations.get(*i)
            {
                decision.basis = Basis::Overflow;
            }
        }
        self.put_back();
    }

    /// The moment of the decision, no earlier than that of the shared counters, which may be later
    /// than that of these shards.
    fn agree_with_overflow(&mut self, now: Timestamp) -> Timestamp {
        let Some(overflow) = self.overflow.as_mut().filter(|_| C::MONOTONIC) else { return now };
        let now = overflow.no_earlier(now);
        for (_, shard) in &mut self.request.shards {
            shard.latest = now;
        }
        now
    }

    /// Finds the counter of a charge, and takes it out.
    fn find_target(&mut self, charge: &Charge<'_>, print: Fingerprint, now: Timestamp) {
        if self.share_target(CounterLocation::Shard(print)) {
            return;
        }
        let (_, shard) = find(&mut self.request.shards, self.request.store.index(print));
        if let Some(counter) = shard.take(print) {
            return self.add(counter, CounterLocation::Shard(print));
        }
        let held = matches!(charge.op(), Op::Renew { .. } | Op::Release { .. }) && {
            let overflow = self.overflow.get_or_insert_with(|| self.request.store.lock_overflow());
            overflow.may_hold(charge.limit())
        };
        let alone = self.request.prints.iter().filter(|other| **other == print).count() == 1;
        if !held && alone && !leaves_a_trace(charge.op()) {
            return self.add(Counter::absent(charge.limit()), CounterLocation::Nowhere);
        }
        if !held && shard.make_room(print, charge.limit(), now) {
            return self.add(Counter::absent(charge.limit()), CounterLocation::Shard(print));
        }
        shard.stats.overflowed = shard.stats.overflowed.saturating_add(1);
        let until_room = shard.until_room(now);
        let location = CounterLocation::Overflow(*charge.limit());
        if self.share_target(location) {
            return;
        }
        let overflow = self.overflow.get_or_insert_with(|| self.request.store.lock_overflow());
        match overflow.target(charge, until_room, now) {
            OverflowTarget::Counter(counter) => self.add(counter, location),
            OverflowTarget::Fixed(verdict) => self.targets.push(ChargeTarget::Fixed(verdict)),
        }
    }

    /// Counts a charge by a counter that an earlier charge took out.
    fn share_target(&mut self, location: CounterLocation) -> bool {
        let found = self.locations.iter().position(|other| *other == location);
        if let Some(i) = found {
            self.targets.push(ChargeTarget::Counter(i));
        }
        found.is_some()
    }

    fn add(&mut self, counter: Counter, location: CounterLocation) {
        self.targets.push(ChargeTarget::Counter(self.counters.len()));
        self.counters.push(counter);
        self.locations.push(location);
    }

    fn put_back(&mut self) {
        let counters = std::mem::take(&mut self.counters);
        for (counter, location) in counters.into_iter().zip(&self.locations) {
            match location {
                CounterLocation::Nowhere => {}
                CounterLocation::Shard(print) => {
                    find(&mut self.request.shards, self.request.store.index(*print))
                        .1
                        .put(*print, counter);
                }
                CounterLocation::Overflow(limit) => {
                    if let Some(overflow) = &mut self.overflow {
                        overflow.put(limit, counter);
                    }
                }
            }
        }
        self.request.end_reservations();
    }
}

/// Answers immediate takes, which were made if all of them pass. Needs no lock.
fn answer_immediately(
    request: &Request<'_>,
    takes: impl Iterator<Item = ImmediateTake>,
    passes: bool,
    now: Timestamp,
    answer: &mut Answer,
) {
    for (charge, take) in request.charges().iter().zip(takes) {
        if let (Some(plan), Some(cost)) = (charge.limit().bucket_plan(), charge.immediate_cost()) {
            let decision = if passes { plan.answer(take, cost) } else { plan.peek(take, cost) };
            answer.decisions.push(decision);
        }
    }
    answer.at = now;
    (answer.verdict, answer.refused_by) = if passes {
        // All of them must, and do.
        (Verdict::Allow, None)
    } else {
        request.rule(&answer.decisions)
    };
}
