//! The runner: executes plans on a store, and answers in its place when it does not.
//!
//! A store in this process decides within the call. A remote one takes the only `await` of a
//! request. Nothing here knows what a rule is.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::rule::Ask;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::{
    Answer, Charge, Cost, Decision, Limit, Need, Op, Request, Retry, Store, StoreError,
    StoreErrorKind, Timestamp, Verdict,
};

use super::background::once_within;
use super::debts::Settlement;
use super::deny_cache::DenyCache;
use super::keys;
use super::local_guard::{GuardAnswer, GuardCharges, LocalGuards};
use super::lossy_map::{CounterHash, CounterHasher};
use super::outage_fallback::{self, OutageFallback};
use super::plan::{ChargePolicy, DecidingRules, Intent, Origin, OwnedCounter, Plan};
use super::ruling::{Reason, Ruling, Source};
use crate::builder::DenyCacheMode;
use crate::clock::{self, Instant};
use crate::limiter::Limiter;
use crate::permits::Permits;
use crate::random::IdGenerator;

/// Executes plans on a store, and answers in its place when it does not.
#[derive(Debug)]
pub(crate) struct Runner<S> {
    pub(crate) store: S,
    pub(super) fleet: Box<str>,
    pub(crate) names: IdGenerator,
    hasher: CounterHasher,
    deny_cache: Option<DenyCache>,
    guards: LocalGuards,
    /// True if the store did not answer when it was last asked.
    silent: AtomicBool,
    pub(crate) fallback: OutageFallback,
    once: Limit,
    pub(crate) counts: RunnerCounts,
}

/// The fleet that a node belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub(crate) name: Box<str>,
    /// The number of nodes until they have been counted.
    pub(crate) nodes: u64,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct RunnerCounts {
    pub(crate) deny_cache_refusals: AtomicU64,
    pub(crate) local_guard_refusals: AtomicU64,
    pub(crate) settled_debts: AtomicU64,
    pub(crate) lost_jobs: Arc<AtomicU64>,
}

impl<S: Store + 'static> Limiter<S> {
    /// Runs a plan within the call. The ask is for observers that record it. `None`, with nothing
    /// charged, if the store takes a round trip.
    #[inline]
    pub(crate) fn run_now(
        &self,
        plan: &Plan<'_>,
        ask: Option<&Ask<'_>>,
        ruling: &mut Ruling,
    ) -> Option<Permits> {
        let runner = &self.shared.runner;
        if !plan.policies.is_empty() && runner.store.is_remote() {
            return None;
        }
        let permits = self.permits(plan);
        if !plan.policies.is_empty() {
            runner.decide_now(plan, ruling);
        }
        Some(self.conclude(plan, ask, ruling, permits))
    }

    /// Runs a plan. The only `await` is for a store that takes a round trip.
    pub(crate) async fn run(
        &self,
        plan: &Plan<'_>,
        ask: Option<&Ask<'_>>,
        ruling: &mut Ruling,
    ) -> Permits {
        if let Some(permits) = self.run_now(plan, ask, ruling) {
            return permits;
        }
        let permits = self.permits(plan);
        self.shared.runner.decide(plan, ruling).await;
        self.conclude(plan, ask, ruling, permits)
    }

    /// Charges shadow rules, counts refusals towards bans, counts the request, tells observers.
    #[inline(always)]
    fn conclude(
        &self,
        plan: &Plan<'_>,
        ask: Option<&Ask<'_>>,
        ruling: &Ruling,
        mut permits: Permits,
    ) -> Permits {
        if matches!(plan.intent, Intent::Peek) {
            return permits;
        }
        if ruling.passes() {
            permits.granted();
            for shadow in &plan.shadow {
                permits.join(self.charge_shadow_rules(shadow));
            }
        } else {
            permits.refused();
            self.count_refusals(plan, ruling);
        }
        if matches!(plan.intent, Intent::Shadow) {
            self.shared.tell_shadow(ruling);
        } else {
            self.shared.tell_request(ask, ruling);
        }
        permits
    }

    /// The permits that a plan asks for.
    #[inline]
    pub(super) fn permits(&self, plan: &Plan<'_>) -> Permits {
        if !plan.acquires {
            return Permits::none();
        }
        let asked = plan.charges.iter().filter_map(|charge| match charge.op() {
            Op::Acquire { holder, lease } => {
                Some((OwnedCounter::of(charge, plan.partition), holder, lease))
            }
            _ => None,
        });
        Permits::asked(asked, &self.shared.background, &self.shared.runner)
    }
}

impl<S: Store> Runner<S> {
    pub(crate) fn new(store: S, deny_cache: DenyCacheMode, fleet: Fleet) -> Self {
        let remote = store.is_remote();
        let fallback = OutageFallback::new(if remote { outage_fallback::CAPACITY } else { 0 });
        fallback.set_nodes(fleet.nodes);
        let deny_cache = (remote && deny_cache == DenyCacheMode::On).then(DenyCache::new);
        Self {
            store,
            fleet: fleet.name,
            names: IdGenerator::new(),
            hasher: CounterHasher::new(),
            deny_cache,
            guards: LocalGuards::new(),
            silent: AtomicBool::new(false),
            fallback,
            once: once_within(SETTLEMENT_KNOWN),
            counts: RunnerCounts::default(),
        }
    }

    /// Decides a plan on a store that answers within the call.
    #[inline]
    fn decide_now(&self, plan: &Plan<'_>, ruling: &mut Ruling) {
        let Some(request) = plan.request() else { return ruling.refuse_for_good() };
        let Ok(taken) = self.guard(plan, ruling) else { return };
        let asked = self.ask_now(&request, &mut ruling.answer);
        self.learn_result(plan, &[], &taken, None, asked, ruling);
    }

    /// Decides a plan on any store, without counting the request or telling observers.
    pub(crate) async fn decide(&self, plan: &Plan<'_>, ruling: &mut Ruling) {
        if !self.store.is_remote() {
            return self.decide_now(plan, ruling);
        }
        let hashes = self.hashes(plan);
        if let Some(answer) = self.known(plan, &hashes) {
            self.counts.deny_cache_refusals.fetch_add(1, Ordering::Relaxed);
            (ruling.answer, ruling.source) = (answer, Source::DenyCache);
            return;
        }
        let Ok(taken) = self.guard(plan, ruling) else { return };
        let sent = clock::now();
        let asked = self.ask(plan, &hashes).await.map(|answer| ruling.answer = answer);
        self.note_silence(&asked);
        self.learn_result(plan, &hashes, &taken, Some(sent), asked, ruling);
    }

    /// Learns from the store's answer, or answers in its place.
    #[inline(always)]
    fn learn_result(
        &self,
        plan: &Plan<'_>,
        hashes: &[CounterHash],
        taken: &GuardCharges,
        sent: Option<Instant>,
        asked: Result<(), StoreError>,
        ruling: &mut Ruling,
    ) {
        if let Err(error) = asked {
            self.guards.give_back(plan, taken, |_| true);
            ruling.answer = self.fallback.answer(plan, hashes);
            ruling.source = Source::Outage(error.kind());
            let refusing = ruling.answer.refused_by.and_then(|by| plan.policies.get(by));
            ruling.unavailable = refusing.is_some_and(|it| it.on_outage == OnOutage::Refuse);
            return;
        }
        if let Some(sent) = sent {
            self.learn(plan, hashes, &ruling.answer, sent);
        }
        if plan.has_guards {
            self.learn_guards(plan, taken, ruling);
        }
        if ruling.passes() {
            // After a credit, a cached refusal may no longer hold.
            let credits = |charge: &&Charge<'_>| matches!(charge.op(), Op::Credit { .. });
            self.forget_refusals(plan.charges.iter().filter(credits));
        }
    }

    /// Charges the local guards. Skipped while the store is silent: there is no round trip to save,
    /// and the outage fallback decides.
    #[inline]
    fn guard(&self, plan: &Plan<'_>, ruling: &mut Ruling) -> Result<GuardCharges, GuardRefused> {
        if !plan.has_guards || plan.only_peeks() || self.silent.load(Ordering::Relaxed) {
            return Ok(GuardCharges::new());
        }
        match self.guards.charge(plan) {
            GuardAnswer::Passed(taken) => Ok(taken),
            GuardAnswer::Refused(answer) => {
                self.counts.local_guard_refusals.fetch_add(1, Ordering::Relaxed);
                (ruling.answer, ruling.source) = (answer, Source::Guard);
                Err(GuardRefused)
            }
        }
    }

    /// Gives back the guards' charges that only another limit refused. A peek gets the guards' refusal.
    fn learn_guards(&self, plan: &Plan<'_>, taken: &GuardCharges, ruling: &mut Ruling) {
        let answer = &mut ruling.answer;
        if !answer.passes() {
            let passes = |i: usize| answer.decisions.get(i).is_some_and(Decision::passes);
            self.guards.give_back(plan, taken, passes);
            return;
        }
        if !plan.only_peeks() {
            return;
        }
        let GuardAnswer::Refused(refusal) = self.guards.charge(plan) else { return };
        for (decision, guard) in answer.decisions.iter_mut().zip(&refusal.decisions) {
            if !guard.passes() {
                decision.verdict = guard.verdict;
                decision.remaining = decision.remaining.min(guard.remaining);
            }
        }
        (answer.verdict, answer.refused_by) = (refusal.verdict, refusal.refused_by);
        ruling.source = Source::Guard;
    }

    /// The plan of one operation on a counter without rules.
    fn plan_of<'p>(&'p self, counter: &'p OwnedCounter, op: Op) -> Plan<'p> {
        let mut plan = Plan::empty(&DecidingRules::None, Intent::CHARGE, Reason::NoRule);
        if let Some(key) = counter.key() {
            plan.push(key, &counter.limit, op, Need::Must, ChargePolicy::new(Origin::Key));
        }
        plan.partition = counter.partition.as_deref();
        plan
    }

    /// The permits that are left of a counter now; in an outage, those of this process's share.
    pub(crate) async fn remaining(&self, counter: &OwnedCounter) -> u64 {
        let plan = self.plan_of(counter, Op::Peek(0));
        let mut ruling = Ruling::of(&plan);
        self.decide(&plan, &mut ruling).await;
        ruling.answer.decisions.first().map_or(0, |decision| decision.remaining)
    }

    /// Credits one counter, and then takes from it, in this order and with one call.
    pub(crate) async fn in_order(
        &self,
        counter: &OwnedCounter,
        credits: &[(Cost, Timestamp)],
        takes: &[(Cost, Duration)],
    ) -> Vec<(Answer, Source)> {
        let credit =
            |(cost, at): &(Cost, Timestamp)| counter.charge(Op::Credit { cost: *cost, at: *at });
        let take = |(cost, patience): &(Cost, Duration)| {
            let mut plan = self.plan_of(counter, Op::Take(*cost));
            for charge in &mut plan.charges {
                *charge = charge.with_patience(*patience);
            }
            (self.hashes(&plan), plan)
        };
        let takes: Vec<_> = takes.iter().map(take).collect();
        let credits: Vec<Charge<'_>> = credits.iter().filter_map(credit).collect();
        // After a credit, a cached refusal may no longer hold.
        self.forget_refusals(credits.first());
        let known: Vec<Option<Answer>> =
            takes.iter().map(|(hashes, plan)| self.known(plan, hashes)).collect();
        let asked = takes.iter().zip(&known).filter(|(_, known)| known.is_none());
        let charges = asked.flat_map(|((_, plan), _)| plan.charges.iter().copied());
        let given_back = credits.len();
        let charges: Vec<Charge<'_>> = credits.into_iter().chain(charges).collect();
        let sent = clock::now();
        let mut answers = self.charge_one_by_one(counter, &charges).await.map(|mut answers| {
            answers.drain(..given_back.min(answers.len()));
            answers.into_iter()
        });
        if answers.is_err() {
            let lost = u64::try_from(given_back).unwrap_or(u64::MAX);
            self.counts.lost_jobs.fetch_add(lost, Ordering::Relaxed);
        }
        let mut results = Vec::with_capacity(takes.len());
        for ((hashes, plan), known) in takes.iter().zip(known) {
            results.push(match (known, &mut answers) {
                (Some(answer), _) => {
                    self.counts.deny_cache_refusals.fetch_add(1, Ordering::Relaxed);
                    (answer, Source::DenyCache)
                }
                (None, Ok(answers)) => {
                    // A store must answer every request.
                    let answer = answers.next().unwrap_or_else(|| refused_for_good(1));
                    if self.store.is_remote() {
                        self.learn(plan, hashes, &answer, sent);
                    }
                    (answer, Source::Store)
                }
                (None, Err(error)) => {
                    (self.fallback.answer(plan, hashes), Source::Outage(error.kind()))
                }
            });
        }
        results
    }

    /// Executes charges of one counter, each by itself, after settling the counter's debt.
    async fn charge_one_by_one(
        &self,
        counter: &OwnedCounter,
        charges: &[Charge<'_>],
    ) -> Result<Vec<Answer>, StoreError> {
        if !self.fallback.debts.is_empty()
            && let Some(key) = counter.key()
        {
            let hash = self.hasher.hash(key, &counter.limit);
            if let Some(owed) = self.fallback.settlement(hash, &self.names) {
                self.settle(&[owed], None).await?;
            }
        }
        let mut batch = Vec::with_capacity(charges.len());
        for charge in charges {
            let Ok(request) = Request::new(std::slice::from_ref(charge)) else { continue };
            let partition = counter.partition.as_deref();
            batch.push(partition.map_or(request, |partition| request.within(partition)));
        }
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.store.charge(&batch).await
    }

    /// Gives a credit for a charge of this age back to the local guard.
    pub(crate) fn credited(&self, charge: &Charge<'_>, guard: &Limit, age: Duration) {
        if let Op::Credit { cost, .. } = charge.op() {
            self.guards.give_back_after(charge.key(), guard, cost, age);
        }
    }

    /// Notes whether the store answered.
    pub(super) fn note_silence<T>(&self, answer: &Result<T, StoreError>) {
        // Written only when it changes, because all threads read it.
        if self.store.is_remote() && self.silent.load(Ordering::Relaxed) != answer.is_err() {
            self.silent.store(answer.is_err(), Ordering::Relaxed);
        }
    }

    /// Asks a store that answers within the call.
    #[inline]
    pub(crate) fn ask_now(
        &self,
        request: &Request<'_>,
        answer: &mut Answer,
    ) -> Result<(), StoreError> {
        if self.store.decide_at_once(request, answer) {
            return Ok(());
        }
        // A store that is not remote answers when it is first polled.
        let polled = poll_once(self.store.decide(request));
        *answer = polled.unwrap_or_else(|| Err(StoreError::new(StoreErrorKind::Timeout)))?;
        Ok(())
    }

    /// Asks the store, after settling the debts of the plan's counters.
    async fn ask(&self, plan: &Plan<'_>, hashes: &[CounterHash]) -> Result<Answer, StoreError> {
        let Some(request) = plan.request() else {
            return Ok(refused_for_good(plan.policies.len()));
        };
        if self.fallback.debts.is_empty() {
            return self.store.decide(&request).await;
        }
        let mut owed: SmallVec<[Settlement; 4]> = SmallVec::new();
        for hash in hashes {
            owed.extend(self.fallback.settlement(*hash, &self.names));
        }
        self.settle(&owed, Some(&request)).await.and_then(|answer| {
            // The request itself is the last of the batch.
            answer.ok_or(StoreError::new(StoreErrorKind::Timeout))
        })
    }

    /// Settles debts, and executes a request after them in the same call.
    async fn settle(
        &self,
        owed: &[Settlement],
        then: Option<&Request<'_>>,
    ) -> Result<Option<Answer>, StoreError> {
        let parts = || owed.iter().flat_map(|debt| debt.parts.iter().map(move |part| (debt, part)));
        let mut buffers: Vec<keys::OnceKey> = vec![keys::OnceKey::default(); parts().count()];
        let mut requests: Vec<PartitionedCharges<'_>> = Vec::new();
        for ((debt, part), buffer) in parts().zip(&mut buffers) {
            let at = self.fallback.store_time(part.last).unwrap_or(Timestamp::MAX);
            let once = buffer.write(keys::DEBT, part.name, &debt.counter.key);
            let once = once.and_then(|key| Charge::take(key, &self.once, 1).ok());
            let debit = debt.counter.charge(Op::Debit { cost: part.cost, at });
            let charges = once.into_iter().chain(debit).collect();
            requests.push((charges, debt.counter.partition.as_deref()));
        }
        // For a debt of 0, a peek finds out whether the store is back.
        for debt in owed.iter().filter(|debt| debt.parts.is_empty() && then.is_none()) {
            let peek = debt.counter.charge(Op::Peek(0));
            requests.push((peek.into_iter().collect(), debt.counter.partition.as_deref()));
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
                Ok(_) => self.fallback.debts.confirm(debt),
                Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                    self.fallback.debts.withdraw(debt);
                }
                // The parts may have arrived.
                Err(_) => {}
            }
        }
        let mut answers = answers?;
        let settled = u64::try_from(parts().count()).unwrap_or(u64::MAX);
        self.counts.settled_debts.fetch_add(settled, Ordering::Relaxed);
        Ok(then.and_then(|_| answers.pop()))
    }

    /// Settles some debts, for counters that no request asks about.
    pub(super) async fn settle_some(&self) -> Result<(), StoreError> {
        let hashes = self.fallback.debts.first(DEBTS_PER_CALL);
        let owed: Vec<Settlement> = hashes
            .into_iter()
            .filter_map(|hash| self.fallback.settlement(hash, &self.names))
            .collect();
        self.settle(&owed, None).await.map(drop)
    }

    /// The refusal of a plan by the deny cache. Peeks always ask the store.
    fn known(&self, plan: &Plan<'_>, hashes: &[CounterHash]) -> Option<Answer> {
        let cache = self.deny_cache.as_ref()?;
        if plan.only_peeks() {
            return None;
        }
        let now = clock::now();
        let counters = || plan.charges.iter().zip(hashes);
        let found: SmallVec<[Option<Decision>; 4]> =
            counters().map(|(charge, hash)| cache.refusal(*hash, charge, now)).collect();
        // A rule that bans must count every refusal, so its decision must be known. After an edit, the
        // store must have counted under the new limit once, or it would convert the counter later than
        // without this cache.
        let rows = plan.policies.iter().zip(&found);
        let bans_known = rows.into_iter().all(|(policy, known)| !policy.bans || known.is_some());
        let answer = refused_by_known(&plan.charges, &found).filter(|_| bans_known)?;
        let counted = |(charge, hash): (&Charge<'_>, &CounterHash)| {
            self.fallback.has_counted(*hash, charge.limit())
        };
        counters().all(counted).then_some(answer)
    }

    /// Forgets refusals of counters that were credited.
    pub(crate) fn forget_refusals<'c>(&self, charges: impl IntoIterator<Item = &'c Charge<'c>>) {
        let Some(cache) = &self.deny_cache else { return };
        for charge in charges {
            cache.forget(self.hasher.hash(charge.key(), charge.limit()), clock::now());
        }
    }

    /// Learns from an answer of the store.
    fn learn(&self, plan: &Plan<'_>, hashes: &[CounterHash], answer: &Answer, sent: Instant) {
        self.fallback.learn_time(answer.at, clock::now());
        for ((charge, hash), decision) in plan.charges.iter().zip(hashes).zip(&answer.decisions) {
            self.fallback.learn(*hash, charge.limit(), decision, sent);
            if let Some(cache) = &self.deny_cache {
                cache.learn(*hash, charge, decision, sent);
            }
        }
    }

    /// The hashes of a plan's counters, made once for all that remember them. Nothing is remembered
    /// of a local store.
    fn hashes(&self, plan: &Plan<'_>) -> SmallVec<[CounterHash; 4]> {
        let of: &[Charge<'_>] = if self.store.is_remote() { &plan.charges } else { &[] };
        of.iter().map(|charge| self.hasher.hash(charge.key(), charge.limit())).collect()
    }
}

/// The ruling holds a refusal, and the store is not asked.
struct GuardRefused;

impl Ruling {
    /// Refuses a plan that no planner builds, rather than charging it in part.
    #[cold]
    fn refuse_for_good(&mut self) {
        self.answer = refused_for_good(self.origins.len());
    }
}

fn refused_for_good(charges: usize) -> Answer {
    let verdict = Verdict::Deny(Retry::Never);
    let mut decisions = SmallVec::new();
    decisions.resize(charges, Decision::overflow(verdict));
    Answer { verdict, at: Timestamp::EPOCH, refused_by: Some(0), decisions }
}

/// The charges of a request, and its partition.
type PartitionedCharges<'a> = (SmallVec<[Charge<'a>; 2]>, Option<&'a [u8]>);

/// The most debts that are settled with one call: well below the size of a batch.
const DEBTS_PER_CALL: usize = 64;

/// The time for which the store remembers that a part of a debt was settled: longer than the part is
/// sent again.
const SETTLEMENT_KNOWN: Duration = Duration::from_secs(60 * 60);

/// The answer to a request some of whose charges are known to be refused; the longest retry counts. A
/// group of which any one suffices refuses if all of its charges do, until the first of them may pass.
fn refused_by_known(charges: &[Charge<'_>], found: &[Option<Decision>]) -> Option<Answer> {
    let known = |need: Need| {
        let rows = charges.iter().zip(found).enumerate();
        rows.filter(move |(_, (charge, _))| charge.need() == need)
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

/// The output of a future that is ready when it is first polled, as those of local stores are.
pub(crate) fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
