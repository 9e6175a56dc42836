//! From tolls to an answer, whatever the store does: the only `await` of a request.
//!
//! ```text
//!  deny cache ─ refused, and known to be      denials.rs   stores that cost a trip only
//!  guard ────── above a multiple of the limit guards.rs    rules that ask for it
//!  store ────── charged, all or none
//!  ladder ───── the store did not answer      ladder.rs    per rule: local, admit, refuse
//! ```
//!
//! `keeper.rs` is what happens besides: heartbeats, debts, permits, bans. Nothing here knows what a
//! rule is.

mod debts;
mod denials;
mod guards;
mod keeper;
pub(crate) mod keys;
mod ladder;
mod slots;
mod toll;

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{
    Answer, Charge, Cost, Decision, Limit, Need, Op, Request, Retry, Store, StoreError,
    StoreErrorKind, Timestamp, Verdict,
};

use crate::builder::DenyCache;
use crate::chance::Names;
use crate::clock::{self, Instant};
use debts::Settling;
use denials::Denials;
use guards::{Guarded, Guards, Taken};
pub(crate) use keeper::{Chore, Keeper, Teller, at_once, once_within};
use ladder::Ladder;
use slots::{Print, Printer};
pub(crate) use toll::{OwnedToll, Toll};

/// Executes tolls on a store, and answers in its place when it does not.
#[derive(Debug)]
pub(crate) struct Engine<S> {
    pub(crate) store: S,
    fleet: Box<str>,
    pub(crate) names: Names,
    printer: Printer,
    denials: Option<Denials>,
    guards: Guards,
    /// Whether the store did not answer when it was last asked.
    silent: AtomicBool,
    ladder: Ladder,
    once: Limit,
    counts: Counts,
}

/// The fleet that a node belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub(crate) name: Box<str>,
    /// How many it is taken for until it has been counted.
    pub(crate) nodes: u64,
}

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// This process, which knew that the store would refuse.
    DenyCache,
    /// The local limiter in front of the store.
    Guard,
    /// This process, as the store did not answer, for this reason.
    Outage(StoreErrorKind),
}

/// What became of a request.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) answer: Answer,
    pub(crate) source: Source,
}

impl Outcome {
    /// Nothing yet.
    #[inline(always)]
    pub(crate) fn none() -> Self {
        let (verdict, at) = (Verdict::Allow, Timestamp::EPOCH);
        let answer = Answer { verdict, at, refused_by: None, decisions: SmallVec::new() };
        Self { answer, source: Source::Store }
    }
}

/// What was counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) cached: AtomicU64,
    pub(crate) guarded: AtomicU64,
    pub(crate) degraded: AtomicU64,
    pub(crate) debited: AtomicU64,
    pub(crate) lost_chores: Arc<AtomicU64>,
}

impl<S: Store> Engine<S> {
    pub(crate) fn new(store: S, deny_cache: DenyCache, fleet: Fleet) -> Self {
        let ladder = Ladder::new(if store.is_remote() { ladder::PLACES } else { 0 });
        ladder.set_nodes(fleet.nodes);
        let caches = store.is_remote() && deny_cache == DenyCache::On;
        let denials = caches.then(Denials::new);
        Self {
            store,
            fleet: fleet.name,
            names: Names::new(),
            printer: Printer::new(),
            denials,
            guards: Guards::new(),
            silent: AtomicBool::new(false),
            ladder,
            once: once_within(DEBT_KNOWN),
            counts: Counts::default(),
        }
    }
}

impl<S> Engine<S> {
    pub(crate) const fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(crate) const fn ladder(&self) -> &Ladder {
        &self.ladder
    }
}

impl<S: Store> Engine<S> {
    /// What [`Engine::decide`] says, where a store answers without a future and nothing stands before
    /// it. False, and nothing was charged, otherwise.
    pub(crate) fn decide_at_once(
        &self,
        tolls: &[Toll<'_>],
        partition: Option<&[u8]>,
        answer: &mut Answer,
    ) -> bool {
        let guarded = || tolls.iter().any(|toll| toll.guard.is_some());
        if self.store.is_remote() || guarded() || !self.ladder.debts.is_empty() {
            return false;
        }
        let mut charges = SmallVec::new();
        fill(&mut charges, tolls);
        match request(&charges, tolls.len(), partition) {
            Some(request) => self.store.decide_at_once(&request, answer),
            None => false,
        }
    }

    /// The same of a request that needs nothing but the store.
    #[cfg(feature = "tower")]
    pub(crate) fn take_at_once(&self, request: &Request<'_>, answer: &mut Answer) -> bool {
        let ready = !self.store.is_remote() && self.ladder.debts.is_empty();
        ready && self.store.decide_at_once(request, answer)
    }

    /// Executes the tolls, all or none.
    pub(crate) async fn decide(&self, tolls: &[Toll<'_>], partition: Option<&[u8]>) -> Outcome {
        // A store that costs no trip is neither spared nor learnt from.
        if !self.store.is_remote() && tolls.iter().all(|toll| toll.guard.is_none()) {
            return match self.ask(tolls, &[], partition).await {
                Ok(answer) => Outcome { answer, source: Source::Store },
                Err(error) => self.without_store(tolls, &[], partition, &error),
            };
        }
        let prints = self.prints(tolls);
        if let Some(answer) = self.known(tolls, &prints) {
            self.counts.cached.fetch_add(1, Ordering::Relaxed);
            return Outcome { answer, source: Source::DenyCache };
        }
        let taken = match self.guard(tolls) {
            Guarded::Passed(taken) => taken,
            Guarded::Refused(answer) => {
                self.counts.guarded.fetch_add(1, Ordering::Relaxed);
                return Outcome { answer, source: Source::Guard };
            }
        };
        let sent = self.store.is_remote().then(clock::now);
        let asked = self.ask(tolls, &prints, partition).await;
        self.heard(&asked);
        match asked {
            Ok(answer) => {
                if let Some(sent) = sent {
                    self.learn(tolls, &prints, &answer, sent);
                }
                if !answer.passes() {
                    let passes = |i: usize| answer.decisions.get(i).is_some_and(Decision::passes);
                    self.guards.give_back(tolls, &taken, passes);
                }
                self.beside_guards(tolls, answer)
            }
            Err(error) => {
                self.guards.give_back(tolls, &taken, |_| true);
                self.without_store(tolls, &prints, partition, &error)
            }
        }
    }

    /// Gives back to one counter, and then takes from it, in this order and with one call.
    pub(crate) async fn in_order(
        &self,
        counter: &OwnedToll,
        credits: &[(Cost, Timestamp)],
        takes: &[(Cost, Duration)],
    ) -> Vec<Outcome> {
        let credit = |(cost, at): &(Cost, Timestamp)| {
            counter.toll(Op::Credit { cost: *cost, at: *at })?.charge()
        };
        let take = |(cost, patience): &(Cost, Duration)| {
            Some(counter.toll(Op::Take(*cost))?.with_patience(*patience))
        };
        let takes: Vec<Toll<'_>> = takes.iter().filter_map(take).collect();
        let credits: Vec<Charge<'_>> = credits.iter().filter_map(credit).collect();
        // A refusal says nothing any more once something was given back.
        let credited = counter.toll(Op::Peek(0)).filter(|_| !credits.is_empty());
        self.forget_denials(credited.as_slice());
        let known: Vec<Option<Answer>> = takes
            .iter()
            .map(|toll| self.known(from_ref(toll), &self.prints(from_ref(toll))))
            .collect();
        let asked = takes.iter().zip(&known).filter(|(_, known)| known.is_none());
        let charges = asked.filter_map(|(toll, _)| toll.charge());
        let given_back = credits.len();
        let charges: Vec<Charge<'_>> = credits.into_iter().chain(charges).collect();
        let sent = clock::now();
        let mut answers = self.charge_one_by_one(counter, &charges).await.map(|mut answers| {
            answers.drain(..given_back.min(answers.len()));
            answers.into_iter()
        });
        if answers.is_err() {
            let lost = u64::try_from(given_back).unwrap_or(u64::MAX);
            self.counts.lost_chores.fetch_add(lost, Ordering::Relaxed);
        }
        let mut outcomes = Vec::with_capacity(takes.len());
        for (toll, known) in takes.iter().zip(known) {
            outcomes.push(match (known, &mut answers) {
                (Some(answer), _) => {
                    self.counts.cached.fetch_add(1, Ordering::Relaxed);
                    Outcome { answer, source: Source::DenyCache }
                }
                (None, Ok(answers)) => {
                    // A store that answers too few broke its promise.
                    let answer = answers.next().unwrap_or_else(|| never(1));
                    if self.store.is_remote() {
                        self.learn(from_ref(toll), &self.prints(from_ref(toll)), &answer, sent);
                    }
                    Outcome { answer, source: Source::Store }
                }
                (None, Err(error)) => {
                    let partition = counter.partition.as_deref();
                    self.without_store(
                        from_ref(toll),
                        &self.prints(from_ref(toll)),
                        partition,
                        error,
                    )
                }
            });
        }
        outcomes
    }

    /// Executes charges of one counter, each by itself, after telling the store what is owed to it.
    async fn charge_one_by_one(
        &self,
        counter: &OwnedToll,
        charges: &[Charge<'_>],
    ) -> Result<Vec<Answer>, StoreError> {
        if !self.ladder.debts.is_empty()
            && let Some(key) = counter.key()
        {
            let print = self.printer.print(key, &counter.limit);
            if let Some(owed) = self.ladder.settling(print, &self.names) {
                self.settle(&[owed], None).await?;
            }
        }
        let mut batch = Vec::with_capacity(charges.len());
        for charge in charges {
            let Ok(request) = Request::new(from_ref(charge)) else { continue };
            let partition = counter.partition.as_deref();
            batch.push(partition.map_or(request, |partition| request.within(partition)));
        }
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.store.charge(&batch).await
    }

    /// Answers in the store's place.
    fn without_store(
        &self,
        tolls: &[Toll<'_>],
        prints: &[Print],
        partition: Option<&[u8]>,
        error: &StoreError,
    ) -> Outcome {
        self.counts.degraded.fetch_add(1, Ordering::Relaxed);
        let answer = self.ladder.answer(tolls, prints, partition);
        Outcome { answer, source: Source::Outage(error.kind()) }
    }

    /// Charges guards, unless the store was silent when it was last asked: there is nothing to be
    /// spared then, and the ladder decides.
    fn guard(&self, tolls: &[Toll<'_>]) -> Guarded {
        if asks(tolls) || self.silent.load(Ordering::Relaxed) {
            return Guarded::Passed(Taken::new());
        }
        self.guards.charge(tolls)
    }

    /// The store's answer, and for whoever only asks what its guards would say.
    fn beside_guards(&self, tolls: &[Toll<'_>], mut answer: Answer) -> Outcome {
        if !answer.passes() || !asks(tolls) {
            return Outcome { answer, source: Source::Store };
        }
        let Guarded::Refused(refusal) = self.guards.charge(tolls) else {
            return Outcome { answer, source: Source::Store };
        };
        for (decision, guard) in answer.decisions.iter_mut().zip(&refusal.decisions) {
            if !guard.passes() {
                decision.verdict = guard.verdict;
                decision.remaining = decision.remaining.min(guard.remaining);
            }
        }
        (answer.verdict, answer.refused_by) = (refusal.verdict, refusal.refused_by);
        Outcome { answer, source: Source::Guard }
    }

    /// Lets guards know that a charge of this age was credited.
    pub(crate) fn credited(&self, toll: &Toll<'_>, cost: Cost, age: Duration) {
        self.guards.give_back_after(toll, cost, age);
    }

    /// Notes whether the store answered.
    pub(crate) fn heard<T>(&self, answer: &Result<T, StoreError>) {
        // Seldom another than before, and many read it.
        if self.store.is_remote() && self.silent.load(Ordering::Relaxed) != answer.is_err() {
            self.silent.store(answer.is_err(), Ordering::Relaxed);
        }
    }

    /// Asks the store, after telling it what it does not know yet.
    async fn ask(
        &self,
        tolls: &[Toll<'_>],
        prints: &[Print],
        partition: Option<&[u8]>,
    ) -> Result<Answer, StoreError> {
        let mut charges = SmallVec::new();
        fill(&mut charges, tolls);
        let Some(request) = request(&charges, tolls.len(), partition) else {
            // Nothing that this crate builds; refused rather than charged in part.
            return Ok(never(tolls.len()));
        };
        if self.ladder.debts.is_empty() {
            return self.store.decide(&request).await;
        }
        let mut owed: SmallVec<[Settling; 4]> = SmallVec::new();
        for print in prints {
            owed.extend(self.ladder.settling(*print, &self.names));
        }
        self.settle(&owed, Some(&request)).await.and_then(|answer| {
            // The request itself was the last of the batch.
            answer.ok_or(StoreError::new(StoreErrorKind::Timeout))
        })
    }

    /// Tells the store of debts, and then asks it.
    async fn settle(
        &self,
        owed: &[Settling],
        then: Option<&Request<'_>>,
    ) -> Result<Option<Answer>, StoreError> {
        let parts = || owed.iter().flat_map(|debt| debt.parts.iter().map(move |part| (debt, part)));
        let mut buffers: Vec<[u8; 17]> = vec![[0; 17]; parts().count()];
        let mut requests: Vec<Built<'_>> = Vec::new();
        for ((debt, part), buffer) in parts().zip(&mut buffers) {
            let at = self.ladder.store_time(part.last).unwrap_or(Timestamp::MAX);
            let once = keys::numbered(keys::DEBT, part.name, buffer)
                .and_then(|key| Toll::new(key, &self.once, Op::Take(1)).charge());
            let debit = debt.toll.toll(Op::Debit { cost: part.cost, at });
            let debit = debit.and_then(|toll| toll.charge());
            let charges = once.into_iter().chain(debit).collect();
            requests.push((charges, debt.toll.partition.as_deref()));
        }
        // A counter that nothing is owed to is only asked about: whether the store is back.
        for debt in owed.iter().filter(|debt| debt.parts.is_empty() && then.is_none()) {
            let peek = debt.toll.toll(Op::Peek(0)).and_then(|toll| toll.charge());
            requests.push((peek.into_iter().collect(), debt.toll.partition.as_deref()));
        }
        let mut batch: Vec<Request<'_>> = Vec::with_capacity(requests.len().saturating_add(1));
        for (charges, partition) in &requests {
            let Ok(request) = Request::new(charges) else { continue };
            batch.push(partition.map_or(request, |partition| request.within(partition)));
        }
        batch.extend(then);
        let answers = self.store.charge(&batch).await;
        for debt in owed {
            match &answers {
                Ok(_) => self.ladder.debts.settled(debt),
                Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                    self.ladder.debts.unsent(debt);
                }
                // It may have arrived.
                Err(_) => {}
            }
        }
        let mut answers = answers?;
        let told = u64::try_from(parts().count()).unwrap_or(u64::MAX);
        self.counts.debited.fetch_add(told, Ordering::Relaxed);
        Ok(then.and_then(|_| answers.pop()))
    }

    /// Settles some debts of counters that nobody asks about.
    pub(crate) async fn settle_some(&self) -> Result<(), StoreError> {
        let prints = self.ladder.debts.some(SETTLED_AT_ONCE);
        let owed: Vec<Settling> = prints
            .into_iter()
            .filter_map(|print| self.ladder.settling(print, &self.names))
            .collect();
        self.settle(&owed, None).await.map(drop)
    }

    /// A refusal that need not be asked for. Whoever only asks wants to know what the store says.
    fn known(&self, tolls: &[Toll<'_>], prints: &[Print]) -> Option<Answer> {
        let denials = self.denials.as_ref()?;
        if asks(tolls) {
            return None;
        }
        let now = clock::now();
        let counters = || tolls.iter().zip(prints);
        let found: SmallVec<[Option<Decision>; 4]> =
            counters().map(|(toll, print)| denials.known(*print, toll, now)).collect();
        // A rule that bans must hear of everything that it refuses; and after an edit the store must
        // have met every counter, or it would convert those that it has not met later than without
        // this cache.
        let heard = tolls.iter().zip(&found).all(|(toll, known)| !toll.bans || known.is_some());
        let answer = refused_by(tolls, &found).filter(|_| heard)?;
        counters().all(|(toll, print)| self.ladder.has_met(*print, toll.limit)).then_some(answer)
    }

    /// Forgets refusals of counters that were credited.
    pub(crate) fn forget_denials(&self, tolls: &[Toll<'_>]) {
        for toll in tolls {
            if let Some(denials) = &self.denials {
                denials.forget(self.printer.print(toll.key, toll.limit), clock::now());
            }
        }
    }

    /// Learns from what the store said.
    fn learn(&self, tolls: &[Toll<'_>], prints: &[Print], answer: &Answer, sent: Instant) {
        self.ladder.learn_time(answer.at, clock::now());
        for ((toll, print), decision) in tolls.iter().zip(prints).zip(&answer.decisions) {
            self.ladder.learn(*print, toll.limit, decision, sent);
            if let Some(denials) = &self.denials {
                denials.learn(*print, toll, decision, sent);
            }
        }
    }

    /// What stands for the counters of a request, made once for all that remember them. Of a store
    /// that always answers, nothing is remembered.
    fn prints(&self, tolls: &[Toll<'_>]) -> SmallVec<[Print; 4]> {
        let of = if self.store.is_remote() { tolls } else { &[] };
        of.iter().map(|toll| self.printer.print(toll.key, toll.limit)).collect()
    }
}

/// Adds the charges of tolls; fewer, if one does not fit its limit.
#[inline]
fn fill<'t>(charges: &mut SmallVec<[Charge<'t>; 4]>, tolls: &[Toll<'t>]) {
    for toll in tolls {
        if let Some(charge) = toll.charge() {
            charges.push(charge);
        }
    }
}

/// The request that so many tolls make, if these are all their charges.
#[inline]
fn request<'c>(
    charges: &'c [Charge<'c>],
    tolls: usize,
    partition: Option<&'c [u8]>,
) -> Option<Request<'c>> {
    let request = Request::new(charges).ok().filter(|_| charges.len() == tolls)?;
    Some(partition.map_or(request, |partition| request.within(partition)))
}

/// The charges of a request, and its partition.
type Built<'a> = (SmallVec<[Charge<'a>; 2]>, Option<&'a [u8]>);

/// How many debts are settled with one call: well below what a store sends at once.
const SETTLED_AT_ONCE: usize = 64;

/// For how long the store remembers that a debt was settled: longer than its settling is tried.
const DEBT_KNOWN: Duration = Duration::from_secs(60 * 60);

/// The answer to a request when some of its charges are known to be refused: the longest retry
/// says when asking helps. Those of which any one suffices refuse when all of them do, until the
/// first of them may pass.
fn refused_by(tolls: &[Toll<'_>], found: &[Option<Decision>]) -> Option<Answer> {
    let known = |need: Need| {
        let rows = tolls.iter().zip(found).enumerate();
        rows.filter(move |(_, (toll, _))| toll.need == need)
            .map(|(i, (_, decision))| decision.map(|decision| (decision.verdict, i)))
    };
    let must = known(Need::Must).flatten().max_by_key(|(verdict, _)| *verdict);
    let group: Option<SmallVec<[_; 4]>> = known(Need::AnyOf).collect();
    let group = group.and_then(|group| group.into_iter().min());
    let (verdict, by) = must.into_iter().chain(group).max_by_key(|(verdict, _)| *verdict)?;
    let unknown = Decision::overflow(Verdict::Allow);
    let decisions = found.iter().map(|decision| decision.unwrap_or(unknown)).collect();
    Some(Answer { verdict, at: Timestamp::EPOCH, refused_by: Some(by), decisions })
}

/// Whether nothing is charged.
fn asks(tolls: &[Toll<'_>]) -> bool {
    tolls.iter().all(|toll| matches!(toll.op, Op::Peek(_)))
}

fn never(tolls: usize) -> Answer {
    let verdict = Verdict::Deny(Retry::Never);
    let mut decisions = SmallVec::new();
    decisions.resize(tolls, Decision::overflow(verdict));
    Answer { verdict, at: Timestamp::EPOCH, refused_by: Some(0), decisions }
}

/// An engine that many hold.
pub(crate) type Shared<S> = Arc<Engine<S>>;
