//! The time that the machine itself takes: the least that any exact limiter of this shape can do.
//!
//! - *1M-keys*: read the clock, hash the key, change one 32-byte slot at a place that the hash
//!   tells, in a table of the size that a million keys need. No lock, no probing, no limit.
//! - *1000-keys*: the same on a thousand slots, each on a cache line of its own with a lock in
//!   the same line, by one and by two threads: no key can be charged by two threads without its
//!   line moving between them.

use std::hash::{DefaultHasher, Hasher};
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_bench::Random;
use tollgate_core::Clock;

use crate::cases::KeyBuffer;
use tollgate_bench::clock::Quanta;
use tollgate_bench::report::{ROUNDS, Rounds, time};

pub fn run() {
    print("1M-keys/1t", 1, 1_000_000, 1_300_000, 500_000);
    print("1M-keys/2t", 2, 1_000_000, 1_300_000, 500_000);
    print("1000-keys/1t", 1, 1_000, 1_000, 1_000_000);
    print("1000-keys/2t", 2, 1_000, 1_000, 1_000_000);
    print("hot-key/2t", 2, 1, 1, 1_000_000);
}

/// Half a line of state; with few keys, a whole line and its lock.
#[repr(align(32))]
#[derive(Default)]
struct Slot {
    lock: AtomicU64,
    state: [AtomicU64; 3],
}

fn print(name: &str, threads: u64, keys: u64, slots: usize, operations: u64) {
    // With few slots, every second one is used: each then has a cache line of its own.
    let spread = if slots <= 1_000 { 2 } else { 1 };
    let table: Vec<Slot> = (0..slots * spread).map(|_| Slot::default()).collect();
    let clock = Quanta::new();
    let mut rounds = Rounds::default();
    for round in 0..ROUNDS {
        rounds.add(time(threads, operations, |thread| {
            let mut random = Random::new(round as u64 * 2 + thread);
            let mut buffer = KeyBuffer::default();
            let ready = buffer.ready(keys);
            for _ in 0..operations {
                let i = random.below(keys);
                let key = ready.get(i as usize).unwrap_or_else(|| buffer.set(i));
                let mut hasher = DefaultHasher::new();
                hasher.write(key.as_bytes());
                let place = (u128::from(hasher.finish()) * slots as u128) >> 64;
                charge(&table[place as usize * spread], clock.now().as_micros(), spread == 2);
            }
        }));
    }
    println!("floor={name} ns={:.1} spread={}", rounds.median(), rounds.spread());
}

fn charge(slot: &Slot, now: u64, locked: bool) {
    let free = |lock: &AtomicU64| {
        lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    while locked && !free(&slot.lock) {
        (0..32).for_each(|_| spin_loop());
    }
    let arrival = slot.state[0].load(Ordering::Relaxed).max(now);
    slot.state[0].store(arrival + 1, Ordering::Relaxed);
    if locked {
        slot.lock.store(0, Ordering::Release);
    }
    black_box(arrival);
}
