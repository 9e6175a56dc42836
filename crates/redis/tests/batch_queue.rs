//! Callers that wait for a run: how many there may be, and what becomes of those that do not wait.
//!
//! Redis is halted meanwhile, so that whatever departs stays under way.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test stops there")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use tokio::task::JoinHandle;
use tollgate_harness::RedisServer;
use tollgate_redis::RedisStore;
use tollgate_redis::core::{Answer, StoreError, StoreErrorKind};

/// Runs under way at a time.
const IN_FLIGHT: usize = 3;

type Call = JoinHandle<Result<Answer, StoreError>>;

/// Takes one, in a task of its own, and gives it time to depart or to queue.
async fn call(store: &Arc<RedisStore>, key: &'static str) -> Call {
    let store = Arc::clone(store);
    let call = tokio::spawn(async move { ask(&store, &[of(key, &bucket(100), 1)]).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    call
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_more_than_may_wait_is_turned_away_at_once() {
    const WAITING: usize = 4;
    let server = RedisServer::start().unwrap();
    let store = Arc::new(connect(without_timeout(&server.url()).max_waiting(WAITING)).await);
    assert!(take(&store, "k", &bucket(100)).await.passes());
    server.stop().unwrap();

    let mut calls = Vec::new();
    for _ in 0..IN_FLIGHT + WAITING {
        calls.push(call(&store, "k").await);
    }
    let refused = ask(&store, &[of("k", &bucket(100), 1)]).await;

    assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Unavailable);
    assert!(calls.iter().all(|call| !call.is_finished()), "they wait");
    server.resume().unwrap();
    for call in calls {
        assert!(call.await.unwrap().unwrap().passes());
    }
    assert_eq!(remaining(&store, "k", &bucket(100)).await, 100 - 1 - 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_is_charged_if_it_has_departed_and_not_before() {
    let server = RedisServer::start().unwrap();
    let store = Arc::new(connect(without_timeout(&server.url())).await);
    assert!(take(&store, "k", &bucket(100)).await.passes());
    server.stop().unwrap();
    let mut departed = Vec::new();
    for _ in 0..IN_FLIGHT {
        departed.push(call(&store, "departed").await);
    }
    let queued = call(&store, "queued").await;

    departed[1].abort();
    queued.abort();
    assert!(queued.await.unwrap_err().is_cancelled());
    server.resume().unwrap();

    for call in [departed.remove(2), departed.remove(0)] {
        assert!(call.await.unwrap().unwrap().passes());
    }
    assert_eq!(remaining(&store, "departed", &bucket(100)).await, 97);
    assert_eq!(remaining(&store, "queued", &bucket(100)).await, 100);
}
