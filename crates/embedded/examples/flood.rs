//! Two floods of ten million distinct keys against a store for one million.
//!
//! In the first, keys become idle as the flood goes on; in the second, every key refuses for an
//! hour. Resident memory is read from `/proc` (Linux) and must stay within the filled table plus
//! five per cent; keys that were refusing must still refuse; what has no room must be answered by
//! `on-full` and counted. Part of `make soak`; exits with an error if anything does not hold.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a check that cannot go on shall stop, and it times itself"
)]

use std::fs;
use std::time::{Duration, Instant};

use tollgate_core::testing::ManualClock;
use tollgate_embedded::EmbeddedStore;
use tollgate_embedded::core::algorithm::TokenBucket;
use tollgate_embedded::core::{Basis, Charge, Decision, Key, Limit, Quota};

const CAP: usize = 1_000_000;
const FLOOD: usize = 10_000_000;

fn main() {
    idle();
    refusing();
}

/// Keys become idle a second after their charge; half a million come each second.
fn idle() {
    let flood = Flood::new(Quota::new(1, Duration::from_secs(1)));
    flood.fill("warm", CAP);
    let filled = resident_bytes();
    let start = Instant::now();
    let mut counted = 0;
    for i in 0..FLOOD {
        if i.is_multiple_of(500) {
            flood.clock.advance(Duration::from_millis(1));
        }
        counted += usize::from(flood.take(&format!("idle:{i}")).basis == Basis::Counted);
        progress("idle", i);
    }
    let stats = flood.store.stats();
    println!(
        "idle flood: {counted} of {FLOOD} keys found room, {} reclaimed, {} overflowed, {} ns a key",
        stats.reclaimed,
        stats.overflowed,
        start.elapsed().as_nanos() / FLOOD as u128
    );
    check_memory(filled, stats.table_bytes);
    // The fill took every place at once, so the first second's newcomers find none.
    assert!(counted >= FLOOD - 500_000 - CAP / 10, "keys that became idle make room");
}

/// Every key refuses for an hour.
fn refusing() {
    let flood = Flood::new(Quota::new(1, Duration::from_secs(3600)));
    let kept = flood.fill("kept", CAP);
    let filled = resident_bytes();
    let before = flood.store.stats().overflowed;
    let start = Instant::now();
    let mut overflowed = 0;
    for i in 0..FLOOD {
        let decision = flood.take(&format!("late:{i}"));
        overflowed += u64::from(decision.basis == Basis::Overflow);
        progress("refusing", i);
    }
    let stats = flood.store.stats();
    println!(
        "refusing flood: {} keys kept, {overflowed} of {FLOOD} answered by on-full, {} ns a key",
        stats.keys,
        start.elapsed().as_nanos() / FLOOD as u128
    );
    check_memory(filled, stats.table_bytes);
    assert_eq!(stats.overflowed - before, overflowed, "each is counted");
    let refuses = |i: &&usize| !flood.take(&format!("kept:{i}")).passes();
    let refusing = kept.iter().filter(refuses).count();
    assert_eq!(refusing, kept.len(), "no refusing key is forgotten");
    println!("{refusing} keys that were refusing still refuse");
}

struct Flood {
    store: EmbeddedStore<ManualClock>,
    clock: ManualClock,
    limit: Limit,
}

impl Flood {
    fn new(quota: Result<Quota, tollgate_embedded::core::QuotaError>) -> Self {
        let clock = ManualClock::default();
        let store = EmbeddedStore::builder().max_keys(CAP).with_clock(clock.clone());
        let limit = Limit::new(TokenBucket, quota.expect("a plain quota")).expect("a bucket");
        Self { store, clock, limit }
    }

    fn take(&self, key: &str) -> Decision {
        let key = Key::new(key).expect("a short key");
        self.store.charge_one(&Charge::take(key, &self.limit, 1).expect("a bucket"))
    }

    /// Takes from new keys until the store has turned away as many as a tenth of its size: then
    /// every shard is full. Returns those it has kept.
    fn fill(&self, name: &str, cap: usize) -> Vec<usize> {
        let mut kept = Vec::with_capacity(cap);
        let mut turned_away = 0;
        for i in 0.. {
            if self.take(&format!("{name}:{i}")).basis == Basis::Counted {
                kept.push(i);
            } else {
                turned_away += 1;
            }
            if turned_away > cap / 10 {
                break;
            }
        }
        println!("filled: {} keys, {} MiB resident", kept.len(), resident_bytes() >> 20);
        kept
    }
}

/// The whole process may have grown by five per cent of the table, and no more.
fn check_memory(filled: u64, table: usize) {
    let now = resident_bytes();
    let grown = now.saturating_sub(filled) >> 10;
    println!(
        "table {} KiB; resident {} KiB filled, grown by {grown} KiB",
        table >> 10,
        filled >> 10
    );
    assert!(now <= filled + table as u64 / 20, "memory grew by more than five per cent");
}

fn progress(name: &str, i: usize) {
    if i.is_multiple_of(1_000_000) {
        eprintln!("{name}: {i} of {FLOOD}");
    }
}

fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).expect("a field").parse().expect("a number");
    pages * 4096
}
