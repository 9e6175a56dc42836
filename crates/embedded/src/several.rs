//! Requests with several charges: all their shards locked, all their counters in hand.
//!
//! Counters are taken out of their shards, judged together by the core, and put back. A key
//! without room is counted by the shared counter of its limit, so two such keys of one request
//! may meet on one counter.

use smallvec::SmallVec;
use tollgate_core::algorithm::bucket::Plain;
use tollgate_core::{
    Answer, Basis, Charge, Clock, Counter, Limit, Need, Op, Request, Seat, Timestamp, Verdict,
};

use crate::EmbeddedStore;
use crate::fingerprint::Fingerprint;
use crate::overflow::{Overflow, Shared};
use crate::shard::{Planned, Shard};
use crate::sync::Guard;

/// A request under way. Most have at most four charges; more go to the heap.
pub(crate) struct Several<'s, C> {
    store: &'s EmbeddedStore<C>,
    prints: SmallVec<[Fingerprint; 4]>,
    shards: Guards<'s>,
    overflow: Option<Guard<'s, Overflow>>,
    counters: SmallVec<[Counter; 4]>,
    homes: SmallVec<[Home; 4]>,
    seats: SmallVec<[Seat; 4]>,
}

/// The guards of the shards a request touches, with their indices.
type Guards<'s> = SmallVec<[(usize, Guard<'s, Shard>); 4]>;

/// The locked shard of this index, and which of the guards is its own.
fn find<'g>(guards: &'g mut Guards<'_>, index: usize) -> Option<(usize, &'g mut Shard)> {
    let mut numbered = guards.iter_mut().enumerate();
    numbered.find(|(_, (i, _))| *i == index).map(|(at, (_, shard))| (at, &mut **shard))
}

/// A plain take that is planned.
struct Take {
    /// Which of the guards.
    at: usize,
    planned: Planned,
    plain: Plain,
}

/// Whether an operation on a key without a counter may make one.
const fn leaves_a_trace(op: Op) -> bool {
    match op {
        Op::Take(cost) => cost > 0,
        Op::Debit { .. } | Op::Acquire { .. } => true,
        Op::Peek(_) | Op::Credit { .. } | Op::Renew { .. } | Op::Release { .. } => false,
    }
}

/// Where a counter belongs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Home {
    /// Nowhere: the key has no counter, and gets none by being asked about.
    Nowhere,
    Shard(Fingerprint),
    Overflow(Limit),
}

impl<'s, C: Clock> Several<'s, C> {
    pub(crate) fn new(store: &'s EmbeddedStore<C>, request: &Request<'_>) -> Self {
        let mut prints = SmallVec::new();
        for charge in request.charges() {
            prints.push(store.fingerprint(charge));
        }
        Self {
            store,
            prints,
            shards: SmallVec::new(),
            overflow: None,
            counters: SmallVec::new(),
            homes: SmallVec::new(),
            seats: SmallVec::new(),
        }
    }

    /// Decides the request and makes its charges, all or none, into an answer without decisions.
    pub(crate) fn charge(mut self, request: &Request<'_>, answer: &mut Answer) {
        let early = self.store.early();
        self.lock_shards();
        self.call_back();
        let now = self.moment(early);
        if self.charge_plainly(request, now, answer) {
            return;
        }
        self.end_reservations();
        for (i, charge) in request.charges().iter().enumerate() {
            if let Some(print) = self.prints.get(i).copied() {
                self.find_seat(charge, print, now);
            }
        }
        let now = self.agree_with_overflow(now);
        *answer = request.judge(&mut self.counters, &self.seats, now);
        for (decision, seat) in answer.decisions.iter_mut().zip(&self.seats) {
            if let Seat::Counter(i) = seat
                && let Some(Home::Overflow(_)) = self.homes.get(*i)
            {
                decision.basis = Basis::Overflow;
            }
        }
        self.put_back();
    }

    /// The moment of the decision: never before the last one made in these shards, unless the clock
    /// itself may step back.
    fn moment(&mut self, early: Option<Timestamp>) -> Timestamp {
        let Some(early) = early else { return self.store.clock.now() };
        let now = self.shards.iter().fold(early, |now, (_, shard)| now.max(shard.latest()));
        for (_, shard) in &mut self.shards {
            shard.set_latest(now);
        }
        now
    }

    /// Plain takes from different buckets. False, and nothing done, if
    /// any of them is not that.
    fn charge_plainly(
        &mut self,
        request: &Request<'_>,
        now: Timestamp,
        answer: &mut Answer,
    ) -> bool {
        let charges = request.charges();
        let mut takes: SmallVec<[Take; 4]> = SmallVec::new();
        if !self.are_apart(charges) || !self.plan(charges, now, &mut takes) {
            return false;
        }
        if takes.iter().any(|take| matches!(take.planned, Planned::Insert(..))) {
            takes.clear();
            if !self.make_room(charges, now) || !self.plan(charges, now, &mut takes) {
                return false;
            }
        }
        let passes = takes.iter().all(|take| matches!(take.plain, Plain::Pass(_)));
        if passes {
            for ((take, charge), print) in takes.iter().zip(charges).zip(&self.prints) {
                if let Some((_, shard)) = self.shards.get_mut(take.at) {
                    shard.make_planned(*print, charge.limit(), take.planned);
                }
            }
        }
        self.unlock();
        answer_plainly(request, takes.iter().map(|take| take.plain), passes, now, answer);
        true
    }

    /// Whether all of these must pass, and no two are of one counter.
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

    /// Plans plain takes; false if one of them is not that simple.
    fn plan(
        &mut self,
        charges: &[Charge<'_>],
        now: Timestamp,
        takes: &mut SmallVec<[Take; 4]>,
    ) -> bool {
        for (charge, print) in charges.iter().zip(&self.prints) {
            let Some((at, shard)) = find(&mut self.shards, self.store.index(*print)) else {
                return false;
            };
            let Some((plain, planned)) = shard.plan_plainly(*print, charge, now) else {
                return false;
            };
            takes.push(Take { at, planned, plain });
        }
        true
    }

    /// Makes room for the keys of plain takes that have no slot; false if there is none. Keys that
    /// are found here may be dropped by that if they are idle, and need room themselves then.
    fn make_room(&mut self, charges: &[Charge<'_>], now: Timestamp) -> bool {
        let mut absent = 0;
        // Once more if making room dropped an idle key of this very request.
        for _ in 0..2 {
            let missing: SmallVec<[usize; 4]> = self.missing();
            if missing.len() == absent {
                return true;
            }
            self.end_reservations();
            for i in &missing {
                let (Some(charge), Some(print)) = (charges.get(*i), self.prints.get(*i)) else {
                    return false;
                };
                let shard = find(&mut self.shards, self.store.index(*print));
                if !shard.is_some_and(|(_, shard)| shard.make_room(*print, charge.limit(), now)) {
                    self.end_reservations();
                    return false;
                }
            }
            absent = missing.len();
        }
        self.missing().len() == absent
    }

    /// Which of the keys have no slot.
    fn missing(&mut self) -> SmallVec<[usize; 4]> {
        let mut missing = SmallVec::new();
        for (i, print) in self.prints.iter().enumerate() {
            if let Some((_, shard)) = find(&mut self.shards, self.store.index(*print))
                && !shard.has(*print)
            {
                missing.push(i);
            }
        }
        missing
    }

    fn end_reservations(&mut self) {
        for (_, shard) in &mut self.shards {
            shard.end_reservations();
        }
    }

    fn unlock(&mut self) {
        self.end_reservations();
        self.shards.clear();
    }

    /// Locks every shard that is touched, once, in ascending order.
    fn lock_shards(&mut self) {
        let mut indices: SmallVec<[usize; 4]> = SmallVec::new();
        for print in &self.prints {
            indices.push(self.store.index(*print));
        }
        indices.sort_unstable();
        indices.dedup();
        for index in indices {
            self.shards.push((index, self.store.lock(index)));
        }
    }

    /// Calls back the slots that are at booths: those of this request, and where room may be
    /// short, all.
    fn call_back(&mut self) {
        if self.shards.iter().all(|(_, shard)| !shard.lends()) {
            return;
        }
        let keys = self.prints.len();
        let short: SmallVec<[usize; 4]> = self
            .shards
            .iter()
            .filter_map(|(i, shard)| shard.misses_lent(keys).then_some(*i))
            .collect();
        let lent = |print: &Fingerprint| {
            let index = self.store.index(*print);
            self.shards.iter().any(|(i, shard)| *i == index && shard.has_lent(*print))
        };
        if short.is_empty() && !self.prints.iter().any(lent) {
            return;
        }
        // Booths come before shards, and while they are held no slot is lent again.
        self.shards.clear();
        for shard in short {
            self.store.call_all_back(shard);
        }
        let booths = self.store.lock_booths(&self.prints);
        self.lock_shards();
        for (print, mut booth) in booths {
            let index = self.store.index(print);
            if let Some((_, shard)) = find(&mut self.shards, index)
                && let Some((slot, latest)) = booth.vacate()
            {
                shard.take_back(slot, latest);
            }
        }
    }

    /// The shared counters may have been charged at a later moment than these shards.
    fn agree_with_overflow(&mut self, now: Timestamp) -> Timestamp {
        let Some(overflow) = self.overflow.as_mut().filter(|_| C::MONOTONIC) else { return now };
        let now = overflow.no_earlier(now);
        for (_, shard) in &mut self.shards {
            shard.set_latest(now);
        }
        now
    }

    /// Finds where a charge is counted, and takes that counter in hand.
    fn find_seat(&mut self, charge: &Charge<'_>, print: Fingerprint, now: Timestamp) {
        if self.share_seat(Home::Shard(print)) {
            return;
        }
        let index = self.store.index(print);
        let Some((_, shard)) = find(&mut self.shards, index) else { return };
        if let Some(counter) = shard.take(print) {
            return self.add(counter, Home::Shard(print));
        }
        let held = matches!(charge.op(), Op::Renew { .. } | Op::Release { .. })
            && self.overflow.get_or_insert_with(|| self.store.lock_overflow()).may_hold(charge);
        let alone = self.prints.iter().filter(|other| **other == print).count() == 1;
        if !held && alone && !leaves_a_trace(charge.op()) {
            return self.add(Counter::absent(charge.limit()), Home::Nowhere);
        }
        if !held && shard.make_room(print, charge.limit(), now) {
            return self.add(Counter::absent(charge.limit()), Home::Shard(print));
        }
        shard.tally.overflowed = shard.tally.overflowed.saturating_add(1);
        let until_room = shard.until_room(now);
        let home = Home::Overflow(*charge.limit());
        if self.share_seat(home) {
            return;
        }
        let overflow = self.overflow.get_or_insert_with(|| self.store.lock_overflow());
        match overflow.seat(charge, until_room, now) {
            Shared::Counter(counter) => self.add(counter, home),
            Shared::Fixed(verdict) => self.seats.push(Seat::Fixed(verdict)),
        }
    }

    /// Seats a charge at a counter that an earlier charge brought.
    fn share_seat(&mut self, home: Home) -> bool {
        let found = self.homes.iter().position(|other| *other == home);
        if let Some(i) = found {
            self.seats.push(Seat::Counter(i));
        }
        found.is_some()
    }

    fn add(&mut self, counter: Counter, home: Home) {
        self.seats.push(Seat::Counter(self.counters.len()));
        self.counters.push(counter);
        self.homes.push(home);
    }

    fn put_back(&mut self) {
        let counters = std::mem::take(&mut self.counters);
        for (counter, home) in counters.into_iter().zip(&self.homes) {
            match home {
                Home::Nowhere => {}
                Home::Shard(print) => {
                    let index = self.store.index(*print);
                    if let Some((_, shard)) = find(&mut self.shards, index) {
                        shard.put(*print, counter);
                    }
                }
                Home::Overflow(limit) => {
                    if let Some(overflow) = &mut self.overflow {
                        overflow.put(limit, counter);
                    }
                }
            }
        }
        self.end_reservations();
    }
}

/// Answers plain takes, which were made if all of them pass; no lock is needed for that.
fn answer_plainly(
    request: &Request<'_>,
    takes: impl Iterator<Item = Plain>,
    passes: bool,
    now: Timestamp,
    answer: &mut Answer,
) {
    for (charge, plain) in request.charges().iter().zip(takes) {
        if let (Some(plan), Some(cost)) = (charge.limit().bucket_plan(), charge.plain_cost()) {
            answer.decisions.push(if passes {
                plan.answer_plainly(plain, cost)
            } else {
                plan.peek_plainly(plain, cost)
            });
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
