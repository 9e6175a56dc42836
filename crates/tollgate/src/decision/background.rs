//! Background jobs: one task that does what no caller waits for.
//!
//! - *Heartbeats* say that this node is alive, and count the others.
//! - *Permits* of concurrency limits are renewed while they are held and released when dropped.
//! - *Debts* of an outage are settled when the store is back, also where nobody asks.
//! - *Refusals* are counted towards a ban, and *credits* given, off the caller's path.
//!
//! It lives on the runtime that made it, or on a thread of its own where there is none or it has no
//! timers (then tokio's word about that is seen on stderr, once for each limiter), until the
//! limiter and every permit are gone. Jobs are done in the order in which they were queued. Jobs of
//! permits are never dropped, and bounded by the number of permits. Of the rest at most [`MAX_JOBS`]
//! wait; beyond, a job is dropped and counted, which costs a ban a refusal or a counter a credit, and
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

use super::keys;
use super::plan::OwnedCounter;
use super::run::Runner;
use crate::clock::{self, Instant, after};

/// Jobs that may wait, besides those of permits.
const MAX_JOBS: usize = 65_536;

/// Jobs done with one call to the store.
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

/// Work that no caller waits for.
#[derive(Debug)]
pub(crate) enum Job {
    /// A permit is held from now on.
    Hold { counter: OwnedCounter, holder: Holder, lease: Duration },
    /// A permit was dropped.
    Release { counter: OwnedCounter, holder: Holder },
    /// A charge was in vain.
    #[cfg_attr(not(feature = "tower"), expect(dead_code, reason = "only layers book places"))]
    Credit { counter: OwnedCounter, cost: Cost, at: Timestamp },
    /// A request was refused under a rule that bans. `banned` is called if a ban begins.
    Refused { refusals: OwnedCounter, ban: OwnedCounter, banned: OnAnswer },
    /// Shadow rules are to be charged, all or none.
    Shadow { charges: OwnedRequest, answered: OnAnswer },
}

/// A callback for the store's answer.
pub(crate) struct OnAnswer(Box<dyn FnOnce(Answer) + Send>);

impl OnAnswer {
    pub(crate) fn new(call: impl FnOnce(Answer) + Send + 'static) -> Self {
        Self(Box::new(call))
    }

    fn call(self, answer: Answer) {
        (self.0)(answer);
    }
}

impl std::fmt::Debug for OnAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnAnswer(..)")
    }
}

impl Job {
    /// True if losing the job costs no more than the header says.
    const fn may_be_dropped(&self) -> bool {
        !matches!(self, Self::Hold { .. } | Self::Release { .. })
    }
}

/// A handle to the task. It ends when the last one is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Background {
    jobs: mpsc::UnboundedSender<Job>,
    /// The number of waiting jobs that may be dropped.
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
}

impl Background {
    pub(crate) fn start<S: Store + 'static>(runner: &Arc<Runner<S>>) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        let (waiting, lost) = (Arc::default(), Arc::clone(&runner.counts.lost_jobs));
        let task = BackgroundTask::new(Arc::clone(runner), Arc::clone(&waiting)).run(queue);
        match Handle::try_current() {
            Ok(runtime) if has_timers() => drop(runtime.spawn(task)),
            _ => on_a_thread(task),
        }
        Self { jobs, waiting, lost }
    }

    /// Queues a job.
    pub(crate) fn queue(&self, job: Job) {
        let droppable = job.may_be_dropped();
        if droppable && self.waiting.fetch_add(1, Ordering::AcqRel) >= MAX_JOBS {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.lost.fetch_add(1, Ordering::Relaxed);
        } else if self.jobs.send(job).is_err() {
            // The runtime that the task lived on has ended.
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether the runtime here has timers, which tokio tells by panicking only.
fn has_timers() -> bool {
    std::panic::catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
}

fn on_a_thread(task: impl Future<Output = ()> + Send + 'static) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        if let Ok(runtime) = runtime {
            runtime.block_on(task);
        }
    };
    // Where no thread can be had, leases end by themselves and bans are not counted.
    drop(std::thread::Builder::new().name("tollgate-background".into()).spawn(run));
}

struct BackgroundTask<S> {
    runner: Arc<Runner<S>>,
    waiting: Arc<AtomicUsize>,
    held: HashMap<Holder, HeldPermit>,
    /// When each is to be renewed, earliest first.
    renewals: BTreeSet<(Instant, Holder)>,
    next_beat: Option<Instant>,
    next_settling: Instant,
}

struct HeldPermit {
    counter: OwnedCounter,
    lease: Duration,
    renew_at: Instant,
}

impl<S: Store> BackgroundTask<S> {
    fn new(runner: Arc<Runner<S>>, waiting: Arc<AtomicUsize>) -> Self {
        let now = clock::now();
        let next_beat = runner.store.is_remote().then_some(now);
        Self {
            runner,
            waiting,
            held: HashMap::new(),
            renewals: BTreeSet::new(),
            next_beat,
            next_settling: now,
        }
    }

    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Job>) {
        let mut jobs = Vec::with_capacity(AT_ONCE);
        loop {
            let tick = tokio::time::sleep_until(self.next_tick());
            tokio::select! {
                count = queue.recv_many(&mut jobs, AT_ONCE) => {
                    if count == 0 {
                        return self.farewell().await;
                    }
                    self.work(std::mem::take(&mut jobs)).await;
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
        if self.runner.store.is_remote() {
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
        if now >= self.next_settling && !self.runner.fallback.debts.is_empty() {
            self.next_settling = after(now, SETTLE);
            // While the store is away this fails at once, or after its deadline.
            for _ in 0..SETTLINGS {
                if self.runner.fallback.debts.is_empty() || self.runner.settle_some().await.is_err()
                {
                    break;
                }
            }
        }
    }

    /// Says that this node is alive, and counts who else is.
    async fn beat(&self) {
        let limit = nodes_limit();
        let holder = Holder(self.runner.names.process());
        let job = vec![(self.nodes(limit), Op::Acquire { holder, lease: DEAD })];
        if let Ok(answers) = self.runner.execute(&[job]).await
            && let Some(decision) = answers.first().and_then(|answer| answer.decisions.first())
        {
            let alive = limit.quota().count().get().saturating_sub(decision.remaining);
            self.runner.fallback.set_nodes(alive);
        }
    }

    async fn renew(&mut self, now: Instant) {
        let mut due = Vec::new();
        while let Some((at, holder)) = self.renewals.first().copied().filter(|(at, _)| *at <= now) {
            self.renewals.remove(&(at, holder));
            if let Some(held) = self.held.get(&holder) {
                let lease = held.lease;
                due.push(vec![(held.counter.clone(), Op::Acquire { holder, lease })]);
                self.renew_at(holder, after(now, third(lease)));
            }
        }
        for some in due.chunks(AT_ONCE) {
            // What fails now is tried again in a sixth of the lease, thrice before it ends; and
            // meanwhile the permits are held where others are granted, too.
            if self.runner.execute(some).await.is_err() {
                for (counter, op) in some.iter().flatten() {
                    if let Op::Acquire { holder, lease } = *op {
                        self.renew_at(holder, after(now, half(third(lease))));
                    }
                    if let Some(charge) = counter.charge(*op) {
                        self.runner.fallback.charge_share(&charge);
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

    async fn work(&mut self, jobs: Vec<Job>) {
        let mut requests: Vec<OwnedRequest> = Vec::with_capacity(jobs.len());
        let mut after = Vec::new();
        let now = clock::now();
        for job in jobs {
            if job.may_be_dropped() {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
            }
            match job {
                Job::Hold { counter, holder, lease } => self.hold(counter, holder, lease, now),
                Job::Release { counter, holder } => {
                    self.let_go(&counter, holder);
                    requests.push(vec![(counter, Op::Release { holder })]);
                }
                Job::Credit { counter, cost, at } => {
                    requests.push(vec![(counter, Op::Credit { cost, at })]);
                }
                Job::Refused { refusals, ban, banned } => {
                    after.push((requests.len(), Then::Ban(ban, banned)));
                    requests.push(vec![(refusals, Op::Take(1))]);
                }
                Job::Shadow { charges, answered } => {
                    after.push((requests.len(), Then::Call(answered)));
                    requests.push(charges);
                }
            }
        }
        match self.runner.execute(&requests).await {
            Ok(answers) => {
                self.runner.forget_credited(&requests);
                self.follow_up(&answers, after).await;
            }
            Err(_) => {
                let lost = u64::try_from(requests.len()).unwrap_or(u64::MAX);
                self.runner.counts.lost_jobs.fetch_add(lost, Ordering::Relaxed);
            }
        }
    }

    fn hold(&mut self, counter: OwnedCounter, holder: Holder, lease: Duration, now: Instant) {
        let renew_at = after(now, third(lease));
        self.renewals.insert((renew_at, holder));
        self.held.insert(holder, HeldPermit { counter, lease, renew_at });
    }

    fn let_go(&mut self, counter: &OwnedCounter, holder: Holder) {
        if let Some(held) = self.held.remove(&holder) {
            self.renewals.remove(&(held.renew_at, holder));
        }
        let release = counter.charge(Op::Release { holder });
        if let Some(release) = release.filter(|_| self.runner.store.is_remote()) {
            self.runner.fallback.charge_share(&release);
        }
    }

    /// Calls the callbacks, and bans clients that have been refused often enough.
    async fn follow_up(&self, answers: &[Answer], after: Vec<(usize, Then)>) {
        let full = |answer: &Answer| {
            !answer.passes() || answer.decisions.iter().any(|decision| decision.remaining == 0)
        };
        let (mut requests, mut callbacks) = (Vec::new(), Vec::new());
        for (place, then) in after {
            match (then, answers.get(place)) {
                (Then::Call(answered), Some(answer)) => answered.call(answer.clone()),
                (Then::Ban(ban, banned), Some(answer)) if full(answer) => {
                    requests.push(vec![(ban, Op::Take(1))]);
                    callbacks.push(banned);
                }
                _ => {}
            }
        }
        let Ok(answers) = self.runner.execute(&requests).await else { return };
        for (answer, banned) in answers.into_iter().zip(callbacks) {
            if answer.verdict == Verdict::Allow {
                banned.call(answer);
            }
        }
    }

    /// Others need not wait until this node is taken for dead.
    async fn farewell(&self) {
        if self.runner.store.is_remote() {
            let release = Op::Release { holder: Holder(self.runner.names.process()) };
            let _ = self.runner.execute(&[vec![(self.nodes(nodes_limit()), release)]]).await;
        }
    }

    /// The counter of live nodes of this fleet.
    fn nodes(&self, limit: Limit) -> OwnedCounter {
        let key = [&[keys::NODES], self.runner.fleet.as_bytes()].concat().into();
        OwnedCounter { key, limit, partition: None }
    }
}

fn third(lease: Duration) -> Duration {
    lease.checked_div(3).unwrap_or(lease).max(Duration::from_millis(1))
}

fn half(span: Duration) -> Duration {
    span.checked_div(2).unwrap_or(span).max(Duration::from_millis(1))
}

/// Charges that are made together or not at all.
pub(crate) type OwnedRequest = Vec<(OwnedCounter, Op)>;

/// The step that follows an answer.
enum Then {
    Ban(OwnedCounter, OnAnswer),
    Call(OnAnswer),
}

impl<S: Store> Runner<S> {
    /// Executes requests, each all or none, with one call.
    async fn execute(&self, requests: &[OwnedRequest]) -> Result<Vec<Answer>, StoreError> {
        let charges: Vec<Vec<Charge<'_>>> = requests
            .iter()
            .map(|request| request.iter().filter_map(|(it, op)| it.charge(*op)).collect())
            .collect();
        let mut batch = Vec::with_capacity(requests.len());
        for (owned, charges) in requests.iter().zip(&charges) {
            // Every request has an answer: one that could not be built asks nothing.
            let request = Request::new(charges).or_else(|_| Request::new(&[]));
            let Ok(request) = request else { return Ok(Vec::new()) };
            let partition = owned.first().and_then(|(it, _)| it.partition.as_deref());
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
    fn forget_credited(&self, requests: &[OwnedRequest]) {
        for (counter, op) in requests.iter().flatten() {
            if let (Op::Credit { .. }, Some(charge)) = (op, counter.charge(*op)) {
                self.forget_denials([&charge]);
            }
        }
    }
}
