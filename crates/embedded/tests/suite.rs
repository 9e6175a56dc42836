//! The suite that every store must pass, on the embedded store.

use tollgate_core::testing::{ManualClock, suite};
use tollgate_embedded::EmbeddedStore;
use tollgate_embedded::core::{Answer, Request, Timestamp};

struct EmbeddedSubject {
    store: EmbeddedStore<ManualClock>,
    clock: ManualClock,
}

impl suite::StoreUnderTest for EmbeddedSubject {
    fn charge(&self, batch: &[Request<'_>]) -> Vec<Answer> {
        batch.iter().map(|request| self.store.charge_request(request)).collect()
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
    }
}

fn subject(shards: usize) -> EmbeddedSubject {
    let clock = ManualClock::default();
    let store = EmbeddedStore::builder().shards(shards).with_clock(clock.clone());
    EmbeddedSubject { store, clock }
}

#[test]
fn answers_as_a_map_of_counters_would() {
    for seed in 0..10 {
        suite::all(&subject(64), seed, 5_000);
    }
}

#[test]
fn answers_alike_when_all_keys_share_a_lock() {
    suite::all(&subject(1), 99, 20_000);
}
