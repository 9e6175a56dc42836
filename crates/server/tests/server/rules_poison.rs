//! B20: ten thousand rule sets that somebody spoilt, through every source. None of them changes a
//! decision, is taken for an empty set, or ends the server.

use std::sync::Arc;

use tollgate::rules::{self as files, Format};
use tollgate_harness::RedisServer;
use tollgate_server::{ServerState, rules};

use super::rules_redis::{KEY, hset, store, version};
use super::support::{ask, check, metric, start};
use super::{rules_hashes, rules_redis};

const POISONS: usize = 10_000;

/// Texts that make rules invalid.
const PARTS: [&str; 26] = [
    "",
    "\0",
    "{",
    "]",
    ": ",
    "- ",
    "\t",
    "version: 2\n",
    "version: -1\n",
    "version: 99999999999999999999\n",
    "limits: [0 per 1m]\n",
    "limits: [NaN per 1m]\n",
    "limits: [1 per 0s]\n",
    "limits: [1e400 per 1s]\n",
    "<<: *a\n",
    "&a ",
    "!!x ",
    "rules:\n",
    "  - name: login-per-ip\n",
    "replaces: [login-per-ip]\n",
    "replaces: [per-user]\n",
    "\u{202e}",
    "\u{feff}",
    "'",
    "\"",
    "\n---\n",
];

/// Numbers that are the same at every run.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }

    fn spoilt(&mut self, text: &str) -> String {
        let mut spoilt = text.to_owned();
        for _ in 0..=self.below(3) {
            let at = spoilt.floor_char_boundary(self.below(spoilt.len() + 1));
            if self.below(2) == 0 {
                spoilt.insert_str(at, PARTS[self.below(PARTS.len())]);
            } else {
                spoilt.truncate(at);
            }
        }
        spoilt
    }

    /// Rules of version 2 that are no rules any more.
    fn poison(&mut self) -> String {
        loop {
            let spoilt = self.spoilt(&version(2));
            if files::load(&spoilt, Format::Yaml).is_err() {
                return spoilt;
            }
        }
    }
}

/// The rules that apply, and what they decide.
fn decisions(state: &ServerState, http: std::net::SocketAddr) -> (String, Vec<serde_json::Value>) {
    let asks = [
        r#"{"domain":"shop","attributes":{"ip":"203.0.113.66"}}"#,
        r#"{"domain":"shop","attributes":{"user":"u"},"cost":4}"#,
        r#"{"domain":"default","attributes":{"path":"/login","method":"POST"},"cost":3}"#,
        r#"{"domain":"default","cost":101}"#,
    ];
    let text = files::write(state.limiter.rules().declaration(), Format::Yaml);
    (text, asks.iter().map(|ask| check(http, ask).json()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn poisoned_files_change_no_decision() {
    let running = start().await;
    let state = running.server.state();
    let before = decisions(state, running.http);
    let file = running.dir.path().join("rules.yaml");
    let mut draw = Random(7);
    for _ in 0..POISONS {
        std::fs::write(&file, draw.poison()).unwrap();
        // The follower or this call reloads first, and rejects it.
        let _ = state.rules.reload_file(&state.limiter);
    }
    assert_eq!(decisions(state, running.http), before);
    assert!(metric(running.admin, "tollgate_rules_rejected_total") > 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn poisoned_offers_change_no_decision() {
    let running = start().await;
    let state: &Arc<ServerState> = running.server.state();
    let before = decisions(state, running.http);
    let mut draw = Random(8);
    for number in 0..POISONS {
        let poison = draw.poison();
        if number % 25 == 0 {
            let head = "PUT /v1/rules\r\nContent-Type: application/yaml\r\nIf-Match: \"1\"";
            assert_eq!(ask(running.admin, head, &poison).status, 400, "{poison}");
        } else {
            let offered = rules::put(state, 1, poison.clone(), Format::Yaml, "mallory").await;
            assert!(offered.is_err(), "{poison}");
        }
    }
    assert_eq!(decisions(state, running.http), before);
    let rejected = metric(running.admin, "tollgate_rules_rejected_total");
    assert_eq!(rejected, u64::try_from(POISONS).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn poisoned_sets_in_redis_change_no_decision() {
    let redis = RedisServer::start().unwrap();
    store(&redis, KEY, 1, &version(1));
    let running = rules_redis::on(&redis, |settings| {
        settings.rules_poll = std::time::Duration::from_secs(3_600);
    })
    .await;
    let state = running.server.state();
    let before = decisions(state, running.http);
    let command = |words: &[&[u8]]| drop(redis.command(words).unwrap());
    let mut draw = Random(9);
    for number in 0..POISONS {
        let poison = draw.poison();
        let (key, text) = (KEY.as_bytes(), poison.as_bytes());
        match number % 8 {
            // With a sum that fits: only the text is wrong.
            0..4 => store(&redis, KEY, 2, &poison),
            4 => hset(&redis, KEY, &[("text", text)]),
            5 => hset(&redis, KEY, &[("version", text.get(..8).unwrap_or(text))]),
            6 => command(&[b"HDEL", key, [&b"sum"[..], b"text", b"version"][draw.below(3)]]),
            _ => {
                command(&[b"DEL", key]);
                match draw.below(3) {
                    0 => command(&[b"SET", key, text]),
                    1 => command(&[b"RPUSH", key, text]),
                    _ => {}
                }
            }
        }
        running.server.reload().await;
        assert_eq!(state.limiter.rules().version(), 1, "{poison}");
        if number % 8 == 7 {
            command(&[b"DEL", key]);
        }
    }
    assert_eq!(decisions(state, running.http), before);
    assert!(metric(running.admin, "tollgate_rules_rejected_total") > 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn poisoned_hashes_and_messages_change_no_decision() {
    let redis = RedisServer::start().unwrap();
    rules_hashes::first(&redis);
    let running = rules_hashes::on(&redis, |settings| {
        settings.rules_poll = std::time::Duration::from_secs(3_600);
    })
    .await;
    let state = running.server.state();
    let before = decisions(state, running.http);
    let fields = ["limitType", "limitTarget", "limitCount", "timeWindow", "enabled", "strategy"];
    let poisons: [&[&[u8]]; 6] = [
        &[b"", b"GALAXY", b"\xff\xfe", b"NaN", &[b'x'; 2_000]],
        &[b"no-slash", b"/a/*/b", b"/%zz", b"\xff", &[b'/'; 2_000]],
        &[b"", b"-1", b"1e9", b"NaN", b"99999999999999999999", b"1.5", b"0x10", b"\0"],
        &[b"", b"0", b"-60", b"1h", b"99999999999", b"Infinity"],
        &[b"maybe", b"2", b"yes", b"\xff", b"null"],
        &[b"", b"DICE", b"TOKEN", b"token bucket", b"\xff", b"<script>"],
    ];
    let key: &[u8] = b"rate_limit_config:poison";
    let mut draw = Random(10);
    for number in 0..POISONS {
        let at = draw.below(fields.len());
        let poison = poisons[at][draw.below(poisons[at].len())];
        if number % 4 == 0 {
            // A message of the same content, heard by nobody who would believe it.
            let value = String::from_utf8_lossy(poison).into_owned();
            let message = serde_json::json!({ "id": "poison", fields[at]: value }).to_string();
            let words: [&[u8]; 3] = [b"PUBLISH", b"rate_limit_config_channel", message.as_bytes()];
            redis.command(&words).unwrap();
            continue;
        }
        let good = ["poison", "API", "/a", "7", "1", "TOKEN_BUCKET"];
        rules_hashes::rule_but(&redis, good, (fields[at], poison));
        running.server.reload().await;
        assert!(state.rules.error().is_some(), "{} {}", fields[at], poison.escape_ascii());
        redis.command(&[b"DEL", key]).unwrap();
    }
    running.server.reload().await;
    assert_eq!(decisions(state, running.http), before);
    assert_eq!(state.rules.error(), None);
}
