//! The watchdog's schedule: which holds are renewed when, and which are lost.
//!
//! Pure: its caller passes the time. `lease_renewer.rs` is the thread that uses it, and `hold.rs`
//! holds the state that it watches.
//!
//! A hold is renewed every third of its lease, together with holds that are due soon after. When
//! the store does not answer, the renewal is tried again after a short pause, until the deadline of
//! the hold. Then the hold is lost. A release first takes the hold out of the schedule, so nothing
//! renews it then.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::lock::{HoldId, Lease, RenewOutcome};

use super::hold::{Hold, LeaseMode, LockState};
use crate::clock::BootTime;

/// While a lock is held the thread wakes at least this often, because its timer stands still while
/// the machine sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    holds: HashMap<HoldId, WatchedHold>,
    renewals: BTreeSet<(BootTime, HoldId)>,
    deadlines: BTreeSet<(BootTime, HoldId)>,
    /// The time at which the thread looks next; `None` while it sleeps until it is woken.
    next_look: Option<BootTime>,
}

#[derive(Debug)]
struct WatchedHold {
    hold: Arc<Hold>,
    /// Its places in the two sets.
    renewal: Option<BootTime>,
    deadline: BootTime,
}

/// The work that is due now.
#[derive(Debug, Default)]
pub(crate) struct DueWork {
    pub(crate) renew: Vec<Arc<Hold>>,
    pub(crate) lost: Vec<Arc<Hold>>,
    /// The time to look again; `None` if no hold is watched.
    pub(crate) next: Option<BootTime>,
}

fn third(lease: Lease) -> Duration {
    lease.duration().checked_div(3).unwrap_or_default()
}

/// The time within which a coming renewal joins those that are due now.
fn soon(lease: Lease) -> Duration {
    lease.duration().checked_div(30).unwrap_or_default()
}

/// The time between two attempts while the store does not answer.
fn pause(lease: Lease) -> Duration {
    soon(lease).clamp(Duration::from_millis(1), Duration::from_millis(500))
}

impl Watchdog {
    /// Watches a hold whose acquisition was sent at `sent`. Returns true if the thread must be
    /// woken.
    pub(crate) fn watch(&mut self, hold: Arc<Hold>, sent: BootTime) -> bool {
        let renewal = (hold.request.lease_mode == LeaseMode::Renewed)
            .then(|| sent.after(third(hold.request.lease)));
        let (id, deadline) = (hold.id, hold.deadline());
        self.deadlines.insert((deadline, id));
        self.renewals.extend(renewal.map(|at| (at, id)));
        self.holds.insert(id, WatchedHold { hold, renewal, deadline });
        let first = renewal.unwrap_or(deadline);
        self.next_look.is_none_or(|next| first < next)
    }

    /// Stops watching a hold.
    pub(crate) fn forget(&mut self, id: HoldId) {
        if let Some(watched) = self.holds.remove(&id) {
            self.deadlines.remove(&(watched.deadline, id));
            if let Some(at) = watched.renewal {
                self.renewals.remove(&(at, id));
            }
        }
    }

    /// Returns the work that is due at `now`. A hold to renew is not returned again before its
    /// answer.
    pub(crate) fn due_work(&mut self, now: BootTime) -> DueWork {
        let mut due_work = DueWork::default();
        while let Some((at, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, id));
            if let Some(watched) = self.holds.get(&id) {
                due_work.lost.push(Arc::clone(&watched.hold));
                self.forget(id);
            }
        }
        let due = |(at, id): &(BootTime, HoldId), holds: &HashMap<HoldId, WatchedHold>| {
            let lease = holds.get(id).map(|watched| watched.hold.request.lease);
            lease.is_none_or(|lease| *at <= now.after(soon(lease)))
        };
        // The first must be due for itself; others may join it.
        if self.renewals.first().is_some_and(|(at, _)| *at <= now) {
            while let Some((at, id)) =
                self.renewals.first().copied().filter(|first| due(first, &self.holds))
            {
                self.renewals.remove(&(at, id));
                if let Some(watched) = self.holds.get_mut(&id) {
                    watched.renewal = None;
                    due_work.renew.push(Arc::clone(&watched.hold));
                }
            }
        }
        let first = [self.renewals.first(), self.deadlines.first()];
        let first = first.into_iter().flatten().map(|(at, _)| *at).min();
        due_work.next = first.map(|at| at.min(now.after(LONGEST_SLEEP)));
        self.next_look = due_work.next;
        due_work
    }

    /// Handles the store's answer to a renewal that was sent at `sent`. Returns the hold if it is
    /// lost.
    pub(crate) fn answered(
        &mut self,
        id: HoldId,
        renewed: RenewOutcome,
        sent: BootTime,
    ) -> Option<Arc<Hold>> {
        // A hold that was released meanwhile is not watched any more.
        let watched = self.holds.get_mut(&id)?;
        if renewed == RenewOutcome::Lost {
            let hold = Arc::clone(&watched.hold);
            self.forget(id);
            return Some(hold);
        }
        watched.hold.extend(sent);
        watched.hold.set(LockState::Sure);
        self.deadlines.remove(&(watched.deadline, id));
        watched.deadline = watched.hold.deadline();
        self.deadlines.insert((watched.deadline, id));
        let at = sent.after(third(watched.hold.request.lease));
        watched.renewal = Some(at);
        self.renewals.insert((at, id));
        None
    }

    /// Handles a renewal that the store did not answer.
    pub(crate) fn failed(&mut self, id: HoldId, now: BootTime) {
        if let Some(watched) = self.holds.get_mut(&id) {
            watched.hold.set(LockState::Unsure);
            let at = now.after(pause(watched.hold.request.lease));
            watched.renewal = Some(at);
            self.renewals.insert((at, id));
        }
    }

    /// The number of watched holds.
    pub(crate) fn len(&self) -> usize {
        self.holds.len()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::lock::{Fence, LockKind, LockName, Owner};

    use super::super::hold::LockRequest;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: BootTime = BootTime::from_micros(1_000_000);

    fn at(seconds: f64) -> BootTime {
        START.after(Duration::from_secs_f64(seconds))
    }

    fn hold(id: u128, lease_mode: LeaseMode, sent: BootTime) -> Arc<Hold> {
        let name = LockName::new(&format!("lock {id}")).unwrap();
        let (owner, fence) = (Owner::new(1, 1), Fence::new(1).unwrap());
        let id = HoldId::new(id);
        let (kind, lease, shared_owner) = (LockKind::Reentrant, Lease::DEFAULT, false);
        let request = LockRequest { name, kind, owner, shared_owner, lease, lease_mode };
        Arc::new(Hold::new(request, id, fence, sent))
    }

    fn ids(holds: &[Arc<Hold>]) -> Vec<HoldId> {
        holds.iter().map(|hold| hold.id).collect()
    }

    #[test]
    fn a_hold_is_renewed_every_third_of_its_lease_with_those_due_soon_after() {
        let mut watchdog = Watchdog::default();
        for (i, sent) in [(1, 0.0), (2, 0.9), (3, 1.1)] {
            watchdog.watch(hold(i, LeaseMode::Renewed, at(sent)), at(sent));
        }

        assert!(watchdog.due_work(at(9.9)).renew.is_empty());
        let due_work = watchdog.due_work(at(10.0));

        assert_eq!(ids(&due_work.renew), [HoldId::new(1), HoldId::new(2)]);
        assert!(watchdog.due_work(at(10.5)).renew.is_empty(), "they are under way");
        assert_eq!(ids(&watchdog.due_work(at(11.1)).renew), [HoldId::new(3)]);
        assert!(watchdog.answered(HoldId::new(1), RenewOutcome::Held, at(10.0)).is_none());
        assert_eq!(ids(&watchdog.due_work(at(20.0)).renew), [HoldId::new(1)]);
    }

    // E44
    #[test]
    fn a_store_that_does_not_answer_is_asked_again_until_the_hold_is_lost() {
        let mut watchdog = Watchdog::default();
        let held = hold(1, LeaseMode::Renewed, START);
        watchdog.watch(Arc::clone(&held), START);
        let (mut attempts, mut now) = (0, at(10.0));
        loop {
            let due_work = watchdog.due_work(now);
            if let [lost] = &due_work.lost[..] {
                assert_eq!(lost.id, held.id);
                break;
            }
            for hold in due_work.renew {
                attempts += 1;
                watchdog.failed(hold.id, now);
                assert_eq!(hold.state(now), LockState::Unsure);
            }
            // The thread looks again as soon as an attempt is over.
            now = watchdog.due_work(now).next.unwrap();
        }

        assert_eq!(now, at(29.0), "a second before the store may end it");
        assert_eq!(held.state(now), LockState::Lost);
        assert_eq!(attempts, 38, "every half second");
        assert_eq!(watchdog.due_work(at(40.0)).next, None, "nothing is left to look after");
    }

    #[test]
    fn an_answer_counts_from_when_it_was_asked_and_makes_sure_again() {
        let mut watchdog = Watchdog::default();
        let held = hold(1, LeaseMode::Renewed, START);
        watchdog.watch(Arc::clone(&held), START);
        watchdog.due_work(at(10.0));
        watchdog.failed(held.id, at(10.2));
        watchdog.due_work(at(11.0));

        assert!(watchdog.answered(held.id, RenewOutcome::Held, at(11.0)).is_none());

        assert_eq!(held.state(at(39.9)), LockState::Sure);
        assert_eq!(held.state(at(40.0)), LockState::Lost, "29 s after 11 s");
        assert_eq!(held.deadline(), at(40.0));
    }

    // E43
    #[test]
    fn what_is_released_is_not_renewed_and_its_late_answer_changes_nothing() {
        let mut watchdog = Watchdog::default();
        let held = hold(1, LeaseMode::Renewed, START);
        watchdog.watch(Arc::clone(&held), START);
        assert_eq!(watchdog.due_work(at(10.0)).renew.len(), 1);

        watchdog.forget(held.id);

        assert!(watchdog.answered(held.id, RenewOutcome::Lost, at(10.0)).is_none());
        watchdog.failed(held.id, at(10.0));
        let due_work = watchdog.due_work(at(100.0));
        assert!(due_work.renew.is_empty() && due_work.lost.is_empty());
        assert_eq!(watchdog.len(), 0);
    }

    #[test]
    fn a_fixed_lease_is_not_renewed_but_told_when_it_ends() {
        let mut watchdog = Watchdog::default();
        watchdog.watch(hold(1, LeaseMode::Fixed, START), START);

        let due_work = watchdog.due_work(at(20.0));

        assert!(due_work.renew.is_empty());
        assert_eq!(due_work.next, Some(at(21.0)), "the thread wakes at least every second");
        assert_eq!(watchdog.due_work(at(29.0)).lost.len(), 1);
    }

    #[test]
    fn the_thread_is_woken_only_for_what_it_would_sleep_through() {
        let mut watchdog = Watchdog::default();
        assert!(
            watchdog.watch(hold(1, LeaseMode::Renewed, START), START),
            "it sleeps until it is woken"
        );
        watchdog.due_work(START);
        assert!(!watchdog.watch(hold(2, LeaseMode::Renewed, START), START));
        assert_eq!(watchdog.due_work(START).next, Some(START.after(SECOND)));
    }
}
