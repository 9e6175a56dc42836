//! Requests of several takes, as core decides them.
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "a test that cannot go on shall stop"
)]

use std::collections::HashMap;
use std::time::Duration;

use tollgate_core::algorithm::{LeakyMeter, TokenBucket};
use tollgate_core::testing::{ManualClock, Rng};
use tollgate_embedded::EmbeddedStore;
use tollgate_embedded::core::{Charge, ChargeTarget, Clock, Counter, Key, Limit, Request};

/// With new keys, promoted keys, and keys that come twice among them.
#[test]
fn several_takes_are_made_together_or_not_at_all() {
    let limits = [
        Limit::new(TokenBucket, "5 per 1s burst 7".parse().unwrap()).unwrap(),
        Limit::new(LeakyMeter, "3 per 2s".parse().unwrap()).unwrap(),
    ];
    let (mut rng, mut passed, mut refused) = (Rng::new(4), [0; 7], [0; 7]);
    for shards in [1, 2, 64] {
        let clock = ManualClock::default();
        let store = EmbeddedStore::builder().shards(shards).with_clock(clock.clone());
        let mut counters: HashMap<u64, Counter> = HashMap::new();
        for _ in 0..10_000 {
            let names: Vec<u64> = (0..rng.within(1, 6)).map(|_| rng.below(12)).collect();
            let keys: Vec<[u8; 8]> = names.iter().map(|name| name.to_le_bytes()).collect();
            let limit = |name: u64| &limits[usize::try_from(name % 2).unwrap()];
            let charges: Vec<Charge<'_>> = names
                .iter()
                .zip(&keys)
                .map(|(name, key)| {
                    Charge::take(Key::new(key).unwrap(), limit(*name), rng.within(1, 2)).unwrap()
                })
                .collect();
            let request = Request::new(&charges).unwrap();
            let mut apart = names.clone();
            apart.sort_unstable();
            apart.dedup();
            let target = |name: &u64| ChargeTarget::Counter(apart.binary_search(name).unwrap());
            let targets: Vec<ChargeTarget> = names.iter().map(target).collect();
            let counter = |name: &u64| {
                counters.get(name).cloned().unwrap_or_else(|| Counter::absent(limit(*name)))
            };
            let mut touched: Vec<Counter> = apart.iter().map(counter).collect();
            let expected = request.judge(&mut touched, &targets, clock.now());
            counters.extend(apart.into_iter().zip(touched));

            let answer = store.charge_request(&request);

            assert_eq!(answer, expected, "{charges:?} in {shards} shards");
            let tally = if answer.passes() { &mut passed } else { &mut refused };
            tally[names.len()] += 1;
            clock.advance(Duration::from_micros(rng.below(300_000)));
        }
    }
    let often = |tally: &[u32; 7]| tally.iter().skip(1).all(|times| *times > 300);
    assert!(often(&passed) && often(&refused), "{passed:?} {refused:?}");
}
