//! What happens besides requests: one task that keeps promises.
//!
//! - *Heartbeats* say that this node is alive, and count the others.
//! - *Permits* of concurrency limits are renewed while they are held and released when dropped.
//! - *Debts* of an outage are settled when the store is back, also where nobody asks.
//! - *Refusals* are counted towards a ban, and *credits* given, off the caller's path.
//!
//! It lives on the runtime that made it, or on a thread of its own where there is none or it has no
//! timers (then tokio's word about that is seen on stderr, once for each limiter), until the
//! limiter and every permit are gone. Chores are done in the order in which they were asked for. What
//! permits ask is never dropped, and bounded by how many there are. Of the rest at most [`CHORES`]
//! wait; beyond, one is dropped and counted, which costs a ban a refusal or a counter a credit, and
//! admits nobody.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tollgate_core::algorithm::{Concurrency, FixedWindow};
use tollgate_core::{
    Answer, Charge, Cost, Holder, Limit, OnFull, Op, Quota, Request, Store, StoreError, Timestamp,
    Verdict,
};

use super::toll::OwnedToll;
use super::{Engine, Outcome, Shared, Source, keys};
use crate::clock::{self, Instant, after};

/// Chores that may wait, besides those of permits.
const CHORES: usize = 65_536;

/// Chores done with one call to the store.
const AT_ONCE: usize = 64;

/// How often a node says that it is alive, and after how long it is taken for dead.
const BEAT: Duration = Duration::from_secs(5);
const DEAD: Duration = Duration::from_secs(15);

/// How often debts are tried to be settled while there are any.
const SETTLE: Duration = Duration::from_millis(200);

/// Calls of settlings each time, so that all there may be are settled within seconds.
const SETTLINGS: usize = 64;

/// The limit under which something happens once within so long, and not at all where a store has no
/// room to remember it.
#[expect(clippy::expect_used, reason = "the span is clamped to what a quota can have")]
pub(crate) fn once_within(span: Duration) -> Limit {
    let span = span.clamp(Duration::from_secs(1), Quota::MAX_PERIOD);
    let span = Duration::from_micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
    let quota = Quota::new(1, span).expect("one in at least a second is a quota");
    let limit = Limit::new(FixedWindow::default(), quota).expect("any such window is a limit");
    limit.with_on_full(OnFull::Refuse)
}

#[expect(clippy::expect_used, reason = "a literal that every test of this crate builds")]
fn nodes_limit() -> Limit {
    let quota = Quota::new(Concurrency::MAX_COUNT, DEAD).expect("some thousands are a quota");
    Limit::new(Concurrency, quota).expect("as many as there may be holders")
}

/// Something to be done soon, by nobody in particular.
#[derive(Debug)]
pub(crate) enum Chore {
    /// A permit is held from now on.
    Hold { toll: OwnedToll, holder: Holder, lease: Duration },
    /// A permit was dropped.
    Release { toll: OwnedToll, holder: Holder },
    /// A charge was in vain.
    #[cfg_attr(not(feature = "tower"), expect(dead_code, reason = "only layers book places"))]
    Credit { toll: OwnedToll, cost: Cost, at: Timestamp },
    /// A request was refused under a rule that bans. Told if it is banned now.
    Refused { refusals: OwnedToll, ban: OwnedToll, told: Teller },
    /// Shadow rules are to be charged, all or none.
    Shadow { tolls: Vec<(OwnedToll, Op)>, told: Teller },
}

/// Whom to tell what came of it.
pub(crate) struct Teller(Box<dyn FnOnce(Outcome) + Send>);

impl Teller {
    pub(crate) fn new(tell: impl FnOnce(Outcome) + Send + 'static) -> Self {
        Self(Box::new(tell))
    }

    fn tell(self, answer: Answer) {
        (self.0)(Outcome { answer, source: Source::Store });
    }
}

impl std::fmt::Debug for Teller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Teller(..)")
    }
}

impl Chore {
    /// Whether nothing worse than what the header says happens without it.
    const fn may_be_dropped(&self) -> bool {
        !matches!(self, Self::Hold { .. } | Self::Release { .. })
    }
}

/// A handle to the task. It ends when the last one is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    chores: mpsc::UnboundedSender<Chore>,
    /// How many wait that may be dropped.
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
}

impl Keeper {
    pub(crate) fn start<S: Store + 'static>(engine: &Shared<S>) -> Self {
        let (chores, asked) = mpsc::unbounded_channel();
        let (waiting, lost) = (Arc::default(), Arc::clone(&engine.counts.lost_chores));
        let keep = Keep::new(Arc::clone(engine), Arc::clone(&waiting)).run(asked);
        match Handle::try_current() {
            Ok(runtime) if has_timers() => drop(runtime.spawn(keep)),
            _ => on_a_thread(keep),
        }
        Self { chores, waiting, lost }
    }

    /// Asks for a chore.
    pub(crate) fn ask(&self, chore: Chore) {
        let droppable = chore.may_be_dropped();
        if droppable && self.waiting.fetch_add(1, Ordering::AcqRel) >= CHORES {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.lost.fetch_add(1, Ordering::Relaxed);
        } else if self.chores.send(chore).is_err() {
            // The runtime that the task lived on has ended.
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether the runtime here has timers, which tokio tells by panicking only.
fn has_timers() -> bool {
    std::panic::catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
}

fn on_a_thread(keep: impl Future<Output = ()> + Send + 'static) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        if let Ok(runtime) = runtime {
            runtime.block_on(keep);
        }
    };
    // Where no thread can be had, leases end by themselves and bans are not counted.
    drop(std::thread::Builder::new().name("tollgate-keeper".into()).spawn(run));
}

struct Keep<S> {
    engine: Shared<S>,
    waiting: Arc<AtomicUsize>,
    held: HashMap<Holder, Held>,
    /// When each is to be renewed, earliest first.
    renewals: BTreeSet<(Instant, Holder)>,
    next_beat: Option<Instant>,
    next_settling: Instant,
}

struct Held {
    toll: OwnedToll,
    lease: Duration,
    renew_at: Instant,
}

impl<S: Store> Keep<S> {
    fn new(engine: Shared<S>, waiting: Arc<AtomicUsize>) -> Self {
        let now = clock::now();
        let next_beat = engine.store.is_remote().then_some(now);
        Self {
            engine,
            waiting,
            held: HashMap::new(),
            renewals: BTreeSet::new(),
            next_beat,
            next_settling: now,
        }
    }

    async fn run(mut self, mut chores: mpsc::UnboundedReceiver<Chore>) {
        let mut asked = Vec::with_capacity(AT_ONCE);
        loop {
            let tick = tokio::time::sleep_until(self.next_tick());
            tokio::select! {
                count = chores.recv_many(&mut asked, AT_ONCE) => {
                    if count == 0 {
                        return self.farewell().await;
                    }
                    self.work(std::mem::take(&mut asked)).await;
                }
                () = tick => {}
            }
            self.tick().await;
        }
    }

    fn next_tick(&self) -> Instant {
        let mut next = after(clock::now(), Duration::from_secs(60));
        if let Some(beat) = self.next_beat {
            next = next.min(beat);
        }
        if let Some((renewal, _)) = self.renewals.first() {
            next = next.min(*renewal);
        }
        if self.engine.store.is_remote() {
            next = next.min(after(clock::now(), SETTLE));
        }
        next
    }

    async fn tick(&mut self) {
        let now = clock::now();
        if self.next_beat.is_some_and(|beat| beat <= now) {
            self.next_beat = Some(after(now, BEAT));
            self.beat().await;
        }
        self.renew(now).await;
        if now >= self.next_settling && !self.engine.ladder.debts.is_empty() {
            self.next_settling = after(now, SETTLE);
            // While the store is away this fails at once, or after its deadline.
            for _ in 0..SETTLINGS {
                if self.engine.ladder.debts.is_empty() || self.engine.settle_some().await.is_err() {
                    break;
                }
            }
        }
    }

    /// Says that this node is alive, and counts who else is.
    async fn beat(&self) {
        let limit = nodes_limit();
        let holder = Holder(self.engine.names.process());
        let job = vec![(self.nodes(limit), Op::Acquire { holder, lease: DEAD })];
        if let Ok(answers) = self.engine.execute(&[job]).await
            && let Some(decision) = answers.first().and_then(|answer| answer.decisions.first())
        {
            let alive = limit.quota().count().get().saturating_sub(decision.remaining);
            self.engine.ladder.set_nodes(alive);
        }
    }

    async fn renew(&mut self, now: Instant) {
        let mut due = Vec::new();
        while let Some((at, holder)) = self.renewals.first().copied().filter(|(at, _)| *at <= now) {
            self.renewals.remove(&(at, holder));
            if let Some(held) = self.held.get(&holder) {
                let lease = held.lease;
                due.push(vec![(held.toll.clone(), Op::Acquire { holder, lease })]);
                self.renew_at(holder, after(now, third(lease)));
            }
        }
        for some in due.chunks(AT_ONCE) {
            // What fails now is tried again in a sixth of the lease, thrice before it ends; and
            // meanwhile the permits are held where others are granted, too.
            if self.engine.execute(some).await.is_err() {
                for (toll, op) in some.iter().flatten() {
                    if let Op::Acquire { holder, lease } = *op {
                        self.renew_at(holder, after(now, half(third(lease))));
                    }
                    if let Some(toll) = toll.toll(*op) {
                        self.engine.ladder.charge_share(&toll);
                    }
                }
            }
        }
    }

    fn renew_at(&mut self, holder: Holder, at: Instant) {
        if let Some(held) = self.held.get_mut(&holder) {
            self.renewals.remove(&(held.renew_at, holder));
            held.renew_at = at;
            self.renewals.insert((at, holder));
        }
    }

    async fn work(&mut self, chores: Vec<Chore>) {
        let mut jobs: Vec<Job> = Vec::with_capacity(chores.len());
        let mut after = Vec::new();
        let now = clock::now();
        for chore in chores {
            if chore.may_be_dropped() {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
            }
            match chore {
                Chore::Hold { toll, holder, lease } => self.hold(toll, holder, lease, now),
                Chore::Release { toll, holder } => {
                    self.let_go(&toll, holder);
                    jobs.push(vec![(toll, Op::Release { holder })]);
                }
                Chore::Credit { toll, cost, at } => {
                    jobs.push(vec![(toll, Op::Credit { cost, at })]);
                }
                Chore::Refused { refusals, ban, told } => {
                    after.push((jobs.len(), Then::Ban(ban, told)));
                    jobs.push(vec![(refusals, Op::Take(1))]);
                }
                Chore::Shadow { tolls, told } => {
                    after.push((jobs.len(), Then::Tell(told)));
                    jobs.push(tolls);
                }
            }
        }
        match self.engine.execute(&jobs).await {
            Ok(answers) => {
                self.engine.forget_credited(&jobs);
                self.follow_up(&answers, after).await;
            }
            Err(_) => {
                let lost = u64::try_from(jobs.len()).unwrap_or(u64::MAX);
                self.engine.counts.lost_chores.fetch_add(lost, Ordering::Relaxed);
            }
        }
    }

    fn hold(&mut self, toll: OwnedToll, holder: Holder, lease: Duration, now: Instant) {
        let renew_at = after(now, third(lease));
        self.renewals.insert((renew_at, holder));
        self.held.insert(holder, Held { toll, lease, renew_at });
    }

    fn let_go(&mut self, toll: &OwnedToll, holder: Holder) {
        if let Some(held) = self.held.remove(&holder) {
            self.renewals.remove(&(held.renew_at, holder));
        }
        if let Some(toll) =
            toll.toll(Op::Release { holder }).filter(|_| self.engine.store.is_remote())
        {
            self.engine.ladder.charge_share(&toll);
        }
    }

    /// Tells who is to be told, and bans whoever has been refused often enough.
    async fn follow_up(&self, answers: &[Answer], after: Vec<(usize, Then)>) {
        let full = |answer: &Answer| {
            !answer.passes() || answer.decisions.iter().any(|decision| decision.remaining == 0)
        };
        let (mut jobs, mut tellers) = (Vec::new(), Vec::new());
        for (place, then) in after {
            match (then, answers.get(place)) {
                (Then::Tell(told), Some(answer)) => told.tell(answer.clone()),
                (Then::Ban(ban, told), Some(answer)) if full(answer) => {
                    jobs.push(vec![(ban, Op::Take(1))]);
                    tellers.push(told);
                }
                _ => {}
            }
        }
        let Ok(answers) = self.engine.execute(&jobs).await else { return };
        for (answer, told) in answers.into_iter().zip(tellers) {
            if answer.verdict == Verdict::Allow {
                told.tell(answer);
            }
        }
    }

    /// Others need not wait until this node is taken for dead.
    async fn farewell(&self) {
        if self.engine.store.is_remote() {
            let release = Op::Release { holder: Holder(self.engine.names.process()) };
            let _ = self.engine.execute(&[vec![(self.nodes(nodes_limit()), release)]]).await;
        }
    }

    /// The counter of live nodes of this fleet.
    fn nodes(&self, limit: Limit) -> OwnedToll {
        let key = [&[keys::NODES], self.engine.fleet.as_bytes()].concat().into();
        OwnedToll { key, limit, partition: None }
    }
}

fn third(lease: Duration) -> Duration {
    lease.checked_div(3).unwrap_or(lease).max(Duration::from_millis(1))
}

fn half(span: Duration) -> Duration {
    span.checked_div(2).unwrap_or(span).max(Duration::from_millis(1))
}

/// The future's output if it is ready at once, as that of an embedded store is.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

/// Charges that are made together or not at all.
type Job = Vec<(OwnedToll, Op)>;

/// What follows when a job is done.
enum Then {
    Ban(OwnedToll, Teller),
    Tell(Teller),
}

impl<S: Store> Engine<S> {
    /// Executes jobs, each all or none, with one call.
    async fn execute(&self, jobs: &[Job]) -> Result<Vec<Answer>, StoreError> {
        let charges: Vec<Vec<Charge<'_>>> = jobs
            .iter()
            .map(|job| job.iter().filter_map(|(toll, op)| toll.toll(*op)?.charge()).collect())
            .collect();
        let mut batch = Vec::with_capacity(jobs.len());
        for (job, charges) in jobs.iter().zip(&charges) {
            // Every job has an answer: one that could not be built asks nothing.
            let request = Request::new(charges).or_else(|_| Request::new(&[]));
            let Ok(request) = request else { return Ok(Vec::new()) };
            let partition = job.first().and_then(|(toll, _)| toll.partition.as_deref());
            batch.push(partition.map_or(request, |partition| request.within(partition)));
        }
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let answers = self.store.charge(&batch).await;
        self.heard(&answers);
        answers
    }

    /// Forgets refusals of counters that were credited or released.
    fn forget_credited(&self, jobs: &[Job]) {
        for (toll, op) in jobs.iter().flatten() {
            if let (Op::Credit { .. }, Some(toll)) = (op, toll.toll(*op)) {
                self.forget_denials(&[toll]);
            }
        }
    }

    /// Charges shadow rules at once, on a store that takes no trip.
    pub(crate) async fn shadow(&self, tolls: Job, told: Teller) {
        if let Ok(answers) = self.execute(&[tolls]).await
            && let Some(answer) = answers.into_iter().next()
        {
            told.tell(answer);
        }
    }
}
