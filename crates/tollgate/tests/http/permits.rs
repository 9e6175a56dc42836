//! Concurrency permits are held until the body ends, and leak from nobody.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Notify, mpsc};
use tollgate::Concurrency;
use tollgate::Limiter;
use tollgate::Store;
use tollgate::http::{LimitLayer, RequestPermits};
use tollgate::{Ask, RuleSet};

use crate::common::{StoreConnection, backend, rule, rules, with};
use crate::wire::{Server, limiter, serve_app, until};

fn one_at_once() -> RuleSet {
    rules(1, [with(rule("one", &[], &["1 per 1h"]), Concurrency)])
}

/// A body that ends when its sender is dropped.
struct ChannelBody(mpsc::Receiver<Bytes>);

impl http_body::Body for ChannelBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

/// The state that a test shares with the handlers of its server.
#[derive(Default)]
struct HandlerState {
    body: Mutex<Option<mpsc::Sender<Bytes>>>,
    entered: Notify,
}

async fn server<S: Store + 'static>(limiter: &Limiter<S>) -> (Server, Arc<HandlerState>) {
    let state = Arc::new(HandlerState::default());
    let (streams, hangs) = (Arc::clone(&state), Arc::clone(&state));
    let stream = move || async move {
        let (sender, receiver) = mpsc::channel(1);
        sender.send(Bytes::from_static(b"begun")).await.unwrap();
        *streams.body.lock().await = Some(sender);
        Body::new(ChannelBody(receiver))
    };
    let hang = move || async move {
        hangs.entered.notify_one();
        std::future::pending::<&str>().await
    };
    let panic = || async { if true { panic!("as ordered") } else { "no" } };
    let app = Router::new()
        .route("/", get(|| async { "ok" }))
        .route("/stream", get(stream))
        .route("/hang", get(hang))
        .route("/panic", get(panic))
        .layer(LimitLayer::new(limiter.clone(), "shop"));
    (serve_app(app).await, state)
}

/// Sends a request and keeps the connection.
async fn open(server: &Server, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn read_until(stream: &mut TcpStream, needle: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 1024];
    while !text.contains(needle) {
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut buffer));
        let count = read.await.expect("an answer").unwrap();
        assert!(count > 0, "closed after {text}");
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
    text
}

async fn is_free<S: Store + 'static>(limiter: &Limiter<S>) -> bool {
    limiter.peek(&Ask::new("shop")).await.passes()
}

#[tokio::test]
async fn a_permit_is_held_until_the_body_ends() {
    let limiter = limiter(one_at_once());
    let (server, state) = server(&limiter).await;
    let mut stream = open(&server, "/stream").await;
    let head = read_until(&mut stream, "begun").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");

    let refused = server.get(&[]).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.field("ratelimit"), Some("\"one\";r=0"));

    *state.body.lock().await = None;
    read_until(&mut stream, "0\r\n\r\n").await;
    until(|| is_free(&limiter)).await;
    assert_eq!(server.get(&[]).await.status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_during_the_body_gives_its_permit_back() {
    let limiter = limiter(one_at_once());
    let (server, state) = server(&limiter).await;
    let mut stream = open(&server, "/stream").await;
    read_until(&mut stream, "begun").await;
    assert!(!is_free(&limiter).await);

    drop(stream);

    let sender = state.body.lock().await.clone().unwrap();
    until(|| async {
        // The server notices when it writes.
        let _ = sender.try_send(Bytes::from_static(b"more"));
        is_free(&limiter).await
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_during_the_handler_gives_its_permit_back() {
    let limiter = limiter(one_at_once());
    let (server, state) = server(&limiter).await;
    let stream = open(&server, "/hang").await;
    state.entered.notified().await;
    assert!(!is_free(&limiter).await);

    drop(stream);

    until(|| is_free(&limiter)).await;
}

#[tokio::test]
async fn a_handler_that_panics_gives_its_permit_back() {
    let limiter = limiter(one_at_once());
    let (server, _state) = server(&limiter).await;
    let mut stream = open(&server, "/panic").await;
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 0, "the connection is closed");

    until(|| is_free(&limiter)).await;
    assert_eq!(server.get(&[]).await.status, 200);
}

#[tokio::test]
async fn the_same_holds_on_a_store_that_takes_a_trip() {
    let limiter = Limiter::builder(StoreConnection::to(&backend())).rules(one_at_once()).build();
    let (server, state) = server(&limiter).await;

    let mut panics = open(&server, "/panic").await;
    assert_eq!(panics.read(&mut [0; 16]).await.unwrap(), 0, "it has run, and is closed");
    until(|| is_free(&limiter)).await;
    let stream = open(&server, "/hang").await;
    state.entered.notified().await;
    assert_eq!(server.get(&[]).await.status, 429);
    drop(stream);
    until(|| is_free(&limiter)).await;

    assert_eq!(server.get(&[]).await.status, 200);
}

#[tokio::test]
async fn a_response_without_a_body_holds_nothing() {
    let limiter = limiter(one_at_once());
    let (server, _state) = server(&limiter).await;

    for _ in 0..20 {
        assert_eq!(server.get(&[]).await.status, 200);
        until(|| is_free(&limiter)).await;
    }
    assert_eq!(server.ask("HEAD", "/", &[]).await.status, 200);
    until(|| is_free(&limiter)).await;
}

/// The bytes after an upgrade are no response any more.
#[tokio::test]
async fn an_upgrade_gives_its_permit_back_unless_the_handler_takes_it_over() {
    let limiter = limiter(one_at_once());
    let (server, mut stream) = upgraded(&limiter, Permit::Left).await;
    until(|| is_free(&limiter)).await;
    echo(&mut stream).await;
    assert_eq!(server.get(&[]).await.status, 101, "another one may come");
    until(|| is_free(&limiter)).await;

    let (server, mut stream) = upgraded(&limiter, Permit::TakenOver).await;
    for _ in 0..3 {
        echo(&mut stream).await;
        assert_eq!(server.get(&[]).await.status, 429, "the connection goes on");
    }
    drop(stream);
    until(|| is_free(&limiter)).await;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Permit {
    Left,
    TakenOver,
}

async fn echo(stream: &mut TcpStream) {
    stream.write_all(b"ping").await.unwrap();
    read_until(stream, "ping").await;
}

/// A server that upgrades every connection, and one that it has upgraded.
async fn upgraded<S: Store + 'static>(limiter: &Limiter<S>, permit: Permit) -> (Server, TcpStream) {
    let upgrade = async move |mut request: axum::extract::Request| {
        let permits = request.extensions().get::<RequestPermits>().unwrap().clone();
        let permits = (permit == Permit::TakenOver).then(|| permits.take());
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut echo = hyper_util::rt::TokioIo::new(upgraded.await.unwrap());
            let mut bytes = [0; 4];
            while echo.read_exact(&mut bytes).await.is_ok() {
                echo.write_all(&bytes).await.unwrap();
            }
            drop(permits);
        });
        let reply = http::Response::builder().status(101).header("upgrade", "echo");
        reply.header("connection", "upgrade").body(Body::empty()).unwrap()
    };
    let app = Router::new().route("/", get(upgrade));
    let server = serve_app(app.layer(LimitLayer::new(limiter.clone(), "shop"))).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("ratelimit: \"one\";r=0\r\n"), "it was counted: {head}");
    (server, stream)
}
