//! More callers than Redis can serve, each asking again as soon as it is answered. Needs real time
//! and a quiet machine: `make faults`.

#![cfg(faults)]
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "a test stops there, and this one measures real time"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use tollgate_harness::RedisServer;
use tollgate_redis::core::StoreErrorKind;
use tollgate_redis::{Config, RedisStore};

const SPAN: Duration = Duration::from_secs(1);

/// The outcomes of the calls of one round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    answered: u64,
    /// Turned away, uncharged.
    unavailable: u64,
    /// Charged, perhaps.
    uncertain: u64,
    /// The longest that anybody waited.
    worst: Duration,
}

impl Round {
    fn and(self, other: Self) -> Self {
        Self {
            answered: self.answered + other.answered,
            unavailable: self.unavailable + other.unavailable,
            uncertain: self.uncertain + other.uncertain,
            worst: self.worst.max(other.worst),
        }
    }
}

/// So many tasks, each with a key of its own and without a pause.
async fn ask_from_many_tasks(store: &Arc<RedisStore>, tasks: usize) -> Round {
    let limit = limit(tollgate_redis::core::algorithm::TokenBucket, "100_000_000 per 1s");
    let start = Instant::now();
    let callers: Vec<_> = (0..tasks)
        .map(|i| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let (key, mut round) = (format!("caller:{i}"), Round::default());
                while start.elapsed() < SPAN {
                    let asked = Instant::now();
                    match ask(&store, &[of(&key, &limit, 1)]).await.map_err(|e| e.kind()) {
                        Ok(_) => round.answered += 1,
                        Err(StoreErrorKind::Unavailable) => round.unavailable += 1,
                        Err(_) => round.uncertain += 1,
                    }
                    round.worst = round.worst.max(asked.elapsed());
                }
                round
            })
        })
        .collect();
    let mut sum = Round::default();
    for caller in callers {
        sum = sum.and(caller.await.unwrap());
    }
    sum
}

/// Goodput once collapsed from 4 000 callers on, and the breaker opened though Redis was healthy:
/// whoever had waited for most of its deadline was still sent, and timed out on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_callers_get_what_redis_can_give_and_the_rest_is_turned_away() {
    let server = RedisServer::start().unwrap();
    let (mut rounds, mut opens) = (Vec::new(), 0);
    for tasks in [1_000, 2_000, 4_000, 8_000, 20_000] {
        let store = Arc::new(connect(Config::new(&server.url()).unwrap()).await);
        let round = ask_from_many_tasks(&store, tasks).await;
        let stats = store.stats();
        println!("{tasks} callers: {round:?}, opened {}", stats.breaker_opens);
        opens += stats.breaker_opens;
        rounds.push(round);
    }

    assert_eq!(opens, 0, "redis was healthy");
    let most = rounds.iter().map(|round| round.answered).max().unwrap();
    for round in rounds {
        // Those who are turned away ask again at once, and take their part of the processors.
        assert!(round.answered * 2 >= most, "{round:?} of {most}");
        assert!(round.uncertain * 20 <= round.answered, "{round:?}");
    }
}
