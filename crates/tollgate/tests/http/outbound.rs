//! Calls to others wait for their turn.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::http::{OutboundError, OutboundLayer};
use tollgate::{Algorithm, Limit};
use tollgate::{FixedWindow, TokenBucket};
use tollgate::{Gate, Limiter, NotAdmitted};
use tower::{Layer, ServiceExt, service_fn};

use crate::common::{StoreConnection, backend, settle};

fn gate(quota: &str, algorithm: impl Into<Algorithm>) -> Gate<StoreConnection> {
    let limit = Limit::new(algorithm.into(), quota.parse().unwrap()).unwrap();
    Limiter::new(StoreConnection::to(&backend())).gate("bank", limit).unwrap()
}

/// A third party that notes when it is called.
fn third_party(
    calls: &Arc<AtomicU64>,
) -> impl tower::Service<u64, Response = Instant, Error = std::fmt::Error, Future: Send>
+ Clone
+ Send
+ 'static {
    let calls = Arc::clone(calls);
    service_fn(move |fails: u64| {
        calls.fetch_add(1, Ordering::SeqCst);
        async move { if fails > 0 { Err(std::fmt::Error) } else { Ok(Instant::now()) } }
    })
}

#[tokio::test(start_paused = true)]
async fn calls_go_out_at_the_rate_of_the_gate() {
    let calls = Arc::default();
    let layer = OutboundLayer::new(gate("10 per 1s burst 1", TokenBucket), Duration::from_secs(5));
    let bank = layer.layer(third_party(&calls));
    let start = Instant::now();

    let tasks: Vec<_> = (0..6).map(|_| tokio::spawn(bank.clone().oneshot(0))).collect();
    let mut times = Vec::new();
    for task in tasks {
        times.push((task.await.unwrap().unwrap() - start).as_millis());
    }

    times.sort_unstable();
    assert_eq!(times.len(), 6);
    for (at, pair) in times.windows(2).enumerate() {
        assert!((99..=102).contains(&(pair[1] - pair[0])), "call {at} of {times:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_beyond_the_patience_fails_at_once_and_calls_nobody() {
    let calls = Arc::default();
    let layer =
        OutboundLayer::new(gate("1 per 1s burst 1", TokenBucket), Duration::from_millis(500));
    let bank = layer.layer(third_party(&calls));
    bank.clone().oneshot(0).await.unwrap();
    let start = Instant::now();

    let error = bank.oneshot(0).await.unwrap_err();

    let OutboundError::NotAdmitted(NotAdmitted::Late { retry_after }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(retry_after.as_millis(), 500, "asked then, half a second is left to wait");
    assert!(start.elapsed() < Duration::from_millis(5));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(error.to_string(), "the call was not made, because its turn did not come");
    assert_eq!(error.source().unwrap().to_string(), "not admitted in time; ask again after 500ms");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_gives_its_turn_back() {
    let calls = Arc::default();
    let layer = OutboundLayer::new(gate("1 per 1s burst 1", TokenBucket), Duration::from_secs(2));
    let bank = layer.layer(third_party(&calls));
    bank.clone().oneshot(0).await.unwrap();
    let start = Instant::now();
    let leaves = tokio::spawn(bank.clone().oneshot(0));
    settle().await;

    leaves.abort();
    settle().await;
    bank.oneshot(0).await.unwrap();

    assert!(start.elapsed() < Duration::from_millis(1_100), "{:?}", start.elapsed());
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may() {
    let calls = Arc::default();
    let gate = gate("1 per 1h", FixedWindow::default());
    let bank = OutboundLayer::new(gate, Duration::from_secs(7200))
        .max_waiting(3)
        .layer(third_party(&calls));
    bank.clone().oneshot(0).await.unwrap();
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(bank.clone().oneshot(0))).collect();
    settle().await;

    assert_eq!(bank.clone().oneshot(0).await.unwrap_err(), OutboundError::TooManyWaiting);

    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    settle().await;
    bank.oneshot(0).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_the_other_side_says_is_passed_on() {
    let calls = Arc::default();
    let layer = OutboundLayer::new(gate("9 per 1s", TokenBucket), Duration::ZERO);
    assert_eq!(
        layer.layer(third_party(&calls)).oneshot(1).await,
        Err(OutboundError::Call(std::fmt::Error))
    );
}
