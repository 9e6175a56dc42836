//! Requests that wait for a place in the future, in virtual time.
//!
//! Clients on sockets run on threads of their own: while one does, tokio's clock stands still
//! unless the test moves it.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance};
use tollgate::Store;
use tollgate::http::{LimitLayer, LimitedBody};
use tollgate::{Ask, RuleSet};
use tollgate::{Concurrency, FixedWindow, LeakyQueue, TokenBucket};
use tollgate::{EmbeddedStore, Limiter};
use tower::util::BoxCloneService;
use tower::{Layer, ServiceExt, service_fn};

use crate::common::{Backend, StoreConnection, TokioClock, backend, rule, rules, settle, with};
use crate::wire::serve;

/// One a second, and at most ten in line.
fn queue() -> RuleSet {
    rules(1, [with(rule("queue", &[], &["1 per 1s burst 10"]), LeakyQueue)])
}

/// A limiter on a store in this process, which takes no trip.
fn embedded(set: RuleSet) -> Limiter<Backend> {
    let store = EmbeddedStore::builder().with_clock(TokioClock::new());
    Limiter::builder(Arc::new(store)).rules(set).build()
}

/// A limiter on a store that takes a trip.
fn remote(set: RuleSet) -> Limiter<StoreConnection> {
    Limiter::builder(StoreConnection::to(&backend())).rules(set).build()
}

type LimitedService = BoxCloneService<Request<Body>, Response<LimitedBody<Body>>, Infallible>;

/// The layer around a service that counts.
fn service<S: Store + 'static>(layer: &LimitLayer<S>, served: &Arc<AtomicUsize>) -> LimitedService {
    let served = Arc::clone(served);
    let counts = service_fn(move |_: Request<Body>| {
        served.fetch_add(1, Ordering::SeqCst);
        async { Ok(Response::new(Body::empty())) }
    });
    BoxCloneService::new(layer.layer(counts))
}

/// Asks so many times, in this order, and says what came back when, in milliseconds.
async fn asked<S: Store + 'static>(layer: LimitLayer<S>, times: usize) -> Vec<(u16, u128)> {
    let (start, served) = (Instant::now(), Arc::default());
    let service = service(&layer, &served);
    let mut tasks = Vec::new();
    for _ in 0..times {
        let response = service.clone().oneshot(Request::new(Body::empty()));
        tasks.push(tokio::spawn(async move {
            let status = response.await.unwrap().status().as_u16();
            (status, start.elapsed().as_millis())
        }));
        settle().await;
    }
    let mut replies = Vec::new();
    for task in tasks {
        replies.push(task.await.unwrap());
    }
    replies
}

fn assert_near(replies: &[(u16, u128)], expected: &[(u16, u128)]) {
    let near = |(got, want): (&(u16, u128), &(u16, u128))| {
        got.0 == want.0 && (want.1..want.1 + 5).contains(&got.1)
    };
    let alike = replies.len() == expected.len() && replies.iter().zip(expected).all(near);
    assert!(alike, "{replies:?}, and not about {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_serves_at_its_rate_and_refuses_beyond_the_patience() {
    let expected = [(200, 0), (200, 1_000), (200, 2_000), (429, 0), (429, 0)];
    let patience = Duration::from_millis(2_500);

    let near = LimitLayer::new(embedded(queue()), "shop").patience(patience);
    assert_near(&asked(near, 5).await, &expected);
    let far = LimitLayer::new(remote(queue()), "shop").patience(patience);
    assert_near(&asked(far, 5).await, &expected);
}

#[tokio::test(start_paused = true)]
async fn without_patience_nobody_waits() {
    let layer = LimitLayer::new(embedded(queue()), "shop");
    assert_near(&asked(layer, 3).await, &[(200, 0), (429, 0), (429, 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_window_refuses_at_once_however_patient_one_is() {
    let set = rules(1, [with(rule("window", &[], &["1 per 1s"]), FixedWindow::default())]);
    let layer = LimitLayer::new(embedded(set), "shop").patience(Duration::from_secs(9));
    assert_near(&asked(layer, 2).await, &[(200, 0), (429, 0)]);
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may() {
    let layer = LimitLayer::new(embedded(queue()), "shop").patience(Duration::from_secs(9));
    let layer = layer.max_waiting(2);
    let expected = [(200, 0), (200, 1_000), (200, 2_000), (429, 0)];
    assert_near(&asked(layer.clone(), 4).await, &expected);

    // Those two are gone, so two may wait again, behind the third second.
    let replies = asked(layer, 3).await;
    assert_near(&replies, &[(200, 1_000), (200, 2_000), (429, 0)]);
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_gives_back_what_every_limit_charged() {
    let set = rules(
        1,
        [
            with(rule("queue", &[], &["1 per 1s burst 10"]), LeakyQueue),
            with(rule("bucket", &[], &["3 per 1h"]), TokenBucket),
            with(rule("slots", &[], &["2 per 1h"]), Concurrency),
        ],
    );
    for trip in [false, true] {
        if trip {
            leave(remote(set.clone())).await;
        } else {
            leave(embedded(set.clone())).await;
        }
    }
}

async fn leave<S: Store + 'static>(limiter: Limiter<S>) {
    let served = Arc::default();
    let layer = LimitLayer::new(limiter.clone(), "shop").patience(Duration::from_secs(9));
    let service = service(&layer, &served);
    let request = || Request::new(Body::empty());
    drop(service.clone().oneshot(request()).await.unwrap());
    let waits = tokio::spawn(service.clone().oneshot(request()));
    settle().await;
    let left = async |rule: &str| {
        let explained = limiter.explain(&Ask::new("shop")).await;
        explained.counters.iter().find(|counter| counter.rule == rule).unwrap().remaining
    };
    assert_eq!((left("bucket").await, left("slots").await), (1, 1));

    waits.abort();
    settle().await;

    assert_eq!((left("bucket").await, left("slots").await), (2, 2));
    let start = Instant::now();
    drop(service.oneshot(request()).await.unwrap());
    assert!(start.elapsed() < Duration::from_millis(1_005), "the place was free again");
    assert_eq!(served.load(Ordering::SeqCst), 2, "who left was never served");
}

/// Lets the server and its clients run until this holds. Tokio's clock stands still meanwhile, so
/// its timeouts would never end this.
async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    for _ in 0..60_000 {
        if holds().await {
            return;
        }
        let moment = || std::thread::sleep(Duration::from_millis(1));
        tokio::task::spawn_blocking(moment).await.unwrap();
    }
    panic!("it did not come true within a minute");
}

/// A client on a thread of its own, which reads until the server closes.
fn client(address: SocketAddr) -> (TcpStream, JoinHandle<String>) {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut own = stream.try_clone().unwrap();
    let reply = tokio::task::spawn_blocking(move || {
        let request = b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n";
        own.write_all(request).unwrap();
        let mut reply = String::new();
        own.read_to_string(&mut reply).unwrap();
        reply
    });
    (stream, reply)
}

#[tokio::test(start_paused = true)]
async fn clients_on_sockets_wait_in_order_and_one_that_goes_away_frees_its_place() {
    let limiter = embedded(queue());
    let layer = LimitLayer::new(limiter.clone(), "shop").patience(Duration::from_secs(9));
    let server = serve(layer).await;
    let admitted = |count: u64| {
        let limiter = limiter.clone();
        until(move || {
            let admitted = limiter.stats().admitted;
            async move { admitted == count }
        })
    };
    let (_first, reply) = client(server.address);
    assert!(reply.await.unwrap().starts_with("HTTP/1.1 200 "));

    let (_second, second) = client(server.address);
    admitted(2).await;
    let (gone, leaves) = client(server.address);
    admitted(3).await;
    assert!(!second.is_finished(), "a place is a second away, and no time has passed");

    gone.shutdown(Shutdown::Both).unwrap();
    assert_eq!(leaves.await.unwrap(), "");
    // The place behind the second is free again once the server has noticed.
    let line = Ask::new("shop");
    until(|| async {
        let explained = limiter.explain(&line).await;
        explained.counters.first().unwrap().remaining == 9
    })
    .await;

    advance(Duration::from_millis(1_001)).await;
    let reply = second.await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    assert!(reply.contains("ratelimit: \"queue\";r="), "{reply}");
}
