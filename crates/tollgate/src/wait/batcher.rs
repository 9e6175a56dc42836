//! The gate batcher: one task asks the store for all callers of a gate, one call at a time.
//!
//! A call first gives free places back, then asks. Callers that come during a call wait for the
//! next one. So grants arrive in the order in which the store made them, and the batcher knows if a
//! place is the store's last when it gives it back. If both were sent at once, a grant could
//! overtake a returned place. That place would stay a hole, and callers that come and go would
//! leave nothing but holes. Between two processes this can still happen; the store then keeps
//! departures apart.
//!
//! A local store answers at once, so a lock takes the place of the task.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tollgate_core::{Algorithm, Answer, Cost, Retry, Store, Timestamp, Verdict, lock_mutex};

use super::gate::{GateShared, SOON};
use super::wait_queue::{GrantedPlace, QueuePosition};
use crate::clock::{self, Instant, after};
use crate::decision::{Source, poll_once};

/// The most callers in one call. A Redis store does not send more at once either.
const MAX_ASKS: usize = 128;

/// The most places that one call gives back.
const MAX_CREDITS: usize = 64;

/// The answer to a caller.
pub(super) enum GateAnswer {
    Granted(Grant),
    /// Ask again after `retry`. Passing takes at least `in_all`.
    NotYet {
        retry: Duration,
        in_all: Duration,
    },
    Never,
}

/// Callers whose questions wait for a call.
#[derive(Default)]
pub(super) struct AskQueue {
    waiting: VecDeque<QueuedAsk>,
    /// Charges of callers that had left when their grants came.
    unused: Vec<(Cost, Timestamp)>,
    /// True while a batcher runs.
    is_running: bool,
}

struct QueuedAsk {
    cost: Cost,
    deadline: Instant,
    reply: oneshot::Sender<GateAnswer>,
}

impl<S: Store + 'static> GateShared<S> {
    /// Asks for permits. If a caller drops this future, the batcher gives its grant back.
    pub(super) async fn ask(self: &Arc<Self>, cost: Cost, patience: Duration) -> GateAnswer {
        if !self.runner.store.is_remote() {
            let answer = self.call_local(&[(cost, patience)]).pop();
            return answer.unwrap_or(GateAnswer::NotYet { retry: SOON, in_all: SOON });
        }
        let deadline = after(clock::now(), patience);
        loop {
            let (reply, answer) = oneshot::channel();
            self.asks().waiting.push_back(QueuedAsk { cost, deadline, reply });
            if let Some(batcher) = GateBatcher::start(self) {
                match Handle::try_current() {
                    Ok(runtime) => drop(runtime.spawn(batcher.run())),
                    Err(_) => batcher.run().await,
                }
            }
            if let Ok(answer) = answer.await {
                return answer;
            }
            // The batcher ended with its runtime: start one on this runtime.
        }
    }

    /// Makes a call to a local store.
    fn call_local(self: &Arc<Self>, takes: &[(Cost, Duration)]) -> Vec<GateAnswer> {
        let _call = lock_mutex(&self.local_call);
        poll_once(self.call(takes)).unwrap_or_default()
    }

    /// Gives free places back, asks for permits, and queues callers at the places that are granted.
    async fn call(self: &Arc<Self>, takes: &[(Cost, Duration)]) -> Vec<GateAnswer> {
        let mut credits = std::mem::take(&mut self.asks().unused);
        if self.is_smooth() {
            credits.clear();
        } else {
            let free = std::iter::from_fn(|| self.wait_queue.take_last()).take(MAX_CREDITS);
            credits.extend(free.map(|place| (place.cost, place.granted)));
        }
        if credits.is_empty() && takes.is_empty() {
            return Vec::new();
        }
        let answers = self.runner.in_order(&self.counter, &credits, takes).await;
        let answers = takes.iter().zip(answers);
        answers.map(|(take, (answer, source))| self.answer(*take, &answer, source)).collect()
    }

    fn answer(
        self: &Arc<Self>,
        (cost, patience): (Cost, Duration),
        answer: &Answer,
        source: Source,
    ) -> GateAnswer {
        let at = answer.at;
        match answer.verdict {
            Verdict::Allow => {
                let charged = (source == Source::Store).then_some((cost, at));
                GateAnswer::Granted(Grant::new(self, charged, None))
            }
            Verdict::Wait(wait) => {
                let granted = at.checked_add(wait).unwrap_or(Timestamp::MAX);
                let place = GrantedPlace { due: after(clock::now(), wait), granted, cost };
                let queue = match source {
                    Source::Store => &self.wait_queue,
                    _ => &self.outage_queue,
                };
                GateAnswer::Granted(Grant::new(self, None, Some(queue.join(place))))
            }
            Verdict::Deny(Retry::Never) => GateAnswer::Never,
            Verdict::Deny(Retry::After(retry)) => {
                let reset = answer.decisions.first().map(|decision| decision.reset_after);
                let in_all = match self.counter.limit.algorithm() {
                    // A cost above this process's share may pass when the store is back.
                    _ if matches!(source, Source::Outage(_)) => retry,
                    // The queue may be full, and still short enough.
                    Algorithm::LeakyQueue(_) => reset.unwrap_or_default().max(retry),
                    Algorithm::TokenBucket(_) | Algorithm::LeakyMeter(_) | Algorithm::Smooth(_) => {
                        retry.saturating_add(patience)
                    }
                    _ => retry,
                };
                GateAnswer::NotYet { retry, in_all }
            }
        }
    }

    /// True for smooth limiters. They price permits by the stored state, so their places stay
    /// taken.
    fn is_smooth(&self) -> bool {
        matches!(self.counter.limit.algorithm(), Algorithm::Smooth(_))
    }

    fn asks(&self) -> MutexGuard<'_, AskQueue> {
        // Nothing here can panic halfway.
        lock_mutex(&self.asks)
    }
}

/// A gate on any store. Unused grants go back to it.
trait AnyGate: Send + Sync {
    /// Gives back free places, and this charge.
    fn give_back(self: Arc<Self>, unused: Option<(Cost, Timestamp)>);
}

impl<S: Store + 'static> AnyGate for GateShared<S> {
    fn give_back(self: Arc<Self>, unused: Option<(Cost, Timestamp)>) {
        self.asks().unused.extend(unused);
        if !self.runner.store.is_remote() {
            drop(self.call_local(&[]));
        } else if let Ok(runtime) = Handle::try_current()
            && let Some(batcher) = GateBatcher::start(&self)
        {
            // Without a runtime it goes with the next ask.
            drop(runtime.spawn(batcher.run()));
        }
    }
}

/// Asks for all callers, until none is left. There is at most one batcher for each gate.
struct GateBatcher<S: Store + 'static> {
    shared: Arc<GateShared<S>>,
    is_done: bool,
}

impl<S: Store + 'static> GateBatcher<S> {
    /// The batcher of a gate; `None` if one is running.
    fn start(shared: &Arc<GateShared<S>>) -> Option<Self> {
        let was_running = std::mem::replace(&mut shared.asks().is_running, true);
        (!was_running).then(|| Self { shared: Arc::clone(shared), is_done: false })
    }

    async fn run(mut self) {
        while let Some(asks) = self.next() {
            let now = clock::now();
            let left = |ask: &QueuedAsk| ask.deadline.saturating_duration_since(now);
            let takes: Vec<_> = asks.iter().map(|ask| (ask.cost, left(ask))).collect();
            for (ask, answer) in asks.into_iter().zip(self.shared.call(&takes).await) {
                // If the caller has left, the answer is dropped, which gives the grant back.
                drop(ask.reply.send(answer));
            }
        }
    }

    /// The callers of the next call; `None` if there is nothing to do.
    fn next(&mut self) -> Option<Vec<QueuedAsk>> {
        let mut queue = self.shared.asks();
        let mut asks = Vec::new();
        while asks.len() < MAX_ASKS
            && let Some(ask) = queue.waiting.pop_front()
        {
            if ask.reply.is_closed() {
                continue;
            }
            match self.shared.wait_queue.join_vacant(ask.cost, ask.deadline) {
                Some(position) => {
                    // Sent without the lock: if the caller has left, the grant is dropped here.
                    drop(queue);
                    let grant = Grant::new(&self.shared, None, Some(position));
                    drop(ask.reply.send(GateAnswer::Granted(grant)));
                    queue = self.shared.asks();
                }
                None => asks.push(ask),
            }
        }
        let has_last = !self.shared.is_smooth() && self.shared.wait_queue.has_last();
        self.is_done = asks.is_empty() && queue.unused.is_empty() && !has_last;
        queue.is_running = !self.is_done;
        (!self.is_done).then_some(asks)
    }
}

impl<S: Store + 'static> Drop for GateBatcher<S> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut queue = self.shared.asks();
            queue.is_running = false;
            // Their callers ask again, each on its own runtime.
            let waiting = std::mem::take(&mut queue.waiting);
            drop(queue);
            drop(waiting);
        }
    }
}

/// A charge that passed, or a place in the future. Given back when dropped before it is used.
pub(super) struct Grant {
    gate: Arc<dyn AnyGate>,
    charged: Option<(Cost, Timestamp)>,
    position: Option<QueuePosition>,
}

impl Grant {
    fn new<S: Store + 'static>(
        shared: &Arc<GateShared<S>>,
        charged: Option<(Cost, Timestamp)>,
        position: Option<QueuePosition>,
    ) -> Self {
        let gate: Arc<GateShared<S>> = Arc::clone(shared);
        Self { gate, charged, position }
    }

    /// Waits until the place is due, and uses the grant.
    pub(super) async fn wait(mut self) {
        if let Some(position) = &mut self.position {
            position.wait().await;
        }
        (self.charged, self.position) = (None, None);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let (charged, position) = (self.charged.take(), self.position.take());
        if charged.is_some() || position.is_some() {
            drop(position);
            Arc::clone(&self.gate).give_back(charged);
        }
    }
}
