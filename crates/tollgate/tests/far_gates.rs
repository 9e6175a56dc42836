//! Gates on a store whose trips take differing times: grants overtake each other, and callers come
//! and go while they are asked for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Backend, backend};
use tokio::time::Instant;
use tollgate::store::{Answer, Key, Request};
use tollgate::{Algorithm, Cost, Limit, Store, StoreError};
use tollgate::{FixedWindow, LeakyQueue, SlidingLog, TokenBucket};
use tollgate::{Limiter, NotAdmitted};
use tollgate_core::testing::Rng;

/// A store that is up to so many milliseconds away, each way.
struct DistantStore {
    backend: Backend,
    most: u64,
    rng: Mutex<Rng>,
    calls: AtomicU64,
}

impl DistantStore {
    fn away(most: u64) -> Self {
        let rng = Mutex::new(Rng::new(most));
        Self { backend: backend(), most, rng, calls: AtomicU64::new(0) }
    }

    async fn travel(&self) {
        let millis = self.rng.lock().unwrap().below(self.most + 1);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

impl Store for DistantStore {
    async fn charge(&self, batch: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.travel().await;
        let answers = self.backend.charge(batch).await;
        self.travel().await;
        answers
    }

    async fn read(&self, name: Key<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        self.backend.read(name).await
    }

    async fn compare_and_set(
        &self,
        name: Key<'_>,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.backend.compare_and_set(name, expected, new).await
    }
}

fn limit(algorithm: impl Into<Algorithm>, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap()
}

/// Departures: the time in milliseconds, and the cost.
type Log = Arc<Mutex<Vec<(u64, Cost)>>>;

/// The most that departed above what the rate allows in any stretch, in permits.
fn excess(log: &Log, burst: u64, per_second: u64) -> u64 {
    let mut log = log.lock().unwrap().clone();
    log.sort_unstable();
    let mut worst = 0;
    for (from, (start, _)) in log.iter().enumerate() {
        let mut sum = 0;
        for (at, cost) in &log[from..] {
            sum += cost;
            worst = worst.max(sum.saturating_sub(burst + (at - start) * per_second / 1000));
        }
    }
    worst
}

/// Grants of a small and a large cost came back in another order than they were given, and the large
/// caller departed in the small one's place, a second too early. When the small one left, the large
/// place was given back although its owner departed: then there was no bound at all.
#[tokio::test(start_paused = true)]
async fn costs_that_differ_keep_the_bound_of_the_bucket() {
    for away in [0, 1, 5] {
        let limiter = Limiter::new(DistantStore::away(away));
        let gate = limiter.gate("k", limit(TokenBucket, "100 per 1s burst 100")).unwrap();
        let (start, log) = (Instant::now(), Log::default());
        let mut rng = Rng::new(7);
        let mut tasks = Vec::new();
        for i in 0..200_u64 {
            let (gate, log) = (gate.clone(), Arc::clone(&log));
            let cost = if i % 3 == 0 { 100 } else { 1 };
            let patience = Duration::from_millis(if rng.below(2) == 0 { 8 } else { 20_000 });
            tasks.push(tokio::spawn(async move {
                if tokio::time::timeout(patience, gate.acquire(cost)).await.is_ok() {
                    let at = start.elapsed().as_millis() as u64;
                    log.lock().unwrap().push((at, cost));
                }
            }));
            tokio::time::sleep(Duration::from_millis(rng.below(40))).await;
        }
        for task in tasks {
            task.await.unwrap();
        }

        // A reply may take as long as the way does longer than the next one's.
        let allowed = (away + 1) * 2 * 100 / 1000 + 1;
        assert!(excess(&log, 100, 100) <= allowed, "{away} ms away: {}", excess(&log, 100, 100));
        assert!(log.lock().unwrap().len() > 20);
    }
}

/// The giving back of a place was overtaken by the next question, so that callers who came and went
/// left nothing but holes: of 6000 departures 58 were left, and minutes of the future were taken by
/// nobody.
#[tokio::test(start_paused = true)]
async fn callers_who_come_and_go_starve_nobody() {
    for (algorithm, quota) in [
        (Algorithm::from(TokenBucket), "100 per 1s burst 1"),
        (LeakyQueue.into(), "100 per 1s burst 1000"),
    ] {
        for away in [0, 1, 3] {
            let limiter = Limiter::new(DistantStore::away(away));
            let gate = limiter.gate("k", limit(algorithm, quota)).unwrap();
            let (start, log) = (Instant::now(), Log::default());
            let mut tasks = Vec::new();
            for task in 0..20 {
                let (gate, log) = (gate.clone(), Arc::clone(&log));
                tasks.push(tokio::spawn(async move {
                    loop {
                        let patience =
                            Duration::from_millis(if task < 10 { 3_600_000 } else { 30 });
                        if tokio::time::timeout(patience, gate.acquire(1)).await.is_ok() {
                            let at = start.elapsed().as_millis() as u64;
                            log.lock().unwrap().push((at, 1));
                        }
                    }
                }));
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
            tasks.iter().for_each(|task| task.abort());
            let departed = log.lock().unwrap().len();
            tokio::time::sleep(Duration::from_millis(200)).await;

            let name = algorithm.name();
            assert!(departed > 5_400, "{name}, {away} ms away: {departed} of 6000");
            assert!(excess(&log, 1, 100) <= 2 + away, "{name}, {away} ms away");
            assert_eq!(gate.waiting(), 0);
            assert_eq!(gate.try_acquire(1).await, Ok(()), "{name}: the future is free again");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_who_ask_at_once_are_few_calls() {
    let limiter = Limiter::new(DistantStore::away(1));
    let gate = limiter.gate("k", limit(TokenBucket, "1000 per 1s burst 1")).unwrap();
    let before = limiter.store().calls.load(Ordering::SeqCst);

    let asking = (0..1_000).map(|_| {
        let gate = gate.clone();
        tokio::spawn(async move { gate.acquire(1).await })
    });
    for task in asking.collect::<Vec<_>>() {
        task.await.unwrap().unwrap();
    }

    let calls = limiter.store().calls.load(Ordering::SeqCst) - before;
    assert!(calls <= 1 + 1_000_u64.div_ceil(128) + 1, "{calls} calls, one of them a heartbeat");
}

/// At a gate where somebody waits, a cost that can never pass waited its whole turn, and nothing at
/// all was told to come back later.
#[tokio::test(start_paused = true)]
async fn what_never_passes_and_what_costs_nothing_wait_for_nobody() {
    for algorithm in [Algorithm::from(SlidingLog), FixedWindow::default().into()] {
        let limiter = Limiter::new(backend());
        let gate = limiter.gate("k", limit(algorithm, "1 per 1h")).unwrap();
        gate.acquire(1).await.unwrap();
        let waiting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.acquire(1).await }
        });
        crate::common::settle().await;
        let start = Instant::now();

        assert_eq!(gate.acquire(5).await, Err(NotAdmitted::Never { cost: 5 }));
        assert_eq!(gate.try_acquire(5).await, Err(NotAdmitted::Never { cost: 5 }));
        assert_eq!(gate.try_acquire(0).await, Ok(()));
        assert_eq!(gate.acquire(0).await, Ok(()));
        assert_eq!(start.elapsed(), Duration::ZERO);
        waiting.abort();
    }
}

/// On a store in this process a place was back only when another task had come to run.
#[tokio::test(start_paused = true)]
async fn a_place_is_back_when_the_drop_ends() {
    let limiter = Limiter::new(backend());
    let gate = limiter.gate("k", limit(TokenBucket, "1 per 10s burst 1")).unwrap();
    gate.acquire(1).await.unwrap();
    tokio::time::advance(Duration::from_secs(5)).await;
    let mut waiting = Box::pin(gate.acquire(1));
    assert!(tokio::time::timeout(Duration::ZERO, waiting.as_mut()).await.is_err());
    assert_eq!(gate.waiting(), 1);

    drop(waiting);

    assert_eq!(gate.waiting(), 0);
    let late = NotAdmitted::Late { retry_after: Duration::from_secs(5) };
    assert_eq!(gate.try_acquire(1).await, Err(late), "not fifteen");
}
