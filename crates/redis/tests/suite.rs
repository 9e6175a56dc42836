//! The suite that every store must pass, through the whole store and a real server whose clock the
//! test moves: one request after the other, and requests that do not concern each other at once.

#![allow(clippy::unwrap_used, reason = "a test stops there")]

use std::collections::HashSet;

use crate::common::*;
use tokio::runtime::Runtime;
use tollgate_core::testing::suite::{self, StoreUnderTest};
use tollgate_harness::{RedisServer, ServerClock};
use tollgate_redis::RedisStore;
use tollgate_redis::core::{Answer, Request, Store, Timestamp};

struct WholeStore {
    store: RedisStore,
    runtime: Runtime,
    clock: ServerClock,
    _server: RedisServer,
    order: Order,
}

/// The way in which the requests of a batch reach the store.
#[derive(Clone, Copy)]
enum Order {
    /// As they are.
    Batch,
    /// Each from a thread of its own, where none touches what another does.
    AtOnce,
}

impl WholeStore {
    fn start(order: Order) -> Self {
        let (server, clock) = clockwork();
        let runtime = Runtime::new().unwrap();
        let store = runtime.block_on(connect(without_timeout(&server.url())));
        Self { store, runtime, clock, _server: server, order }
    }

    fn at_once(&self, batch: &[Request<'_>]) -> Vec<Answer> {
        let store = &self.store;
        std::thread::scope(|scope| {
            let callers: Vec<_> = batch
                .iter()
                .map(|request| {
                    let one = std::slice::from_ref(request);
                    scope.spawn(|| self.runtime.block_on(store.charge(one)).unwrap())
                })
                .collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        })
    }
}

fn independent(batch: &[Request<'_>]) -> bool {
    let mut seen = HashSet::new();
    batch.iter().all(|request| {
        let own: HashSet<_> = request.charges().iter().map(|charge| charge.key()).collect();
        own.into_iter().all(|key| seen.insert(key.as_bytes().to_vec()))
    })
}

impl StoreUnderTest for WholeStore {
    fn charge(&self, batch: &[Request<'_>]) -> Vec<Answer> {
        let answers = match self.order {
            Order::AtOnce if batch.len() > 1 && independent(batch) => self.at_once(batch),
            Order::AtOnce | Order::Batch => {
                self.runtime.block_on(self.store.charge(batch)).unwrap()
            }
        };
        let stats = self.store.stats();
        assert_eq!((stats.twin_mismatches, stats.poisoned), (0, 0), "{stats:?}");
        answers
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now.as_micros()).unwrap();
    }
}

/// E23 to E26, E31
#[test]
fn the_whole_store_answers_as_a_map_of_counters_would() {
    suite::all(&WholeStore::start(Order::Batch), 23, 3_000);
}

#[test]
fn requests_that_come_at_once_are_answered_as_if_they_came_in_turn() {
    suite::all(&WholeStore::start(Order::AtOnce), 31, 3_000);
}
