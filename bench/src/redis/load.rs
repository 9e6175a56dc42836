//! Many tasks that ask one after the other, and what became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_bench::Random;

/// Tasks that ask at the same time.
pub const TASKS: u64 = 1024;

/// The length of a round.
const ROUND: Duration = Duration::from_millis(1500);

/// The measurements of a round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub per_second: f64,
    /// The share that passed.
    pub admitted: f64,
    /// Processor time of this process, microseconds a decision.
    pub cpu_us: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Redis's own time, microseconds a decision, where it was asked.
    pub server_us: Option<f64>,
}

/// The call that each task repeats: it asks, and returns whether the request passed.
pub trait Asker: Clone + Send + Sync + 'static {
    /// Decisions in one ask.
    const DECISIONS: u64 = 1;

    fn ask(&self, random: &mut Random) -> impl Future<Output = bool> + Send;
}

/// As fast as `tasks` tasks can, each asking as soon as it was answered.
pub async fn flat_out(asker: &impl Asker, tasks: u64) -> Round {
    round(asker, tasks, None).await
}

/// So many a second, whatever the answers take; latencies count from when each was due.
pub async fn paced(asker: &impl Asker, per_second: f64) -> Round {
    round(asker, TASKS, Some(Duration::from_secs_f64(TASKS as f64 / per_second))).await
}

async fn round<A: Asker>(asker: &A, tasks: u64, pace: Option<Duration>) -> Round {
    let stop = Arc::new(AtomicBool::new(false));
    let counting = Arc::new(AtomicBool::new(false));
    let passed = Arc::new(AtomicU64::new(0));
    let handles: Vec<_> = (0..tasks)
        .map(|task| {
            let (asker, stop) = (asker.clone(), Arc::clone(&stop));
            let (counting, passed) = (Arc::clone(&counting), Arc::clone(&passed));
            tokio::spawn(async move {
                let mut random = Random::new(task);
                let mut took = Vec::new();
                let (mut asked, mut admitted) = (0_u64, 0);
                let mut due = Instant::now() + pace.unwrap_or_default().mul_f64(random.unit());
                while !stop.load(Ordering::Relaxed) {
                    if let Some(pace) = pace {
                        tokio::time::sleep_until(due.into()).await;
                        due += pace;
                    }
                    // Timing every ask would cost as much as half of one.
                    let start = match pace {
                        Some(pace) => Some(due - pace),
                        None => (random.below(16) == 0).then(Instant::now),
                    };
                    let passes = asker.ask(&mut random).await;
                    if counting.load(Ordering::Relaxed) {
                        asked += 1;
                        admitted += u64::from(passes);
                        took.extend(start.map(|start| start.elapsed()));
                    }
                }
                passed.fetch_add(admitted, Ordering::Relaxed);
                (asked, took)
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (start, cpu) = (Instant::now(), cpu_time());
    counting.store(true, Ordering::Relaxed);
    tokio::time::sleep(ROUND).await;
    counting.store(false, Ordering::Relaxed);
    let (took, cpu) = (start.elapsed(), cpu_time() - cpu);
    stop.store(true, Ordering::Relaxed);
    let mut count = 0_u64;
    let mut latencies = Vec::new();
    for handle in handles {
        let (asked, times) = handle.await.expect("no task panics");
        count += asked * A::DECISIONS;
        latencies.extend(times);
    }
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = (latencies.len() as f64 * share) as usize;
        latencies.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    };
    Round {
        per_second: count as f64 / took.as_secs_f64(),
        admitted: (passed.load(Ordering::Relaxed) * A::DECISIONS) as f64 / count.max(1) as f64,
        cpu_us: cpu.as_secs_f64() * 1e6 / count.max(1) as f64,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        server_us: None,
    }
}

/// Processor time that this process has used, to the hundredth of a second.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("ticks")).sum();
    Duration::from_millis(ticks * 10)
}
