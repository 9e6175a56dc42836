//! The cases, and the lines each prints.
//!
//! Commands are counted by Redis itself, and only those that a client sent: what a script calls is
//! part of it.

use std::time::Duration;

use tollgate_harness::{RedisServer, Reply};

use crate::process_group::{HandOvers, ProcessGroup, has_python};

const ROUNDS: usize = 5;
/// The length of a round without contention.
const SPAN: Duration = Duration::from_millis(1_000);
/// Times that the waiters are served in a round: five rounds make about two thousand hand-overs.
const DRAINS: usize = 6;
const WAITERS: usize = 64;
const MANY: usize = 8;
/// For the watchdog: each lock is renewed twice in this.
const KEPT: Duration = Duration::from_secs(20);
const KEPT_LOCKS: u64 = 10_000;

const OURS: &str = "ours";

/// The commands that clients of a contender send. Our scripts call `set` too.
fn sent(contender: &str) -> &'static [&'static str] {
    if contender.starts_with(OURS) {
        &["evalsha", "eval", "unlink", "subscribe", "unsubscribe"]
    } else {
        &["set", "evalsha", "eval", "script|load"]
    }
}

pub fn run(server: &RedisServer, only: &str) {
    let wanted = |case: &str| case.starts_with(only);
    let mut contenders = vec![OURS, "ours-simple", "rslock", "rslock-5ms"];
    if has_python() {
        contenders.push("redis-py");
    } else {
        println!(
            "redis-py: not measured, as there is no Python; `make bench-locks` says what it needs"
        );
    }
    for (case, tasks) in [("uncontended", 1), ("uncontended-64", WAITERS as u64)] {
        if wanted(case) {
            uncontended(server, case, tasks, &contenders);
        }
    }
    for (case, processes) in [("contended", 1), ("contended-8-processes", MANY)] {
        if wanted(case) {
            contended(server, case, processes, &contenders);
        }
    }
    if wanted("watchdog") {
        watchdog(server);
    }
}

fn uncontended(server: &RedisServer, case: &str, tasks: u64, contenders: &[&str]) {
    // To wait for each other is not part of this.
    let contenders: Vec<&str> =
        contenders.iter().copied().filter(|it| *it != "rslock-5ms").collect();
    let mut groups: Vec<_> =
        contenders.iter().map(|it| ProcessGroup::start(it, server, 1)).collect();
    let mut rates = vec![Vec::new(); contenders.len()];
    let mut commands = vec![Vec::new(); contenders.len()];
    for group in &mut groups {
        // Connected, and every script known.
        group.alone(tasks, SPAN / 10);
    }
    for _ in 0..ROUNDS {
        for (i, group) in groups.iter_mut().enumerate() {
            let before = calls(server, sent(contenders[i]));
            let (rate, count) = group.alone(tasks, SPAN);
            let made = calls(server, sent(contenders[i])) - before;
            rates[i].push(rate);
            commands[i].push(made as f64 / count as f64);
        }
    }
    for (i, contender) in contenders.iter().enumerate() {
        println!(
            "round={case} contender={contender} locks-per-second={:.0} spread={} commands-each={:.2}",
            median(&rates[i]),
            spread(&rates[i], 0),
            median(&commands[i]),
        );
    }
    compare(case, &contenders, &rates);
}

fn contended(server: &RedisServer, case: &str, processes: usize, contenders: &[&str]) {
    let mut groups: Vec<_> =
        contenders.iter().map(|it| ProcessGroup::start(it, server, processes)).collect();
    for group in &mut groups {
        group.drain(WAITERS, || {});
    }
    let mut rates = vec![Vec::new(); contenders.len()];
    let mut late = vec![Vec::new(); contenders.len()];
    let mut commands = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        for (i, group) in groups.iter_mut().enumerate() {
            let (mut took, mut gaps, mut made) = (Duration::ZERO, Vec::new(), 0);
            for _ in 0..DRAINS {
                let mut before = 0;
                let hand_overs =
                    group.drain(WAITERS, || before = calls(server, sent(contenders[i])));
                made += calls(server, sent(contenders[i])) - before;
                let HandOvers { took: more, gaps: others } = hand_overs;
                took += more;
                gaps.extend(others);
            }
            gaps.sort_unstable();
            rates[i].push(gaps.len() as f64 / took.as_secs_f64());
            late[i].push(gaps[gaps.len() * 99 / 100].as_secs_f64() * 1e3);
            commands[i].push(made as f64 / gaps.len() as f64);
        }
    }
    for (i, contender) in contenders.iter().enumerate() {
        println!(
            "round={case} contender={contender} hand-overs-per-second={:.0} spread={} \
             p99-ms={:.2} p99-spread={} commands-each={:.1}",
            median(&rates[i]),
            spread(&rates[i], 0),
            median(&late[i]),
            spread(&late[i], 2),
            median(&commands[i]),
        );
    }
    compare(case, contenders, &rates);
}

/// There is no peer: neither renews by itself what it holds.
fn watchdog(server: &RedisServer) {
    let mut group = ProcessGroup::start(OURS, server, 1);
    let redis = processor_time(server);
    let used = group.keep(KEPT_LOCKS, KEPT);
    let redis = processor_time(server) - redis;
    println!(
        "case=watchdog locks={KEPT_LOCKS} percent-of-a-core={:.2} redis-percent-taking-them-too={:.2}",
        used.as_secs_f64() / KEPT.as_secs_f64() * 100.0,
        redis / KEPT.as_secs_f64() * 100.0,
    );
}

/// Ours beside each of the others.
fn compare(case: &str, contenders: &[&str], rates: &[Vec<f64>]) {
    let ours = median(&rates[0]);
    for (peer, rates) in contenders.iter().zip(rates).skip(1) {
        let theirs = median(rates);
        println!("case={case} ours={ours:.0} peer={peer}:{theirs:.0} ratio={:.2}", ours / theirs);
    }
}

fn info(server: &RedisServer, section: &str) -> String {
    let Reply::Bulk(text) = server.command(&[b"INFO", section.as_bytes()]).unwrap() else {
        panic!("INFO is a string")
    };
    String::from_utf8(text).unwrap()
}

/// The number of these commands that Redis was sent.
fn calls(server: &RedisServer, commands: &[&str]) -> u64 {
    let info = info(server, "commandstats");
    let count = |line: &str| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        commands.contains(&command).then_some(())?;
        rest.split(',').next()?.parse::<u64>().ok()
    };
    info.lines().filter_map(count).sum()
}

/// Seconds of processor that Redis has used.
fn processor_time(server: &RedisServer) -> f64 {
    let info = info(server, "cpu");
    let of = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse::<f64>().ok()).expect("INFO cpu")
    };
    of("used_cpu_sys:") + of("used_cpu_user:")
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    sorted[sorted.len() / 2]
}

fn spread(values: &[f64], digits: usize) -> String {
    let sorted = sorted(values);
    format!("{:.digits$}..{:.digits$}", sorted[0], sorted[sorted.len() - 1])
}
