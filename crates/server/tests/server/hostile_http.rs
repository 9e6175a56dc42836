//! What nobody should send over HTTP.

use super::support::{connect, metric, parse, raw, start, start_with, until};
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
    let errors = "tollgate_requests_total{door=\"http\",outcome=\"error\"}";
    until("each was an error", || metric(running.admin, errors) == 20).await;
}

/// Whoever keeps its connection is told that the server is about to end.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_answer_before_the_end_closes_its_connection() {
    let running = start_with(|settings| settings.drain_delay = Duration::from_secs(600)).await;
    let mut kept = connect(running.http);
    let ask = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    kept.write_all(ask).unwrap();
    let mut first = [0; 15];
    kept.read_exact(&mut first).unwrap();
    let room = std::sync::Arc::clone(running.server.room());
    let stopping = tokio::spawn(running.server.stop());
    until("it drains", || room.is_draining()).await;

    kept.write_all(ask).unwrap();
    let mut rest = Vec::new();
    kept.read_to_end(&mut rest).unwrap();

    let rest = String::from_utf8_lossy(&rest).into_owned();
    let (_, second) = rest.split_once("HTTP/1.1 200 OK").unwrap();
    assert!(second.to_ascii_lowercase().contains("connection: close"), "{second}");
    stopping.abort();
}
