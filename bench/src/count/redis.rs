//! `count-redis CASE DECISIONS [URL [TASKS]]`: so many decisions through Redis and nothing else, for tools that count.
//!
//! Wall time on a busy machine says little; instructions and system calls can be counted again and get
//! the same. Run it twice with different numbers of decisions: the difference is theirs alone, and what
//! it takes to start falls out.
//!
//! ```text
//! valgrind --tool=callgrind count-redis random 20000     client instructions
//! strace -f -c count-redis hot 200000                    its system calls
//! count-redis random 20000 redis://127.0.0.1:7777        those of a server that runs under callgrind
//! count-redis envoy 2000 redis://127.0.0.1:7777 1        the same for runs of one request each
//! ```
//!
//! Not here: rates and latencies, which are `bench-redis`'s.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    reason = "a tool that cannot go on shall stop"
)]

use std::sync::Arc;
use std::time::Duration;

use tollgate_bench::{Name, Random};
use tollgate_core::algorithm::{Anchor, FixedWindow, TokenBucket};
use tollgate_core::{Charge, Key, Limit, Quota, Request, Store};
use tollgate_harness::RedisServer;
use tollgate_redis::{Config, RedisStore};

/// Tasks that ask at the same time unless told otherwise, as in `bench-redis`.
const TASKS: u64 = 1024;

/// Decisions that one task asks for at once, in the case `batches`.
const BATCH: usize = 64;

const USAGE: &str = "usage: count-redis random|hot|three|envoy|batches DECISIONS [URL [TASKS]]";

fn main() {
    let mut args = std::env::args().skip(1);
    let case = args.next().expect(USAGE);
    let decisions: u64 = args.next().expect(USAGE).parse().expect(USAGE);
    let bucket = |count, seconds| Limit::new(TokenBucket, quota(count, seconds)).unwrap();
    let epoch = FixedWindow { anchor: Anchor::Epoch };
    let window = Limit::new(epoch, quota(1_000_000_000, 3_600)).unwrap();
    let (rules, at_once) = match &*case {
        "random" => (vec![(1_000_000, bucket(100, 3_600))], 1),
        "hot" => (vec![(1, bucket(10_000_000, 1))], 1),
        "three" => {
            let (all, some) = (bucket(10_000_000, 1), bucket(100_000, 1));
            (vec![(1, all), (10_000, some), (1_000_000, bucket(100, 3_600))], 1)
        }
        "envoy" => (vec![(1, window), (1, window)], 1),
        "batches" => (vec![(1, bucket(10_000_000, 1))], BATCH),
        _ => panic!("{USAGE}"),
    };
    let rules: Arc<[(u64, Limit)]> = rules.into();
    let (url, _server) = match args.next() {
        Some(url) => (url, None),
        None => {
            let server = RedisServer::start().expect("a server to ask");
            (server.url(), Some(server))
        }
    };
    let tasks = args.next().map(|tasks| tasks.parse().expect(USAGE));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(async {
        let config = Config::new(&url).unwrap().deadline(Duration::from_secs(60));
        let store = Arc::new(RedisStore::connect(config).await.unwrap());
        let tasks = tasks.unwrap_or(if at_once == 1 { TASKS } else { 64 });
        let each = decisions / tasks / u64::try_from(at_once).unwrap();
        let asking: Vec<_> = (0..tasks)
            .map(|task| {
                tokio::spawn(ask(Arc::clone(&store), Arc::clone(&rules), task, each, at_once))
            })
            .collect();
        for task in asking {
            task.await.unwrap();
        }
        let stats = store.stats();
        assert_eq!(stats.twin_mismatches, 0, "Lua and Rust disagree");
        println!("requests={} runs={}", stats.requests, stats.runs);
    });
}

fn quota(count: u64, seconds: u64) -> Quota {
    Quota::new(count, Duration::from_secs(seconds)).unwrap()
}

async fn ask(
    store: Arc<RedisStore>,
    rules: Arc<[(u64, Limit)]>,
    task: u64,
    times: u64,
    at_once: usize,
) {
    let mut random = Random::new(task);
    let mut name = |rule: usize, keys| Name::new("c", rule, random.below(keys));
    for _ in 0..times {
        if at_once == 1 {
            let names: Vec<Name> =
                rules.iter().enumerate().map(|(rule, (keys, _))| name(rule, *keys)).collect();
            let charges: Vec<Charge<'_>> = names
                .iter()
                .zip(&*rules)
                .map(|(name, (_, limit))| {
                    Charge::take(Key::new(name.bytes()).unwrap(), limit, 1).unwrap()
                })
                .collect();
            let _ = store.decide(&Request::new(&charges).unwrap()).await.unwrap();
            continue;
        }
        let (keys, limit) = &rules[0];
        let names: [Name; BATCH] = std::array::from_fn(|_| name(0, *keys));
        let charges = names
            .each_ref()
            .map(|name| [Charge::take(Key::new(name.bytes()).unwrap(), limit, 1).unwrap()]);
        let requests = charges.each_ref().map(|charges| Request::new(charges).unwrap());
        assert_eq!(store.charge(&requests).await.unwrap().len(), at_once);
    }
}
