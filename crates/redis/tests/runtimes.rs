//! Calls of the store from any thread, on any runtime or none.

#![allow(clippy::unwrap_used, reason = "a test stops there")]

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};

use crate::common::*;
use tokio::runtime::{Builder, Runtime};
use tollgate_harness::RedisServer;
use tollgate_redis::core::StoreErrorKind;
use tollgate_redis::{Config, RedisStore};

/// Runs a future without any runtime: the thread sleeps until it is woken.
fn run_alone<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// A store made on a runtime that nobody drives any more, though it still exists.
fn abandoned(config: Config) -> (Runtime, RedisStore) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(RedisStore::connect(config)).unwrap();
    (runtime, store)
}

/// The store once lived on the runtime it was made on, and a call from elsewhere waited for ever
/// when that was not driven.
#[test]
fn a_call_needs_no_runtime_to_be_driven() {
    let server = RedisServer::start().unwrap();
    let (_undriven, store) = abandoned(without_timeout(&server.url()));
    let limit = bucket(3);

    assert!(run_alone(take(&store, "k", &limit)).passes());

    let other = Builder::new_current_thread().build().unwrap();
    assert!(other.block_on(take(&store, "k", &limit)).passes());
    let many = Builder::new_multi_thread().worker_threads(2).build().unwrap();
    assert!(many.block_on(take(&store, "k", &limit)).passes());
    assert!(!many.block_on(take(&store, "k", &limit)).passes());
}

#[test]
fn a_runtime_that_has_ended_takes_no_store_with_it() {
    let server = RedisServer::start().unwrap();
    let (runtime, store) = abandoned(without_timeout(&server.url()));
    drop(runtime);

    assert!(run_alone(take(&store, "k", &bucket(1))).passes());
}

#[test]
fn a_hung_redis_is_an_error_though_no_runtime_is_driven() {
    let server = RedisServer::start().unwrap();
    let (_undriven, store) = abandoned(breaker_stays_closed(&server.url()));
    let limit = bucket(1);
    server.stop().unwrap();

    let error = run_alone(ask(&store, &[of("k", &limit, 1)])).unwrap_err();

    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    server.resume().unwrap();
}
