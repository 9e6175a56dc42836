//! E32: every key of limiter state lives, and not for longer than it means something.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a test stops there"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::common::*;
use tollgate_core::testing::Rng;
use tollgate_core::testing::suite::StoreModel;
use tollgate_harness::{RedisServer, Reply};
use tollgate_redis::core::algorithm::{FixedWindow, SlidingLog, TokenBucket};
use tollgate_redis::core::{
    Algorithm, Charge, Holder, Key, Limit, Op, Request, Revision, Store, Timestamp,
};
use tollgate_redis::{RedisStore, RetryPolicy};

const TASKS: u64 = 4;
const BATCHES: u64 = 1_500;
/// A window and the one before it, or a bucket and its queue: two periods, and a second of patience.
const LONGEST: i64 = 2 * 3_600_000 + 1_000;

/// Every name with its time to live, at one moment.
const SAMPLE: &str = "
    local all = {}
    for _, name in ipairs(redis.call('KEYS', 'tg:*')) do
      all[#all + 1] = name
      all[#all + 1] = redis.call('PTTL', name)
    end
    return all
";

/// Samples until told to stop: how many keys were seen, and how often.
fn sample(server: &RedisServer, stop: &AtomicBool) -> (usize, u64) {
    let (mut seen, mut samples) = (0, 0);
    while !stop.load(Relaxed) {
        let Reply::Array(all) = run(server, &[b"EVAL", SAMPLE.as_bytes(), b"0"]) else { panic!() };
        for pair in all.chunks(2) {
            let [Reply::Bulk(name), Reply::Integer(ttl)] = pair else { panic!("{pair:?}") };
            assert!((0..=LONGEST).contains(ttl), "{} lives {ttl} ms", name.escape_ascii());
            seen += 1;
        }
        samples += 1;
    }
    (seen, samples)
}

/// Limits of all algorithms: some that idle all the time, some never, and edits of one rule.
fn limits() -> Vec<Limit> {
    let mut limits = every_algorithm();
    for quota in ["3 per 5ms", "100 per 20ms"] {
        limits.push(limit(TokenBucket, quota));
        limits.push(limit(SlidingLog, quota));
        limits.push(limit(FixedWindow::default(), quota));
    }
    for (revision, quota) in [(1, "20 per 1m"), (2, "50 per 1h"), (3, "10 per 1s")] {
        limits.push(limit(TokenBucket, quota).with_revision(Revision(revision)));
        limits.push(limit(SlidingLog, quota).with_revision(Revision(revision)));
    }
    limits
}

fn random_op(limit: &Limit, rng: &mut Rng) -> Op {
    let holder = Holder(rng.below(12).into());
    if matches!(limit.algorithm(), Algorithm::Concurrency(_)) {
        let lease = Duration::from_millis(rng.within(1, 20));
        return rng.pick(&[
            Op::Acquire { holder, lease },
            Op::Renew { holder, lease },
            Op::Release { holder },
        ]);
    }
    let cost = rng.within(0, 4);
    let at = Timestamp::from_micros(u64::MAX >> 12);
    rng.pick(&[Op::Take(cost), Op::Take(cost), Op::Peek(cost), Op::Credit { cost, at }])
}

async fn traffic(store: Arc<RedisStore>, seed: u64) {
    let mut rng = Rng::new(seed);
    let limits = limits();
    for _ in 0..BATCHES {
        let picked: Vec<(String, Limit)> = (0..rng.within(1, 6))
            .map(|i| {
                let which = usize::try_from(rng.below(limits.len() as u64)).unwrap();
                // Only edits of one rule meet on a key.
                let rule = if limits[which].revision() > Revision(0) { usize::MAX } else { which };
                (format!("ttl:{i}:{rule}:{}", rng.below(3)), limits[which])
            })
            .collect();
        let mut charges = Vec::new();
        for (key, limit) in &picked {
            let op = random_op(limit, &mut rng);
            charges.push(Charge::new(Key::new(key).unwrap(), limit, op).unwrap());
        }
        if rng.chance(1, 4) {
            charges[0] = charges[0].with_patience(Duration::from_millis(900));
        }
        let _ = store.charge(&[Request::new(&charges).unwrap()]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_no_moment_is_there_a_key_without_a_time_to_live() {
    let server = Arc::new(RedisServer::start().unwrap());
    // One with ids, so that the replies that are kept are seen as well.
    let config = without_timeout(&server.url()).deadline(Duration::from_secs(20));
    let stores = [connect(config.clone()).await, connect(config.retry(RetryPolicy::Once)).await];
    let stores = stores.map(Arc::new);
    let stop = Arc::new(AtomicBool::new(false));
    let sampler = {
        let (server, stop) = (Arc::clone(&server), Arc::clone(&stop));
        std::thread::spawn(move || sample(&server, &stop))
    };

    let tasks: Vec<_> = (0..TASKS)
        .map(|seed| tokio::spawn(traffic(Arc::clone(&stores[usize::from(seed == 0)]), seed)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }

    stop.store(true, Relaxed);
    let (seen, samples) = sampler.join().unwrap();
    assert!(seen > 1_000 && samples > 10, "{seen} keys in {samples} samples");
    for stats in [stores[0].stats(), stores[1].stats()] {
        assert_eq!((stats.twin_mismatches, stats.poisoned), (0, 0), "{stats:?}");
        assert!(stats.converted > 0, "{stats:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_exists_from_its_admission_until_it_is_idle() {
    let (server, clock) = clockwork();
    let store = connect(without_timeout(&server.url())).await;
    for limit in every_algorithm() {
        clock.set(START).unwrap();
        run(&server, &[b"FLUSHALL"]);
        let charge = [one("idle", &limit, 1)];

        let answer = ask(&store, &charge).await.unwrap();

        assert!(answer.passes());
        let name = the_name(&server);
        let ttl = u64::try_from(pttl(&server, &name)).unwrap();
        let reset = u64::try_from(answer.decisions[0].reset_after.as_micros()).unwrap();
        assert!(ttl * 1_000 >= reset, "{limit}: {ttl} ms, and full again after {reset} µs");
        clock.set(START + ttl * 1_000 - 1).unwrap();
        assert_eq!(run(&server, &[b"EXISTS", &name]), Reply::Integer(1), "{limit}");
        clock.set(START + ttl * 1_000 + 1_000).unwrap();
        assert_eq!(run(&server, &[b"EXISTS", &name]), Reply::Integer(0), "{limit}");
        let now = Timestamp::from_micros(clock.micros().unwrap());
        let expected = StoreModel::default().charge(&Request::new(&charge).unwrap(), now);
        assert_eq!(ask(&store, &charge).await.unwrap(), expected, "E36: {limit}");
    }
    assert_eq!(store.stats().twin_mismatches, 0);
}
