//! Every interleaving of a few threads on the store, explored by loom.
//!
//! Run by `make test`; without `--cfg loom` there is nothing here.
#![cfg(loom)]
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "a test that cannot go on shall stop"
)]

use std::sync::Arc;

use loom::thread;
use std::time::Duration;
use tollgate_core::testing::ManualClock;
use tollgate_embedded::EmbeddedStore;
use tollgate_embedded::core::algorithm::{Concurrency, TokenBucket};
use tollgate_embedded::core::{Charge, Clock, Holder, Key, Limit, Op, Quota, Request, Timestamp};

fn limit(count: u64) -> Limit {
    let quota = Quota::new(count, Duration::from_secs(3600)).unwrap();
    Limit::new(TokenBucket, quota).unwrap()
}

fn store(shards: usize) -> Arc<EmbeddedStore<ManualClock>> {
    Arc::new(
        EmbeddedStore::builder().max_keys(64).shards(shards).with_clock(ManualClock::default()),
    )
}

fn take<'a>(key: &'a str, limit: &'a Limit) -> Charge<'a> {
    Charge::take(Key::new(key).unwrap(), limit, 1).unwrap()
}

#[test]
fn two_threads_never_take_the_last_permit_twice() {
    loom::model(|| {
        let store = store(1);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    let limit = limit(3);
                    (0..2).filter(|_| store.charge_one(&take("k", &limit)).passes()).count()
                })
            })
            .collect();

        let passed: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();

        assert_eq!(passed, 3);
    });
}

#[test]
fn two_requests_over_the_same_keys_in_opposite_order_neither_wait_for_ever_nor_half_charge() {
    loom::model(|| {
        let store = store(4);
        let (narrow, wide) = (limit(1), limit(5));
        let threads: Vec<_> = [["a", "b"], ["b", "a"]]
            .into_iter()
            .map(|keys| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    let of = |key| if key == "a" { &narrow } else { &wide };
                    let charges = keys.map(|key| take(key, of(key)));
                    store.charge_request(&Request::new(&charges).unwrap()).passes()
                })
            })
            .collect();

        let passed = threads.into_iter().map(|t| t.join().unwrap());
        let passed = passed.filter(|passed| *passed).count();

        assert_eq!(passed, 1, "the narrow key lets one through");
        let peek = Charge::new(Key::new("b").unwrap(), &wide, Op::Peek(0)).unwrap();
        assert_eq!(store.charge_one(&peek).remaining, 4, "the refused request charged nothing");
    });
}

#[test]
fn a_single_charge_and_a_request_on_one_key_are_both_counted() {
    loom::model(|| {
        let store = store(2);
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || {
            let limit = limit(10);
            let charges = [take("a", &limit), take("b", &limit)];
            other.charge_request(&Request::new(&charges).unwrap()).passes()
        });
        let limit = limit(10);
        let _ = store.charge_one(&take("a", &limit));
        let _ = store.charge_one(&take("a", &limit));

        assert!(thread.join().unwrap());

        let peek = Charge::new(Key::new("a").unwrap(), &limit, Op::Peek(0)).unwrap();
        assert_eq!(store.charge_one(&peek).remaining, 7);
    });
}

#[test]
fn two_holders_never_share_the_last_place() {
    loom::model(|| {
        let store = store(1);
        let quota = Quota::new(1, Duration::from_secs(60)).unwrap();
        let limit = Limit::new(Concurrency, quota).unwrap();
        let threads: Vec<_> = (0..2_u128)
            .map(|who| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    let op = Op::Acquire { holder: Holder(who), lease: Duration::from_secs(1) };
                    let charge = Charge::new(Key::new("k").unwrap(), &limit, op).unwrap();
                    store.charge_one(&charge).passes()
                })
            })
            .collect();

        let held = threads.into_iter().map(|t| t.join().unwrap()).filter(|held| *held).count();

        assert_eq!(held, 1);
    });
}

/// A clock that is read before the lock is taken.
#[derive(Clone, Copy)]
struct Steady;

impl Clock for Steady {
    const MONOTONIC: bool = true;

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000)
    }
}

#[test]
fn a_full_store_on_a_clock_read_before_the_lock_shares_one_counter_exactly() {
    loom::model(|| {
        let store = EmbeddedStore::builder().max_keys(1).shards(1).with_clock(Steady);
        let store = Arc::new(store);
        assert!(store.charge_one(&take("first", &limit(1))).passes());
        let threads: Vec<_> = [["a", "b"], ["b", "a"]]
            .into_iter()
            .map(|keys| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    let limit = limit(3);
                    let charges = keys.map(|key| take(key, &limit));
                    store.charge_request(&Request::new(&charges).unwrap()).passes()
                })
            })
            .collect();

        let passed =
            threads.into_iter().map(|t| t.join().unwrap()).filter(|passed| *passed).count();

        assert_eq!(passed, 1, "three shared permits are one request of two");
    });
}

#[test]
fn two_keys_that_share_a_hot_slot_are_each_counted_exactly() {
    loom::model(|| {
        let store = store(1);
        let limit = limit(10);
        let _ = store.charge_one(&take("a", &limit));
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || {
            assert!(other.charge_one(&take("a", &limit)).passes());
            assert!(other.charge_one(&take("a", &limit)).passes());
        });
        assert!(store.charge_one(&take("b", &limit)).passes());
        assert!(store.charge_one(&take("b", &limit)).passes());
        let both = [take("a", &limit), take("b", &limit)];
        assert!(store.charge_request(&Request::new(&both).unwrap()).passes());

        thread.join().unwrap();

        for (key, left) in [("a", 6), ("b", 7)] {
            let peek = Charge::new(Key::new(key).unwrap(), &limit, Op::Peek(0)).unwrap();
            assert_eq!(store.charge_one(&peek).remaining, left, "{key}");
        }
    });
}
