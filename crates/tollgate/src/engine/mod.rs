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
mod part;
mod slots;
mod toll;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tollgate_core::{
    Answer, Charge, Decision, Limit, Op, Request, Retry, Store, StoreError, StoreErrorKind,
    Timestamp, Verdict,
};

use crate::builder::DenyCache;
use crate::chance::Names;
use crate::clock::{self, Instant};
use debts::Debt;
use denials::Denials;
use guards::Guards;
pub(crate) use keeper::{Chore, Keeper, Teller, at_once, once_limit};
use ladder::Ladder;
use slots::{Print, Printer};
pub(crate) use toll::{OwnedToll, Toll};

/// Executes tolls on a store, and answers in its place when it does not.
#[derive(Debug)]
pub(crate) struct Engine<S> {
    pub(crate) store: S,
    pub(crate) names: Names,
    printer: Printer,
    denials: Option<Denials>,
    guards: Guards,
    ladder: Ladder,
    once: Limit,
    counts: Counts,
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

/// What was counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) cached: AtomicU64,
    pub(crate) guarded: AtomicU64,
    pub(crate) degraded: AtomicU64,
    pub(crate) debited: AtomicU64,
    pub(crate) lost_chores: AtomicU64,
}

impl<S: Store> Engine<S> {
    pub(crate) fn new(store: S, deny_cache: DenyCache) -> Self {
        Self {
            store,
            names: Names::new(),
            printer: Printer::new(),
            denials: (S::REMOTE && deny_cache == DenyCache::On).then(Denials::new),
            guards: Guards::new(),
            ladder: Ladder::new(if S::REMOTE { ladder::PLACES } else { 0 }),
            once: once_limit(),
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
    /// Executes the tolls, all or none.
    pub(crate) async fn decide(&self, tolls: &[Toll<'_>], partition: Option<&[u8]>) -> Outcome {
        if let Some(answer) = self.known(tolls) {
            self.counts.cached.fetch_add(1, Ordering::Relaxed);
            return Outcome { answer, source: Source::DenyCache };
        }
        if let Some(answer) = self.guards.refuse(tolls) {
            self.counts.guarded.fetch_add(1, Ordering::Relaxed);
            return Outcome { answer, source: Source::Guard };
        }
        let sent = S::REMOTE.then(clock::now);
        match self.ask(tolls, partition).await {
            Ok(answer) => {
                if let Some(sent) = sent {
                    self.learn(tolls, &answer, sent);
                }
                Outcome { answer, source: Source::Store }
            }
            Err(error) => {
                self.counts.degraded.fetch_add(1, Ordering::Relaxed);
                let answer = self.ladder.answer(tolls, partition, &self.printer, &self.names);
                Outcome { answer, source: Source::Outage(error.kind()) }
            }
        }
    }

    /// Asks the store, after telling it what it does not know yet.
    async fn ask(
        &self,
        tolls: &[Toll<'_>],
        partition: Option<&[u8]>,
    ) -> Result<Answer, StoreError> {
        let charges: SmallVec<[Charge<'_>; 4]> = tolls.iter().filter_map(Toll::charge).collect();
        let request = match Request::new(&charges) {
            Ok(request) if charges.len() == tolls.len() => request,
            // Nothing that this crate builds; refused rather than charged in part.
            _ => return Ok(never(tolls.len())),
        };
        let request = match partition {
            Some(partition) => request.within(partition),
            None => request,
        };
        if self.ladder.debts.is_empty() {
            return self.store.decide(&request).await;
        }
        let mut owed: SmallVec<[(Print, Debt); 4]> = SmallVec::new();
        for toll in tolls {
            let print = self.printer.print(toll.key, toll.limit);
            owed.extend(self.ladder.debts.of(print).map(|debt| (print, debt)));
        }
        self.settle(&owed, Some(&request)).await.and_then(|answer| {
            // The request itself was the last of the batch.
            answer.ok_or(StoreError::new(StoreErrorKind::Timeout))
        })
    }

    /// Tells the store of debts, and then asks it.
    async fn settle(
        &self,
        owed: &[(Print, Debt)],
        then: Option<&Request<'_>>,
    ) -> Result<Option<Answer>, StoreError> {
        let mut buffers: Vec<[u8; 17]> = vec![[0; 17]; owed.len()];
        let mut debits: Vec<[Charge<'_>; 2]> = Vec::with_capacity(owed.len());
        let mut partitions = Vec::with_capacity(owed.len());
        for ((_, debt), buffer) in owed.iter().zip(&mut buffers) {
            let cost = self.ladder.owed(debt);
            let at = self.ladder.store_time(debt.last).unwrap_or(Timestamp::MAX);
            let debit = debt.toll.toll(Op::Debit { cost, at }).and_then(|toll| toll.charge());
            let once = keys::numbered(keys::DEBT, debt.name, buffer)
                .and_then(|key| Toll::new(key, &self.once, Op::Take(1)).charge());
            if let (Some(once), Some(debit), true) = (once, debit, cost > 0) {
                debits.push([once, debit]);
                partitions.push(debt.toll.partition.as_deref());
            }
        }
        let mut batch: Vec<Request<'_>> = Vec::with_capacity(debits.len().saturating_add(1));
        for (charges, partition) in debits.iter().zip(&partitions) {
            let Ok(request) = Request::new(charges) else { continue };
            batch.push(partition.map_or(request, |partition| request.within(partition)));
        }
        batch.extend(then);
        if batch.is_empty() {
            return Ok(None);
        }
        let mut answers = self.store.charge(&batch).await?;
        for (print, debt) in owed {
            self.ladder.debts.settled(*print, debt.name);
        }
        let told = u64::try_from(debits.len()).unwrap_or(u64::MAX);
        self.counts.debited.fetch_add(told, Ordering::Relaxed);
        Ok(then.and_then(|_| answers.pop()))
    }

    /// Settles some debts of counters that nobody asks about.
    pub(crate) async fn settle_some(&self) -> Result<(), StoreError> {
        let owed = self.ladder.debts.some(SETTLED_AT_ONCE);
        if owed.is_empty() {
            return Ok(());
        }
        self.settle(&owed, None).await.map(drop)
    }

    /// A refusal that need not be asked for.
    fn known(&self, tolls: &[Toll<'_>]) -> Option<Answer> {
        let denials = self.denials.as_ref()?;
        let now = clock::now();
        let known =
            |toll: &Toll<'_>| denials.known(self.printer.print(toll.key, toll.limit), toll, now);
        let found: SmallVec<[Option<Decision>; 4]> = tolls.iter().map(known).collect();
        refused_by(&found)
    }

    /// Forgets refusals of counters that were credited.
    pub(crate) fn forget_denials(&self, tolls: &[Toll<'_>]) {
        for toll in tolls {
            if let Some(denials) = &self.denials {
                denials.forget(self.printer.print(toll.key, toll.limit));
            }
        }
    }

    /// Learns from what the store said.
    fn learn(&self, tolls: &[Toll<'_>], answer: &Answer, sent: Instant) {
        self.ladder.learn_time(answer.at, clock::now());
        for (toll, decision) in tolls.iter().zip(&answer.decisions) {
            let print = self.printer.print(toll.key, toll.limit);
            self.ladder.learn(print, decision, sent);
            if let Some(denials) = &self.denials {
                denials.learn(print, toll, decision, sent);
            }
        }
    }
}

/// How many debts are settled with one call: well below what a store sends at once.
const SETTLED_AT_ONCE: usize = 64;

/// The answer to a request when some of its charges are known to be refused: the longest retry
/// says when asking helps.
fn refused_by(found: &[Option<Decision>]) -> Option<Answer> {
    let verdict = |decision: &Option<Decision>| decision.map(|decision| decision.verdict);
    let by = (0..found.len())
        .filter(|i| found.get(*i).is_some_and(Option::is_some))
        .max_by_key(|i| found.get(*i).and_then(verdict))?;
    let verdict = found.get(by).and_then(verdict)?;
    let unknown = Decision::overflow(Verdict::Allow);
    let decisions = found.iter().map(|decision| decision.unwrap_or(unknown)).collect();
    Some(Answer { verdict, at: Timestamp::EPOCH, refused_by: Some(by), decisions })
}

fn never(tolls: usize) -> Answer {
    let verdict = Verdict::Deny(Retry::Never);
    let mut decisions = SmallVec::new();
    decisions.resize(tolls, Decision::overflow(verdict));
    Answer { verdict, at: Timestamp::EPOCH, refused_by: Some(0), decisions }
}

/// An engine that many hold.
pub(crate) type Shared<S> = Arc<Engine<S>>;
