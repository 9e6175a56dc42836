//! The cases, and the line each prints.

use std::time::Duration;

use tollgate_core::algorithm::{SlidingLog, TokenBucket};
use tollgate_core::{Limit, Quota};
use tollgate_harness::{RedisServer, Reply};

use crate::load::{Round, TASKS, flat_out, paced};
use crate::peers::{Batches, Floor, IncrExpire, Keys, OneScript, Ours, redis_benchmark};

const ROUNDS: usize = 5;

const MILLION: u64 = 1_000_000;

pub async fn run(server: &RedisServer, only: &str) {
    let wanted = |case: &str| case.starts_with(only);
    let uniform = || Keys::Uniform(MILLION);
    let mut one_rule = None;
    if wanted("random") {
        let ours = Ours::connect(server, "r", [(uniform(), hourly(100))]).await;
        let eval = OneScript::connect(server, uniform()).await;
        let incr = IncrExpire::connect(server, uniform()).await;
        let floor = Floor::connect(server, uniform()).await;
        fill(server, "r").await;
        let (mut mine, mut evals, mut incrs, mut floors) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut sets, mut gets, mut slow_sets, mut slow_gets) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            mine.push(round(server, &ours, TASKS).await);
            evals.push(flat_out(&eval, TASKS).await);
            incrs.push(flat_out(&incr, TASKS).await);
            floors.push(flat_out(&floor, 8).await);
            let set = ["SET", "bench:__rand_int__", "0123456789abcdef", "PX", "60000"];
            let get = ["GET", "bench:__rand_int__"];
            sets.push(redis_benchmark(server, 32, &set));
            gets.push(redis_benchmark(server, 32, &get));
            slow_sets.push(redis_benchmark(server, 1, &set));
            slow_gets.push(redis_benchmark(server, 1, &get));
        }
        let (rate, mine) = show("random", mine);
        compare("random", rate, "evalsha-per-decision", show("random/evalsha", evals).0);
        compare("random", rate, "incr-expire-pipeline", show("random/incr-expire", incrs).0);
        compare("random", rate, "reads-and-writes-alone", show("random/floor", floors).0);
        compare("random", rate, "redis-benchmark-set-px-P32", median(sets));
        compare("random", rate, "redis-benchmark-get-P32", median(gets));
        compare("random", rate, "redis-benchmark-set-px-P1", median(slow_sets));
        compare("random", rate, "redis-benchmark-get-P1", median(slow_gets));
        println!("case=random client-cpu-us={:.2}", mine.cpu_us);
        one_rule = Some(rate);

        let mut half = Vec::new();
        for _ in 0..ROUNDS {
            half.push(paced(&ours, rate / 2.0).await);
        }
        // All have the same rate: the one in the middle is so by its latency.
        half.sort_by(|a, b| a.p99_ms.total_cmp(&b.p99_ms));
        let spread = (half[0].p99_ms, half[ROUNDS - 1].p99_ms);
        let middle = half.swap_remove(ROUNDS / 2);
        show("random/half-load", vec![middle]);
        println!("  p99-ms spread={:.2}..{:.2}", spread.0, spread.1);
        exact(&ours);
    }
    if wanted("hot") {
        let ours = Ours::connect(server, "h", [(Keys::Uniform(1), bucket(10_000_000))]).await;
        let eval = OneScript::connect(server, Keys::Uniform(1)).await;
        run_against(server, "hot", &ours, &eval, 2 * TASKS).await;
        let batches = Batches(ours);
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(flat_out(&batches, 64).await);
        }
        show("hot/batches-of-64", rounds);
        exact(&batches.0);
    }
    if wanted("zipf") {
        let keys = Keys::zipf(MILLION, 1.1);
        let ours = Ours::connect(server, "z", [(keys.clone(), bucket(100_000))]).await;
        let eval = OneScript::connect(server, keys).await;
        run_against(server, "zipf", &ours, &eval, TASKS).await;
    }
    if wanted("three-rules") {
        let rules = [
            (Keys::Uniform(1), bucket(10_000_000)),
            (Keys::Uniform(10_000), bucket(100_000)),
            (uniform(), hourly(100)),
        ];
        let ours = Ours::connect(server, "t", rules).await;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(round(server, &ours, TASKS).await);
        }
        let (rate, _) = show("three-rules", rounds);
        if let Some(one_rule) = one_rule {
            compare("three-rules", rate, "ours-one-rule", one_rule);
        }
        exact(&ours);
    }
    if wanted("log") {
        let log = Limit::new(SlidingLog, Quota::new(100, Duration::from_secs(1)).unwrap()).unwrap();
        let ours = Ours::connect(server, "l", [(Keys::Uniform(10_000), log)]).await;
        let eval = OneScript::connect(server, Keys::Uniform(10_000)).await;
        run_against(server, "log", &ours, &eval, TASKS).await;
    }
}

/// A round of ours, and what the script took of Redis's time for each request.
async fn round(server: &RedisServer, ours: &Ours, tasks: u64) -> Round {
    server.command(&[b"CONFIG", b"RESETSTAT"]).unwrap();
    let before = ours.store.stats().requests;
    let mut round = flat_out(ours, tasks).await;
    let requests = ours.store.stats().requests - before;
    let Reply::Bulk(stats) = server.command(&[b"INFO", b"commandstats"]).unwrap() else {
        panic!("INFO is a string")
    };
    let stats = String::from_utf8(stats).unwrap();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    let micros = line.split("usec=").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    round.server_us = Some(micros.parse::<f64>().unwrap() / requests as f64);
    round
}

async fn run_against(server: &RedisServer, case: &str, ours: &Ours, peer: &OneScript, tasks: u64) {
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        mine.push(round(server, ours, tasks).await);
        theirs.push(flat_out(peer, TASKS).await);
    }
    let rate = show(case, mine).0;
    compare(case, rate, "evalsha-per-decision", show(&format!("{case}/evalsha"), theirs).0);
    exact(ours);
}

/// Once over all keys, so that every round finds them as a running system would.
async fn fill(server: &RedisServer, name: &'static str) {
    let limit = hourly(100);
    let all = Ours::connect(server, name, [(Keys::Uniform(MILLION), limit)]).await;
    flat_out(&all, TASKS).await;
}

fn exact(ours: &Ours) {
    let stats = ours.store.stats();
    assert_eq!(stats.twin_mismatches, 0, "Lua and Rust disagree");
    println!(
        "  {} runs, {:.1} requests a run, {} errors",
        stats.runs,
        stats.requests as f64 / stats.runs.max(1) as f64,
        stats.timeouts + stats.lost + stats.rejected,
    );
}

fn bucket(per_second: u64) -> Limit {
    Limit::new(TokenBucket, Quota::new(per_second, Duration::from_secs(1)).unwrap()).unwrap()
}

/// A bucket whose keys live on while the bench goes on.
fn hourly(count: u64) -> Limit {
    Limit::new(TokenBucket, Quota::new(count, Duration::from_secs(3_600)).unwrap()).unwrap()
}

/// Prints the round in the middle, and returns its rate.
fn show(case: &str, mut rounds: Vec<Round>) -> (f64, Round) {
    rounds.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    let round = rounds[rounds.len() / 2];
    let (least, most) = (rounds[0].per_second, rounds[rounds.len() - 1].per_second);
    println!(
        "round={case} per-second={:.0} spread={least:.0}..{most:.0} admitted={:.2} cpu-us={:.2} \
         p50-ms={:.2} p99-ms={:.2}{}",
        round.per_second,
        round.admitted,
        round.cpu_us,
        round.p50_ms,
        round.p99_ms,
        round.server_us.map_or_else(String::new, |us| format!(" server-us={us:.2}")),
    );
    (round.per_second, round)
}

fn compare(case: &str, ours: f64, peer: &str, theirs: f64) {
    println!("case={case} ours={ours:.0} peer={peer}:{theirs:.0} ratio={:.2}", ours / theirs);
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
