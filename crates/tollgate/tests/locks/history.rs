//! E45: a recorded history of concurrent calls is one that a single lock could have had.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tollgate_core::testing::Rng;

use crate::stage::{Embedded, Redis, Stage};

/// One hold, by a counter that every event advances.
#[derive(Clone, Copy, Debug)]
struct HoldRecord {
    fence: u64,
    asked: u64,
    granted: u64,
    /// When its release was called, and answered.
    releasing: u64,
    released: u64,
}

#[derive(Default)]
struct Recorder {
    clock: AtomicU64,
    holds: Mutex<HashMap<&'static str, Vec<HoldRecord>>>,
    /// When somebody was refused: asked, answered.
    refused: Mutex<HashMap<&'static str, Vec<(u64, u64)>>>,
}

impl Recorder {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    fn judge(&self) {
        let mut holds = self.holds.lock().unwrap();
        for (name, refusals) in &*self.refused.lock().unwrap() {
            let held = &holds[name];
            for (asked, answered) in refusals {
                let somebody = held.iter().any(|h| h.asked < *answered && h.released > *asked);
                assert!(somebody, "{name} was refused at {asked} to {answered} while it was free");
            }
        }
        for (name, held) in holds.iter_mut() {
            held.sort_unstable_by_key(|hold| hold.fence);
            for pair in held.windows(2) {
                assert!(
                    pair[0].fence < pair[1].fence,
                    "{name}: no fence is granted twice {pair:?}"
                );
                // The one with the smaller fence was first, and over before the other was granted.
                assert!(pair[0].releasing < pair[1].granted, "{name}: two hold it {pair:?}");
                assert!(pair[0].asked < pair[1].released, "{name}: {pair:?}");
            }
        }
    }
}

async fn a_history_is_one_of_a_single_lock(stage: impl Stage) {
    let recorder = Arc::new(Recorder::default());
    let mut tasks = Vec::new();
    for process in 0..3 {
        let locks = stage.process().await;
        for task in 0..4 {
            let (locks, recorder) = (locks.clone(), Arc::clone(&recorder));
            tasks.push(tokio::spawn(async move {
                let mut rng = Rng::new(process * 10 + task);
                for _ in 0..60 {
                    let name = rng.pick(&["a", "b"]);
                    let asked = recorder.tick();
                    let got = if rng.chance(1, 2) {
                        locks.try_lock(name).await.unwrap()
                    } else {
                        Some(locks.lock(name).await.unwrap())
                    };
                    let granted = recorder.tick();
                    let Some(guard) = got else {
                        let mut refused = recorder.refused.lock().unwrap();
                        refused.entry(name).or_default().push((asked, granted));
                        continue;
                    };
                    for _ in 0..rng.below(3) {
                        tokio::task::yield_now().await;
                    }
                    let (fence, releasing) = (guard.fence().get(), recorder.tick());
                    guard.release().await.unwrap();
                    let released = recorder.tick();
                    let held = HoldRecord { fence, asked, granted, releasing, released };
                    recorder.holds.lock().unwrap().entry(name).or_default().push(held);
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }

    recorder.judge();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_is_one_of_a_single_lock_embedded() {
    a_history_is_one_of_a_single_lock(Embedded::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_is_one_of_a_single_lock_redis() {
    a_history_is_one_of_a_single_lock(Redis::new().await).await;
}
