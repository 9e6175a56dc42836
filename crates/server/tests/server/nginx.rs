//! Forward-auth with a real nginx before a toy upstream, by the recipe of `docs/server.md`.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::{Reply, Running, TempDir, ask, metric, start_with};

/// A server behind nginx that says what it was asked for, and nothing else.
struct Upstream {
    at: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, asked) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let heard = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let Some(Ok(first)) = lines.next() else { continue };
                while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                heard.lock().unwrap().push(first);
                let _ = stream.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\ntoy",
                );
            }
        });
        Self { at, asked }
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

/// nginx, as one process that is ended with the test.
struct Nginx {
    child: Child,
    at: SocketAddr,
    _dir: TempDir,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The `nginx` block of the documentation, with the addresses of this test in it.
fn recipe(limits: SocketAddr, upstream: SocketAddr) -> String {
    let page = include_str!("../../../../docs/server.md");
    let block = page.split("```nginx\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(block.contains("http://127.0.0.1:8080/v1/auth") && block.contains("127.0.0.1:3000"));
    block
        .replace("127.0.0.1:8080", &limits.to_string())
        .replace("127.0.0.1:3000", &upstream.to_string())
}

impl Nginx {
    fn start(recipe: &str) -> Self {
        // nginx cannot take a free port itself, so one that somebody else was faster to take is
        // tried again.
        for _ in 0..20 {
            let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            if let Some(nginx) = Self::start_at(at, recipe) {
                return nginx;
            }
        }
        panic!("nginx does not start on any port");
    }

    fn start_at(at: SocketAddr, recipe: &str) -> Option<Self> {
        let dir = TempDir::new();
        let path = dir.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {path}/{kind};\n"))
            .concat();
        let conf = format!(
            "daemon off;\nmaster_process off;\npid {path}/nginx.pid;\nerror_log stderr;\n\
             events {{}}\nhttp {{\naccess_log off;\n{temporary}\
             server {{\nlisten {at};\n{recipe}\n}}\n}}\n"
        );
        std::fs::write(dir.path().join("nginx.conf"), conf).unwrap();
        // Where only root looks, on some systems.
        let usual = std::path::Path::new("/usr/sbin/nginx");
        let program = if usual.exists() { usual } else { std::path::Path::new("nginx") };
        let mut child = Command::new(program)
            .args(["-p", &path.to_string(), "-c", &format!("{path}/nginx.conf")])
            .args(["-e", "stderr"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("nginx does not run ({error}): see .ci/clients-are-here")
            });
        for _ in 0..3_000 {
            if child.try_wait().unwrap().is_some() {
                return None;
            }
            if TcpStream::connect(at).is_ok() {
                return Some(Self { child, at, _dir: dir });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

async fn limits() -> Running {
    start_with(|settings| {
        settings.trust = tollgate::http::Trust::proxies(["127.0.0.0/8"]).unwrap();
        let rules = settings.rules.as_ref().unwrap();
        let text = super::support::RULES
            .replace("2 per 1m", "2 per 1h")
            .replace("203.0.113.66", "203.0.113.66, 127.0.0.2");
        std::fs::write(rules, text).unwrap();
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_asks_and_says_429_when_it_is_too_often() {
    let running = limits().await;
    let upstream = Upstream::start();
    let nginx = Nginx::start(&recipe(running.http, upstream.at));
    let login = || ask(nginx.at, "POST /login?next=/", "name=eve");

    let first = login();
    assert_eq!((first.status, first.body.as_str()), (200, "toy"));
    assert!(first.header("ratelimit").unwrap().starts_with("\"login-per-ip\";r=1;t="), "{first:?}");
    assert_eq!(login().status, 200);
    let refused = login();
    assert_eq!(refused.status, 429, "{refused:?}");
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3_600).contains(&retry), "{refused:?}");
    assert_eq!(upstream.asked(), 2, "who is refused never gets there");
    assert_eq!(ask(nginx.at, "GET /", "").status, 200, "another path has no limit");

    let outcome = |outcome: &str| {
        let name =
            format!("tollgate_requests_total{{protocol=\"forward-auth\",outcome=\"{outcome}\"}}");
        metric(running.admin, &name)
    };
    assert_eq!([outcome("allowed"), outcome("refused"), outcome("error")], [3, 1, 0]);
}

/// Headers of a client do not override those of nginx.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_speaks_for_nginx() {
    let running = limits().await;
    let upstream = Upstream::start();
    let nginx = Nginx::start(&recipe(running.http, upstream.at));
    for _ in 0..2 {
        assert_eq!(ask(nginx.at, "POST /login", "").status, 200);
    }

    for spoofed in [
        "X-Original-URI: /",
        "X-Original-Method: GET",
        "X-Forwarded-Uri: /",
        "X-Forwarded-Method: GET",
        "X-Forwarded-Uri: /\r\nX-Forwarded-Method: GET\r\nX-Original-URI: /\r\nX-Original-Method: GET",
        "X-Forwarded-For: 10.9.0.1",
        "Forwarded: for=10.9.0.1",
        "X-Real-IP: 10.9.0.1",
        "X-Tollgate-Domain: nowhere",
        "X-Original-URI: /login?domain=nowhere",
    ] {
        let reply: Reply = ask(nginx.at, &format!("POST /login\r\n{spoofed}"), "");
        assert_eq!(reply.status, 429, "{spoofed}: {reply:?}");
    }
    for (target, status) in [
        ("/login?domain=nowhere", 429),
        ("/login?refuse=200", 429),
        ("/%6cogin", 429),
        // Paths that the service may read in another way than the rules do are refused.
        ("//login", 403),
        ("/./login", 403),
        ("/users/..", 403),
    ] {
        assert_eq!(ask(nginx.at, &format!("POST {target}"), "").status, status, "{target}");
    }
    assert_eq!(ask(nginx.at, "GET /_limit", "").status, 404, "internal");
    assert_eq!(upstream.asked(), 2);
    assert_eq!(ask(nginx.at, "POST /login\r\nX-Original-URI: /", "").status, 429);
}

/// Without an answer nobody passes, and a client that is blocked is told so.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_blocked_is_403_and_without_limits_nobody_passes() {
    let running = limits().await;
    let upstream = Upstream::start();
    let nginx = Nginx::start(&recipe(running.http, upstream.at));
    let blocked = {
        // From an address that the rules block.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect(nginx.at).await.unwrap().into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut reply = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut reply).unwrap();
        super::support::parse(&reply).status
    };
    assert_eq!(blocked, 403);
    let limits = running.http;
    running.server.stop().await;

    assert_eq!(ask(nginx.at, "GET /", "").status, 500);
    assert_eq!(upstream.asked(), 0);
    let open = recipe(limits, upstream.at)
        .replace("    internal;\n", "    internal;\n    error_page 502 504 =204 @open;\n");
    let nginx = Nginx::start(&format!("{open}\nlocation @open {{ return 204; }}\n"));
    assert_eq!(ask(nginx.at, "GET /", "").status, 200, "unless it is told to let everybody pass");
}
