//! One hold of a lock, which the guard, the watchdog and a release share.
//!
//! At its deadline this process takes the lock for lost, unless the store confirms it before: a
//! lease after the last grant or renewal was *sent*, less a margin. So the deadline comes before
//! the store ends the lease, however long the answer took. It is a moment of the boot-time clock,
//! which goes on while the machine sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tollgate_core::lock::{
    Attempt, Fence, HoldId, Lease, LockKind, LockName, Owner, Release, Renew,
};

use crate::clock::BootTime;

/// The certainty of a holder about its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockState {
    /// The store confirmed the lock when it was last asked, and the lease has not ended.
    Sure,
    /// The lease has not ended, but the store did not answer when it was last asked. It may have
    /// forgotten the lock.
    Unsure,
    /// Another owner has the lock, or may have it.
    Lost,
}

/// Tells what happens to a lease while its guard lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseMode {
    /// The watchdog renews it.
    Renewed,
    /// Nothing renews it: the caller asked for a fixed time.
    Fixed,
}

/// The lock that a caller asks for.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub(crate) name: LockName,
    pub(crate) kind: LockKind,
    pub(crate) owner: Owner,
    /// True if the owner may hold the lock already, here or elsewhere.
    pub(crate) shared_owner: bool,
    pub(crate) lease: Lease,
    pub(crate) lease_mode: LeaseMode,
}

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) request: LockRequest,
    pub(crate) id: HoldId,
    pub(crate) fence: Fence,
    /// True if a step of it was sent and not answered.
    unanswered: AtomicBool,
    /// Set when its release is called, before anything is sent.
    ending: AtomicBool,
    deadline_us: AtomicU64,
    state: watch::Sender<LockState>,
}

/// The part of a lease that a holder does not rely on: a tenth, a second at most. Clocks differ,
/// and a busy machine reports the end late.
pub(crate) fn margin(lease: Lease) -> Duration {
    lease.duration().checked_div(10).unwrap_or_default().min(Duration::from_secs(1))
}

impl Hold {
    /// A hold whose acquisition was sent at `sent`.
    pub(crate) fn new(request: LockRequest, id: HoldId, fence: Fence, sent: BootTime) -> Self {
        let hold = Self {
            request,
            id,
            fence,
            unanswered: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            deadline_us: AtomicU64::new(0),
            state: watch::Sender::new(LockState::Sure),
        };
        hold.extend(sent);
        hold
    }

    /// The store granted a step that was sent at this moment.
    pub(crate) fn extend(&self, sent: BootTime) {
        let usable = self.request.lease.duration().saturating_sub(margin(self.request.lease));
        // Never earlier: the store does not shorten a lease either.
        self.deadline_us.fetch_max(sent.after(usable).micros(), Ordering::AcqRel);
    }

    pub(crate) fn deadline(&self) -> BootTime {
        BootTime::from_micros(self.deadline_us.load(Ordering::Acquire))
    }

    pub(crate) fn state(&self, now: BootTime) -> LockState {
        if now >= self.deadline() { LockState::Lost } else { *self.state.borrow() }
    }

    /// Sets the state, and wakes tasks that wait for it. A lost lock stays lost.
    pub(crate) fn set(&self, state: LockState) {
        self.set_after(state, || {});
    }

    /// Sets the state, and calls `first` before if the state changes.
    pub(crate) fn set_after(&self, state: LockState, first: impl FnOnce()) {
        self.state.send_if_modified(|now| {
            let changes = *now != state && *now != LockState::Lost;
            if changes {
                first();
                *now = state;
            }
            changes
        });
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<LockState> {
        self.state.subscribe()
    }

    pub(crate) fn set_unanswered(&self) {
        self.unanswered.store(true, Ordering::Release);
    }

    /// Marks that its release was called.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    pub(crate) fn renewal(&self) -> Renew<'_> {
        let LockRequest { name, kind, owner, lease, .. } = &self.request;
        Renew { name, kind: *kind, owner, fence: self.fence, lease: *lease }
    }

    pub(crate) fn release(&self) -> Release<'_> {
        let LockRequest { name, kind, owner, lease, .. } = &self.request;
        let again = self.unanswered.load(Ordering::Acquire);
        let attempt = if again { Attempt::Again } else { Attempt::Sole };
        Release { name, kind: *kind, owner, hold: self.id, lease: *lease, attempt }
    }
}
