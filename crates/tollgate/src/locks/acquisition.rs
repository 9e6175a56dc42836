//! Getting a lock: trying, listening, trying again.
//!
//! Whoever waits joins the line of its lock. The head of the line listens for releases, *then* asks
//! once more, as one may have come before the subscription was live; then it sleeps until a bell rings,
//! the lease it saw could be over, or a jittered poll is due. The poll is what a lost message costs.
//!
//! An acquisition has one id however often it is sent. When it is given up while something of it was
//! not answered, it may yet be granted; so its release is sent in the background, after which it is
//! not.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout, timeout_at};
use tollgate_core::lock::{
    Acquire, AcquireOutcome, Durability, Fence, HoldId, Lease, LockKind, LockName, LockStore, Owner,
};
use tollgate_core::{StoreError, StoreErrorKind};

use super::error::LockError;
use super::guard::LockGuard;
use super::hold::{Hold, LockState, Upkeep};
use super::lock_queue::{Ear, HeadNotifier, LockQueuePosition};
use super::{LockEvent, LocksShared};
use crate::chance;
use crate::clock::{BootTime, Instant};
use crate::observer::Event;

/// How often the head of a line asks without being rung for, drawn evenly: a lost message costs no more
/// than the longest, and a fleet does not ask together.
const POLL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_millis(190);

/// Between two attempts while the store does not answer, drawn evenly.
const RETRY: RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_millis(80);

/// How often somebody who does not want to wait asks a store that does not answer.
const TRIES: u32 = 3;

/// What is wanted.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub(crate) name: LockName,
    pub(crate) kind: LockKind,
    pub(crate) owner: Owner,
    /// Whether the owner may hold it already, here or elsewhere.
    pub(crate) shared_owner: bool,
    pub(crate) lease: Lease,
    pub(crate) upkeep: Upkeep,
    pub(crate) delay: Duration,
    pub(crate) durability: Durability,
}

/// How long one is ready to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockPatience {
    None,
    Until(Instant),
    Forever,
}

/// What an attempt comes to, if it was answered.
enum AttemptOutcome {
    Granted(LockGuard),
    Busy(Option<Duration>),
}

/// Why there was no answer, or none to go on with.
enum Failed {
    /// It may be tried again.
    Store(StoreError),
    For(LockError),
}

impl<S: LockStore> LocksShared<S> {
    /// Gets the lock; `None` if somebody else has it for longer than one is ready to wait.
    pub(crate) async fn get(
        self: &Arc<Self>,
        request: &LockRequest,
        patience: LockPatience,
    ) -> Result<Option<LockGuard>, LockError> {
        self.thread.start()?;
        let mut pending = Acquisition::new(self, request);
        if matches!(patience, LockPatience::None) {
            return pending.try_now().await;
        }
        // Whoever may hold it already must not wait behind those who wait for it.
        let mut busy = None;
        if request.shared_owner || !self.queues.has(&request.name) {
            match pending.attempt().await {
                Ok(AttemptOutcome::Granted(guard)) => return Ok(Some(guard)),
                Ok(AttemptOutcome::Busy(left)) => busy = left,
                Err(Failed::For(error)) => return Err(error),
                Err(Failed::Store(_)) => {}
            }
        }
        let Some(position) = self.queues.join(&request.name, &request.owner) else {
            return Err(LockError::TooManyWaiting);
        };
        let waited = match patience {
            LockPatience::Until(deadline) => {
                let waited = timeout_at(deadline, pending.wait(&position, busy)).await;
                // While the store does not answer, nobody is known to have it.
                let silence = pending.outage.take().map(|(_, error)| LockError::Store(error));
                waited.unwrap_or_else(|_| silence.map_or(Ok(None), Err))
            }
            LockPatience::None | LockPatience::Forever => pending.wait(&position, busy).await,
        };
        if matches!(waited, Ok(Some(_))) {
            position.win();
        }
        waited
    }
}

/// An acquisition under way.
struct Acquisition<'a, S: LockStore> {
    shared: &'a Arc<LocksShared<S>>,
    request: &'a LockRequest,
    hold: HoldId,
    since: BootTime,
    /// Whether something was sent and not answered.
    unanswered: bool,
    /// Since when the store does not answer, and what came of asking last.
    outage: Option<(BootTime, StoreError)>,
}

impl<'a, S: LockStore> Acquisition<'a, S> {
    fn new(shared: &'a Arc<LocksShared<S>>, request: &'a LockRequest) -> Self {
        let hold = HoldId::new(shared.ids.draw());
        Self { shared, request, hold, since: BootTime::now(), unanswered: false, outage: None }
    }

    fn ask(&self) -> Acquire<'a> {
        let LockRequest { kind, lease, delay, durability, .. } = *self.request;
        Acquire {
            name: &self.request.name,
            kind,
            owner: &self.request.owner,
            hold: self.hold,
            lease,
            delay,
            label: &self.shared.label,
            durability,
        }
    }

    /// Asks the store once.
    async fn attempt(&mut self) -> Result<AttemptOutcome, Failed> {
        let sent = BootTime::now();
        // Until it is answered, whatever becomes of this future.
        let before = std::mem::replace(&mut self.unanswered, true);
        let store = &self.shared.thread.lease_renewer.store;
        match store.acquire(&self.ask()).await {
            Ok(acquired) => {
                self.unanswered = before;
                self.outage = None;
                self.answered(acquired, sent)
            }
            Err(error) => {
                let charged = error.kind() != StoreErrorKind::Unavailable;
                self.unanswered = before || charged;
                if error.kind() == StoreErrorKind::Corrupt {
                    return Err(Failed::For(LockError::Store(error)));
                }
                let since = self.outage.as_ref().map_or(sent, |(since, _)| *since);
                self.outage = Some((since, error.clone()));
                if BootTime::now().since(since) >= self.shared.patience {
                    return Err(Failed::For(LockError::Store(error)));
                }
                Err(Failed::Store(error))
            }
        }
    }

    fn answered(
        &mut self,
        acquired: AcquireOutcome,
        sent: BootTime,
    ) -> Result<AttemptOutcome, Failed> {
        match acquired {
            AcquireOutcome::Granted { fence, copies, .. } => {
                if let Durability::Required(replicas) = self.request.durability
                    && copies < replicas.majority()
                {
                    // Dropping it with this set gives it back.
                    self.unanswered = true;
                    return Err(Failed::For(LockError::NotReplicated { copies }));
                }
                Ok(AttemptOutcome::Granted(self.granted(fence, copies, sent)))
            }
            AcquireOutcome::Busy { left } => Ok(AttemptOutcome::Busy(left)),
            AcquireOutcome::Over => {
                // Nobody released it, so somebody drew the same id; another one will do.
                self.hold = HoldId::new(self.shared.ids.draw());
                Ok(AttemptOutcome::Busy(Some(Duration::ZERO)))
            }
            AcquireOutcome::TooDeep => {
                Err(Failed::For(LockError::TooDeep(self.request.name.clone())))
            }
            _ => Err(Failed::For(LockError::Foreign(self.request.name.clone()))),
        }
    }

    fn hold(&self, fence: Fence, sent: BootTime) -> Hold {
        let LockRequest { name, kind, owner, lease, upkeep, .. } = self.request.clone();
        let hold = Hold::new(name, kind, owner, self.hold, fence, lease, upkeep, sent);
        if self.unanswered {
            hold.set_unanswered();
        }
        hold
    }

    fn granted(&mut self, fence: Fence, copies: u32, sent: BootTime) -> LockGuard {
        let hold = Arc::new(self.hold(fence, sent));
        // It is the guard's business from here on.
        self.unanswered = false;
        let lease_renewer = &self.shared.thread.lease_renewer;
        lease_renewer.watch(&hold, sent);
        lease_renewer.observers.tell(|| {
            Event::Lock(LockEvent::Granted {
                name: hold.name.clone(),
                owner: hold.owner.clone(),
                fence,
                waited: BootTime::now().since(self.since),
            })
        });
        let releaser = Arc::clone(&self.shared.thread);
        LockGuard::new(releaser, hold, copies)
    }

    async fn try_now(&mut self) -> Result<Option<LockGuard>, LockError> {
        let mut tries = 0_u32;
        loop {
            match self.attempt().await {
                Ok(AttemptOutcome::Granted(guard)) => return Ok(Some(guard)),
                Ok(AttemptOutcome::Busy(_)) => return Ok(None),
                Err(Failed::For(error)) => return Err(error),
                Err(Failed::Store(error)) => {
                    tries = tries.saturating_add(1);
                    if tries >= TRIES {
                        return Err(LockError::Store(error));
                    }
                }
            }
            sleep(chance::within(&RETRY)).await;
        }
    }

    /// Listens for the line; whether to ask now. A subscription that takes its time is not waited for
    /// longer than a poll.
    async fn subscribe(&self, position: &LockQueuePosition, patience: Duration) -> bool {
        let notifier = Arc::new(HeadNotifier(Arc::downgrade(&self.shared.queues)));
        let listen = self.shared.thread.lease_renewer.store.subscribe(&self.request.name, notifier);
        match timeout(patience, listen).await {
            Ok(Ok(subscription)) => {
                position.set_subscription(Ear::new(subscription));
                true
            }
            // Then it has waited long enough to ask.
            Err(_) => true,
            Ok(Err(_)) => false,
        }
    }

    /// Waits in line until it is granted.
    async fn wait(
        &mut self,
        position: &LockQueuePosition,
        mut left: Option<Duration>,
    ) -> Result<Option<LockGuard>, LockError> {
        position.turn().await;
        let mut pause = chance::within(&POLL);
        loop {
            let until = left.map_or(pause, |left| pause.min(left.saturating_add(TICK)));
            // What was released before one listened was not heard, so ask at once.
            if position.is_subscribed() || !self.subscribe(position, until).await {
                tokio::select! {
                    () = position.released() => {}
                    () = sleep(until) => {}
                }
            }
            match self.attempt().await {
                Ok(AttemptOutcome::Granted(guard)) => return Ok(Some(guard)),
                Ok(AttemptOutcome::Busy(busy)) => {
                    left = busy;
                    pause = chance::within(&POLL);
                }
                Err(Failed::For(error)) => return Err(error),
                Err(Failed::Store(_)) => {
                    left = None;
                    pause = chance::within(&RETRY);
                }
            }
        }
    }
}

/// A lease that ends in this millisecond has not ended yet.
const TICK: Duration = Duration::from_millis(2);

impl<S: LockStore> Drop for Acquisition<'_, S> {
    fn drop(&mut self) {
        if !self.unanswered {
            return;
        }
        // Nobody waits for it any more, and it may have been granted, or may yet be.
        let now = BootTime::now();
        let hold = self.hold(Fence::MAX, now);
        hold.set(LockState::Lost);
        self.shared.thread.give_back(Arc::new(hold));
    }
}
