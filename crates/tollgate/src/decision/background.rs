//! Background jobs: one task for work that no caller waits for.
//!
//! - *Heartbeat*: shows that this node is alive, and counts the other nodes.
//! - *Permits*: renews those of concurrency limits while they are held, and releases dropped ones.
//! - *Debts*: settles those of an outage when the store is back, even if no request asks for them.
//! - *Refusals*, *shadow rules*, *credits*: counts refusals towards bans, charges shadow rules, and
//!   gives charges back.
//!
//! The task runs on the runtime that created the limiter. Without a runtime, or if it has no timers,
//! the task runs on a thread of its own (tokio then prints a panic to stderr, once for each limiter).
//! It ends when the limiter and all permits are dropped. Jobs run in the order in which they were
//! queued. Jobs of permits are never dropped; the number of permits bounds them. Of all others at most
//! [`MAX_JOBS`] wait. Further jobs are dropped and counted: a ban misses a refusal, or a counter a
//! credit, and nobody is admitted by it.

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

/// The most jobs that wait, without those of permits.
const MAX_JOBS: usize = 65_536;

/// The most jobs in one call to the store.
const JOBS_PER_CALL: usize = 64;

/// The period of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A node without a heartbeat for this long counts as dead.
const NODE_TIMEOUT: Duration = Duration::from_secs(15);

/// The period of attempts to settle debts.
const SETTLE_EVERY: Duration = Duration::from_millis(200);

/// The most calls of one attempt, so that all possible debts are settled within seconds.
const SETTLE_CALLS: usize = 64;

/// A limit that lets something happen once within this time, and never if the store has no room to
/// remember it.
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
    let quota =
        Quota::new(Concurrency::MAX_COUNT, NODE_TIMEOUT).expect("some thousands are a quota");
    Limit::new(Concurrency, quota).expect("as many as there may be holders")
}

/// Work that no caller waits for.
#[derive(Debug)]
pub(crate) enum Job {
    /// Renew a permit from now on.
    Hold { counter: OwnedCounter, holder: Holder, lease: Duration },
    /// Release a dropped permit.
    Release { counter: OwnedCounter, holder: Holder },
    /// Give a charge back.
    #[cfg_attr(not(feature = "tower"), expect(dead_code, reason = "only layers book places"))]
    Credit { counter: OwnedCounter, cost: Cost, at: Timestamp },
    /// Count a refusal under a rule that bans. `banned` is called if a ban begins.
    CountRefusal { refusals: OwnedCounter, ban: OwnedCounter, banned: OnAnswer },
    /// Charge shadow rules, all or none.
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
    /// True for jobs that are dropped when too many wait.
    const fn may_be_dropped(&self) -> bool {
        !matches!(self, Self::Hold { .. } | Self::Release { .. })
    }
}

/// A handle to the task, which ends when the last handle is dropped.
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

/// True if the current runtime has timers. Tokio panics if it has none, and offers no other test.
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
    // If no thread can be started, leases run out by themselves and refusals are not counted.
    drop(std::thread::Builder::new().name("tollgate-background".into()).spawn(run));
}

struct BackgroundTask<S> {
    runner: Arc<Runner<S>>,
    waiting: Arc<AtomicUsize>,
    held: HashMap<Holder, RenewedPermit>,
    /// The held permits by the time of their next renewal.
    renewals: BTreeSet<(Instant, Holder)>,
    /// `None` for a local store, which has one node.
    next_heartbeat: Option<Instant>,
    next_settling: Instant,
}

struct RenewedPermit {
    counter: OwnedCounter,
    lease: Duration,
    renew_at: Instant,
}

impl<S: Store> BackgroundTask<S> {
    fn new(runner: Arc<Runner<S>>, waiting: Arc<AtomicUsize>) -> Self {
        let now = clock::now();
        let next_heartbeat = runner.store.is_remote().then_some(now);
        Self {
            runner,
            waiting,
            held: HashMap::new(),
            renewals: BTreeSet::new(),
            next_heartbeat,
            next_settling: now,
        }
    }

    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Job>) {
        let mut jobs = Vec::with_capacity(JOBS_PER_CALL);
        loop {
            let tick = tokio::time::sleep_until(self.next_tick());
            tokio::select! {
                count = queue.recv_many(&mut jobs, JOBS_PER_CALL) => {
                    if count == 0 {
                        return self.leave_fleet().await;
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
        if let Some(heartbeat) = self.next_heartbeat {
            next = next.min(heartbeat);
        }
        if let Some((renewal, _)) = self.renewals.first() {
            next = next.min(*renewal);
        }
        if self.runner.store.is_remote() {
            next = next.min(after(clock::now(), SETTLE_EVERY));
        }
        next
    }

    async fn tick(&mut self) {
        let now = clock::now();
        if self.next_heartbeat.is_some_and(|at| at <= now) {
            self.next_heartbeat = Some(after(now, HEARTBEAT));
            self.heartbeat().await;
        }
        self.renew(now).await;
        if now >= self.next_settling && !self.runner.fallback.debts.is_empty() {
            self.next_settling = after(now, SETTLE_EVERY);
            // If the store does not answer, this fails at once or after the store's deadline.
            for _ in 0..SETTLE_CALLS {
                if self.runner.fallback.debts.is_empty() || self.runner.settle_some().await.is_err()
                {
                    break;
                }
            }
        }
    }

    /// Shows that this node is alive, and counts the live nodes.
    async fn heartbeat(&self) {
        let limit = nodes_limit();
        let holder = Holder(self.runner.names.process());
        let job = vec![(self.nodes(limit), Op::Acquire { holder, lease: NODE_TIMEOUT })];
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
                // Acquiring again, because a store that was restarted empty has forgotten the permit.
                due.push(vec![(held.counter.clone(), Op::Acquire { holder, lease })]);
                self.renew_at(holder, after(now, third(lease)));
            }
        }
        for some in due.chunks(JOBS_PER_CALL) {
            // A failed renewal is tried again after a sixth of the lease: three times before the lease
            // ends. Meanwhile the outage fallback grants permits, so it must know of these.
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
                    self.release(&counter, holder);
                    requests.push(vec![(counter, Op::Release { holder })]);
                }
                Job::Credit { counter, cost, at } => {
                    requests.push(vec![(counter, Op::Credit { cost, at })]);
                }
                Job::CountRefusal { refusals, ban, banned } => {
                    after.push((requests.len(), FollowUp::Ban(ban, banned)));
                    requests.push(vec![(refusals, Op::Take(1))]);
                }
                Job::Shadow { charges, answered } => {
                    after.push((requests.len(), FollowUp::Call(answered)));
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
        self.held.insert(holder, RenewedPermit { counter, lease, renew_at });
    }

    fn release(&mut self, counter: &OwnedCounter, holder: Holder) {
        if let Some(held) = self.held.remove(&holder) {
            self.renewals.remove(&(held.renew_at, holder));
        }
        let release = counter.charge(Op::Release { holder });
        if let Some(release) = release.filter(|_| self.runner.store.is_remote()) {
            self.runner.fallback.charge_share(&release);
        }
    }

    /// Calls the callbacks, and bans clients that have been refused often enough.
    async fn follow_up(&self, answers: &[Answer], after: Vec<(usize, FollowUp)>) {
        let full = |answer: &Answer| {
            !answer.passes() || answer.decisions.iter().any(|decision| decision.remaining == 0)
        };
        let (mut requests, mut callbacks) = (Vec::new(), Vec::new());
        for (place, then) in after {
            match (then, answers.get(place)) {
                (FollowUp::Call(answered), Some(answer)) => answered.call(answer.clone()),
                (FollowUp::Ban(ban, banned), Some(answer)) if full(answer) => {
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

    /// Removes this node from the fleet, so that the others need not wait for its timeout.
    async fn leave_fleet(&self) {
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

/// Charges that are executed all or none.
pub(crate) type OwnedRequest = Vec<(OwnedCounter, Op)>;

/// The step that follows the answer of a request.
enum FollowUp {
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
            // Every request needs an answer: one that cannot be built becomes an empty request.
            let request = Request::new(charges).or_else(|_| Request::new(&[]));
            let Ok(request) = request else { return Ok(Vec::new()) };
            let partition = owned.first().and_then(|(it, _)| it.partition.as_deref());
            batch.push(partition.map_or(request, |partition| request.within(partition)));
        }
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let answers = self.store.charge(&batch).await;
        self.note_silence(&answers);
        answers
    }

    /// Forgets refusals of counters that were credited or released.
    fn forget_credited(&self, requests: &[OwnedRequest]) {
        for (counter, op) in requests.iter().flatten() {
            if let (Op::Credit { .. }, Some(charge)) = (op, counter.charge(*op)) {
                self.forget_refusals([&charge]);
            }
        }
    }
}
