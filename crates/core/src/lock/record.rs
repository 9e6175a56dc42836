//! The record of one lock, and the steps on it.
//!
//! A lock is free, or held by one owner until a moment. Its holds are the ids of the acquisitions
//! that were granted and not yet released: a re-entrant lock may have several, all of one owner and
//! under one fence. Expiry is no step of its own: the next step finds that a lease has ended.
//!
//! Leases count in whole milliseconds. A lease that ends in this very millisecond has not ended
//! yet. Redis does the same, and both stores must agree.
//!
//! The store answers a repeated release alike. For that it keeps a *release record* for each
//! release, and checks it before it calls a step.

use std::time::Duration;

use super::{Acquire, Fence, HoldId, Lease, Owner, Release, Renew};
use crate::Timestamp;

/// The most holds of one lock by one owner. Deeper recursion is a mistake, and each hold is stored
/// by its id.
pub const MAX_DEPTH: usize = 256;

/// The life of a release record: longer than a release is sent again, or an acquisition is in
/// flight. Redisson keeps its own records for the same time.
pub const RELEASE_RECORD_TTL: Duration = Duration::from_secs(20);

/// The kind of lock under a name. A name has one kind at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// The owner may hold it several times. In Redis a hash, like Redisson's `RLock`.
    #[default]
    Reentrant,
    /// It is held once or not at all. In Redis a string, as `SET NX PX` creates it.
    Simple,
}

/// The record of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockRecord {
    held: Option<HeldLock>,
    /// The fence granted last.
    fence: Option<Fence>,
    /// The millisecond until which it stays closed, because its last holder vanished.
    barred_ms: u64,
}

/// A lock that is held: its owner, lease and fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The owner.
    pub owner: Owner,
    /// The kind of the lock.
    pub kind: LockKind,
    /// The holds that were granted and not yet released, in order.
    pub holds: Vec<HoldId>,
    /// The fence, the same for all holds.
    pub fence: Fence,
    /// The moment of the first grant.
    pub since: Timestamp,
    /// The millisecond after which it is free.
    pub expires_ms: u64,
    /// The time for which it stays closed if the holder vanishes.
    pub delay: Duration,
    /// The label of the holder.
    pub label: Box<str>,
}

/// The outcome of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireOutcome {
    /// The lock is held.
    Granted {
        /// The fence to show to the resource.
        fence: Fence,
        /// Holds of the owner, this one included.
        depth: u32,
        /// The number of replicas that are known to have it, too.
        copies: u32,
    },
    /// Another owner has the lock.
    Busy {
        /// The time until it is free, unless it is renewed; `None` if it has no end.
        left: Option<Duration>,
    },
    /// This hold has been released already, so it is not granted any more.
    Over,
    /// The owner holds it [`MAX_DEPTH`] times.
    TooDeep,
    /// The name holds a lock of the other kind, or a value that is not a lock.
    Foreign,
}

/// The outcome of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// It is held for another lease at least.
    Held,
    /// It is not held under this fence any more.
    Lost,
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// It was held, and is free now.
    Freed,
    /// It was held, and its owner still holds it by another acquisition.
    StillHeld,
    /// It was not held any more.
    AlreadyLost,
}

const fn millis(now: Timestamp) -> u64 {
    now.as_micros() / 1_000
}

impl HeldLock {
    /// The number of its holds.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.holds.len()).unwrap_or(u32::MAX)
    }

    /// Extends the lease. Never makes it shorter.
    fn lengthen(&mut self, lease: Lease, now: Timestamp) {
        self.expires_ms = self.expires_ms.max(millis(now).saturating_add(lease.millis()));
    }
}

impl LockRecord {
    /// A record that only knows the last fence.
    pub const fn after(fence: Option<Fence>) -> Self {
        Self { held: None, fence, barred_ms: 0 }
    }

    /// Grants only fences above this one from now on, because it was granted to another lock.
    pub fn rise_above(&mut self, fence: Option<Fence>) {
        self.fence = self.fence.max(fence);
    }

    /// The holder at `now`.
    pub fn holder(&self, now: Timestamp) -> Option<&HeldLock> {
        self.held.as_ref().filter(|held| millis(now) <= held.expires_ms)
    }

    /// True if an absent record would answer the same, except for its fence.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        let closed = self.held.as_ref().map_or(0, |held| self.barred_until(held));
        millis(now) > closed.max(self.barred_ms)
    }

    /// The millisecond until which the lock is closed if this holder does not come back.
    fn barred_until(&self, held: &HeldLock) -> u64 {
        let delay = u64::try_from(held.delay.as_millis()).unwrap_or(u64::MAX);
        held.expires_ms.saturating_add(delay)
    }

    /// Drops a holder whose lease has ended, as every step does first.
    pub fn settle(&mut self, now: Timestamp) {
        if self.holder(now).is_none()
            && let Some(gone) = self.held.take()
        {
            self.barred_ms = if gone.delay.is_zero() { 0 } else { self.barred_until(&gone) };
        }
    }

    /// Acquires or re-enters the lock for its owner, or returns the reason it could not.
    ///
    /// Sending it again under the same id changes only the lease, which never becomes shorter.
    pub fn acquire(&mut self, ask: &Acquire<'_>, now: Timestamp) -> AcquireOutcome {
        self.settle(now);
        let busy_until = |end: u64| {
            let left = end.saturating_sub(millis(now));
            AcquireOutcome::Busy { left: Some(Duration::from_millis(left)) }
        };
        let Some(held) = &mut self.held else {
            if self.barred_ms > 0 && millis(now) <= self.barred_ms {
                return busy_until(self.barred_ms);
            }
            let fence = Fence::next(self.fence, now);
            self.barred_ms = 0;
            self.fence = Some(fence);
            self.held = Some(HeldLock {
                owner: ask.owner.clone(),
                kind: ask.kind,
                holds: vec![ask.hold],
                fence,
                since: now,
                expires_ms: millis(now).saturating_add(ask.lease.millis()),
                delay: ask.delay,
                label: ask.label.into(),
            });
            return AcquireOutcome::Granted { fence, depth: 1, copies: 0 };
        };
        if held.kind != ask.kind {
            return AcquireOutcome::Foreign;
        }
        let known = held.holds.contains(&ask.hold);
        if held.owner != *ask.owner || (ask.kind == LockKind::Simple && !known) {
            return busy_until(held.expires_ms);
        }
        if !known {
            if held.holds.len() >= MAX_DEPTH {
                return AcquireOutcome::TooDeep;
            }
            held.holds.push(ask.hold);
        }
        held.lengthen(ask.lease, now);
        AcquireOutcome::Granted { fence: held.fence, depth: held.depth(), copies: 0 }
    }

    /// Lengthens the lease of the holder with this fence.
    pub fn renew(&mut self, ask: &Renew<'_>, now: Timestamp) -> RenewOutcome {
        self.settle(now);
        match &mut self.held {
            Some(held)
                if held.owner == *ask.owner && held.kind == ask.kind && held.fence == ask.fence =>
            {
                held.lengthen(ask.lease, now);
                RenewOutcome::Held
            }
            _ => RenewOutcome::Lost,
        }
    }

    /// Ends one hold. With the last one, the lock is free.
    ///
    /// While others remain, their lease is extended, as in Redisson.
    pub fn release(&mut self, ask: &Release<'_>, now: Timestamp) -> ReleaseOutcome {
        self.settle(now);
        let Some(held) = &mut self.held else { return ReleaseOutcome::AlreadyLost };
        let place = held.holds.iter().position(|hold| *hold == ask.hold);
        let Some(place) = place.filter(|_| held.owner == *ask.owner && held.kind == ask.kind)
        else {
            return ReleaseOutcome::AlreadyLost;
        };
        held.holds.remove(place);
        if held.holds.is_empty() {
            self.held = None;
            return ReleaseOutcome::Freed;
        }
        held.lengthen(ask.lease, now);
        ReleaseOutcome::StillHeld
    }

    /// Frees the lock, and returns its holder.
    pub fn force_release(&mut self, now: Timestamp) -> Option<HeldLock> {
        self.settle(now);
        self.barred_ms = 0;
        self.held.take()
    }
}
