//! Time until two servers follow a change of rules in Redis: real time, so `make faults` runs it.
#![cfg(faults)]
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures")]

use std::time::{Duration, Instant};

use tollgate_harness::RedisServer;

use super::program::{Program, serve};
use super::rules_redis::{KEY, put, store, version};
use super::support::check;

/// Time from `since` until this version applies there.
fn until_it_applies(server: &Program, number: u64, since: Instant) -> Duration {
    let ask = r#"{"domain":"shop","attributes":{"user":"u"}}"#;
    loop {
        if check(server.at[0], ask).json()["rules_version"] == number {
            return since.elapsed();
        }
        assert!(since.elapsed() < Duration::from_secs(10), "version {number} never applied");
    }
}

fn slowest(servers: &[Program], number: u64, since: Instant) -> Duration {
    std::thread::scope(|scope| {
        let all: Vec<_> = servers
            .iter()
            .map(|server| scope.spawn(move || until_it_applies(server, number, since)))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).max().unwrap()
    })
}

#[test]
fn two_servers_follow_within_100_ms_by_hint_and_1_s_by_poll() {
    const ROUNDS: u64 = 20;
    let redis = RedisServer::start().unwrap();
    let url = redis.url();
    let serve_by =
        |poll: &str| [(); 2].map(|()| serve(&["--rules-from", &url, "--rules-poll", poll], &[]));
    let hinted = serve_by("1h");
    let mut worst = Duration::ZERO;
    for number in 1..=ROUNDS {
        let since = Instant::now();
        assert_eq!(put(hinted[0].at[2], number - 1, &version(number)).status, 200);
        worst = worst.max(slowest(&hinted, number, since));
    }
    println!("by hint, {ROUNDS} changes, from the request to both servers: {worst:?} at most");
    assert!(worst < Duration::from_millis(100), "{worst:?}");
    drop(hinted);

    let looking = serve_by("1s");
    let mut worst = Duration::ZERO;
    for number in ROUNDS + 1..=ROUNDS * 2 {
        let since = Instant::now();
        // Written without telling anybody.
        store(&redis, KEY, number, &version(number));
        worst = worst.max(slowest(&looking, number, since));
    }
    println!("without hints, {ROUNDS} changes, to both servers: {worst:?} at most");
    assert!(worst < Duration::from_secs(1), "{worst:?}");
}
