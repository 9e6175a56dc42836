//! Servers on free ports, and clients that speak bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_server::settings::Settings;
use tollgate_server::telemetry::log::LevelHandle;
use tollgate_server::{Listener, Server};

/// Rules that the tests share: two a minute by address for logins, three an hour by user, and tokens
/// that are reserved.
pub(crate) const RULES: &str = "
version: 1
domain: shop
rules:
  - name: login-per-ip
    match: { path: /login, method: POST }
    by: [ip]
    limits: [2 per 1m]
  - name: per-user
    by: [user]
    scenario: payment
    limits: [3 per 1h]
lists:
  exempt: [10.9.0.0/16]
  block: [203.0.113.66]
";

/// A server that ends with its test.
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) http: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) dir: TempDir,
}

/// Settings on free ports, with the rules of the tests in a file.
pub(crate) fn settings(dir: &TempDir) -> Settings {
    let rules = dir.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    Settings {
        rules: Some(rules),
        rules_poll: Duration::from_millis(20),
        drain_timeout: Duration::from_secs(2),
        ..Settings::on_free_ports()
    }
}

pub(crate) async fn start() -> Running {
    start_with(|_| {}).await
}

pub(crate) async fn start_with(change: impl FnOnce(&mut Settings)) -> Running {
    let dir = TempDir::new();
    let mut settings = settings(&dir);
    change(&mut settings);
    let server = Server::start(settings, LevelHandle::default()).await.unwrap();
    let at = |listener| server.address(listener).unwrap();
    let (http, resp, admin) = (at(Listener::Http), at(Listener::Resp), at(Listener::Admin));
    Running { server, http, resp, admin, dir }
}

/// A directory that ends with its test.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-server-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Until when something must have happened: 3000 looks, 10 ms apart. It takes a few; the rest is for
/// machines that are busy with something else.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to be so: {what}");
}

/// A connection that does not wait for ever.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A response over HTTP.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Sends bytes, and reads until the server closes.
pub(crate) fn raw(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    // A server that has refused already may have closed.
    let _ = stream.write_all(bytes);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    reply
}

/// One request on a connection of its own. `head` is the method and target, and further lines.
pub(crate) fn ask(address: SocketAddr, head: &str, body: &str) -> Reply {
    let (first, rest) = head.split_once("\r\n").unwrap_or((head, ""));
    let rest = if rest.is_empty() { String::new() } else { format!("{rest}\r\n") };
    let length = body.len();
    let text = format!(
        "{first} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n{rest}\r\n{body}"
    );
    parse(&raw(address, text.as_bytes()))
}

pub(crate) fn parse(bytes: &[u8]) -> Reply {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or(0);
    Reply { status, head: head.to_owned(), body: body.to_owned() }
}

/// A check over HTTP, as clients send it: in one piece, on a connection that stays.
pub(crate) fn check(address: SocketAddr, body: &str) -> Reply {
    let mut stream = connect(address);
    stream.write_all(whole_check("", body).as_bytes()).unwrap();
    reply(&mut stream)
}

/// The text of a check, with these further lines in its head.
pub(crate) fn whole_check(lines: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{lines}\r\n{body}"
    )
}

/// The next answer on a connection that stays.
pub(crate) fn reply(stream: &mut impl Read) -> Reply {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let length = parse(&bytes).header("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    bytes.extend(body);
    parse(&bytes)
}

/// The metrics, as names with labels and numbers.
pub(crate) fn metric(admin: SocketAddr, name: &str) -> u64 {
    let page = ask(admin, "GET /metrics", "").body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

/// Counts of a protocol: requests allowed, refused, degraded and in error.
pub(crate) fn outcomes(admin: SocketAddr, protocol: &str) -> [u64; 4] {
    ["allowed", "refused", "degraded", "error"].map(|outcome| {
        metric(
            admin,
            &format!("tollgate_requests_total{{protocol=\"{protocol}\",outcome=\"{outcome}\"}}"),
        )
    })
}

/// A client of the Redis protocol that sends and expects bytes.
pub(crate) struct Wire(pub(crate) TcpStream);

impl Wire {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self(connect(address))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Sends words as an array of bulk strings.
    pub(crate) fn command(&mut self, words: &[&str]) {
        self.send(&encode(words));
    }

    /// Reads exactly so many bytes as are expected, and compares.
    pub(crate) fn expect(&mut self, expected: &[u8]) {
        let mut got = vec![0; expected.len()];
        if let Err(error) = self.0.read_exact(&mut got) {
            panic!("{error} instead of {}", expected.escape_ascii());
        }
        assert_eq!(got.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    /// Sends words, and expects bytes.
    pub(crate) fn asks(&mut self, words: &[&str], expected: &[u8]) {
        self.command(words);
        self.expect(expected);
    }

    /// Sends all commands in one write, so that no time passes between them, and compares replies.
    pub(crate) fn all(&mut self, rows: &[(&[&str], Vec<u8>)]) {
        let bytes: Vec<u8> = rows.iter().flat_map(|(words, _)| encode(words)).collect();
        self.send(&bytes);
        for (_, expected) in rows {
            self.expect(expected);
        }
    }

    /// Sends words, and returns one line of the reply.
    pub(crate) fn line(&mut self, words: &[&str]) -> String {
        self.command(words);
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    /// Reads until the server closes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest);
        rest
    }
}

pub(crate) fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}
