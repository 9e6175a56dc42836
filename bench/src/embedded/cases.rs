//! The cases: which keys, how many threads.

use std::hint::black_box;

use tollgate_bench::Random;

use crate::peers::{
    Contender, Governor, GovernorDirect, GovernorThrice, OurSingle, Ours, ThreeRules, Throttlecrab,
    Traffic,
};
use tollgate_bench::report::{ROUNDS, Rounds, print, time};

pub fn run(prefix: &str) {
    for (traffic, name) in Traffic::ALL {
        let wanted = |case: &str| case.starts_with(prefix);
        let case = format!("one-limiter/1t/{name}");
        if wanted(&case) {
            one_limiter(&case, traffic);
        }
        for (keys, label) in [
            (Keys { count: 1, operations: 1_000_000 }, "hot-key"),
            (Keys { count: 1_000, operations: 1_000_000 }, "1000-keys"),
            (Keys { count: 1_000_000, operations: 1_000_000 }, "1M-keys"),
        ] {
            for threads in [1, 2] {
                let case = format!("{label}/{threads}t/{name}");
                if wanted(&case) {
                    let (ours, crab) = (Ours::new(traffic), Throttlecrab::new(traffic));
                    let governor = Governor::new(traffic);
                    run_against(&case, threads, keys, &ours, &governor, &crab);
                }
            }
        }
        let case = format!("three-rules/1t/{name}");
        if wanted(&case) {
            three_rules(&case, traffic);
        }
    }
}

/// A number of distinct keys, and how often one is picked at random.
#[derive(Clone, Copy)]
struct Keys {
    count: u64,
    operations: u64,
}

fn run_against(
    case: &str,
    threads: u64,
    keys: Keys,
    ours: &Ours,
    governor: &Governor,
    crab: &Throttlecrab,
) {
    fill(keys, ours);
    fill(keys, governor);
    fill(keys, crab);
    let mut rounds: [Rounds; 3] = Default::default();
    for round in 0..ROUNDS {
        rounds[0].add(timed(threads, keys, round, ours));
        rounds[1].add(timed(threads, keys, round, governor));
        rounds[2].add(timed(threads, keys, round, crab));
    }
    print(case, &rounds[0], "governor", &rounds[1]);
    print(case, &rounds[0], "throttlecrab", &rounds[2]);
}

/// One round, after one that is not counted: the contender before has left the caches full of
/// its own, and a limiter in use has them to itself.
fn timed(threads: u64, keys: Keys, round: usize, contender: &impl Contender) -> f64 {
    time(threads, keys.operations, |thread| work(keys, ROUNDS + round, thread, contender));
    time(threads, keys.operations, |thread| work(keys, round, thread, contender))
}

fn one_limiter(case: &str, traffic: Traffic) {
    const KEYS: Keys = Keys { count: 1, operations: 2_000_000 };
    let (ours, peer) = (OurSingle::new(traffic), GovernorDirect::new(traffic));
    let mut rounds: [Rounds; 2] = Default::default();
    for round in 0..ROUNDS {
        rounds[0].add(timed(1, KEYS, round, &ours));
        rounds[1].add(timed(1, KEYS, round, &peer));
    }
    print(case, &rounds[0], "governor-direct", &rounds[1]);
}

fn fill(keys: Keys, contender: &impl Contender) {
    let mut key = KeyBuffer::default();
    for i in 0..keys.count {
        black_box(contender.check(key.set(i)));
    }
}

fn work(keys: Keys, round: usize, thread: u64, contender: &impl Contender) {
    let mut random = Random::new(round as u64 * 2 + thread);
    let mut buffer = KeyBuffer::default();
    let ready = buffer.ready(keys.count);
    for _ in 0..keys.operations {
        let i = random.below(keys.count);
        let key = ready.get(i as usize).unwrap_or_else(|| buffer.set(i));
        black_box(contender.check(black_box(key)));
    }
}

fn three_rules(case: &str, traffic: Traffic) {
    const OPERATIONS: u64 = 500_000;
    let ours = Ours::new(traffic);
    let peer = GovernorThrice([(); 3].map(|()| Governor::new(traffic)));
    let (mut our_rounds, mut peer_rounds) = (Rounds::default(), Rounds::default());
    // One round to fill, uncounted.
    for round in 0..=ROUNDS {
        let ours = time(1, OPERATIONS, |_| three(&ours, round, OPERATIONS));
        let peer = time(1, OPERATIONS, |_| three(&peer, round, OPERATIONS));
        if round > 0 {
            our_rounds.add(ours);
            peer_rounds.add(peer);
        }
    }
    print(case, &our_rounds, "governor-thrice-not-atomic", &peer_rounds);
}

fn three(contender: &impl ThreeRules, round: usize, operations: u64) {
    let mut random = Random::new(round as u64);
    let global = "global".to_owned();
    let (mut address, mut user) = (KeyBuffer::named("ip:"), KeyBuffer::default());
    for _ in 0..operations {
        let (i, j) = (random.below(10_000), random.below(1_000_000));
        black_box(contender.check(&global, address.set(i), user.set(j)));
    }
}

/// A key written into one buffer again and again, as a server would from a request.
pub struct KeyBuffer {
    text: String,
    prefix: usize,
}

impl Default for KeyBuffer {
    fn default() -> Self {
        Self::named("user:")
    }
}

impl KeyBuffer {
    fn named(prefix: &str) -> Self {
        Self { text: prefix.to_owned(), prefix: prefix.len() }
    }

    /// Few keys lie ready in the cache, as they would with whoever uses them all the time; of
    /// many, none does.
    pub fn ready(&mut self, count: u64) -> Vec<String> {
        let few = if count <= 1_000 { count } else { 0 };
        (0..few).map(|i| self.set(i).clone()).collect()
    }

    pub fn set(&mut self, number: u64) -> &String {
        self.text.truncate(self.prefix);
        let mut digits = [0_u8; 20];
        let mut rest = number;
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text.push_str(std::str::from_utf8(&digits[first..]).expect("digits"));
        &self.text
    }
}
