//! Real threads on one store: counts must come out exactly.
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "a test that cannot go on shall stop"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::testing::Rng;
use tollgate_embedded::EmbeddedStore;
use tollgate_embedded::core::algorithm::TokenBucket;
use tollgate_embedded::core::{Charge, Key, Limit, Op, Quota, Request};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A burst of `count`, of which the next permit comes in a month or so.
fn burst(count: u64) -> Limit {
    let quota = Quota::new(10, YEAR).unwrap().with_burst(count.min(100)).unwrap();
    assert_eq!(quota.burst().get(), count);
    Limit::new(TokenBucket, quota).unwrap()
}

#[test]
fn many_threads_take_exactly_what_is_there() {
    let store = EmbeddedStore::new();
    let limit = burst(100);
    let passed = AtomicU64::new(0);

    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let charge = Charge::take(Key::new("hot").unwrap(), &limit, 1).unwrap();
                for _ in 0..10_000 {
                    if store.charge_one(&charge).passes() {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });

    assert_eq!(passed.load(Ordering::Relaxed), 100);
}

// E23 under concurrency
#[test]
fn requests_over_crossing_keys_charge_all_or_none() {
    let store = EmbeddedStore::builder().shards(8).build();
    let (narrow, wide) = (burst(50), burst(100));
    let keys = ["a", "b", "c", "d"];
    let counts = keys.map(|_| AtomicU64::new(0));

    std::thread::scope(|scope| {
        for seed in 0..8_usize {
            let (store, narrow, wide, counts) = (&store, &narrow, &wide, &counts);
            scope.spawn(move || {
                for i in 0..2_000 {
                    let (x, y) = ((seed + i) % 4, (seed * 3 + i / 4 + 1) % 4);
                    let limit = |k: usize| if k == 0 { narrow } else { wide };
                    let charge =
                        |k: usize| Charge::take(Key::new(keys[k]).unwrap(), limit(k), 1).unwrap();
                    let charges = [charge(x), charge(y)];
                    if store.charge_request(&Request::new(&charges).unwrap()).passes() {
                        counts[x].fetch_add(1, Ordering::Relaxed);
                        counts[y].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });

    for (i, key) in keys.iter().enumerate() {
        let limit = if i == 0 { &narrow } else { &wide };
        let peek = Charge::new(Key::new(key).unwrap(), limit, Op::Peek(0)).unwrap();
        let spent = limit.quota().burst().get() - store.charge_one(&peek).remaining;
        assert_eq!(spent, counts[i].load(Ordering::Relaxed), "{key}: what passed is what is spent");
    }
}

#[test]
fn keys_that_are_promoted_and_demoted_lose_nothing() {
    // Four keys on at most four hot slots: they take turns there, and requests demote them.
    let store = EmbeddedStore::builder().max_keys(4).shards(1).build();
    let limit = Limit::new(TokenBucket, Quota::new(1_000_000, YEAR).unwrap()).unwrap();
    let keys = ["a", "b", "c", "d"];
    let counts = keys.map(|_| AtomicU64::new(0));

    std::thread::scope(|scope| {
        for seed in 0..4_u64 {
            let (store, limit, counts) = (&store, &limit, &counts);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..20_000 {
                    let (x, y) = (usize::try_from(rng.below(4)).unwrap(), 3);
                    let charge = |k: usize| Charge::take(Key::new(keys[k]).unwrap(), limit, 1);
                    match rng.below(8) {
                        0 if x != y => {
                            let charges = [charge(x).unwrap(), charge(y).unwrap()];
                            let request = Request::new(&charges).unwrap();
                            assert!(store.charge_request(&request).passes());
                            counts[x].fetch_add(1, Ordering::Relaxed);
                            counts[y].fetch_add(1, Ordering::Relaxed);
                        }
                        _ => {
                            for _ in 0..=rng.below(4) {
                                assert!(store.charge_one(&charge(x).unwrap()).passes());
                                counts[x].fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                }
            });
        }
    });

    for (key, count) in keys.iter().zip(&counts) {
        let peek = Charge::new(Key::new(key).unwrap(), &limit, Op::Peek(0)).unwrap();
        let spent = 1_000_000 - store.charge_one(&peek).remaining;
        assert_eq!(spent, count.load(Ordering::Relaxed), "{key}: what passed is what is spent");
    }
}
