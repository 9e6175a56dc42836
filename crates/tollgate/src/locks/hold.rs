//! One hold of a lock: what the guard, the watchdog and a release share.
//!
//! Its deadline is when this process must take the lock for lost if it hears nothing more: a lease
//! after the last grant or renewal was *sent*, less a margin. So it comes before the store's own end of
//! the lease, whatever the answer took. It is a moment of the boot-time clock, which goes on while the
//! machine sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tollgate_core::lock::{
    Attempt, Fence, HoldId, Lease, LockKind, LockName, Owner, Release, Renew,
};

use crate::clock::BootTime;

/// How sure a holder can be of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockState {
    /// The store said so when it was last asked, and the lease has not ended.
    Sure,
    /// The lease has not ended, but the store did not answer when it was last asked. It may have
    /// forgotten the lock.
    Unsure,
    /// The lock is another's, or may be.
    Lost,
}

/// Who keeps the lease from ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upkeep {
    /// The watchdog.
    Renewed,
    /// Nobody: it was asked for so long and no longer.
    Fixed,
}

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) kind: LockKind,
    pub(crate) owner: Owner,
    pub(crate) id: HoldId,
    pub(crate) fence: Fence,
    pub(crate) lease: Lease,
    pub(crate) upkeep: Upkeep,
    /// Whether something of it was sent and not answered.
    unanswered: AtomicBool,
    /// Set when its release is called, before anything is sent.
    ending: AtomicBool,
    deadline_us: AtomicU64,
    state: watch::Sender<LockState>,
}

/// What of the lease is not counted on: clocks that differ, and a machine too busy to say in time that
/// it is over. A tenth of it, a second at most.
pub(crate) fn margin(lease: Lease) -> Duration {
    lease.duration().checked_div(10).unwrap_or_default().min(Duration::from_secs(1))
}

impl Hold {
    #[expect(clippy::too_many_arguments, reason = "each is of another type, and named")]
    pub(crate) fn new(
        name: LockName,
        kind: LockKind,
        owner: Owner,
        id: HoldId,
        fence: Fence,
        lease: Lease,
        upkeep: Upkeep,
        sent: BootTime,
    ) -> Self {
        let hold = Self {
            name,
            kind,
            owner,
            id,
            fence,
            lease,
            upkeep,
            unanswered: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            deadline_us: AtomicU64::new(0),
            state: watch::Sender::new(LockState::Sure),
        };
        hold.extend(sent);
        hold
    }

    /// What was sent at this moment was granted.
    pub(crate) fn extend(&self, sent: BootTime) {
        let usable = self.lease.duration().saturating_sub(margin(self.lease));
        // Never earlier: the store does not shorten a lease either.
        self.deadline_us.fetch_max(sent.after(usable).micros(), Ordering::AcqRel);
    }

    pub(crate) fn deadline(&self) -> BootTime {
        BootTime::from_micros(self.deadline_us.load(Ordering::Acquire))
    }

    pub(crate) fn state(&self, now: BootTime) -> LockState {
        if now >= self.deadline() { LockState::Lost } else { *self.state.borrow() }
    }

    /// Whoever waits is told. What is lost stays lost.
    pub(crate) fn set(&self, state: LockState) {
        self.set_after(state, || {});
    }

    /// The same, and does something first if this is news.
    pub(crate) fn set_after(&self, state: LockState, first: impl FnOnce()) {
        self.state.send_if_modified(|now| {
            let news = *now != state && *now != LockState::Lost;
            if news {
                first();
                *now = state;
            }
            news
        });
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<LockState> {
        self.state.subscribe()
    }

    pub(crate) fn set_unanswered(&self) {
        self.unanswered.store(true, Ordering::Release);
    }

    /// Its release is called from now on.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    pub(crate) fn renewal(&self) -> Renew<'_> {
        let Self { kind, fence, lease, .. } = *self;
        Renew { name: &self.name, kind, owner: &self.owner, fence, lease }
    }

    pub(crate) fn release(&self) -> Release<'_> {
        let Self { kind, id, lease, .. } = *self;
        let again = self.unanswered.load(Ordering::Acquire);
        let attempt = if again { Attempt::Again } else { Attempt::Sole };
        Release { name: &self.name, kind, owner: &self.owner, hold: id, lease, attempt }
    }
}
