//! A process of a contender: it reads commands from its input, one a line.
//!
//! | Command | Does | Answers |
//! |---|---|---|
//! | `alone N MS NAME` | N tasks take and release locks of their own for so long | `count`, `nanoseconds` |
//! | `hold NAME` | takes the lock and keeps it | `held` |
//! | `wait N NAME` | N tasks wait for it, and release it as soon as they have it | `waiting`, later a line for each: when it was granted and when its release was called; then `done` |
//! | `let-go` | releases what it holds | when that was called |
//! | `keep N MS NAME` | holds N locks for so long | processor time used meanwhile, in milliseconds |
//!
//! Moments are nanoseconds of the monotonic clock, which all processes share. `redis_py.py` does the
//! same but for `keep`.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use crate::contender::{BenchGuard, Contender};

pub fn live(contender: &str, port: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let contender = runtime.block_on(Contender::connect(contender, port));
    say("ready");
    let mut held = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["alone", tasks, millis, name] => {
                let span = Duration::from_millis(millis.parse().unwrap());
                let told = alone(&contender, tasks.parse().unwrap(), span, name);
                let (count, nanos) = runtime.block_on(told);
                say(&format!("{count} {nanos}"));
            }
            ["hold", name] => {
                held = Some(runtime.block_on(contender.lock(name)));
                say("held");
            }
            ["wait", tasks, name] => {
                let tasks = wait(&contender, tasks.parse().unwrap(), name);
                runtime.spawn(async move { tell(tasks.await).await });
            }
            ["let-go"] => {
                let called = now();
                runtime.block_on(held.take().expect("it holds the lock").release());
                say(&format!("{called}"));
            }
            ["keep", count, millis, name] => {
                let span = Duration::from_millis(millis.parse().unwrap());
                let told = keep(&contender, count.parse().unwrap(), span, name);
                let cpu = runtime.block_on(told);
                say(&format!("{}", cpu.as_millis()));
            }
            _ => panic!("not understood: {line}"),
        }
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

async fn alone(contender: &Contender, tasks: u64, span: Duration, name: &str) -> (u64, u64) {
    let start = Instant::now();
    let mut all = JoinSet::new();
    for task in 0..tasks {
        let (contender, name) = (contender.clone(), format!("{name}:{task}"));
        all.spawn(async move {
            let mut count = 0_u64;
            while start.elapsed() < span {
                contender.lock(&name).await.release().await;
                count += 1;
            }
            count
        });
    }
    let count = all.join_all().await.iter().sum();
    (count, start.elapsed().as_nanos() as u64)
}

/// Has these tasks wait; returns once they were started.
fn wait(
    contender: &Contender,
    tasks: u64,
    name: &str,
) -> impl Future<Output = JoinSet<(u64, u64)>> + use<> {
    let (contender, name) = (contender.clone(), name.to_owned());
    async move {
        let mut all = JoinSet::new();
        for _ in 0..tasks {
            let (contender, name) = (contender.clone(), name.clone());
            all.spawn(async move {
                let held = contender.lock(&name).await;
                let granted = now();
                let called = now();
                held.release().await;
                (granted, called)
            });
        }
        all
    }
}

async fn tell(tasks: JoinSet<(u64, u64)>) {
    say("waiting");
    for (granted, called) in tasks.join_all().await {
        say(&format!("{granted} {called}"));
    }
    say("done");
}

async fn keep(contender: &Contender, count: u64, span: Duration, name: &str) -> Duration {
    let mut held: Vec<BenchGuard> = Vec::new();
    let mut all = JoinSet::new();
    for i in 0..count {
        let (contender, name) = (contender.clone(), format!("{name}:{i}"));
        all.spawn(async move { contender.lock(&name).await });
        if all.len() >= 256 {
            held.extend(all.join_next().await.map(Result::unwrap));
        }
    }
    held.extend(all.join_all().await);
    let before = cpu_time();
    tokio::time::sleep(span).await;
    let used = cpu_time() - before;
    for held in held {
        let BenchGuard::Ours(guard) = &held else { continue };
        assert_eq!(guard.state(), tollgate::LockState::Sure, "a lock was lost meanwhile");
    }
    used
}

/// Processor time that this process has used, to the hundredth of a second.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("ticks")).sum();
    Duration::from_millis(ticks * 10)
}
