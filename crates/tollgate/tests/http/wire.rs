//! A server on a socket, and a client that writes bytes.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate::RuleSet;
use tollgate::Store;
use tollgate::http::LimitLayer;
use tollgate::{EmbeddedStore, Limiter};
use tollgate_core::testing::ManualClock;

/// A store whose time stands still.
pub(crate) type ManualClockStore = EmbeddedStore<ManualClock>;

pub(crate) fn limiter(set: RuleSet) -> Limiter<ManualClockStore> {
    Limiter::builder(EmbeddedStore::builder().with_clock(ManualClock::default())).rules(set).build()
}

/// Answers `ok` to whatever passes the layer.
pub(crate) async fn serve<S: Store + 'static>(layer: LimitLayer<S>) -> Server {
    serve_app(Router::new().fallback(any(|| async { "ok" })).layer(layer)).await
}

pub(crate) async fn serve_app(app: Router) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    Server { address }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
}

/// A response, as it came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    /// The one value of a field; `None` if it is not there.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let lines = self.lines(name);
        assert!(lines.len() < 2, "{name} has several lines: {lines:?}");
        lines.first().copied()
    }

    pub(crate) fn lines(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(known, _)| known == name);
        named.map(|(_, value)| value.as_str()).collect()
    }
}

impl Server {
    /// `GET /` with these lines of headers, each as it is.
    pub(crate) async fn get(&self, headers: &[&str]) -> Reply {
        self.ask("GET", "/", headers).await
    }

    pub(crate) async fn ask(&self, method: &str, target: &str, headers: &[&str]) -> Reply {
        let mut lines = headers.to_vec();
        if !headers.iter().any(|line| line.to_ascii_lowercase().starts_with("host:")) {
            lines.push("Host: shop.example");
        }
        let head = format!("{method} {target} HTTP/1.1\r\n{}\r\n", lines.join("\r\n"));
        self.raw(format!("{head}Connection: close\r\n\r\n").as_bytes()).await
    }

    pub(crate) async fn raw(&self, bytes: &[u8]) -> Reply {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut reply = Vec::new();
        let read = stream.read_to_end(&mut reply);
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("an answer").unwrap();
        parse(&String::from_utf8(reply).unwrap())
    }

    /// The statuses of so many equal requests.
    pub(crate) async fn statuses(&self, times: usize, headers: &[&str]) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..times {
            statuses.push(self.get(headers).await.status);
        }
        statuses
    }
}

fn parse(text: &str) -> Reply {
    let (head, body) = text.split_once("\r\n\r\n").expect("a whole head");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap().parse().unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    });
    Reply { status, headers: headers.collect(), body: body.to_owned() }
}

/// Lets others run until this holds.
pub(crate) async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("to come true");
}
