//! Rules that somebody else keeps in Redis as hashes: followed, imported, never written.

use std::time::Duration;

use tollgate::rules::declaration::Mode;
use tollgate_harness::RedisServer;
use tollgate_server::settings::Settings;
use tollgate_server::settings::rules_from::{RulesFrom, RulesLayout};

use super::program::run;
use super::rules_redis::hset;
use super::support::{Running, TempDir, ask, check, metric, start_with, until};

const CHANNEL: &str = "rate_limit_config_channel";

pub(crate) async fn on(redis: &RedisServer, change: impl FnOnce(&mut Settings)) -> Running {
    start_with(|settings| {
        settings.rules = None;
        settings.rules_from = Some(RulesFrom {
            layout: RulesLayout::Hashes,
            url: redis.url().parse().ok(),
            ..RulesFrom::default()
        });
        change(settings);
    })
    .await
}

fn by_hint(settings: &mut Settings) {
    settings.rules_poll = Duration::from_secs(3_600);
}

/// id, type, target, count, window, strategy.
pub(crate) fn rule(redis: &RedisServer, row: [&str; 6]) {
    rule_but(redis, row, ("createTime", b"2024-01-01"));
}

/// The same with one field as it is here, in one command: nobody sees it without.
pub(crate) fn rule_but(redis: &RedisServer, row: [&str; 6], but: (&str, &[u8])) {
    let [id, kind, target, count, window, strategy] = row.map(str::as_bytes);
    let key = format!("rate_limit_config:{}", row[0]);
    hset(
        redis,
        &key,
        &[
            ("id", id),
            ("ruleName", b"a rule"),
            ("limitType", kind),
            ("limitTarget", target),
            ("limitCount", count),
            ("timeWindow", window),
            ("enabled", b"true"),
            ("strategy", strategy),
            but,
        ],
    );
}

fn publish(redis: &RedisServer, message: &str) {
    redis.command(&[b"PUBLISH", CHANNEL.as_bytes(), message.as_bytes()]).unwrap();
}

fn names(running: &Running) -> Vec<String> {
    let rules = running.server.state().limiter.rules();
    let rules = rules.rules().filter(|rule| rule.mode() != Mode::Off);
    rules.map(|rule| rule.name().to_owned()).collect()
}

fn count(running: &Running, name: &str) -> u64 {
    let rules = running.server.state().limiter.rules();
    let rule = rules.rules().find(|rule| rule.name() == name);
    rule.map_or(0, |rule| rule.limits()[0].limit().quota().count().get())
}

pub(crate) fn first(redis: &RedisServer) {
    rule(redis, ["g", "GLOBAL", "*", "100", "1", "TOKEN_BUCKET"]);
    rule(redis, ["login", "API", "POST:/login", "2", "60", "SLIDING_WINDOW"]);
    rule(redis, ["ip", "IP", "*", "50", "1", "FIXED_WINDOW"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn hashes_are_rules_and_messages_change_them() {
    let redis = RedisServer::start().unwrap();
    first(&redis);
    let (a, b) = (on(&redis, by_hint).await, on(&redis, by_hint).await);
    for running in [&a, &b] {
        assert_eq!(names(running), ["g", "ip", "login"]);
    }
    let version = |running: &Running| running.server.state().limiter.rules().version();
    assert_eq!(version(&a), version(&b), "the same rules have the same version");
    let login =
        r#"{"domain":"default","attributes":{"path":"/login","method":"POST","ip":"192.0.2.1"}}"#;
    let allowed: Vec<bool> =
        (0..3).map(|_| check(a.http, login).json()["allowed"].as_bool().unwrap()).collect();
    assert_eq!(allowed, [true, true, false]);

    let before = version(&a);
    rule(&redis, ["login", "API", "POST:/login", "4", "60", "SLIDING_WINDOW"]);
    publish(
        &redis,
        r#"{"id":"login","ruleName":"x","limitType":"API","limitTarget":"POST:/login","limitCount":4,
            "timeWindow":60,"enabled":true,"strategy":"SLIDING_WINDOW"}"#,
    );
    until("one rule changes", || count(&a, "login") == 4 && count(&b, "login") == 4).await;
    assert!(version(&a) > before);
    assert!(check(a.http, login).json()["allowed"].as_bool().unwrap(), "2 of 4 were used");

    redis.command(&[b"DEL", b"rate_limit_config:ip"]).unwrap();
    rule(&redis, ["user", "USER", "*", "5", "1", "LEAKY_BUCKET"]);
    publish(&redis, "RELOAD_ALL");
    until("all are read again", || names(&a) == ["g", "login", "user"] && names(&b) == names(&a))
        .await;
    assert_eq!(version(&a), version(&b));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_messages_they_are_followed_by_polling() {
    let redis = RedisServer::start().unwrap();
    first(&redis);
    // More keys than one look goes over between whole sweeps.
    let fill = b"for i = 1, 50000 do redis.call('SET', 'other:' .. i, 'x') end";
    redis.command(&[b"EVAL", fill, b"0"]).unwrap();
    let running = on(&redis, |_| {}).await;
    assert_eq!(names(&running).len(), 3);

    rule(&redis, ["g", "GLOBAL", "*", "7", "1", "TOKEN_BUCKET"]);
    until("an edit", || count(&running, "g") == 7).await;
    rule(&redis, ["new", "SERVICE", "order", "9", "1", "TOKEN_BUCKET"]);
    until("a new one", || count(&running, "new") == 9).await;
    redis.command(&[b"DEL", b"rate_limit_config:ip"]).unwrap();
    until("one less", || names(&running) == ["g", "login", "new"]).await;
    // A message that the hashes do not bear out does not last.
    publish(
        &redis,
        r#"{"id":"g","limitType":"GLOBAL","limitCount":1,"timeWindow":1,"strategy":"TOKEN_BUCKET"}"#,
    );
    // Four sets so far, that of the message, and the one before it again.
    let applied = || metric(running.admin, "tollgate_rules_applied_total");
    until("it came and went", || applied() == 6 && count(&running, "g") == 7).await;
    redis.command(&[b"HSET", b"rate_limit_config:g", b"enabled", b"false"]).unwrap();
    until("one is off", || names(&running) == ["login", "new"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_keeps_what_was_right() {
    let redis = RedisServer::start().unwrap();
    first(&redis);
    let running = on(&redis, |_| {}).await;
    let rules = || running.server.state().limiter.rules().declaration().clone();
    let error = || running.server.state().rules.error();
    let before = rules();

    rule(&redis, ["g", "GLOBAL", "*", "7", "1", "DICE"]);
    until("strategy", || {
        error()
            .is_some_and(|why| why.contains("rate_limit_config:g in Redis: `strategy` is \"DICE\""))
    })
    .await;
    rule(&redis, ["g", "PLANET", "*", "7", "1", "TOKEN_BUCKET"]);
    until("type", || error().is_some_and(|why| why.contains("`limitType` is \"PLANET\""))).await;
    rule(&redis, ["g", "API", "no-slash", "7", "1", "TOKEN_BUCKET"]);
    until("path", || error().is_some_and(|why| why.contains("config:g in Redis: "))).await;
    rule(&redis, ["g", "GLOBAL", "*", "7", "1", "TOKEN_BUCKET"]);
    rule(&redis, ["h", "GLOBAL", &"x".repeat(2_000), "7", "1", "TOKEN_BUCKET"]);
    until("long", || error().is_some_and(|why| why.contains("`limitTarget` has more"))).await;
    redis.command(&[b"DEL", b"rate_limit_config:h"]).unwrap();
    redis.command(&[b"SET", b"rate_limit_config:h", b"poison"]).unwrap();
    until("a string", || error().is_some_and(|why| why.contains("config:h in Redis: it is a s")))
        .await;
    let fill = b"for i = 1, 100001 do redis.call('SET', 'rate_limit_config:x' .. i, 'x') end";
    redis.command(&[b"EVAL", fill, b"0"]).unwrap();
    until("many", || error().is_some_and(|why| why.contains("more than 100000 keys"))).await;
    redis.command(&[b"FLUSHALL"]).unwrap();
    until("nothing", || error().is_some_and(|why| why.contains("no key in Redis matches"))).await;
    for message in ["", "{", "RELOAD", "{\"id\":\"g\",\"strategy\":\"DICE\"}", "\u{0}", "[[[["] {
        publish(&redis, message);
    }
    assert_eq!(rules(), before);
    assert_eq!(ask(running.http, "GET /readyz", "").status, 200);

    first(&redis);
    until("all is well", || error().is_none()).await;
    assert_eq!(rules(), before, "nothing was changed, so nothing is new");
    let offered = ask(
        running.admin,
        "PUT /v1/rules\r\nContent-Type: application/yaml\r\nIf-Match: \"1\"",
        "version: 2\ndomain: default\n",
    );
    assert_eq!(offered.status, 405);
    let why = offered.json()["detail"].as_str().unwrap().to_owned();
    assert!(why.contains("another system writes"), "{why}");
}

#[test]
fn hashes_are_imported_once() {
    let redis = RedisServer::start().unwrap();
    first(&redis);
    let dir = TempDir::new();
    let url = redis.url();
    let import = ["rules", "import", "--from", &url, "--domain", "shop", "--as-version", "3"];
    let output = run(&import);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("version: 3\ndomain: shop\n"), "{text}");
    assert!(text.contains("algorithm: sliding-log"), "{text}");
    let file = dir.path().join("rules.yaml");
    std::fs::write(&file, text).unwrap();
    assert_eq!(run(&["check-rules", file.to_str().unwrap()]).status.code(), Some(0));

    rule(&redis, ["g", "GLOBAL", "*", "7", "1", "DICE"]);
    let wrong = run(&import);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!((wrong.status.code(), wrong.stdout.len()), (Some(2), 0));
    assert!(said.contains("rate_limit_config:g in Redis: `strategy` is \"DICE\""), "{said}");
    let none = run(&["rules", "import", "--from", &url, "--pattern", "none:*"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("no key in Redis matches none:*"));
}
