//! Hostile input over HTTP.

use super::support::{
    ask, check, connect, metric, outcomes, parse, raw, start, start_with, until, whole_check,
};
use std::io::{Read, Write};
use std::time::Duration;

const HEAD: &str = "POST /v1/check HTTP/1.1\r\nHost: a\r\n";

/// C19: refused and closed, with bodies that pass if they are read; nothing after it is read as a request.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_can_be_read_in_two_ways_end_the_connection() {
    let running = start().await;
    let second = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    let check = r#"{"domain":"shop"}"#;
    let chunked = format!("11\r\n{check}\r\n0\r\n\r\n");
    for (framing, body) in [
        ("Content-Length: 17\r\nContent-Length: 17\r\n\r\n", check),
        ("Content-Length: 17\r\nTransfer-Encoding: chunked\r\n\r\n", &chunked),
        ("Transfer-Encoding: chunked\r\nContent-Length: 17\r\n\r\n", &chunked),
        ("X: a\nContent-Length: 17\r\n\r\n", check),
        ("Content-Length: 17\r\n\n", check),
        ("Transfer-Encoding: chunked, chunked\r\n\r\n", &chunked),
    ] {
        for listener in [running.http, running.admin] {
            let reply = raw(listener, format!("{HEAD}{framing}{body}{second}").as_bytes());
            let text = String::from_utf8_lossy(&reply).into_owned();
            assert_eq!(parse(&reply).status, 400, "{framing:?}: {text}");
            assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{framing:?}: {text}");
        }
    }
    assert_eq!(parse(&raw(running.http, b"GET /healthz HTTP/1.1\r\n\r\n")).status, 400, "no host");
    for framing in [
        "Transfer-Encoding: xchunked\r\n\r\n",
        "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "Content-Length: +2\r\n\r\n{}",
        "Content-Length: 2, 2\r\n\r\n{}",
        "Content-Length: -1\r\n\r\n",
        "X: a\r\n folded\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length : 2\r\n\r\n{}",
        "Host: b\r\nContent-Length: 2\r\n\r\n{}",
    ] {
        let reply = raw(running.http, format!("{HEAD}{framing}{second}").as_bytes());
        let text = String::from_utf8_lossy(&reply).into_owned();
        assert_eq!(parse(&reply).status, 400, "{framing:?}: {text}");
        assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{framing:?}: {text}");
    }
    let chunk =
        format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n2;a\nb\r\n{{}}\r\n0\r\n\r\n{second}");
    let reply = raw(running.http, chunk.as_bytes());
    assert_eq!(parse(&reply).status, 400, "{}", String::from_utf8_lossy(&reply));
    // The line of a chunk that is wrong only in its second piece.
    let mut stream = connect(running.http);
    let begun = format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n11\r\n{check}\r\n0;a");
    stream.write_all(begun.as_bytes()).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    stream.write_all(format!("\nX: y\r\n\r\n{second}").as_bytes()).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    assert_eq!(parse(&reply).status, 400, "{}", String::from_utf8_lossy(&reply));
    // A size of so many digits that nobody keeps them, and what is smuggled in behind its chunk.
    let size = format!("{}11\r\n{check}\r\n0\r\n\r\n", "0".repeat(200_000));
    let smuggled = format!("POST /v1/check HTTP/1.1\nHost: a\nContent-Length: 17\n\n{check}");
    for listener in [running.http, running.admin] {
        let text = format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n{size}{smuggled}");
        let reply = String::from_utf8_lossy(&raw(listener, text.as_bytes())).into_owned();
        assert!(reply.matches("HTTP/1.1 ").count() <= 1 && !reply.contains("200 OK"), "{reply}");
    }
    let first =
        raw(running.http, second.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").as_bytes());
    assert_eq!(parse(&first).status, 200);
}

/// C23: refused before anything is counted.
#[tokio::test(flavor = "multi_thread")]
async fn heads_that_are_too_large_are_refused_before_any_key_is_made() {
    let running = start().await;
    let many: String = (0..101).map(|number| format!("X-{number}: a\r\n")).collect();
    let long = format!("X: {}\r\n", "a".repeat(64 * 1024));
    let target = format!("POST /v1/check?{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(9 * 1024));

    // hyper says this by itself, and says no more: docs/server.md tells so.
    let fields = parse(&raw(running.http, format!("{HEAD}{many}\r\n").as_bytes()));
    assert_eq!((fields.status, fields.header("content-length")), (431, Some("0")));
    assert_eq!(parse(&raw(running.http, format!("{HEAD}{long}\r\n").as_bytes())).status, 431);
    assert_eq!(parse(&raw(running.http, target.as_bytes())).status, 414);
    assert_eq!(metric(running.admin, "tollgate_keys"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_too_large_are_not_read() {
    let running = start().await;
    let said = format!("{HEAD}Content-Length: 65537\r\n\r\n");
    assert_eq!(parse(&raw(running.http, said.as_bytes())).status, 413);
    let mut chunked = format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for _ in 0..17 {
        chunked.extend_from_slice(b"1000\r\n");
        chunked.extend_from_slice(&[b' '; 4096]);
        chunked.extend_from_slice(b"\r\n");
    }
    assert_eq!(parse(&raw(running.http, &chunked)).status, 413);
    let fits = format!(
        "{HEAD}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{{\"domain\":\"shop\"}}\r\n0\r\n\r\n"
    );
    assert_eq!(parse(&raw(running.http, fits.as_bytes())).status, 200);
}

/// HTTP/2 is not spoken here, so nothing of it can be used: C22 has nothing to hold.
#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_are_refused() {
    let running = start().await;
    for bytes in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    ] {
        let mut stream = connect(running.http);
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        let status = parse(&reply).status;
        assert!([0, 400, 505].contains(&status), "{}: {status}", bytes.escape_ascii());
    }
    assert_eq!(parse(&raw(running.http, b"GET /healthz HTTP/1.0\r\n\r\n")).status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_too_many_gets_503_and_the_rest_go_on() {
    let running = start_with(|settings| settings.max_connections = 1).await;
    let mut kept = connect(running.http);
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut reply = [0; 15];
    kept.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"HTTP/1.1 200 OK");

    let told = parse(&raw(running.http, b""));
    assert_eq!(told.status, 503);
    assert_eq!(told.header("content-type"), Some("application/problem+json"));
    assert_eq!((told.header("retry-after"), told.header("connection")), (Some("1"), Some("close")));
    assert_eq!(told.header("content-length"), Some(told.body.len().to_string().as_str()));
    assert_eq!(
        (&told.json()["status"], &told.json()["type"]),
        (&503.into(), &"about:blank".into())
    );
    assert_eq!(
        metric(running.admin, "tollgate_connections_turned_away_total{listener=\"http\"}"),
        1
    );
}

/// A client that leaves before it is answered was counted, and holds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_early_leaves_nothing_behind() {
    let running = start().await;
    for _ in 0..20 {
        let mut stream = connect(running.http);
        stream.write_all(format!("{HEAD}Content-Length: 17\r\n\r\n{{\"dom").as_bytes()).unwrap();
    }
    let open = "tollgate_connections{listener=\"http\"}";
    until("they are gone", || metric(running.admin, open) == 0).await;
    let errors = "tollgate_requests_total{protocol=\"http\",outcome=\"error\"}";
    until("each was an error", || metric(running.admin, errors) == 20).await;
}

/// C24: what was admitted stays charged though nobody hears of it, and a permit that nobody holds returns.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_after_it_was_admitted_has_paid_and_holds_nothing() {
    const RULES: &str = "
version: 1
domain: shop
rules:
  - { name: paid, by: [user], limits: [100 per 1h] }
  - { name: at-once, by: [user], limits: [{ count: 1, algorithm: concurrency, lease: 1h }] }
";
    let running = start_with(|settings| {
        std::fs::write(settings.rules.as_ref().unwrap(), RULES).unwrap();
    })
    .await;
    let body = r#"{"domain":"shop","attributes":{"user":"u"}}"#;
    for round in 0..10 {
        let mut stream = connect(running.http);
        // Every second one is hyper's.
        let lines = if round % 2 == 0 { "" } else { "Connection: close\r\n" };
        stream.write_all(whole_check(lines, body).as_bytes()).unwrap();
    }
    let judged = || outcomes(running.admin, "http");
    until("all were judged", || judged()[..2].iter().sum::<u64>() == 10).await;

    until("the permit is back", || check(running.http, body).json()["allowed"] == true).await;

    let peeked = ask(running.http, "POST /v1/peek", body).json();
    let paid = peeked["limits"].as_array().unwrap().iter().find(|it| it["rule"] == "paid").unwrap();
    assert_eq!(paid["remaining"], 100 - judged()[0], "each that passed has paid");
}

/// C29: names and values come out as text, whatever they look like, and a log line is one line.
#[test]
fn names_that_look_like_something_else_are_only_text() {
    const NAME: &str = r#"<script>alert(1)</script>"><img src=x> \ =1+1"#;
    for format in ["json", "text"] {
        let dir = super::support::TempDir::new();
        let rules = dir.path().join("rules.yaml");
        let name = serde_json::to_string(NAME).unwrap();
        let text = format!(
            "version: 1\ndomain: shop\nrules:\n  - name: {name}\n    by: [user]\n    limits: [1 per 1h]\n"
        );
        std::fs::write(&rules, &text).unwrap();
        let args =
            ["--rules", rules.to_str().unwrap(), "--log-level=debug", "--log-format", format];
        let program = super::program::serve(&args, &[]);
        let (http, admin) = (program.at[0], program.at[2]);
        let evil =
            r#"{"domain":"shop","attributes":{"user":"<b>\r\n2026 ERROR forged\u001b[31m\u202e"}}"#;

        check(http, evil);
        assert_eq!(check(http, evil).json()["refused_by"]["rule"], NAME);
        let refusals = ask(admin, "GET /v1/refusals", "");
        assert_eq!(refusals.header("content-type"), Some("application/json"));
        assert_eq!(refusals.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(refusals.json()["refusals"][0]["rule"], NAME);
        assert!(!refusals.body.contains(['\r', '\n', '\u{1b}', '\u{202e}']), "{refusals:?}");
        let label = NAME.replace('\\', "\\\\").replace('"', "\\\"");
        let row = format!(
            "tollgate_rule_requests_total{{domain=\"shop\",rule=\"{label}\",outcome=\"refused\"}}"
        );
        assert_eq!(metric(admin, &row), 1);
        let put = "PUT /v1/rules\r\nContent-Type: application/yaml\r\nIf-Match: \"1\"\r\nX-Tollgate-Author: <b>\"\\";
        assert_eq!(ask(admin, put, &text.replacen('1', "2", 1)).status, 200);
        let page = ask(http, "GET /docs", "");
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");

        let (_, log) = program.end();
        assert!(log.contains("replaced the rules") && !log.contains("forged"), "{log}");
        let begins = |line: &str| line.starts_with("{\"timestamp\"") || line.starts_with("20");
        assert!(log.lines().all(begins) && !log.contains(['\u{1b}', '\u{202e}']), "{log}");
    }
}

/// Kept connections are closed when the server drains.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_answer_before_the_end_closes_its_connection() {
    let running = start_with(|settings| settings.drain_delay = Duration::from_secs(600)).await;
    let mut kept = connect(running.http);
    let ask = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    kept.write_all(ask).unwrap();
    let mut first = [0; 15];
    kept.read_exact(&mut first).unwrap();
    let state = std::sync::Arc::clone(running.server.state());
    let stopping = tokio::spawn(running.server.stop());
    until("it drains", || state.is_draining()).await;

    kept.write_all(ask).unwrap();
    let mut rest = Vec::new();
    kept.read_to_end(&mut rest).unwrap();

    let rest = String::from_utf8_lossy(&rest).into_owned();
    let (_, second) = rest.split_once("HTTP/1.1 200 OK").unwrap();
    assert!(second.to_ascii_lowercase().contains("connection: close"), "{second}");
    stopping.abort();
}
