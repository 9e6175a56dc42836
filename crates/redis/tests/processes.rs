//! Several processes on one Redis: together they admit what one would, also when they are killed.
//!
//! The children are this very executable, told by the environment to charge instead of to test.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test stops there")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::common::*;
use tollgate_core::testing::Rng;
use tollgate_redis::core::algorithm::{Concurrency, FixedWindow, SlidingLog};
use tollgate_redis::core::{Charge, Holder, Key, Limit, Op};

const URL: &str = "TOLLGATE_CHILD_OF";
const SEED: &str = "TOLLGATE_CHILD_SEED";
/// One line for each request that passed, told apart from what the test runner prints.
const PASSED: &str = "passed";
const BURST: u64 = 5_000;
/// The lease after which the permits of a killed child come back.
const LEASE: Duration = Duration::from_secs(10);

/// The limits that children charge together: one for each kind of storage.
fn rules() -> [Limit; 3] {
    let daily = format!("{BURST} per 1d");
    [bucket(BURST), limit(SlidingLog, &daily), limit(FixedWindow::default(), &daily)]
}

fn slots() -> Limit {
    limit(Concurrency, "5000 per 1h")
}

/// Not a test of its own: what a child does, until it is refused or killed.
#[test]
fn child() {
    let (Ok(url), Ok(seed)) = (std::env::var(URL), std::env::var(SEED)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = connect(without_timeout(&url)).await;
        let [a, b, c] = rules();
        let (key, slots) = (Key::new("slots").unwrap(), slots());
        let op = Op::Acquire { holder: Holder(seed.parse().unwrap()), lease: LEASE };
        let slot = Charge::new(key, &slots, op).unwrap();
        assert!(ask(&store, &[slot]).await.unwrap().passes());
        let mut out = std::io::stdout();
        while ask(&store, &[of("a", &a, 1), of("b", &b, 1), of("c", &c, 1)]).await.unwrap().passes()
        {
            out.write_all(format!("\n{PASSED}\n").as_bytes()).unwrap();
        }
        assert_eq!(store.stats().twin_mismatches, 0);
    });
}

fn spawn(url: &str, seed: u64) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--nocapture"])
        .env(URL, url)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

fn count(text: &str) -> u64 {
    u64::try_from(text.lines().filter(|line| *line == PASSED).count()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_admit_together_exactly_what_one_would() {
    let (server, _clock) = clockwork();
    let children = [1, 2].map(|seed| spawn(&server.url(), seed));

    let told = children.map(|(mut child, mut lines)| {
        let mut text = String::new();
        lines.read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success(), "{text}");
        count(&text)
    });

    assert_eq!(told[0] + told[1], BURST, "{told:?}");
    let store = connect(without_timeout(&server.url())).await;
    for (key, limit) in ["a", "b", "c"].into_iter().zip(&rules()) {
        assert_eq!(remaining(&store, key, limit).await, 0);
    }
}

/// B17: never more than one process would admit, at most one charge lost for each kill, nothing
/// charged in part, and permits that were held come back when their lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_are_killed_in_the_middle_charge_whole_requests_only() {
    let kills = if cfg!(faults) { 1_000 } else { 30 };
    let (server, clock) = clockwork();
    let store = connect(without_timeout(&server.url())).await;
    let mut rng = Rng::new(17);
    let mut told = 0;
    for seed in 0..kills {
        let (mut child, mut lines) = spawn(&server.url(), seed);
        // Killed after so many answers, at whatever it does then.
        let (mut text, wanted) = (String::new(), rng.below(8));
        while count(&text) < wanted && lines.read_line(&mut text).unwrap() > 0 {}
        child.kill().unwrap();
        lines.read_to_string(&mut text).unwrap();
        let _ = child.wait().unwrap();
        told += count(&text);
        if cfg!(faults) && seed % 100 == 99 {
            println!("{} of {kills} killed, {told} answers", seed + 1);
        }
    }

    let mut charged = Vec::new();
    for (key, limit) in ["a", "b", "c"].into_iter().zip(&rules()) {
        charged.push(BURST - remaining(&store, key, limit).await);
    }
    assert_eq!(charged, [charged[0]; 3], "all or none");
    assert!(told > 0 && told <= charged[0], "{told} answers, {charged:?} charged");
    assert!(charged[0] <= told + kills, "{told} answers, {charged:?} charged, {kills} kills");
    for name in names(&server) {
        assert!(pttl(&server, &name) > 0, "{}", name.escape_ascii());
    }
    let lease = u64::try_from(LEASE.as_micros()).unwrap();
    clock.set(START + lease).unwrap();
    assert_eq!(remaining(&store, "slots", &slots()).await, 5_000, "every permit is back");
}
