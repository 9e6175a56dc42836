//! Acquires locks: tries, waits for a release, tries again.
//!
//! A task that waits joins the queue of its lock. The head of the queue subscribes to releases,
//! *then* asks once more, as a release may have come before the subscription was live. Then it
//! sleeps until a release is announced, until the lease it saw could be over, or until a jittered
//! poll is due. The poll bounds the cost of a lost message.
//!
//! An acquisition keeps its id however often it is sent. If the caller gives up before an attempt
//! is answered, the store may still grant it. So a release is sent in the background; after it, the
//! store no longer grants the acquisition.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout, timeout_at};
use tollgate_core::lock::{Acquire, AcquireOutcome, Durability, Fence, HoldId, LockStore};
use tollgate_core::{StoreError, StoreErrorKind};

use super::error::LockError;
use super::guard::{HoldReleaser, LockGuard};
use super::hold::{Hold, LockRequest, LockState};
use super::lock_queue::{HeadNotifier, LockQueuePosition};
use super::{LockEvent, LocksShared};
use crate::clock::{BootTime, Instant};
use crate::random;

/// The time between two polls of a queue's head, drawn uniformly. A lost message costs at most the
/// longest time, and the processes of a fleet do not poll together.
const POLL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_millis(190);

/// The time between two attempts while the store does not answer, drawn uniformly.
const RETRY: RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_millis(80);

/// The number of attempts of a caller that does not wait, while the store does not answer.
const TRIES: u32 = 3;

/// The resolution of a lease in the store: a lease that ends in this millisecond has not ended yet.
const TICK: Duration = Duration::from_millis(2);

/// The longest time that a caller waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockPatience {
    None,
    Until(Instant),
    Forever,
}

/// The result of one attempt.
enum AttemptResult {
    Granted(LockGuard),
    /// Another owner holds the lock, for this long if nobody renews it.
    Busy(Option<Duration>),
    /// The store did not answer. The next attempt may succeed.
    Silent(StoreError),
}

impl<S: LockStore> LocksShared<S> {
    /// Acquires the lock; `None` if another owner holds it for longer than the caller waits.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: &LockRequest,
        patience: LockPatience,
    ) -> Result<Option<LockGuard>, LockError> {
        self.thread.start()?;
        let mut acquisition = Acquisition::new(self, request);
        if matches!(patience, LockPatience::None) {
            return acquisition.try_now().await;
        }
        // An owner that may hold the lock already must not wait behind tasks that wait for it.
        let mut busy = None;
        if request.shared_owner || !self.queues.has(&request.name) {
            match acquisition.attempt().await? {
                AttemptResult::Granted(guard) => return Ok(Some(guard)),
                AttemptResult::Busy(left) => busy = left,
                AttemptResult::Silent(_) => {}
            }
        }
        let position = self.queues.join(&request.name, &request.owner);
        let position = position.ok_or(LockError::TooManyWaiting)?;
        let waited = match patience {
            LockPatience::Until(deadline) => {
                let waited = timeout_at(deadline, acquisition.wait(&position, busy)).await;
                // While the store does not answer, the holder is not known.
                let outage = acquisition.outage.take().map(|(_, error)| LockError::Store(error));
                waited.unwrap_or_else(|_| outage.map_or(Ok(None), Err))
            }
            LockPatience::None | LockPatience::Forever => acquisition.wait(&position, busy).await,
        };
        if matches!(waited, Ok(Some(_))) {
            position.leave_with_lock();
        }
        waited
    }
}

/// An acquisition in progress.
struct Acquisition<'a, S: LockStore> {
    shared: &'a Arc<LocksShared<S>>,
    request: &'a LockRequest,
    hold: HoldId,
    since: BootTime,
    /// True if an attempt was sent and not answered.
    unanswered: bool,
    /// The time since which the store does not answer, and the last error.
    outage: Option<(BootTime, StoreError)>,
}

impl<'a, S: LockStore> Acquisition<'a, S> {
    fn new(shared: &'a Arc<LocksShared<S>>, request: &'a LockRequest) -> Self {
        let hold = HoldId::new(shared.ids.draw());
        Self { shared, request, hold, since: BootTime::now(), unanswered: false, outage: None }
    }

    /// Asks the store once.
    async fn attempt(&mut self) -> Result<AttemptResult, LockError> {
        let LockRequest { name, kind, owner, lease, .. } = self.request;
        let settings = &self.shared.settings;
        let acquire = Acquire {
            name,
            kind: *kind,
            owner,
            hold: self.hold,
            lease: *lease,
            delay: settings.delay,
            label: &settings.label,
            durability: settings.durability,
        };
        let sent = BootTime::now();
        // Stays set until the store answers, also if this future is dropped.
        let before = std::mem::replace(&mut self.unanswered, true);
        let error = match self.shared.thread.renewer.store.acquire(&acquire).await {
            Ok(acquired) => {
                self.unanswered = before;
                self.outage = None;
                return self.answered(acquired, sent);
            }
            Err(error) => error,
        };
        self.unanswered = before || error.kind() != StoreErrorKind::Unavailable;
        let since = self.outage.as_ref().map_or(sent, |(since, _)| *since);
        let silent_for = BootTime::now().since(since);
        if error.kind() == StoreErrorKind::Corrupt {
            return Err(LockError::Store(error));
        }
        self.outage = Some((since, error.clone()));
        if silent_for >= settings.patience {
            return Err(LockError::Store(error));
        }
        Ok(AttemptResult::Silent(error))
    }

    fn answered(
        &mut self,
        acquired: AcquireOutcome,
        sent: BootTime,
    ) -> Result<AttemptResult, LockError> {
        let name = || self.request.name.clone();
        match acquired {
            AcquireOutcome::Granted { fence, copies, .. } => {
                if let Durability::Required(replicas) = self.shared.settings.durability
                    && copies < replicas.majority()
                {
                    // Dropping the acquisition with this set gives the lock back.
                    self.unanswered = true;
                    return Err(LockError::NotReplicated { copies });
                }
                Ok(AttemptResult::Granted(self.granted(fence, copies, sent)))
            }
            AcquireOutcome::Busy { left } => Ok(AttemptResult::Busy(left)),
            AcquireOutcome::Over => {
                // Nobody released this hold, so another process drew the same id. Draw another one.
                self.hold = HoldId::new(self.shared.ids.draw());
                Ok(AttemptResult::Busy(Some(Duration::ZERO)))
            }
            AcquireOutcome::TooDeep => Err(LockError::TooDeep(name())),
            _ => Err(LockError::Foreign(name())),
        }
    }

    fn hold(&self, fence: Fence, sent: BootTime) -> Hold {
        let hold = Hold::new(self.request.clone(), self.hold, fence, sent);
        if self.unanswered {
            hold.set_unanswered();
        }
        hold
    }

    fn granted(&mut self, fence: Fence, copies: u32, sent: BootTime) -> LockGuard {
        let hold = Arc::new(self.hold(fence, sent));
        // From here on the guard releases the hold.
        self.unanswered = false;
        let renewer = &self.shared.thread.renewer;
        renewer.watch(&hold, sent);
        renewer.tell(&hold, |name, owner, fence| {
            let waited = BootTime::now().since(self.since);
            LockEvent::Granted { name, owner, fence, waited }
        });
        let thread = Arc::clone(&self.shared.thread);
        LockGuard::new(thread, hold, copies)
    }

    async fn try_now(&mut self) -> Result<Option<LockGuard>, LockError> {
        for tries in 1..=TRIES {
            match self.attempt().await? {
                AttemptResult::Granted(guard) => return Ok(Some(guard)),
                AttemptResult::Busy(_) => return Ok(None),
                AttemptResult::Silent(error) if tries == TRIES => {
                    return Err(LockError::Store(error));
                }
                AttemptResult::Silent(_) => sleep(random::within(&RETRY)).await,
            }
        }
        Ok(None)
    }

    /// Subscribes to releases for the queue, and returns true if the store must be asked now. Waits
    /// for a slow subscription no longer than for a poll.
    async fn subscribe(&self, position: &LockQueuePosition, patience: Duration) -> bool {
        let notifier = Arc::new(HeadNotifier(Arc::downgrade(&self.shared.queues)));
        let store = &self.shared.thread.renewer.store;
        match timeout(patience, store.subscribe(&self.request.name, notifier)).await {
            Ok(Ok(subscription)) => {
                position.set_subscription(Box::new(subscription));
                true
            }
            // Then a poll is due.
            Err(_) => true,
            Ok(Err(_)) => false,
        }
    }

    /// Waits in the queue until the lock is granted.
    async fn wait(
        &mut self,
        position: &LockQueuePosition,
        mut left: Option<Duration>,
    ) -> Result<Option<LockGuard>, LockError> {
        position.turn().await;
        let mut pause = random::within(&POLL);
        loop {
            let until = left.map_or(pause, |left| pause.min(left.saturating_add(TICK)));
            // A release before the subscription was not heard, so ask at once.
            if position.is_subscribed() || !self.subscribe(position, until).await {
                // Whichever comes first.
                let _ = timeout(until, position.released()).await;
            }
            (left, pause) = match self.attempt().await? {
                AttemptResult::Granted(guard) => return Ok(Some(guard)),
                AttemptResult::Busy(left) => (left, random::within(&POLL)),
                AttemptResult::Silent(_) => (None, random::within(&RETRY)),
            };
        }
    }
}

impl<S: LockStore> Drop for Acquisition<'_, S> {
    fn drop(&mut self) {
        if !self.unanswered {
            return;
        }
        // Nobody waits for it any more, and the store may have granted it, or may yet do so.
        let hold = self.hold(Fence::MAX, BootTime::now());
        hold.set(LockState::Lost);
        self.shared.thread.give_back(Arc::new(hold));
    }
}
