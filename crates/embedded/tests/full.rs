//! A store that is full: what is dropped, what is never dropped, and who answers instead.
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "a test that cannot go on shall stop"
)]

use std::time::Duration;

use tollgate_core::testing::ManualClock;
use tollgate_embedded::EmbeddedStore;
use tollgate_embedded::core::algorithm::{Concurrency, FixedWindow, SlidingLog, TokenBucket};
use tollgate_embedded::core::{
    Basis, Charge, Clock, Decision, Holder, Key, Limit, OnFull, Op, Quota, Request, Retry,
    Revision, Timestamp, Verdict,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

struct FullStore {
    store: EmbeddedStore<ManualClock>,
    clock: ManualClock,
}

impl FullStore {
    fn with_room_for(keys: usize) -> Self {
        let clock = ManualClock::default();
        let store = EmbeddedStore::builder().max_keys(keys).shards(4).with_clock(clock.clone());
        Self { store, clock }
    }

    fn take(&self, key: &str, limit: &Limit) -> Decision {
        self.op(key, limit, Op::Take(1))
    }

    fn op(&self, key: &str, limit: &Limit, op: Op) -> Decision {
        self.store.charge_one(&Charge::new(Key::new(key).unwrap(), limit, op).unwrap())
    }

    /// Takes once from `count` distinct keys, and returns those that got a counter of their own.
    fn flood(&self, name: &str, count: usize, limit: &Limit) -> Vec<String> {
        let keys = (0..count).map(|i| format!("{name}:{i}"));
        keys.filter(|key| self.take(key, limit).basis == Basis::Counted).collect()
    }
}

fn one<'a>(key: &'a str, limit: &'a Limit) -> Charge<'a> {
    Charge::take(Key::new(key).unwrap(), limit, 1).unwrap()
}

fn bucket(count: u64, per: Duration) -> Limit {
    Limit::new(TokenBucket, Quota::new(count, per).unwrap()).unwrap()
}

// C35
#[test]
fn keys_that_refuse_are_never_forgotten_and_the_rest_share_one_counter() {
    let full = FullStore::with_room_for(1_000);
    let limit = bucket(1, HOUR);

    let kept = full.flood("k", 20_000, &limit);

    let stats = full.store.stats();
    assert_eq!(stats.keys, 1_000, "every place is used");
    assert_eq!(kept.len(), 1_000);
    assert_eq!(stats.overflowed, 19_000, "every other charge is counted");
    for key in &kept {
        let decision = full.take(key, &limit);
        assert_eq!(decision.basis, Basis::Counted);
        assert!(!decision.passes(), "{key} was refusing");
    }
    let late = full.take("latecomer", &limit);
    assert_eq!(late.basis, Basis::Overflow);
    assert!(!late.passes(), "the shared counter let one of 19 000 through, and that was not it");
}

// C35, E36
#[test]
fn idle_keys_make_room_and_nobody_notices() {
    let full = FullStore::with_room_for(1_000);
    let limit = bucket(1, SECOND);

    for wave in 0..30 {
        let kept = full.flood(&format!("wave{wave}"), 800, &limit);
        assert_eq!(kept.len(), 800, "wave {wave} finds room where the last one has become idle");
        full.clock.advance(SECOND);
    }

    let stats = full.store.stats();
    assert_eq!(stats.overflowed, 0);
    assert!(stats.keys <= 1_000);
    assert!(stats.reclaimed >= 24_000 - 1_000, "{stats:?}");
}

#[test]
fn one_idle_key_is_found_among_thousands_that_are_not() {
    let full = FullStore::with_room_for(4_000);
    let (long, short) = (bucket(1, HOUR), bucket(1, SECOND));
    let kept = full.flood("long", 3_000, &long);
    let brief = full.flood("short", 20_000, &short);
    assert_eq!(kept.len() + brief.len(), 4_000);
    full.clock.advance(SECOND);

    let fresh = full.flood("fresh", 100_000, &long);

    assert_eq!(fresh.len(), brief.len(), "each idle key gives its place to exactly one");
    assert!(kept.iter().all(|key| !full.take(key, &long).passes()));
}

#[test]
fn a_limit_may_admit_or_refuse_what_has_no_room() {
    let full = FullStore::with_room_for(100);
    full.flood("k", 5_000, &bucket(1, HOUR));

    let admit = full.take("a", &bucket(2, HOUR).with_on_full(OnFull::Admit));
    let refuse = full.take("b", &bucket(2, HOUR).with_on_full(OnFull::Refuse));

    assert_eq!((admit.verdict, admit.basis), (Verdict::Allow, Basis::Overflow));
    assert_eq!(refuse.basis, Basis::Overflow);
    assert_eq!(refuse.verdict, Verdict::Deny(Retry::After(HOUR)), "the first key leaves then");
    assert_eq!(full.store.stats().keys, 100);
}

#[test]
fn in_a_request_a_key_without_room_is_shared_and_all_or_none_still_holds() {
    let full = FullStore::with_room_for(100);
    let limit = bucket(3, HOUR);
    let kept = full.flood("k", 5_000, &limit);
    let drained = bucket(1, HOUR);
    let _ = full.take("x", &drained);
    let charge = |key, limit, cost| Charge::take(Key::new(key).unwrap(), limit, cost).unwrap();

    let refused = [charge(kept[0].as_str(), &limit, 1), charge("y", &drained, 1)];
    let refused = full.store.charge_request(&Request::new(&refused).unwrap());

    assert_eq!(refused.refused_by, Some(1));
    assert_eq!(refused.decisions[1].basis, Basis::Overflow, "{refused:?}");
    let peek = full.op(&kept[0], &limit, Op::Peek(0));
    assert_eq!(peek.remaining, 2, "the key with a counter was not charged");
}

#[test]
fn a_permit_held_without_room_can_be_renewed_and_released() {
    let full = FullStore::with_room_for(100);
    full.flood("k", 5_000, &bucket(1, HOUR));
    let limit = Limit::new(Concurrency, Quota::new(1, HOUR).unwrap()).unwrap();
    let (me, you) = (Holder(1), Holder(2));
    let acquire = |holder| Op::Acquire { holder, lease: SECOND };

    assert!(full.op("mine", &limit, acquire(me)).passes());
    assert!(!full.op("yours", &limit, acquire(you)).passes(), "one shared place");
    assert!(full.op("mine", &limit, Op::Renew { holder: me, lease: SECOND }).passes());
    assert!(full.op("mine", &limit, Op::Release { holder: me }).passes());
    assert!(full.op("yours", &limit, acquire(you)).passes(), "given back");
}

#[test]
fn logs_are_bounded_by_what_they_may_grow_to() {
    let clock = ManualClock::default();
    let builder = EmbeddedStore::builder().max_keys(1_000).shards(1).max_heap(100_000);
    let store = builder.with_clock(clock.clone());
    let limit = Limit::new(SlidingLog, Quota::new(100, SECOND).unwrap()).unwrap();
    let take = |i: usize| {
        let key = format!("log:{i}");
        store.charge_one(&Charge::take(Key::new(&key).unwrap(), &limit, 1).unwrap()).basis
    };

    let counted = (0..500).filter(|i| take(*i) == Basis::Counted).count();

    assert!((50..=62).contains(&counted), "100 entries of 16 bytes each, and no more: {counted}");
    clock.advance(SECOND);
    let counted = (500..1_000).filter(|i| take(*i) == Basis::Counted).count();
    assert!((50..=62).contains(&counted), "what became idle made room: {counted}");
}

#[test]
fn limits_nobody_uses_any_more_are_dropped() {
    let full = FullStore::with_room_for(1_000);
    for i in 1..5_000 {
        let _ = full.take(&format!("k{i}"), &bucket(i, SECOND));
        full.clock.advance(SECOND);
    }

    assert!(full.store.stats().limits <= 1_000, "one a key at the most");
}

#[test]
fn a_request_that_makes_room_keeps_the_counters_it_has_in_hand() {
    // A request takes its counters out of the table. Making room for another of its keys then
    // once swept them away as idle, because what was taken out looked empty.
    let clock = ManualClock::default();
    let store = EmbeddedStore::builder().max_keys(8).shards(1).with_clock(clock.clone());
    let log = Limit::new(SlidingLog, Quota::new(5, HOUR).unwrap()).unwrap();
    let brief = bucket(1, SECOND);
    let charge = |key: &'static str, limit| Charge::take(Key::new(key).unwrap(), limit, 1).unwrap();
    let _ = store.charge_one(&charge("log", &log));
    for key in ["a", "b", "c", "d", "e", "f", "g"] {
        let _ = store.charge_one(&charge(key, &brief));
    }
    clock.advance(SECOND);

    let both = [charge("log", &log), charge("new", &brief)];
    let answer = store.charge_request(&Request::new(&both).unwrap());

    assert!(answer.passes());
    let peek = Charge::new(Key::new("log").unwrap(), &log, Op::Peek(0)).unwrap();
    assert_eq!(store.charge_one(&peek).remaining, 3);
}

#[test]
fn a_request_over_idle_and_new_keys_neither_hangs_nor_outgrows_the_store() {
    // The counters in hand were idle, so making room for the new keys dropped their slots; they
    // were then put back where no room had been kept, until no slot was empty and searches ran
    // for ever.
    for (max_keys, each) in [(2, 2), (256, 30)] {
        let clock = ManualClock::default();
        let store = EmbeddedStore::builder().max_keys(max_keys).shards(1).with_clock(clock.clone());
        let limit = bucket(1, SECOND);
        let keys: Vec<String> = (0..max_keys + each).map(|i| format!("k{i}")).collect();
        for key in &keys[..max_keys] {
            assert!(store.charge_one(&one(key, &limit)).passes());
        }
        clock.advance(SECOND);

        let old_and_new: Vec<_> =
            keys[..each].iter().chain(&keys[max_keys..]).map(|key| one(key, &limit)).collect();
        let answer = store.charge_request(&Request::new(&old_and_new).unwrap());

        assert!(store.stats().keys <= max_keys, "{:?}", store.stats());
        assert_eq!(answer.decisions.len(), 2 * each);
        let _ = store.charge_one(&one("another", &limit));
    }
}

#[test]
fn a_store_holds_no_more_keys_than_was_said_whatever_its_shards() {
    for (max_keys, shards) in [(1, 64), (10, 64), (100, 3), (1_000, 1)] {
        let clock = ManualClock::default();
        let store = EmbeddedStore::builder().max_keys(max_keys).shards(shards).with_clock(clock);
        let full = FullStore { store, clock: ManualClock::default() };

        full.flood("k", 5_000, &bucket(1, HOUR));

        let keys = full.store.stats().keys;
        assert!(keys <= max_keys && keys * 2 > max_keys, "{keys} of {max_keys}");
    }
}

#[test]
fn any_charge_finds_a_promoted_key_as_it_is() {
    // A key charged twice in a row is promoted to a hot slot; the slot it left behind in the table is stale.
    let full = FullStore::with_room_for(100);
    let limit = bucket(10, HOUR);
    for _ in 0..5 {
        assert!(full.take("hot", &limit).passes());
    }

    assert_eq!(full.op("hot", &limit, Op::Peek(0)).remaining, 5);
    assert_eq!(full.take("hot", &limit).remaining, 4);
}

#[test]
fn an_idle_promoted_key_makes_room_for_a_new_one() {
    for several in [false, true] {
        let clock = ManualClock::default();
        let store = EmbeddedStore::builder().max_keys(2).shards(1).with_clock(clock.clone());
        let full = FullStore { store, clock };
        let limit = bucket(10, SECOND);
        for key in ["a", "b"] {
            for _ in 0..3 {
                assert!(full.take(key, &limit).passes());
            }
        }
        full.clock.advance(SECOND);

        let basis = if several {
            let charges = [one("new", &limit), one("newer", &limit)];
            full.store.charge_request(&Request::new(&charges).unwrap()).decisions[1].basis
        } else {
            full.take("new", &limit).basis
        };

        assert_eq!(basis, Basis::Counted);
        assert!(full.store.stats().reclaimed > 0);
    }
}

#[test]
fn at_the_end_of_time_nothing_hangs_and_nothing_that_counts_is_dropped() {
    // "Never idle" was written as the last moment, which the clock can reach.
    let clock = ManualClock::at(Timestamp::MAX);
    let store = EmbeddedStore::builder().max_keys(1).shards(1).with_clock(clock.clone());
    let full = FullStore { store, clock };
    let window = Limit::new(FixedWindow::default(), Quota::new(1, HOUR).unwrap()).unwrap();
    assert!(full.take("a", &window).passes());
    assert!(!full.take("a", &window).passes());

    let other = full.take("b", &window);

    assert_eq!(other.basis, Basis::Overflow);
    assert!(!full.take("a", &window).passes(), "still counted");
    let names: Vec<String> = (0..8).map(|i| format!("n{i}")).collect();
    let charges: Vec<_> = names.iter().map(|key| one(key, &window)).collect();
    let _ = full.store.charge_request(&Request::new(&charges).unwrap());
}

#[test]
fn a_request_off_the_plain_path_does_not_reserve_its_room_twice() {
    let full = FullStore::with_room_for(8);
    let store = EmbeddedStore::builder().max_keys(2).shards(1).with_clock(full.clock.clone());
    let limit = bucket(1, HOUR).with_on_full(OnFull::Admit);
    let asked = Charge::take(Key::new("b").unwrap(), &limit, 0).unwrap();

    let answer = store.charge_request(&Request::new(&[one("a", &limit), asked]).unwrap());

    assert_eq!(answer.decisions[0].basis, Basis::Counted, "there was room");
    assert!(!store.charge_one(&one("a", &limit)).passes(), "and it was counted");
}

/// A clock that calls itself monotonic and is read before the lock: readings of different
/// threads may then arrive in another order than they were made.
#[derive(Clone, Default)]
struct OvertakenClock(ManualClock);

impl Clock for OvertakenClock {
    const MONOTONIC: bool = true;

    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

#[test]
fn readings_that_arrive_out_of_order_do_not_shorten_a_shared_lease() {
    let clock = OvertakenClock::default();
    let store = EmbeddedStore::builder().max_keys(4).shards(4).with_clock(clock.clone());
    for i in 0..1_000 {
        let _ = store.charge_one(&one(&format!("fill{i}"), &bucket(1, HOUR)));
    }
    let limit = Limit::new(Concurrency, Quota::new(2, HOUR).unwrap()).unwrap();
    let ask = |i: u32, op| {
        let key = format!("k{i}");
        store.charge_one(&Charge::new(Key::new(&key).unwrap(), &limit, op).unwrap()).passes()
    };
    let acquire = |holder| Op::Acquire { holder: Holder(holder), lease: 60 * SECOND };
    assert!(ask(0, acquire(1)));

    // A reading made before another's arrives after it, in a shard that has not seen the other.
    for i in 0..20 {
        clock.0.advance(SECOND);
        assert!(ask(2 * i, acquire(2)));
        clock.0.step_back(SECOND / 2);
        assert!(ask(2 * i + 1, Op::Release { holder: Holder(2) }));
        clock.0.advance(SECOND / 2);
    }

    clock.0.advance(39 * SECOND);
    assert!(ask(100, acquire(3)));
    assert!(!ask(101, acquire(4)), "the first lease has a second to go");
}

#[test]
fn a_credit_for_a_key_that_was_never_charged_gives_nothing_to_those_that_share() {
    let full = FullStore::with_room_for(100);
    let limit = bucket(10, HOUR);
    full.flood("k", 5_000, &limit);
    let shared = (0..20).filter(|i| full.take(&format!("s{i}"), &limit).passes()).count();
    assert_eq!(shared, 0, "the flood has used up the shared counter");
    let at = full.clock.now();
    let credit =
        |key| Charge::new(Key::new(key).unwrap(), &limit, Op::Credit { cost: 9, at }).unwrap();

    let _ = full.store.charge_request(&Request::new(&[credit("x"), credit("y")]).unwrap());

    assert!(!full.take("z", &limit).passes());
}

#[test]
fn the_largest_store_is_built_without_allocating_for_it() {
    let store = EmbeddedStore::builder().max_keys(usize::MAX).build();

    assert!(store.charge_one(&one("k", &bucket(1, HOUR))).passes());
}

#[test]
fn a_key_that_finds_room_later_starts_full_once() {
    let clock = ManualClock::default();
    let store = EmbeddedStore::builder().max_keys(2).shards(1).with_clock(clock.clone());
    let full = FullStore { store, clock };
    let (brief, long, limit) = (bucket(1, SECOND), bucket(1, HOUR), bucket(3, HOUR));
    assert!(full.take("brief", &brief).passes() && full.take("long", &long).passes());
    let pass = |basis| {
        let told: Vec<_> = (0..10).map(|_| full.take("late", &limit)).collect();
        assert!(told.iter().all(|decision| decision.basis == basis), "{told:?}");
        told.iter().filter(|decision| decision.passes()).count()
    };
    assert_eq!(pass(Basis::Overflow), 3, "the shared counter");

    full.clock.advance(SECOND);
    assert_eq!(pass(Basis::Counted), 3, "its own: one capacity more");
    full.clock.advance(SECOND);

    assert_eq!(pass(Basis::Counted), 0, "and no further one");
    assert!(!full.take("another", &limit).passes(), "what was shared is still used up");
}

#[test]
fn the_shared_counter_of_a_new_revision_starts_full() {
    let full = FullStore::with_room_for(4);
    full.flood("k", 1_000, &bucket(1, HOUR));
    let pass = |limit: &Limit| {
        let passes = |i: &u32| full.take(&format!("x{i}"), limit).passes();
        (0..10).filter(passes).count()
    };
    let (old, new) = (bucket(3, HOUR), bucket(3, HOUR).with_revision(Revision(1)));

    assert_eq!((pass(&old), pass(&new)), (3, 3));
    assert_eq!((pass(&old), pass(&new)), (0, 0), "once");
}

#[test]
fn when_1024_limits_share_already_a_further_one_refuses() {
    let full = FullStore::with_room_for(4);
    full.flood("k", 1_000, &bucket(1, HOUR));
    let limits: Vec<Limit> = (0..1_023).map(|i| bucket(10 + i, HOUR)).collect();
    for limit in &limits {
        assert!(full.take("x", limit).passes());
    }

    let further = full.take("x", &bucket(5_000, HOUR));
    let known = full.take("x", &limits[0]);
    let debit = Op::Debit { cost: 1, at: full.clock.now() };

    assert_eq!(further.verdict, Verdict::Deny(Retry::After(HOUR)), "as the flood's is the first");
    assert_eq!(further.basis, Basis::Overflow);
    assert!(known.passes(), "those who share go on");
    // A counter that is full again makes room, as a key does.
    full.clock.advance(HOUR);
    full.flood("l", 1_000, &bucket(1, HOUR));
    assert!(full.take("x", &bucket(5_000, HOUR)).passes());
    assert!(full.op("x", &bucket(5_001, HOUR), debit).passes(), "a debit is never refused");
}
