//! Rules in Redis as the one source: followed by two servers, replaced by one writer at a time,
//! and never lost to what somebody puts there.

use std::time::Duration;

use tollgate_harness::{RedisServer, Reply};
use tollgate_server::settings::Settings;
use tollgate_server::settings::rules_from::RulesFrom;

use super::program::{Program, run, serve};
use super::support::{RULES, Running, TempDir, ask, check, metric, start_with, until};

pub(crate) const KEY: &str = "tg:{rules:default}:1:set";
const BEFORE: &str = "tg:{rules:default}:1:before";
const ASK: &str = r#"{"domain":"shop","attributes":{"user":"u"}}"#;

pub(crate) fn version(number: u64) -> String {
    RULES.replacen("version: 1", &format!("version: {number}"), 1)
}

/// In this process, by the rules in Redis.
pub(crate) async fn on(redis: &RedisServer, change: impl FnOnce(&mut Settings)) -> Running {
    start_with(|settings| {
        settings.rules = None;
        let url = redis.url().parse().ok();
        settings.rules_from = Some(RulesFrom { url, ..RulesFrom::default() });
        change(settings);
    })
    .await
}

fn applies(running: &Running) -> u64 {
    running.server.state().limiter.rules().version()
}

pub(crate) fn put(
    admin: std::net::SocketAddr,
    expected: u64,
    rules: &str,
) -> super::support::Reply {
    let head = format!(
        "PUT /v1/rules\r\nContent-Type: application/yaml\r\nIf-Match: \"{expected}\"\r\n\
         X-Tollgate-Author: ann"
    );
    ask(admin, &head, rules)
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

pub(crate) fn hset(redis: &RedisServer, key: &str, fields: &[(&str, &[u8])]) {
    let mut words: Vec<&[u8]> = vec![b"HSET", key.as_bytes()];
    for (name, value) in fields {
        words.extend([name.as_bytes(), value]);
    }
    redis.command(&words).unwrap();
}

/// The program, which looks so rarely that only hints can have told it.
fn program(redis: &RedisServer, args: &[&str]) -> Program {
    let url = redis.url();
    let mut all = vec!["--rules-from", url.as_str()];
    all.extend(args);
    serve(&all, &[])
}

fn follows(program: &Program, number: u64) {
    for _ in 0..3_000 {
        if check(program.at[0], ASK).json()["rules_version"] == number {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("version {number} never applied");
}

#[test]
fn two_servers_follow_a_change_by_hint() {
    let redis = RedisServer::start().unwrap();
    let dir = TempDir::new();
    let file = dir.path().join("rules.yaml");
    let servers = [(); 2].map(|()| program(&redis, &["--rules-poll", "1h"]));
    let admin = format!("http://{}", servers[0].at[2]);
    assert_eq!(
        ask(servers[0].at[0], "GET /readyz", "").status,
        503,
        "no rules have been loaded yet"
    );

    for number in 1..6 {
        std::fs::write(&file, version(number)).unwrap();
        let path = file.to_str().unwrap();
        let put = run(&["rules", "put", "--admin", &admin, "--author", "ann", path]);
        assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stdout));
        servers.iter().for_each(|server| follows(server, number));
    }

    let hget = |field: &str| redis.command(&[b"HGET", KEY.as_bytes(), field.as_bytes()]).unwrap();
    assert_eq!((hget("version"), hget("by")), (bulk("5"), bulk("ann at 127.0.0.1")));
    assert_eq!((hget("format"), hget("text")), (bulk("yaml"), bulk(&version(5))));
    let before = redis.command(&[b"HGET", BEFORE.as_bytes(), b"version"]).unwrap();
    assert_eq!(before, bulk("4"));
    for server in servers {
        assert_eq!(ask(server.at[0], "GET /readyz", "").status, 200);
        let (code, log) = server.end();
        assert_eq!(code, Some(0));
        let told = |line: &str| line.contains("\"audit\":true") && line.contains("\"version\":5");
        assert!(log.lines().any(told), "{log}");
    }
}

/// B19
#[test]
fn two_servers_follow_a_change_without_hints() {
    let redis = RedisServer::start().unwrap();
    let servers = [(); 2].map(|()| program(&redis, &["--rules-poll", "50ms"]));
    assert_eq!(put(servers[0].at[2], 0, &version(1)).status, 200);
    servers.iter().for_each(|server| follows(server, 1));

    // Published to nobody: the connections for messages are cut again and again meanwhile.
    for number in 2..6 {
        redis.command(&[b"CLIENT", b"KILL", b"TYPE", b"pubsub"]).unwrap();
        assert_eq!(put(servers[0].at[2], number - 1, &version(number)).status, 200);
        servers.iter().for_each(|server| follows(server, number));
    }
    // Nobody publishes, and then somebody publishes nonsense, twice and out of order.
    let renamed = redis.command(&[b"RENAME", BEFORE.as_bytes(), b"aside"]).unwrap();
    assert_eq!(renamed, Reply::Status("OK".into()));
    store(&redis, KEY, 6, &version(6));
    servers.iter().for_each(|server| follows(server, 6));
    for hint in ["9", "2", "2", "", "x"] {
        redis.command(&[b"PUBLISH", b"tg:{rules:default}:1:changed", hint.as_bytes()]).unwrap();
    }
    store(&redis, KEY, 7, &version(7));
    servers.iter().for_each(|server| follows(server, 7));
}

/// Writes a set as the script does, and tells nobody.
pub(crate) fn store(redis: &RedisServer, key: &str, number: u64, text: &str) {
    let sum = sha1_smol::Sha1::from(format!("{number} yaml\n{text}")).digest().to_string();
    let number = number.to_string();
    hset(
        redis,
        key,
        &[
            ("version", number.as_bytes()),
            ("sum", sum.as_bytes()),
            ("format", b"yaml"),
            ("text", text.as_bytes()),
        ],
    );
}

/// B21
#[tokio::test(flavor = "multi_thread")]
async fn of_writers_at_two_servers_one_wins() {
    let redis = RedisServer::start().unwrap();
    let (a, b) = (on(&redis, |_| {}).await, on(&redis, |_| {}).await);
    for round in 0..6_u64 {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let writers = [&a, &b, &a, &b]
                .map(|at| scope.spawn(|| put(at.admin, round, &version(round + 1)).status));
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 3, "{statuses:?}");
        until("both follow", || applies(&a) == round + 1 && applies(&b) == round + 1).await;
    }
    let stale = put(b.admin, 6, &version(6));
    assert_eq!((stale.status, &stale.json()["present"]), (409, &serde_json::json!(6)));
    assert_eq!(put(b.admin, 6, &version(7).replace("limits", "limit")).status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_lies_there_keeps_what_was_right() {
    let redis = RedisServer::start().unwrap();
    let running = on(&redis, |_| {}).await;
    let error = || running.server.state().rules.error();
    assert!(error().unwrap().contains("no rules at tg:{rules:default}:1:set"));
    assert_eq!(put(running.admin, 0, &version(5)).status, 200);
    assert_eq!(error(), None);
    let command = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        redis.command(&words).unwrap();
    };
    let long = "x".repeat(9 << 20);

    command(&["DEL", KEY]);
    until("gone", || error().is_some_and(|why| why.contains("no rules at"))).await;
    command(&["SET", KEY, "version: 9"]);
    until("a string", || error().is_some_and(|why| why.contains("it is a string"))).await;
    command(&["DEL", KEY]);
    command(&["HSET", KEY, "rules", "[]"]);
    until("older", || error().is_some_and(|why| why.contains("`version` is missing"))).await;
    command(&["HSET", KEY, "version", "9", "sum", "0", "format", "yaml", "text", &long]);
    until("long", || error().is_some_and(|why| why.contains("`text` has too many bytes: 9437184")))
        .await;
    command(&["HSET", KEY, "text", "version: 9\n", "version", "8"]);
    until("cut", || error().is_some_and(|why| why.contains("`sum` does not match"))).await;
    command(&["DEL", KEY]);
    store(&redis, KEY, 8, "version: 8\nrule: []\n");
    until("wrong", || error().is_some_and(|why| why.contains(":2:1: unknown field"))).await;
    store(&redis, KEY, 4, &version(4));
    until("back", || error().is_some_and(|why| why.contains("raise `version`"))).await;
    store(&redis, KEY, 5, &version(5).replace("2 per 1m", "9 per 1m"));
    until("two contents", || error().is_some_and(|why| why.contains("5"))).await;

    assert_eq!(applies(&running), 5);
    assert_eq!(ask(running.http, "GET /readyz", "").status, 200);
    assert_eq!(metric(running.admin, "tollgate_rules_trouble"), 1);
    assert_eq!(metric(running.admin, "tollgate_rules_version"), 5);
    let status = ask(running.admin, "GET /v1/status", "").json();
    assert_eq!(status["rules_from"], format!("{KEY} in Redis"));
    assert!(status["rules_trouble"].is_string());

    // A repair names the stored version, or the one that applies if the stored one cannot be read.
    store(&redis, KEY, 9, "version: 9\nrule: []\n");
    let conflict = put(running.admin, 5, &version(6));
    assert_eq!((conflict.status, &conflict.json()["present"]), (409, &serde_json::json!(9)));
    command(&["SET", KEY, "poison"]);
    assert_eq!(put(running.admin, 5, &version(6)).status, 200);
    assert_eq!((applies(&running), error()), (6, None));
}

/// B22: Redis is down at the start, or is broken, and the last rules that applied are there.
#[test]
fn a_killed_server_starts_with_its_last_good_rules() {
    let redis = RedisServer::start().unwrap();
    let state = TempDir::new();
    let args = ["--state-dir", state.path().to_str().unwrap()];
    let mut first = program(&redis, &args);
    assert_eq!(put(first.at[2], 0, &version(3)).status, 200);
    first.child.kill().unwrap();
    first.child.wait().unwrap();

    redis.kill().unwrap();
    let alone = program(&redis, &args);
    follows(&alone, 3);
    assert_eq!(ask(alone.at[0], "GET /readyz", "").status, 200);
    assert!(
        check(alone.at[0], r#"{"domain":"shop","attributes":{"ip":"203.0.113.66"}}"#).json()["allowed"]
            == false
    );
    let status = ask(alone.at[2], "GET /v1/status", "").json();
    assert!(status["rules_trouble"].as_str().unwrap().contains("cannot"), "{status}");
    let offered = put(alone.at[2], 3, &version(4));
    assert_eq!(offered.status, 503, "nothing is kept where nobody answers: {offered:?}");
    follows(&alone, 3);

    redis.restart().unwrap();
    store(&redis, KEY, 4, &version(4));
    follows(&alone, 4);
    redis.command(&[b"SET", KEY.as_bytes(), b"poison"]).unwrap();
    let broken = program(&redis, &args);
    follows(&broken, 4);
    drop((alone, broken));

    let fresh = program(&redis, &["--without-rules", "refuse"]);
    assert_eq!(ask(fresh.at[0], "GET /readyz", "").status, 503, "it has nothing to fall back on");
    assert_eq!(check(fresh.at[0], ASK).status, 503);
    store(&redis, BEFORE, 3, &version(3));
    follows(&fresh, 3);
    assert_eq!(metric(fresh.at[2], "tollgate_rules_trouble"), 1);
}

#[test]
fn there_is_one_source_and_it_is_reachable_as_described() {
    let dir = TempDir::new();
    let file = dir.path().join("rules.yaml");
    std::fs::write(&file, RULES).unwrap();
    for (args, why) in [
        (&["--rules-from", "redis"][..], "the store is embedded"),
        (&["--rules-from", "redis://h", "--rules", file.to_str().unwrap()], "exactly one"),
        (&["--rules-from", "http://h:canary-7@x"], "must begin with redis://"),
        (&["--rules-from", "rules.yaml"], "--rules"),
    ] {
        let output = run(&[&["serve"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why) && !said.contains("canary-7"), "{said}");
    }
}

/// The store's own Redis, by a user who has the rights that SECURITY.md names.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_suffice() {
    let redis = RedisServer::start().unwrap();
    let page = include_str!("../../../../SECURITY.md");
    let (_, line) = page.split_once("ACL SETUSER rules").expect("the line is there");
    let (line, _) = line.split_once("```").unwrap();
    let line = line.replace("<password>", "hush");
    let words = ["ACL", "SETUSER", "rules"].into_iter().chain(line.split_whitespace());
    let words: Vec<&[u8]> = words.map(str::as_bytes).collect();
    assert_eq!(redis.command(&words).unwrap(), Reply::Status("OK".into()));
    let url = redis.url().replace("redis://", "redis://rules:hush@");
    let with = |settings: &mut Settings| {
        if let Some(from) = &mut settings.rules_from {
            from.url = url.parse().ok();
        }
        settings.rules_poll = Duration::from_secs(3_600);
    };
    let (a, b) = (on(&redis, with).await, on(&redis, with).await);
    assert_eq!(put(a.admin, 0, &version(1)).status, 200);
    until("the other follows by hint", || applies(&b) == 1).await;
    assert_eq!(put(b.admin, 1, &version(2)).status, 200);
    until("and back", || applies(&a) == 2).await;
}

/// C30: a password in the URL of the rules' Redis is shown nowhere.
#[test]
fn the_password_of_the_rules_is_shown_nowhere() {
    const CANARY: &str = "canary-5ec2e7";
    let redis = RedisServer::start().unwrap();
    let wrong = redis.url().replace("redis://", &format!("redis://ann:{CANARY}@"));
    let gone = format!("redis://ann:{CANARY}@127.0.0.1:1");
    for (from, why) in [(wrong, "does not accept the password"), (gone, "cannot connect")] {
        let server = serve(&["--log-level", "trace"], &[("TOLLGATE_RULES_FROM", &from)]);
        let admin = server.at[2];
        let status = ask(admin, "GET /v1/status", "").body;
        let metrics = ask(admin, "GET /metrics", "").body;
        let offered = put(admin, 0, &version(1)).body;
        let (_, log) = server.end();
        assert!(log.contains(why), "{log}");
        for text in [status, metrics, offered, log] {
            assert!(!text.contains(CANARY), "{text}");
        }
    }
}
