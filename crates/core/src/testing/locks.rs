//! The suite that every store of locks must pass.
//!
//! A store crate implements [`LockStoreUnderTest`] over its store and calls [`all`]. The main check
//! is [`replay`]: random histories of a few owners on a few locks, executed by the store and by a
//! map of [`LockRecord`]s; every answer must be equal. The other checks are promises that users
//! rely on.

use std::collections::HashMap;
use std::time::Duration;

use super::Rng;
use crate::Timestamp;
use crate::lock::{
    Acquire, AcquireOutcome, Attempt, Durability, Fence, HoldId, Lease, LockKind, LockName,
    LockRecord, MAX_DEPTH, Owner, RELEASE_RECORD_TTL, Release, ReleaseOutcome, Renew, RenewOutcome,
};

/// A store under test, with a clock that the test moves.
pub trait LockStoreUnderTest {
    /// Takes a lock.
    fn acquire(&self, ask: &Acquire<'_>) -> AcquireOutcome;

    /// Lengthens leases.
    fn renew(&self, batch: &[Renew<'_>]) -> Vec<RenewOutcome>;

    /// Ends a hold.
    fn release(&self, ask: &Release<'_>) -> ReleaseOutcome;

    /// Frees a lock. Returns its owner and the number of its holds.
    fn force_release(&self, name: &LockName) -> Option<(String, u32)>;

    /// The holder of a lock, and the number of its holds.
    fn holder(&self, name: &LockName) -> Option<(String, u32)>;

    /// Sets the store's clock.
    fn set_time(&self, now: Timestamp);
}

/// Runs every check. `steps` is the number of steps replayed.
///
/// # Panics
///
/// When the store fails a check.
pub fn all(subject: &impl LockStoreUnderTest, seed: u64, steps: u64) {
    subject.set_time(START);
    for kind in [LockKind::Reentrant, LockKind::Simple] {
        an_acquisition_sent_again_counts_once(subject, kind);
        a_release_sent_again_releases_nothing_else(subject, kind);
        only_the_holder_can_renew_or_release(subject, kind);
        a_hold_that_was_released_is_not_granted_any_more(subject, kind);
        a_vanished_holder_keeps_the_lock_closed_for_the_delay(subject, kind);
    }
    re_entry_keeps_the_fence_and_the_longest_lease(subject);
    re_entry_ends_at_a_depth(subject);
    kinds_do_not_mix(subject);
    replay(subject, seed, steps);
}

/// The time at which the clock of a check starts.
pub const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A usual acquisition.
pub fn plain<'a>(name: &'a LockName, kind: LockKind, owner: &'a Owner, hold: u128) -> Acquire<'a> {
    Acquire {
        name,
        kind,
        owner,
        hold: HoldId::new(hold),
        lease: Lease::DEFAULT,
        delay: Duration::ZERO,
        label: "a test",
        durability: Durability::Primary,
    }
}

/// The release of an acquisition, as if a message had been lost.
pub const fn end<'a>(ask: &Acquire<'a>) -> Release<'a> {
    let Acquire { name, kind, owner, hold, lease, .. } = *ask;
    Release { name, kind, owner, hold, lease, attempt: Attempt::Again }
}

/// The renewal of an acquisition.
pub const fn longer<'a>(ask: &Acquire<'a>, fence: Fence) -> Renew<'a> {
    let Acquire { name, kind, owner, lease, .. } = *ask;
    Renew { name, kind, owner, fence, lease }
}

/// The fence of a grant.
///
/// # Panics
///
/// When it was not granted.
pub fn granted(acquired: AcquireOutcome) -> Fence {
    match acquired {
        AcquireOutcome::Granted { fence, .. } => fence,
        other => panic!("not granted: {other:?}"),
    }
}

fn name(of: &str, kind: LockKind) -> LockName {
    LockName::new(&format!("suite {{{of}}} {kind:?}")).expect("a short name")
}

/// The id of a hold, unique across all locks.
const fn id(kind: LockKind, number: u128) -> u128 {
    match kind {
        LockKind::Reentrant => number,
        LockKind::Simple => 500 + number,
    }
}

fn owner(number: u64) -> Owner {
    Owner::new(77, number)
}

/// E43: an acquisition that is sent twice holds once.
pub fn an_acquisition_sent_again_counts_once(subject: &impl LockStoreUnderTest, kind: LockKind) {
    let (lock, me) = (name("again", kind), owner(1));
    let ask = plain(&lock, kind, &me, id(kind, 1));

    let first = subject.acquire(&ask);
    let again = subject.acquire(&ask);

    assert_eq!(first, again);
    assert_eq!(subject.release(&end(&ask)), ReleaseOutcome::Freed);
    assert_eq!(subject.holder(&lock), None);
}

/// E43: a late repeated release does not free the next holder's lock.
pub fn a_release_sent_again_releases_nothing_else(
    subject: &impl LockStoreUnderTest,
    kind: LockKind,
) {
    let (lock, me, you) = (name("released", kind), owner(1), owner(2));
    let (mine, yours) =
        (plain(&lock, kind, &me, id(kind, 10)), plain(&lock, kind, &you, id(kind, 11)));
    granted(subject.acquire(&mine));
    let first = subject.release(&end(&mine));
    granted(subject.acquire(&yours));

    let again = subject.release(&end(&mine));

    assert_eq!((first, again), (ReleaseOutcome::Freed, first));
    assert_eq!(subject.holder(&lock), Some((you.as_str().to_owned(), 1)));
    // Nor does it free the same owner's next hold.
    subject.release(&end(&yours));
    let next = plain(&lock, kind, &me, id(kind, 12));
    granted(subject.acquire(&next));
    subject.release(&end(&mine));
    assert_eq!(subject.holder(&lock), Some((me.as_str().to_owned(), 1)));
    subject.release(&end(&next));
}

/// E43, C40: other owners, and the owner under an older fence, change nothing.
pub fn only_the_holder_can_renew_or_release(subject: &impl LockStoreUnderTest, kind: LockKind) {
    let (lock, me, you) = (name("foreign", kind), owner(1), owner(2));
    let (old, mine) =
        (plain(&lock, kind, &me, id(kind, 20)), plain(&lock, kind, &me, id(kind, 21)));
    let stale = granted(subject.acquire(&old));
    subject.release(&end(&old));
    let fence = granted(subject.acquire(&mine));
    assert!(fence > stale, "E42");

    let stranger = Renew { owner: &you, ..longer(&mine, fence) };
    let renewed = subject.renew(&[stranger, longer(&mine, stale), longer(&mine, fence)]);
    let released = subject.release(&Release { owner: &you, ..end(&mine) });

    assert_eq!(renewed, [RenewOutcome::Lost, RenewOutcome::Lost, RenewOutcome::Held]);
    assert_eq!(released, ReleaseOutcome::AlreadyLost);
    assert_eq!(subject.holder(&lock), Some((me.as_str().to_owned(), 1)));
    assert_eq!(subject.force_release(&lock), Some((me.as_str().to_owned(), 1)));
    assert_eq!(subject.renew(&[longer(&mine, fence)]), [RenewOutcome::Lost]);
    assert_eq!(subject.force_release(&lock), None);
}

/// The acquisition of a caller that gave up arrives after its release.
pub fn a_hold_that_was_released_is_not_granted_any_more(
    subject: &impl LockStoreUnderTest,
    kind: LockKind,
) {
    let (lock, me) = (name("late", kind), owner(1));
    let ask = plain(&lock, kind, &me, id(kind, 30));

    assert_eq!(subject.release(&end(&ask)), ReleaseOutcome::AlreadyLost);
    assert_eq!(subject.acquire(&ask), AcquireOutcome::Over);

    assert_eq!(subject.holder(&lock), None);
    assert_eq!(subject.release(&end(&ask)), ReleaseOutcome::AlreadyLost, "answered alike");
}

/// The lock delay: after a loss the lock is closed for a while, after a release it is not.
pub fn a_vanished_holder_keeps_the_lock_closed_for_the_delay(
    subject: &impl LockStoreUnderTest,
    kind: LockKind,
) {
    let (lock, me, you) = (name("delay", kind), owner(1), owner(2));
    let minute = Duration::from_secs(60);
    let mine = Acquire { delay: minute, ..plain(&lock, kind, &me, id(kind, 40)) };
    let yours = plain(&lock, kind, &you, id(kind, 41));
    granted(subject.acquire(&mine));
    subject.release(&end(&mine));
    granted(subject.acquire(&yours));
    subject.release(&end(&yours));

    granted(subject.acquire(&Acquire { hold: HoldId::new(id(kind, 42)), ..mine }));
    let gone = Lease::DEFAULT.duration() + Duration::from_millis(1);
    subject.set_time(START.checked_add(gone).expect("soon"));
    let closed = subject.acquire(&Acquire { hold: HoldId::new(id(kind, 43)), ..yours });
    subject.set_time(START.checked_add(gone + minute).expect("soon"));
    let open = subject.acquire(&Acquire { hold: HoldId::new(id(kind, 44)), ..yours });

    let left = minute - Duration::from_millis(1);
    assert_eq!(closed, AcquireOutcome::Busy { left: Some(left) });
    granted(open);
    subject.force_release(&lock);
    subject.set_time(START);
}

/// E41, E44: a second hold has the first one's fence, and cannot cut its lease short.
pub fn re_entry_keeps_the_fence_and_the_longest_lease(subject: &impl LockStoreUnderTest) {
    let (lock, me, you) = (name("twice", LockKind::Reentrant), owner(1), owner(2));
    let outer = plain(&lock, LockKind::Reentrant, &me, 50);
    let short = Lease::new(Duration::from_secs(1)).expect("a second");
    let inner = Acquire { hold: HoldId::new(51), lease: short, ..outer };

    let fence = granted(subject.acquire(&outer));
    let second = subject.acquire(&inner);

    assert_eq!(second, AcquireOutcome::Granted { fence, depth: 2, copies: 0 });
    assert_eq!(subject.release(&end(&inner)), ReleaseOutcome::StillHeld);
    let busy = subject.acquire(&plain(&lock, LockKind::Reentrant, &you, 52));
    assert_eq!(busy, AcquireOutcome::Busy { left: Some(Lease::DEFAULT.duration()) });
    assert_eq!(subject.release(&end(&outer)), ReleaseOutcome::Freed);
}

/// At [`MAX_DEPTH`], another acquisition is refused.
pub fn re_entry_ends_at_a_depth(subject: &impl LockStoreUnderTest) {
    let (lock, me) = (name("deep", LockKind::Reentrant), owner(1));
    for hold in 0..MAX_DEPTH {
        granted(subject.acquire(&plain(&lock, LockKind::Reentrant, &me, 1_000 + hold as u128)));
    }

    let deeper = subject.acquire(&plain(&lock, LockKind::Reentrant, &me, 9_999));

    assert_eq!(deeper, AcquireOutcome::TooDeep);
    assert_eq!(subject.holder(&lock), Some((me.as_str().to_owned(), MAX_DEPTH as u32)));
    subject.force_release(&lock);
}

/// A name that holds one kind of lock cannot be acquired as the other.
pub fn kinds_do_not_mix(subject: &impl LockStoreUnderTest) {
    let (lock, me) = (name("mixed", LockKind::Reentrant), owner(1));
    for (kind, other) in
        [(LockKind::Reentrant, LockKind::Simple), (LockKind::Simple, LockKind::Reentrant)]
    {
        let ask = plain(&lock, kind, &me, id(kind, 60));
        let fence = granted(subject.acquire(&ask));

        let mixed = Acquire { kind: other, hold: HoldId::new(69), ..ask };

        assert_eq!(subject.acquire(&mixed), AcquireOutcome::Foreign);
        let renewed = subject.renew(&[Renew { kind: other, ..longer(&ask, fence) }]);
        assert_eq!(renewed, [RenewOutcome::Lost]);
        assert_eq!(subject.release(&end(&ask)), ReleaseOutcome::Freed);
    }
}

/// The simplest store: a map that only grows.
#[derive(Debug, Default)]
pub struct LockModel {
    records: HashMap<LockName, LockRecord>,
    /// The answer to each release, and the millisecond until which it is stored.
    release_records: HashMap<(LockName, HoldId), (ReleaseOutcome, u64)>,
}

impl LockModel {
    fn release_record(
        &self,
        name: &LockName,
        hold: HoldId,
        now: Timestamp,
    ) -> Option<ReleaseOutcome> {
        let (answer, until) = self.release_records.get(&(name.clone(), hold))?;
        (now.as_micros() / 1_000 <= *until).then_some(*answer)
    }

    /// Takes a lock.
    pub fn acquire(&mut self, ask: &Acquire<'_>, now: Timestamp) -> AcquireOutcome {
        if self.release_record(ask.name, ask.hold, now).is_some() {
            return AcquireOutcome::Over;
        }
        self.records.entry(ask.name.clone()).or_default().acquire(ask, now)
    }

    /// Lengthens a lease.
    pub fn renew(&mut self, ask: &Renew<'_>, now: Timestamp) -> RenewOutcome {
        self.records.entry(ask.name.clone()).or_default().renew(ask, now)
    }

    /// Ends a hold.
    pub fn release(&mut self, ask: &Release<'_>, now: Timestamp) -> ReleaseOutcome {
        if let Some(answer) = self.release_record(ask.name, ask.hold, now) {
            return answer;
        }
        let answer = self.records.entry(ask.name.clone()).or_default().release(ask, now);
        let until = now.as_micros() / 1_000 + RELEASE_RECORD_TTL.as_millis() as u64;
        self.release_records.insert((ask.name.clone(), ask.hold), (answer, until));
        answer
    }
}

/// One step of a history, with owned parts.
struct OwnedAcquire {
    name: LockName,
    kind: LockKind,
    owner: Owner,
    hold: u128,
    lease: Lease,
    delay: Duration,
}

impl OwnedAcquire {
    fn ask(&self) -> Acquire<'_> {
        let Self { lease, delay, .. } = *self;
        Acquire { lease, delay, ..plain(&self.name, self.kind, &self.owner, self.hold) }
    }
}

/// Replays a random history through the store and through the [`LockModel`]. E45
///
/// Fences need not be equal, because a store may count all its locks together. But they must rise
/// with every grant of a lock, and be equal where the model's are. E42
pub fn replay(subject: &impl LockStoreUnderTest, seed: u64, steps: u64) {
    let mut rng = Rng::new(seed);
    let mut model = LockModel::default();
    let mut now = START;
    let mut fences: HashMap<(LockName, Fence), Fence> = HashMap::new();
    let mut highest: HashMap<LockName, Fence> = HashMap::new();
    let mut plays: Vec<OwnedAcquire> = Vec::new();
    for step in 0..steps {
        now = moved(&mut rng, now);
        subject.set_time(now);
        let context = || format!("seed {seed} step {step} at {now}");
        if plays.is_empty() || rng.chance(4, 10) {
            // A new acquisition, or an old one sent again.
            if plays.is_empty() || rng.chance(3, 4) {
                plays.push(drawn(&mut rng, seed, step));
            }
            let play = recent(&mut rng, &plays, 6);
            let (expected, found) = (model.acquire(&play.ask(), now), subject.acquire(&play.ask()));
            match (expected, found) {
                (
                    AcquireOutcome::Granted { fence, depth, .. },
                    AcquireOutcome::Granted { fence: actual, depth: reported, .. },
                ) => {
                    assert_eq!(depth, reported, "{}", context());
                    let key = (play.name.clone(), fence);
                    let known = fences.get(&key).copied();
                    assert_eq!(known.unwrap_or(actual), actual, "{}", context());
                    if known.is_none() {
                        let last = highest.insert(play.name.clone(), actual);
                        assert!(last < Some(actual), "{}: fences rise", context());
                        fences.insert(key, actual);
                    }
                }
                _ => assert_eq!(found, expected, "{}: {:?}", context(), play.ask()),
            }
            continue;
        }
        let play = recent(&mut rng, &plays, 12);
        if rng.chance(1, 2) {
            let (expected, found) =
                (model.release(&end(&play.ask()), now), subject.release(&end(&play.ask())));
            assert_eq!(found, expected, "{}: {:?}", context(), play.ask());
        } else if let Some(((_, fence), actual)) = fences
            .iter()
            .find(|((name, _), actual)| highest.get(name) == Some(*actual) && *name == play.name)
        {
            let ask = play.ask();
            let expected = model.renew(&longer(&ask, *fence), now);
            assert_eq!(subject.renew(&[longer(&ask, *actual)]), [expected], "{}", context());
        }
        let holder = model.records.get_mut(&play.name).and_then(|record| {
            // Looking is enough for a store to find that a lease has ended.
            record.settle(now);
            record.holder(now)
        });
        let holder = holder.map(|held| (held.owner.as_str().to_owned(), held.holds.len() as u32));
        assert_eq!(subject.holder(&play.name), holder, "{}", context());
    }
}

/// One of the last steps.
fn recent<'p>(rng: &mut Rng, plays: &'p [OwnedAcquire], last: usize) -> &'p OwnedAcquire {
    let from = plays.len().saturating_sub(last);
    &plays[from + rng.below((plays.len() - from) as u64) as usize]
}

/// A time that is mostly a little later, sometimes much later, and sometimes earlier.
fn moved(rng: &mut Rng, now: Timestamp) -> Timestamp {
    let micros = now.as_micros();
    Timestamp::from_micros(match rng.below(20) {
        0 => micros.saturating_sub(rng.within(0, 5_000_000)),
        1..=2 => micros + rng.within(0, 60_000_000),
        3..=6 => micros + rng.within(0, 2_000_000),
        _ => micros + rng.within(0, 2_000),
    })
}

fn drawn(rng: &mut Rng, seed: u64, step: u64) -> OwnedAcquire {
    let kind = rng.pick(&[LockKind::Reentrant, LockKind::Reentrant, LockKind::Simple]);
    // Now and then the other kind by the same name.
    let named = if rng.chance(1, 20) { LockKind::Simple } else { kind };
    let name = LockName::new(&format!("replay {seed} {named:?} {}", rng.below(2))).expect("short");
    let millis = rng.pick(&[10, 500, 1_000, 30_000]);
    OwnedAcquire {
        name,
        kind,
        owner: owner(rng.below(3)),
        hold: ((u128::from(seed) + 1) << 64) | u128::from(step),
        lease: Lease::new(Duration::from_millis(millis)).expect("ten milliseconds at least"),
        delay: Duration::from_millis(rng.pick(&[0, 0, 0, 700])),
    }
}
