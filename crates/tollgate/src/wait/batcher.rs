//! How a gate asks its store: one call at a time, in which everything goes in order.
//!
//! First what is given back, then who asks. While a call is under way, others line up and are the
//! next call. So grants come back in the order in which they were given, and a place that was left is
//! known to be the last, or not, when it is given back: were both sent at once, a grant would overtake
//! the giving back, the place would stay a hole, and callers who come and go would leave nothing but
//! holes. Between two processes that can still happen; the store keeps departures apart then.
//!
//! A store in this process answers at once, so there a lock does all of that.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tollgate_core::{Algorithm, Answer, Cost, Retry, Store, Timestamp, Verdict};

use super::gate::{GateShared, SOON};
use super::wait_queue::{GrantedPlace, QueuePosition};
use crate::clock::{self, Instant, after};
use crate::decision::{Source, poll_once};

/// How many may ask with one call: a store in Redis sends no more at once either.
const MAX_ASKS: usize = 128;

/// How many places are given back with one call.
const MAX_CREDITS: usize = 64;

/// What was said to somebody who asked.
pub(super) enum GateAnswer {
    Pass(Passed),
    GrantedPlace(Held),
    /// Ask again after `retry`; passing takes `in_all` at least.
    NotYet {
        retry: Duration,
        in_all: Duration,
    },
    Never,
}

/// Those who are to ask.
#[derive(Default)]
pub(super) struct AskQueue {
    waiting: VecDeque<QueuedAsk>,
    /// What was charged for callers who had left when they were told.
    unused: Vec<(Cost, Timestamp)>,
    /// Whether somebody is asking for them.
    asking: bool,
}

struct QueuedAsk {
    cost: Cost,
    deadline: Instant,
    tell: oneshot::Sender<GateAnswer>,
}

impl<S: Store + 'static> GateShared<S> {
    /// Asks for permits. Whoever stops waiting for the answer gives back what it brings.
    pub(super) async fn ask(self: &Arc<Self>, cost: Cost, patience: Duration) -> GateAnswer {
        if !self.runner.store.is_remote() {
            let said = self.in_turn(&[(cost, patience)]).pop();
            return said.unwrap_or(GateAnswer::NotYet { retry: SOON, in_all: SOON });
        }
        let deadline = after(clock::now(), patience);
        loop {
            let (tell, told) = oneshot::channel();
            self.asks().waiting.push_back(QueuedAsk { cost, deadline, tell });
            if let Some(batcher) = GateBatcher::needed(self) {
                match Handle::try_current() {
                    Ok(runtime) => drop(runtime.spawn(batcher.run())),
                    Err(_) => batcher.run().await,
                }
            }
            if let Ok(said) = told.await {
                return said;
            }
            // Whoever asked for all has ended with its runtime: ask on this one.
        }
    }

    /// The same of a store that answers at once.
    fn in_turn(self: &Arc<Self>, takes: &[(Cost, Duration)]) -> Vec<GateAnswer> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        poll_once(self.call(takes)).unwrap_or_default()
    }

    /// Gives back what is free, asks for permits, and lines up for what is granted.
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
        let rows = takes.iter().zip(answers);
        let said = |((cost, patience), (answer, source)): (&(_, _), (Answer, Source))| {
            self.said(*cost, *patience, &answer, source)
        };
        rows.map(said).collect()
    }

    fn said(
        self: &Arc<Self>,
        cost: Cost,
        patience: Duration,
        answer: &Answer,
        source: Source,
    ) -> GateAnswer {
        let at = answer.at;
        match answer.verdict {
            Verdict::Allow => {
                let charged = (source == Source::Store).then_some((cost, at));
                let gate: Arc<Self> = Arc::clone(self);
                GateAnswer::Pass(Passed { gate, charged })
            }
            Verdict::Wait(wait) => {
                let granted = at.checked_add(wait).unwrap_or(Timestamp::MAX);
                let place = GrantedPlace { due: after(clock::now(), wait), granted, cost };
                let wait_queue = match source {
                    Source::Store => &self.wait_queue,
                    _ => &self.outage_queue,
                };
                GateAnswer::GrantedPlace(Held::new(self, wait_queue.join(place)))
            }
            Verdict::Deny(Retry::Never) => GateAnswer::Never,
            Verdict::Deny(Retry::After(retry)) => {
                let reset = answer.decisions.first().map(|decision| decision.reset_after);
                let in_all = match self.counter.limit.algorithm() {
                    // What is above the share may pass when the store is back.
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

    /// Smooth limiters price permits by what is stored, so their places stay taken.
    fn is_smooth(&self) -> bool {
        matches!(self.counter.limit.algorithm(), Algorithm::Smooth(_))
    }

    fn asks(&self) -> MutexGuard<'_, AskQueue> {
        // Nothing here can panic halfway.
        self.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where what nobody uses goes back to, whatever its store.
trait AnyGate: Send + Sync {
    /// Gives places back that are free, and this charge.
    fn give_back(self: Arc<Self>, unused: Option<(Cost, Timestamp)>);
}

impl<S: Store + 'static> AnyGate for GateShared<S> {
    fn give_back(self: Arc<Self>, unused: Option<(Cost, Timestamp)>) {
        self.asks().unused.extend(unused);
        if !self.runner.store.is_remote() {
            drop(self.in_turn(&[]));
        } else if let Ok(runtime) = Handle::try_current()
            && let Some(batcher) = GateBatcher::needed(&self)
        {
            // Without a runtime it goes with the next question.
            drop(runtime.spawn(batcher.run()));
        }
    }
}

/// Whoever asks for all, until nobody is left.
struct GateBatcher<S: Store + 'static> {
    shared: Arc<GateShared<S>>,
    ended: bool,
}

impl<S: Store + 'static> GateBatcher<S> {
    /// Somebody to ask for all, unless there is one.
    fn needed(shared: &Arc<GateShared<S>>) -> Option<Self> {
        let mut asks = shared.asks();
        if std::mem::replace(&mut asks.asking, true) {
            return None;
        }
        Some(Self { shared: Arc::clone(shared), ended: false })
    }

    async fn run(mut self) {
        while let Some(asking) = self.next() {
            let now = clock::now();
            let left = |question: &QueuedAsk| question.deadline.saturating_duration_since(now);
            let takes: Vec<_> = asking.iter().map(|it| (it.cost, left(it))).collect();
            for (question, said) in asking.into_iter().zip(self.shared.call(&takes).await) {
                // Whoever is gone drops what it was told, which gives it back.
                drop(question.tell.send(said));
            }
        }
    }

    /// Those who ask next; `None`, and the end, if there is nothing to do.
    fn next(&mut self) -> Option<Vec<QueuedAsk>> {
        let mut asks = self.shared.asks();
        let mut asking = Vec::new();
        while asking.len() < MAX_ASKS
            && let Some(question) = asks.waiting.pop_front()
        {
            if question.tell.is_closed() {
                continue;
            }
            match self.shared.wait_queue.join_vacant(question.cost, question.deadline) {
                Some(position) => {
                    // Told without the lock, as it is dropped if nobody listens.
                    drop(asks);
                    drop(
                        question
                            .tell
                            .send(GateAnswer::GrantedPlace(Held::new(&self.shared, position))),
                    );
                    asks = self.shared.asks();
                }
                None => asking.push(question),
            }
        }
        let last = !self.shared.is_smooth() && self.shared.wait_queue.has_last();
        let free = !asks.unused.is_empty() || last;
        self.ended = asking.is_empty() && !free;
        asks.asking = !self.ended;
        (!self.ended).then_some(asking)
    }
}

impl<S: Store + 'static> Drop for GateBatcher<S> {
    fn drop(&mut self) {
        if !self.ended {
            let mut asks = self.shared.asks();
            asks.asking = false;
            // They ask again, each on its own runtime.
            let waiting = std::mem::take(&mut asks.waiting);
            drop(asks);
            drop(waiting);
        }
    }
}

/// A charge that passed at once, given back unless it is used.
pub(super) struct Passed {
    gate: Arc<dyn AnyGate>,
    charged: Option<(Cost, Timestamp)>,
}

impl Passed {
    pub(super) fn through(mut self) {
        self.charged = None;
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(charged) = self.charged.take() {
            Arc::clone(&self.gate).give_back(Some(charged));
        }
    }
}

/// A place in the future, given back when dropped before its time.
pub(super) struct Held {
    gate: Arc<dyn AnyGate>,
    position: Option<QueuePosition>,
}

impl Held {
    fn new<S: Store + 'static>(shared: &Arc<GateShared<S>>, position: QueuePosition) -> Self {
        let gate: Arc<GateShared<S>> = Arc::clone(shared);
        Self { gate, position: Some(position) }
    }

    pub(super) async fn wait(mut self) {
        if let Some(position) = &mut self.position {
            position.wait().await;
        }
        self.position = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(position) = self.position.take() {
            drop(position);
            Arc::clone(&self.gate).give_back(None);
        }
    }
}
