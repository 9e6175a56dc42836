//! The thread of the watchdog: renews leases, and releases dropped guards in the background.
//!
//! The thread has a runtime of its own. So it renews leases, reports losses and releases
//! dropped guards even if the runtime that uses the locks is blocked, busy or gone. It ends after the
//! last [`Locks`](super::Locks) and the last guard, once all dropped guards are released.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate_core::lock::{Fence, LockName, LockStore, Owner, ReleaseOutcome, Renew};
use tollgate_core::lock_mutex;

use super::LockEvent;
use super::error::LockError;
use super::guard::{HoldReleaser, ReleaseFuture, ReleaseResult};
use super::hold::{Hold, LockState};
use super::watchdog::Watchdog;
use crate::clock::BootTime;
use crate::observer::{Event, Observers};

/// The most locks renewed in one call.
const MAX_BATCH: usize = 128;

/// The longest time for which a release is tried, unless its lease ends before.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time between two attempts of a release.
const PAUSE: Duration = Duration::from_millis(50);

/// The state that the thread, the guards and waiting tasks share.
pub(crate) struct LeaseRenewer<S> {
    pub(crate) store: S,
    pub(crate) observers: Observers,
    watchdog: Mutex<Watchdog>,
    wake: Notify,
    /// The number of holds that are being given back in the background.
    releasing: watch::Sender<usize>,
}

opaque_debug!(LeaseRenewer<S>: |it| watched = it.watchdog().len());

/// Starts the thread when it is first needed, and sends dropped guards to it.
#[derive(Debug)]
pub(crate) struct RenewerThread<S> {
    pub(crate) renewer: Arc<LeaseRenewer<S>>,
    /// Dropped guards that wait for background release. There are at most as many as there were
    /// guards.
    dropped: OnceLock<Result<mpsc::UnboundedSender<Arc<Hold>>, Arc<io::Error>>>,
}

impl<S: LockStore> RenewerThread<S> {
    pub(crate) fn new(store: S, observers: Observers) -> Self {
        let (watchdog, wake, releasing) = (Mutex::default(), Notify::new(), watch::Sender::new(0));
        let renewer = LeaseRenewer { store, observers, watchdog, wake, releasing };
        Self { renewer: Arc::new(renewer), dropped: OnceLock::new() }
    }

    /// Starts the thread unless it runs.
    pub(crate) fn start(&self) -> Result<(), LockError> {
        let started = self.dropped.get_or_init(|| {
            let (dropped, inbox) = mpsc::unbounded_channel();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
            let renewer = Arc::clone(&self.renewer);
            let run = move || runtime.block_on(renewer.run(inbox));
            std::thread::Builder::new().name("tollgate-locks".into()).spawn(run)?;
            Ok(dropped)
        });
        started.as_ref().map(drop).map_err(|error| LockError::NoThread(Arc::clone(error)))
    }
}

impl<S: LockStore> HoldReleaser for RenewerThread<S> {
    fn release<'a>(&'a self, hold: &'a Hold) -> ReleaseFuture<'a> {
        Box::pin(self.renewer.release(hold))
    }

    fn give_back(&self, hold: Arc<Hold>) {
        if hold.is_ending() {
            // Its release was called and dropped, and may have arrived. So it is not reported as lost
            // if it is not held any more.
            hold.set_unanswered();
            hold.set(LockState::Lost);
        }
        self.renewer.forget(&hold);
        // A hold exists only once the thread runs, which ends after the last of these.
        if let Some(Ok(dropped)) = self.dropped.get() {
            self.renewer.releasing.send_modify(|count| *count = count.saturating_add(1));
            let _ = dropped.send(hold);
        }
    }
}

impl<S> LeaseRenewer<S> {
    fn watchdog(&self) -> MutexGuard<'_, Watchdog> {
        // Every edit is whole before anything could panic.
        lock_mutex(&self.watchdog)
    }

    /// Reports an event of a hold to observers.
    pub(crate) fn tell(
        &self,
        hold: &Hold,
        event: impl FnOnce(LockName, Owner, Fence) -> LockEvent,
    ) {
        let (name, owner) = (&hold.request.name, &hold.request.owner);
        self.observers.tell(|| Event::Lock(event(name.clone(), owner.clone(), hold.fence)));
    }
}

impl<S: LockStore> LeaseRenewer<S> {
    /// Watches a hold whose acquisition was sent at `sent`.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, sent: BootTime) {
        if self.watchdog().watch(Arc::clone(hold), sent) {
            self.wake.notify_one();
        }
    }

    /// Stops renewing a hold whose release was called.
    fn forget(&self, hold: &Hold) {
        hold.end();
        self.watchdog().forget(hold.id);
    }

    async fn run(self: Arc<Self>, mut dropped: mpsc::UnboundedReceiver<Arc<Hold>>) {
        let mut tasks = JoinSet::new();
        loop {
            let now = BootTime::now();
            let due = self.watchdog().due_work(now);
            due.lost.iter().for_each(|hold| self.lose(hold));
            for part in due.renew.chunks(MAX_BATCH) {
                tasks.spawn(Arc::clone(&self).renew(part.to_vec()));
            }
            let pause = due.next.map(|next| next.since(now));
            tokio::select! {
                hold = dropped.recv() => match hold {
                    Some(hold) => drop(tasks.spawn(Arc::clone(&self).end(hold))),
                    None => break,
                },
                () = self.wake.notified() => {}
                Some(_) = tasks.join_next() => {}
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Reports a loss to observers and to the holder.
    fn lose(&self, hold: &Hold) {
        // Observers come first, before the holder acts on the loss.
        hold.set_after(LockState::Lost, || {
            self.tell(hold, |name, owner, fence| LockEvent::Lost { name, owner, fence });
        });
    }

    async fn renew(self: Arc<Self>, mut holds: Vec<Arc<Hold>>) {
        holds.retain(|hold| !hold.is_ending());
        let batch: Vec<Renew<'_>> = holds.iter().map(|hold| hold.renewal()).collect();
        if batch.is_empty() {
            return;
        }
        let sent = BootTime::now();
        let answer = self.store.renew(&batch).await;
        drop(batch);
        let now = BootTime::now();
        let mut lost = Vec::new();
        {
            let mut watchdog = self.watchdog();
            match answer {
                Ok(renewed) => {
                    for (hold, renewed) in holds.iter().zip(renewed) {
                        lost.extend(watchdog.answered(hold.id, renewed, sent));
                    }
                }
                Err(_) => holds.iter().for_each(|hold| watchdog.failed(hold.id, now)),
            }
        }
        lost.iter().for_each(|hold| self.lose(hold));
    }

    async fn end(self: Arc<Self>, hold: Arc<Hold>) {
        // Its guard is gone, so nothing reads the result.
        let _ = self.release(&hold).await;
        self.releasing.send_modify(|count| *count = count.saturating_sub(1));
    }

    /// Waits until no hold is being given back.
    pub(crate) async fn settled(&self) {
        // The sender is here, so it cannot end before.
        let _ = self.releasing.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Gives a hold back. Tries again until the store answers, or the lease is over.
    pub(crate) async fn release(&self, hold: &Hold) -> Result<ReleaseResult, LockError> {
        self.forget(hold);
        let patience = BootTime::now().after(PATIENCE);
        loop {
            let error = match self.store.release(&hold.release()).await {
                Ok(ReleaseOutcome::Freed | ReleaseOutcome::StillHeld) => {
                    self.tell(hold, |name, owner, fence| LockEvent::Released {
                        name,
                        owner,
                        fence,
                    });
                    return Ok(ReleaseResult::Released);
                }
                Ok(ReleaseOutcome::AlreadyLost) => {
                    self.lose(hold);
                    return Ok(ReleaseResult::AlreadyLost);
                }
                Err(error) => error,
            };
            hold.set_unanswered();
            let now = BootTime::now();
            if now >= hold.deadline() {
                // The lease is over, whether or not an attempt arrived before.
                self.lose(hold);
                return Ok(ReleaseResult::AlreadyLost);
            }
            if now >= patience {
                return Err(LockError::Store(error));
            }
            sleep(PAUSE).await;
        }
    }
}
