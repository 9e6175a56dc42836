//! Gates and shapers, in virtual time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{ConnectionState, StoreConnection, backend, node, settle};
use tokio::time::Instant;
use tollgate::{Algorithm, Limit, Store};
use tollgate::{FixedWindow, LeakyMeter, LeakyQueue, SlidingLog, Smooth, TokenBucket};
use tollgate::{Gate, Limiter, NoPermit, NotAdmitted, RateLimiter, RateType, Semaphore, Shaper};

fn limit(algorithm: impl Into<Algorithm>, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap()
}

/// The callers that came through, each with its time in milliseconds from the start.
type Log = Arc<Mutex<Vec<(usize, u128)>>>;

async fn through<S: Store + 'static>(gate: Gate<S>, count: usize, log: &Log) {
    let start = Instant::now();
    let mut tasks = Vec::new();
    for i in 0..count {
        let (waiting, log) = (gate.clone(), Arc::clone(log));
        tasks.push(tokio::spawn(async move {
            waiting.acquire(1).await.unwrap();
            log.lock().unwrap().push((i, start.elapsed().as_millis()));
        }));
        // In this order.
        settle().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn sixty_four_waiters_wake_once_each_and_in_order() {
    for algorithm in [
        Algorithm::from(TokenBucket),
        LeakyMeter.into(),
        LeakyQueue.into(),
        Smooth::bursty().into(),
    ] {
        let name = algorithm.name();
        let limiter = Limiter::new(StoreConnection::to(&backend()));
        let log = Log::default();
        let burst = if name == "leaky-queue" { 100 } else { 1 };
        let gate =
            limiter.gate("k", limit(algorithm, &format!("100 per 1s burst {burst}"))).unwrap();

        let before = limiter.store().reached.load(std::sync::atomic::Ordering::SeqCst);
        through(gate, 64, &log).await;
        let asked = limiter.store().reached.load(std::sync::atomic::Ordering::SeqCst) - before;

        let log = log.lock().unwrap();
        let order: Vec<usize> = log.iter().map(|(i, _)| *i).collect();
        assert_eq!(order, (0..64).collect::<Vec<_>>(), "{name}");
        for (i, (_, at)) in log.iter().enumerate() {
            let due = i as u128 * 10;
            assert!((due.saturating_sub(20)..=due + 2).contains(at), "{name}: {i} at {at} ms");
        }
        assert!(asked <= 64 + 1, "{name}: {asked} questions for 64 waiters, and a heartbeat");
    }
}

#[tokio::test(start_paused = true)]
async fn windows_and_logs_let_waiters_through_in_order_with_one_asking() {
    for algorithm in [Algorithm::from(SlidingLog), FixedWindow::default().into()] {
        let name = algorithm.name();
        let limiter = Limiter::new(StoreConnection::to(&backend()));
        let log = Log::default();
        let gate = limiter.gate("k", limit(algorithm, "10 per 100ms")).unwrap();

        through(gate, 64, &log).await;

        let log = log.lock().unwrap();
        assert_eq!(log.iter().map(|(i, _)| *i).collect::<Vec<_>>(), (0..64).collect::<Vec<_>>());
        for (i, (_, at)) in log.iter().enumerate() {
            let due = (i as u128 / 10) * 100;
            assert!((due..=due + 8).contains(at), "{name}: {i} at {at} ms");
        }
        let asked = limiter.store().reached.load(std::sync::atomic::Ordering::SeqCst);
        assert!(asked < 64 + 64 + 10, "{name}: {asked} questions: a herd would ask 64 times 7");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_gives_the_place_back_and_those_behind_move_up() {
    for algorithm in [Algorithm::from(TokenBucket), LeakyQueue.into()] {
        let name = algorithm.name();
        let limiter = Limiter::new(backend());
        let quota = if name == "leaky-queue" { "10 per 1s burst 100" } else { "10 per 1s burst 1" };
        let gate = limiter.gate("k", limit(algorithm, quota)).unwrap();
        gate.acquire(1).await.unwrap();
        let start = Instant::now();
        let log = Log::default();
        let mut tasks = Vec::new();
        for i in 0..6 {
            let (waiting, log) = (gate.clone(), Arc::clone(&log));
            tasks.push(tokio::spawn(async move {
                waiting.acquire(1).await.unwrap();
                log.lock().unwrap().push((i, start.elapsed().as_millis()));
            }));
            settle().await;
        }
        assert_eq!(gate.waiting(), 6);

        tasks[1].abort();
        tasks[3].abort();
        settle().await;
        assert_eq!(gate.waiting(), 4);
        let last = gate.clone();
        let late = tokio::spawn(async move {
            last.acquire(1).await.unwrap();
            start.elapsed().as_millis()
        });
        assert_eq!(late.await.unwrap(), 500, "{name}: the places at 500 and 600 ms came back");

        let log = log.lock().unwrap().clone();
        assert_eq!(log, [(0, 100), (2, 200), (4, 300), (5, 400)], "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn departures_of_two_processes_never_come_closer_than_the_rate() {
    // One process's waiters leave while the other has places behind theirs: those stay holes.
    let store = backend();
    let nodes =
        [Limiter::new(StoreConnection::to(&store)), Limiter::new(StoreConnection::to(&store))];
    for algorithm in [Algorithm::from(TokenBucket), LeakyQueue.into()] {
        let name = algorithm.name();
        let quota = if name == "leaky-queue" { "10 per 1s burst 100" } else { "10 per 1s burst 1" };
        let gates = nodes.each_ref().map(|node| node.gate(name, limit(algorithm, quota)).unwrap());
        let (start, log) = (Instant::now(), Log::default());
        let mut tasks = Vec::new();
        for i in 0..40 {
            let (waiting, log) = (gates[i % 2].clone(), Arc::clone(&log));
            tasks.push(tokio::spawn(async move {
                waiting.acquire(1).await.unwrap();
                log.lock().unwrap().push((i, start.elapsed().as_millis()));
            }));
            settle().await;
            if i % 3 == 2 {
                tasks[i - 1].abort();
                settle().await;
            }
        }
        for task in tasks {
            let _ = task.await;
        }

        let mut at: Vec<u128> = log.lock().unwrap().iter().map(|(_, at)| *at).collect();
        at.sort_unstable();
        for pair in at.windows(2) {
            assert!(
                pair[1] - pair[0] >= 99,
                "{name}: departures at {} and {} ms",
                pair[0],
                pair[1]
            );
        }
        assert!(at.len() >= 27, "{name}: {} came through", at.len());
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_cannot_pass_in_time_is_told_at_once_and_charges_nothing() {
    let limiter = Limiter::new(backend());
    let gate = limiter.gate("k", limit(TokenBucket, "1 per 10s")).unwrap();
    gate.acquire(1).await.unwrap();
    let start = Instant::now();

    let late = gate.acquire_timeout(1, Duration::from_secs(3)).await;
    assert_eq!(late, Err(NotAdmitted::Late { retry_after: Duration::from_secs(7) }));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(gate.acquire(2).await, Err(NotAdmitted::Never { cost: 2 }));
    assert!(matches!(gate.try_acquire(1).await, Err(NotAdmitted::Late { .. })));

    gate.acquire_timeout(1, Duration::from_secs(10)).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 10, "nothing was charged meanwhile");

    // A window says the same.
    let gate = limiter.gate("w", limit(SlidingLog, "1 per 10s")).unwrap();
    gate.acquire(1).await.unwrap();
    let start = Instant::now();
    assert!(gate.acquire_timeout(1, Duration::from_secs(3)).await.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(gate.acquire_timeout(1, Duration::from_secs(11)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_question_whose_caller_leaves_is_not_charged() {
    let limiter = Limiter::new(StoreConnection::to(&backend()));
    let gate = limiter.gate("k", limit(TokenBucket, "10 per 1h")).unwrap();

    for _ in 0..50 {
        // Polled once, the question is on its way; then its caller leaves.
        let mut asking = Box::pin(gate.acquire(1));
        tokio::select! {
            biased;
            _ = &mut asking => {}
            () = tokio::task::yield_now() => {}
        }
        drop(asking);
        settle().await;
    }

    assert_eq!(gate.available().await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_shaper_runs_tasks_evenly_and_refuses_what_does_not_fit() {
    let limiter = Limiter::new(backend());
    let shaper = Shaper::new(&limiter, "bank", "5 per 1s burst 10".parse().unwrap()).unwrap();
    let (start, log) = (Instant::now(), Log::default());
    let mut tasks = Vec::new();
    for i in 0..11 {
        let (shaper, log) = (shaper.clone(), Arc::clone(&log));
        tasks.push(tokio::spawn(async move {
            let task = async { log.lock().unwrap().push((i, start.elapsed().as_millis())) };
            shaper.run(task).await
        }));
        settle().await;
    }

    assert_eq!(shaper.waiting(), 10);
    let full = shaper.run(async { unreachable!("there is no place") }).await;
    assert!(matches!(full, Err(NotAdmitted::Late { .. })));
    let hasty = shaper.clone().with_patience(Duration::from_millis(1)).turn().await;
    assert!(hasty.is_err());
    tasks[10].abort();
    settle().await;
    assert!(shaper.run(async {}).await.is_ok(), "the last place came back");

    let log = log.lock().unwrap().clone();
    assert_eq!(log, (0..10).map(|i| (i, i as u128 * 200)).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_semaphore_is_fair_and_leaks_nothing() {
    let semaphore = Semaphore::new(2);
    let both = semaphore.acquire(2).await.unwrap();
    assert_eq!((both.count(), semaphore.available()), (2, 0));
    assert_eq!(semaphore.try_acquire(1).unwrap_err(), NoPermit::NotNow);
    assert_eq!(semaphore.acquire(3).await.unwrap_err(), NoPermit::Never { asked: 3, size: 2 });
    let patience = Duration::from_millis(10);
    assert_eq!(semaphore.acquire_timeout(1, patience).await.unwrap_err(), NoPermit::NotNow);

    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..10 {
        let (semaphore, order) = (semaphore.clone(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let _permit = semaphore.acquire(1 + i % 2).await.unwrap();
            order.lock().unwrap().push(i);
            if i == 5 {
                panic!("on purpose");
            }
        }));
        settle().await;
    }
    tasks[3].abort();
    drop(both);
    for task in tasks {
        let _ = task.await;
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
    assert_eq!(semaphore.available(), 2);
}

#[tokio::test(start_paused = true)]
async fn waiters_for_a_rate_come_through_in_order_and_a_new_rate_is_seen_within_a_second() {
    let store = backend();
    let (one, two) =
        (Limiter::new(StoreConnection::to(&store)), Limiter::new(StoreConnection::to(&store)));
    let mail = Arc::new(RateLimiter::new(&one, "mail").unwrap());
    mail.set_rate(RateType::Overall, "10 per 1s".parse().unwrap()).await.unwrap();
    let (start, log) = (Instant::now(), Log::default());
    let mut tasks = Vec::new();
    for i in 0..30 {
        let (mail, log) = (Arc::clone(&mail), Arc::clone(&log));
        tasks.push(tokio::spawn(async move {
            mail.acquire(1).await.unwrap();
            log.lock().unwrap().push((i, start.elapsed().as_millis()));
        }));
        settle().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let log = log.lock().unwrap().clone();
    assert_eq!(log.iter().map(|(i, _)| *i).collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    for (i, at) in log {
        let due = (i as u128 / 10) * 1_000;
        assert!((due..=due + 10).contains(&at), "{i} at {at} ms");
    }

    let other = RateLimiter::new(&two, "mail").unwrap();
    other.set_rate(RateType::Overall, "1 per 1h".parse().unwrap()).await.unwrap();
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(mail.try_acquire(1).await.unwrap());
    assert!(!mail.try_acquire(1).await.unwrap(), "one an hour, set by another process");
    // A store that does not answer leaves the rate that is known.
    one.store().set(ConnectionState::Closed);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(mail.try_acquire(1).await.is_ok(), "by the local share");
}

#[tokio::test(start_paused = true)]
async fn places_of_smooth_limiters_stay_taken_until_somebody_of_this_process_wants_one() {
    // The store's next place is behind the one that was left, or is that one; and when the next of the
    // same process departs.
    for (algorithm, elsewhere, here) in
        [(Algorithm::from(Smooth::bursty()), 300, 200), (TokenBucket.into(), 200, 300)]
    {
        let store = backend();
        let gate = |_| {
            let limit = limit(algorithm, "10 per 1s burst 1");
            Limiter::new(StoreConnection::to(&store)).gate("k", limit).unwrap()
        };
        let [gate, other] = [0, 1].map(gate);
        gate.acquire(1).await.unwrap();
        // A smooth limiter has the next pay, so one more is through at once.
        while gate.try_acquire(1).await.is_ok() {}
        let start = Instant::now();
        let waiting = |gate: &Gate<StoreConnection>| {
            let gate = gate.clone();
            tokio::spawn(async move {
                gate.acquire(1).await.unwrap();
                start.elapsed().as_millis()
            })
        };
        let leaving = waiting(&gate);
        settle().await;
        let staying = waiting(&gate);
        settle().await;

        leaving.abort();
        settle().await;
        let at_other = waiting(&other);
        settle().await;
        let next = waiting(&gate);

        assert_eq!(staying.await.unwrap(), 100, "{algorithm}");
        assert_eq!(at_other.await.unwrap(), elsewhere, "{algorithm}");
        assert_eq!(next.await.unwrap(), here, "{algorithm}");
    }
}

/// When each of these gates let somebody through, in milliseconds, as they were asked in turn.
async fn departures(gates: &[Gate<StoreConnection>], rounds: usize) -> Vec<u128> {
    let start = Instant::now();
    let mut tasks = Vec::new();
    for i in 0..rounds * gates.len() {
        let gate = gates[i % gates.len()].clone();
        tasks.push(tokio::spawn(async move {
            gate.acquire(1).await.unwrap();
            start.elapsed().as_millis()
        }));
        settle().await;
    }
    let mut departures = Vec::new();
    for task in tasks {
        departures.push(task.await.unwrap());
    }
    departures
}

#[tokio::test(start_paused = true)]
async fn a_slow_reply_delays_its_own_departure_by_as_much_and_no_other() {
    let store = backend();
    let (slow, fast) = (StoreConnection::to(&store), StoreConnection::to(&store));
    let gates = [&slow, &fast].map(|connection| {
        let limit = limit(TokenBucket, "10 per 1s burst 1");
        Limiter::new(connection.clone()).gate("k", limit).unwrap()
    });
    slow.takes(0, 40);

    let departures = departures(&gates, 3).await;

    // The store granted 0, 100, 200 and so on: to the slow one 0, and then 400 and 500, as its second
    // question left when the first was answered.
    assert_eq!(departures, [40, 100, 440, 200, 540, 300]);
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_each_process_keeps_its_share_of_the_rate_and_none_spaces_the_others() {
    let store = backend();
    let ways = [StoreConnection::to(&store), StoreConnection::to(&store)];
    let mut gates = Vec::new();
    for connection in &ways {
        let limiter = node(connection, []).await;
        gates.push(limiter.gate("k", limit(TokenBucket, "10 per 1s burst 2")).unwrap());
    }
    for connection in &ways {
        connection.set(ConnectionState::Closed);
    }

    let departures = departures(&gates, 4).await;

    assert_eq!(departures, [0, 0, 200, 200, 400, 400, 600, 600], "five a second each");
}

#[tokio::test(start_paused = true)]
async fn as_many_may_wait_as_have_the_patience() {
    const MANY: usize = 20_000;
    let limiter = Limiter::new(backend());
    let (hour, patience) = (Duration::from_secs(3_600), Duration::from_secs(7_000));
    for algorithm in [Algorithm::from(SlidingLog), TokenBucket.into()] {
        let quota = if algorithm == SlidingLog.into() { "1 per 1h" } else { "10 per 1s burst 1" };
        let gate = limiter.gate(algorithm.name(), limit(algorithm, quota)).unwrap();
        gate.acquire(1).await.unwrap();
        let mut tasks = Vec::new();
        for _ in 0..MANY {
            let gate = gate.clone();
            tasks.push(tokio::spawn(async move { gate.acquire_timeout(1, patience).await }));
        }
        settle().await;
        assert!(tasks.iter().all(|task| !task.is_finished()), "{algorithm}: nobody is turned away");

        tokio::time::sleep(2 * hour).await;
        let mut passed = 0;
        for task in tasks {
            passed += usize::from(task.await.unwrap().is_ok());
        }
        let expected = if algorithm == SlidingLog.into() { 1 } else { MANY };
        assert_eq!(passed, expected, "{algorithm}");
    }
}
