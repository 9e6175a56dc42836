//! Rounds, medians, and the line that is printed.
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock to time, not to decide")]

use std::sync::Barrier;
use std::time::Instant;

/// Interleaved rounds: enough for a median on a noisy machine.
pub const ROUNDS: usize = 7;

/// Time per operation and thread, in nanoseconds, of `threads` threads that each run `work`.
pub fn time(threads: u64, operations: u64, work: impl Fn(u64) + Sync) -> f64 {
    let barrier = Barrier::new(threads as usize);
    let slowest = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    work(thread);
                    start.elapsed()
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("no panics")).max()
    });
    slowest.expect("at least one thread").as_nanos() as f64 / operations as f64
}

/// A contender's rounds.
#[derive(Default)]
pub struct Rounds(Vec<f64>);

impl Rounds {
    pub fn add(&mut self, nanos: f64) {
        self.0.push(nanos);
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        sorted[sorted.len() / 2]
    }

    pub fn spread(&self) -> String {
        let sorted = self.sorted();
        format!("{:.0}..{:.0}", sorted[0], sorted[sorted.len() - 1])
    }
}

pub fn print(case: &str, ours: &Rounds, peer: &str, theirs: &Rounds) {
    println!(
        "case={case} ours={:.1} peer={peer}:{:.1} ratio={:.2} spread={} peer-spread={}",
        ours.median(),
        theirs.median(),
        theirs.median() / ours.median(),
        ours.spread(),
        theirs.spread(),
    );
}
