//! The memory of a store, as the allocator counts it.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a test that cannot go on shall stop"
)]

use std::alloc::System;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tollgate_core::testing::ManualClock;
use tollgate_embedded::EmbeddedStore;
use tollgate_embedded::core::algorithm::{SlidingLog, Smooth, TokenBucket};
use tollgate_embedded::core::{
    Algorithm, Basis, Charge, Clock, Decision, Key, Limit, Op, Quota, Revision, State,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that limits, names and the test harness may take or give back meanwhile.
const NOISE: usize = 8_192;

/// One test at a time, from its first line to its last, as all threads share the allocator.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    tollgate_core::lock_mutex(&ALONE)
}

/// True when so much was taken, but for the noise.
fn about(bytes: RangeInclusive<usize>, grown: usize) -> bool {
    (bytes.start().saturating_sub(NOISE)..=bytes.end() + NOISE).contains(&grown)
}

/// The least of some rounds: others may allocate during one of them, but not during all.
fn least(round: impl Fn() -> usize) -> usize {
    (0..3).map(|_| round()).min().unwrap()
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

struct Measurement {
    store: EmbeddedStore<ManualClock>,
    clock: ManualClock,
}

impl Measurement {
    fn new(max_keys: usize, max_heap: usize) -> Self {
        let clock = ManualClock::default();
        let builder = EmbeddedStore::builder().max_keys(max_keys).max_heap(max_heap).shards(1);
        Self { store: builder.with_clock(clock.clone()), clock }
    }

    fn op(&self, key: &str, limit: &Limit, op: Op) -> Decision {
        self.store.charge_one(&Charge::new(Key::new(key).unwrap(), limit, op).unwrap())
    }

    fn take(&self, key: &str, limit: &Limit) -> Decision {
        self.op(key, limit, Op::Take(1))
    }

    /// By how much more is allocated after this, besides the tables.
    fn grows(&self, act: impl FnOnce()) -> usize {
        let held = || {
            let stats = ALLOCATOR.stats();
            stats.bytes_allocated - stats.bytes_deallocated - self.store.stats().table_bytes
        };
        let before = held();
        act();
        held().saturating_sub(before)
    }
}

fn limit(algorithm: impl Into<Algorithm>, count: u64, per: Duration) -> Limit {
    Limit::new(algorithm, Quota::new(count, per).unwrap()).unwrap()
}

#[test]
fn smooth_limiters_and_buckets_in_debt_cost_forty_bytes_a_key_in_a_list_that_doubles() {
    const KEYS: usize = 10_000;
    let _alone = alone();
    assert_eq!(size_of::<State>(), 40);
    let names: Vec<String> = (0..2 * KEYS).map(|i| format!("k{i}")).collect();
    let cases = [
        (limit(Smooth::bursty(), 1, SECOND), Op::Take(1)),
        (limit(TokenBucket, 1, SECOND), Op::Debit { cost: 3, at: ManualClock::default().now() }),
    ];
    for (limit, op) in cases {
        // No heap at all is promised to them.
        let fill = |measured: &Measurement, names: &[String]| {
            let counted = |name: &&String| measured.op(name, &limit, op).basis == Basis::Counted;
            assert_eq!(names.iter().filter(counted).count(), KEYS);
        };
        let first = least(|| {
            let measured = Measurement::new(KEYS, 0);
            measured.grows(|| fill(&measured, &names[..KEYS]))
        });
        let again = least(|| {
            let measured = Measurement::new(KEYS, 0);
            fill(&measured, &names[..KEYS]);
            measured.clock.advance(HOUR);
            measured.grows(|| fill(&measured, &names[KEYS..]))
        });

        assert!(about(40 * KEYS..=80 * KEYS, first), "{limit}: {first}");
        // Places that were given back are noted, eight bytes each, and used again.
        assert!(again <= 16 * KEYS + NOISE, "{limit}: {again} more");
    }
}

#[test]
fn a_shared_log_occupies_sixteen_bytes_an_entry_and_no_more_than_its_limit_has() {
    let _alone = alone();
    let log = limit(SlidingLog, 100_000, HOUR);

    let grown = least(|| {
        let measured = Measurement::new(1, 0);
        assert!(measured.take("only", &limit(TokenBucket, 1, HOUR)).passes());
        measured.grows(|| {
            for i in 0..120_000 {
                let decision = measured.take("shared", &log);
                assert_eq!((decision.passes(), decision.basis), (i < 100_000, Basis::Overflow));
                measured.clock.advance(Duration::from_micros(1));
            }
        })
    });

    assert!(about(1_600_000..=1_600_000, grown), "{grown}");
}

#[test]
fn a_newer_revision_lets_keys_that_are_here_grow_beyond_the_heap() {
    const HEAP: usize = 100_000;
    let _alone = alone();
    let small = limit(SlidingLog, 100, HOUR);
    let large = limit(SlidingLog, 1_000, HOUR).with_revision(Revision(1));
    let names: Vec<String> = (0..100).map(|i| format!("k{i}")).collect();

    let grown = least(|| {
        let measured = Measurement::new(1_000, HEAP);
        let counted = |name: &&String| measured.take(name, &small).basis == Basis::Counted;
        let here: Vec<&String> = names.iter().filter(counted).collect();
        assert_eq!(here.len(), HEAP / (100 * 16 + 40));
        let grown = measured.grows(|| {
            for name in &here {
                let mut passed = 1;
                while measured.take(name, &large).passes() {
                    measured.clock.advance(Duration::from_micros(1));
                    passed += 1;
                }
                assert_eq!(passed, 1_000, "{name}: as the newer revision says");
            }
        });
        for limit in [&large, &small] {
            assert_eq!(measured.take("new", limit).basis, Basis::Overflow, "others have no room");
        }
        grown
    });

    let most = HEAP / (100 * 16 + 40) * 1_000 * 16;
    assert!(about(HEAP..=most, grown), "{grown} of {most}");
}

#[test]
fn hot_slots_are_made_when_the_first_is_needed_and_have_seventy_two_bytes_each() {
    let _alone = alone();
    let bucket = limit(TokenBucket, 1_000_000, SECOND);
    // Of a million keys, of a hundred, of one.
    for (max_keys, hot_slots) in [(1_000_000, 4_096), (100, 128), (1, 1)] {
        let before = least(|| {
            let measured = Measurement::new(max_keys, 0);
            measured.grows(|| assert!(measured.take("hot", &bucket).passes()))
        });
        let made = least(|| {
            let measured = Measurement::new(max_keys, 0);
            assert!(measured.take("hot", &bucket).passes());
            measured.grows(|| {
                for _ in 0..10 {
                    assert!(measured.take("hot", &bucket).passes());
                }
            })
        });

        assert!(before < NOISE, "{max_keys} keys: {before} bytes for the first");
        let size = hot_slots * 72;
        assert!(about(size..=size, made), "{max_keys} keys: {made} for {hot_slots}");
    }
}
