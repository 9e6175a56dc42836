//! The replies that `RetryPolicy::Once` keeps in Redis: one for each run, for as long as the run may be sent again.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test stops there")]

use std::time::Duration;

use crate::common::*;
use tokio::time::Instant;
use tollgate_harness::{RedisServer, Reply};
use tollgate_redis::core::algorithm::Concurrency;
use tollgate_redis::{Config, RetryPolicy};

fn replies(server: &RedisServer) -> Vec<Vec<u8>> {
    let is_reply = |name: &Vec<u8>| name.windows(7).any(|part| part == b":reply:");
    names(server).into_iter().filter(is_reply).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_is_kept_for_two_deadlines_and_a_second() {
    // Unless set, and at most.
    for (deadline, most) in [(None, 1_040), (Some(Duration::MAX), 121_000)] {
        // Its clock stands still, so nothing of the time to live has passed; but the store takes it
        // for a clock that goes on.
        let (server, _clock) = clockwork();
        let start = Instant::now();
        let config = Config::new(&server.url())
            .unwrap()
            .connect_timeout(LONG_DEADLINE)
            .retry(RetryPolicy::Once);
        let config = deadline.map_or(config.clone(), |deadline| config.deadline(deadline));
        let store = connect(config).await;

        let _ = recovered(&store, "k", &bucket(8_000)).await;
        run(&server, &[b"FLUSHALL"]);
        let _ = recovered(&store, "k", &bucket(8_000)).await;

        // One for each run, those that took too long included.
        let (kept, passed) = (replies(&server), start.elapsed().as_millis() + 2);
        let most = most..=most + i64::try_from(passed).unwrap();
        assert!(!kept.is_empty());
        for ttl in kept.iter().map(|reply| pttl(&server, reply)) {
            assert!(most.contains(&ttl), "{ttl} ms under {deadline:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_is_as_long_as_the_states_of_its_run_and_no_longer() {
    let server = RedisServer::start().unwrap();
    let store = connect(without_timeout(&server.url()).retry(RetryPolicy::Once)).await;
    let limit = limit(Concurrency, "10000 per 1h");
    let mut lengths = Vec::new();
    for holders in [1_u64, 1_000, 2_000] {
        let numbers: Vec<u64> = (0..holders).collect();
        for some in numbers.chunks(50) {
            let charges: Vec<_> = some.iter().map(|number| one("k", &limit, *number)).collect();
            assert!(ask(&store, &charges).await.unwrap().passes());
        }
        for reply in replies(&server) {
            run(&server, &[b"DEL", &reply]);
        }
        assert!(ask(&store, &[one("k", &limit, 0)]).await.unwrap().passes());
        let [reply] = &replies(&server)[..] else { panic!("one for one run") };
        let Reply::Integer(length) = run(&server, &[b"STRLEN", reply]) else { panic!() };
        lengths.push(length);
    }

    // Nothing but the states bounds it: 24 bytes for each holder.
    let [few, many, more] = lengths[..] else { panic!("{lengths:?}") };
    assert!(few <= 200, "{few} bytes beside one holder");
    assert_eq!((many - few) / 999, 24, "{lengths:?}");
    assert_eq!(more - many, 24 * 1_000, "{lengths:?}");
}
