//! The program killed again and again under load, on Redis (B17).
//!
//! Clients ask over HTTP and over the Redis protocol for keys whose limits do not come back, and go on
//! with the next server when theirs is gone. At the end each key has admitted no more than its limit,
//! and no less than that but what was on its way at a kill; and no key in Redis is without an end.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tollgate_harness::{RedisServer, Reply};

use super::program::{Program, serve};
use super::support::{TempDir, encode};

/// Keys of each protocol.
const KEYS: u64 = 4;

/// Clients of each protocol, each with one request under way.
const CLIENTS: u64 = 2;

/// Kills of the server: ten, or `TOLLGATE_SOAK` times that.
fn kills() -> u64 {
    let soak = std::env::var("TOLLGATE_SOAK").ok().and_then(|text| text.parse::<u64>().ok());
    10 * soak.unwrap_or(1).max(1)
}

/// State that the clients share.
struct Load {
    /// The listeners of the server that lives: HTTP, RESP.
    listeners: Mutex<(SocketAddr, SocketAddr)>,
    limit: u64,
    /// Answers that came.
    answered: AtomicU64,
    done: AtomicBool,
}

/// Answers to a key: the number of admissions, and whether it was refused.
type KeyOutcomes = HashMap<String, (u64, bool)>;

#[test]
fn kill_9_under_load_neither_admits_too_much_nor_leaves_a_key_for_ever() {
    let kills = kills();
    let limit = 10 * kills;
    let redis = RedisServer::start().unwrap();
    let dir = TempDir::new();
    let rules = dir.path().join("rules.yaml");
    let text = format!(
        "version: 1\ndomain: shop\nrules:\n  - name: per-user\n    by: [user]\n    \
         on-outage: refuse\n    limits: [\"{limit} per 24h\"]\n"
    );
    std::fs::write(&rules, text).unwrap();
    let start = || {
        let rules = rules.to_str().unwrap();
        // A busy machine is no outage.
        serve(&["--rules", rules, "--store-deadline=20s"], &[("TOLLGATE_STORE", &redis.url())])
    };
    let mut server = start();
    let load = Load {
        listeners: Mutex::new((server.at[0], server.at[1])),
        limit,
        answered: AtomicU64::new(0),
        done: AtomicBool::new(false),
    };

    let told = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .flat_map(|_| [scope.spawn(|| load.http()), scope.spawn(|| load.resp())])
            .collect();
        for kill in 0..kills {
            if kill % 100 == 99 {
                eprintln!("{kill} of {kills} kills");
            }
            let before = load.answered.load(Ordering::Relaxed);
            while load.answered.load(Ordering::Relaxed) < before + 2 * KEYS {
                std::thread::yield_now();
            }
            server.child.kill().unwrap();
            server.child.wait().unwrap();
            server = start();
            *load.listeners.lock().unwrap() = (server.at[0], server.at[1]);
        }
        load.done.store(true, Ordering::Relaxed);
        let mut all = KeyOutcomes::new();
        for told in clients.into_iter().map(|client| client.join().unwrap()) {
            for (key, (admitted, refused)) in told {
                let entry = all.entry(key).or_default();
                *entry = (entry.0 + admitted, entry.1 | refused);
            }
        }
        all
    });

    assert_eq!(told.len() as u64, 2 * KEYS);
    for (key, (admitted, refused)) in &told {
        assert!(refused, "{key} was asked for until it was refused");
        assert!(*admitted <= limit, "{key}: {admitted} of {limit}");
        let lost = limit - admitted;
        assert!(lost <= kills * CLIENTS, "{key}: {lost} were charged and never answered");
    }
    let script = b"local n = 0; for _, k in ipairs(redis.call('KEYS', '*')) do if redis.call('PTTL', k) == -1 then n = n + 1 end end; return n";
    assert_eq!(redis.command(&[b"EVAL", script, b"0"]).unwrap(), Reply::Integer(0));
    drop::<Program>(server);
}

impl Load {
    /// Asks for one key after the other until the kills are over and each was refused.
    fn ask(&self, name: &str, mut one: impl FnMut(&str) -> Option<bool>) -> KeyOutcomes {
        let mut told = KeyOutcomes::new();
        for number in (0..KEYS).cycle() {
            let key = format!("{name}{number}");
            if let Some(passes) = one(&key) {
                let entry = told.entry(key).or_default();
                entry.0 += u64::from(passes);
                entry.1 |= !passes;
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            let over = told.len() as u64 == KEYS && told.values().all(|(_, refused)| *refused);
            if over && self.done.load(Ordering::Relaxed) {
                break;
            }
        }
        told
    }

    fn http(&self) -> KeyOutcomes {
        let mut stream = None;
        self.ask("http", |key| {
            let at = self.listeners.lock().unwrap().0;
            let body = format!(r#"{{"domain":"shop","attributes":{{"user":"{key}"}}}}"#);
            let request = format!(
                "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let answer = exchange(&mut stream, at, request.as_bytes(), |bytes| {
                let text = std::str::from_utf8(bytes).ok()?;
                let (head, body) = text.split_once("\r\n\r\n")?;
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
                (body.len() == length.parse::<usize>().unwrap()).then(|| body.to_owned())
            })?;
            assert!(answer.contains("\"degraded\":false"), "{answer}");
            Some(answer.contains("\"allowed\":true"))
        })
    }

    fn resp(&self) -> KeyOutcomes {
        let (mut stream, burst) = (None, (self.limit - 1).to_string());
        self.ask("resp", |key| {
            let at = self.listeners.lock().unwrap().1;
            // An hour each: ten thousand of them are a year, and no limit may reach much further.
            let command = encode(&["CL.THROTTLE", key, &burst, "1", "3600"]);
            let answer = exchange(&mut stream, at, &command, |bytes| {
                let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
                let error = lines == 1 && bytes.starts_with(b"-");
                (lines == 6 || error).then(|| String::from_utf8(bytes.to_vec()).unwrap())
            })?;
            assert!(answer.starts_with("*5\r\n"), "{answer}");
            Some(answer.starts_with("*5\r\n:0\r\n"))
        })
    }
}

/// Sends, and reads until the answer is whole; `None` if the server is gone.
fn exchange<T>(
    stream: &mut Option<std::net::TcpStream>,
    at: SocketAddr,
    request: &[u8],
    whole: impl Fn(&[u8]) -> Option<T>,
) -> Option<T> {
    let mut open = match stream.take() {
        Some(open) if open.peer_addr().is_ok_and(|peer| peer == at) => open,
        _ => std::net::TcpStream::connect(at).ok()?,
    };
    open.set_read_timeout(Some(std::time::Duration::from_secs(60))).ok()?;
    open.set_nodelay(true).ok()?;
    open.write_all(request).ok()?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        match open.read(&mut chunk) {
            Ok(0) | Err(_) => return None,
            Ok(length) => answer.extend_from_slice(&chunk[..length]),
        }
        if let Some(answer) = whole(&answer) {
            *stream = Some(open);
            return Some(answer);
        }
    }
}
