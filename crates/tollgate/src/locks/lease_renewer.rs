//! The thread of the watchdog.
//!
//! It has a runtime of its own, so that leases are renewed, losses told and dropped guards given back
//! whatever becomes of the runtime that the locks are used on: blocked, busy, ended. It ends when the
//! last [`Locks`](super::Locks) and the last guard are gone, after what was dropped is given back.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate_core::lock::{LockStore, ReleaseOutcome, Renew};

use super::LockEvent;
use super::error::LockError;
use super::guard::Release;
use super::hold::{Hold, LockState};
use super::watchdog::Watchdog;
use crate::clock::BootTime;
use crate::observer::{Event, Observers};

/// Locks renewed with one call.
const AT_ONCE: usize = 128;

/// How long a release is tried for, if its lease does not end before.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// What the thread, the guards and those who wait share.
pub(crate) struct LeaseRenewer<S> {
    pub(crate) store: S,
    pub(crate) observers: Observers,
    watchdog: Mutex<Watchdog>,
    wake: Notify,
    /// How many holds are being given back in the background.
    releasing: watch::Sender<usize>,
}

opaque_debug!(LeaseRenewer<S>: |it| watched = it.watchdog().len());

/// Holds that are to be given back by nobody in particular. There are no more than there were guards.
type Dropped = mpsc::UnboundedSender<Arc<Hold>>;

/// The way to the thread, which is started when it is first needed.
#[derive(Debug)]
pub(crate) struct RenewerThread<S> {
    pub(crate) lease_renewer: Arc<LeaseRenewer<S>>,
    dropped: Dropped,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Arc<Hold>>>>,
    started: OnceLock<Result<(), Arc<io::Error>>>,
}

impl<S: LockStore> RenewerThread<S> {
    pub(crate) fn new(store: S, observers: Observers) -> Self {
        let (dropped, inbox) = mpsc::unbounded_channel();
        let (watchdog, wake, releasing) = (Mutex::default(), Notify::new(), watch::Sender::new(0));
        let lease_renewer = LeaseRenewer { store, observers, watchdog, wake, releasing };
        Self {
            lease_renewer: Arc::new(lease_renewer),
            dropped,
            inbox: Mutex::new(Some(inbox)),
            started: OnceLock::new(),
        }
    }

    /// Starts the thread unless it runs.
    pub(crate) fn start(&self) -> Result<(), LockError> {
        let started = self.started.get_or_init(|| {
            let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(inbox) = inbox else { return Ok(()) };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
            let lease_renewer = Arc::clone(&self.lease_renewer);
            let life = move || runtime.block_on(lease_renewer.live(inbox));
            std::thread::Builder::new().name("tollgate-locks".into()).spawn(life)?;
            Ok(())
        });
        started.clone().map_err(LockError::NoThread)
    }

    /// Gives a hold back in the background.
    pub(crate) fn give_back(&self, hold: Arc<Hold>) {
        if hold.is_ending() {
            // Its release was called and dropped: it may have been released by that, so it is no loss
            // if it is not held any more.
            hold.set_unanswered();
            hold.set(LockState::Lost);
        }
        self.lease_renewer.forget(&hold);
        self.lease_renewer.releasing.send_modify(|count| *count = count.saturating_add(1));
        // The thread ends only after the last of these.
        let _ = self.dropped.send(hold);
    }
}

impl<S> LeaseRenewer<S> {
    fn watchdog(&self) -> MutexGuard<'_, Watchdog> {
        // Every edit is whole before anything could panic.
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: LockStore> LeaseRenewer<S> {
    /// Watches a hold that was asked for at `sent`.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, sent: BootTime) {
        if self.watchdog().watch(Arc::clone(hold), sent) {
            self.wake.notify_one();
        }
    }

    /// Its release is called: from here on nothing renews it.
    fn forget(&self, hold: &Hold) {
        hold.end();
        self.watchdog().forget(hold.id);
    }

    async fn live(self: Arc<Self>, mut dropped: mpsc::UnboundedReceiver<Arc<Hold>>) {
        let mut tasks = JoinSet::new();
        loop {
            let now = BootTime::now();
            let due_work = self.watchdog().due_work(now);
            due_work.lost.iter().for_each(|hold| self.lose(hold));
            for part in due_work.renew.chunks(AT_ONCE) {
                tasks.spawn(Arc::clone(&self).renew(part.to_vec()));
            }
            let pause = due_work.next.map(|next| next.since(now));
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

    /// Tells whoever holds it that it does not any more.
    fn lose(&self, hold: &Hold) {
        // Observers hear of it before anybody acts on it.
        hold.set_after(LockState::Lost, || {
            self.observers.tell(|| {
                Event::Lock(LockEvent::Lost {
                    name: hold.name.clone(),
                    owner: hold.owner.clone(),
                    fence: hold.fence,
                })
            });
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
        // Whoever dropped it does not ask.
        let _ = self.release(&hold).await;
        self.releasing.send_modify(|count| *count = count.saturating_sub(1));
    }

    /// Waits until nothing is being given back.
    pub(crate) async fn settled(&self) {
        // The sender is here, so it cannot end before.
        let _ = self.releasing.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Gives a hold back, and again until the store answers or its lease is over.
    pub(crate) async fn release(&self, hold: &Hold) -> Result<Release, LockError> {
        self.forget(hold);
        let patience = BootTime::now().after(PATIENCE);
        loop {
            let error = match self.store.release(&hold.release()).await {
                Ok(ReleaseOutcome::Freed | ReleaseOutcome::StillHeld) => {
                    self.observers.tell(|| {
                        Event::Lock(LockEvent::Released {
                            name: hold.name.clone(),
                            owner: hold.owner.clone(),
                            fence: hold.fence,
                        })
                    });
                    return Ok(Release::Released);
                }
                Ok(ReleaseOutcome::AlreadyLost) => {
                    self.lose(hold);
                    return Ok(Release::AlreadyLost);
                }
                Err(error) => error,
            };
            hold.set_unanswered();
            let now = BootTime::now();
            if now >= hold.deadline() {
                // The lease is over, whether or not it was given back before.
                self.lose(hold);
                return Ok(Release::AlreadyLost);
            }
            if now >= patience {
                return Err(LockError::Store(error));
            }
            sleep(PAUSE).await;
        }
    }
}
