//! Checks that arrive whole are answered without hyper, and nobody can tell.

use std::io::Write as _;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::Value;
use tollgate_server::Listener;

use super::support::{
    Reply, connect, metric, outcomes, parse, raw, reply, start, start_with, until, whole_check,
};

const USER: &str = r#"{"domain":"shop","attributes":{"user":"u"}}"#;

/// Parts that both paths must agree on: the status, the fields by name, and the body without times.
fn gist(reply: &Reply) -> (u16, Vec<String>, Value) {
    let names = reply.head.lines().skip(1).filter_map(|line| Some(line.split_once(':')?.0));
    let mut names: Vec<String> = names.map(str::to_ascii_lowercase).collect();
    names.retain(|name| name != "connection");
    names.sort();
    let mut body = reply.json();
    if let Some(millis) = body.get_mut("retry_after_ms") {
        *millis = Value::from(millis.is_u64());
    }
    for limit in body["limits"].as_array_mut().into_iter().flatten() {
        limit["reset_after_ms"].take();
    }
    (reply.status, names, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_is_said_with_hyper_and_without() {
    // One server for each way, so that neither is charged for the other.
    let (without, with) = (start().await, start().await);
    let many: String = (0..90).map(|number| format!("X-{number}: a\r\n")).collect();
    let long = format!(r#"{{"domain":"shop","attributes":{{"user":"{}"}}}}"#, "u".repeat(6_000));
    let rows = [
        ("", USER),
        ("X-Request-Id: a.b-c_1\r\n", USER),
        ("X-Request-Id: a b\r\nX-Other: b\r\n", USER),
        ("Authorization: Bearer whatever\r\n", USER),
        (&many, USER),
        ("", r#"{"domain":"shop","attributes":{"ip":"203.0.113.66"}}"#),
        ("", r#"{"domain":"shop","attributes":{"ip":"10.9.1.1"}}"#),
        ("", r#"{"domain":"nowhere"}"#),
        ("", r#"{"domain":"shop","attributes":{"user":"\u0075\ud83d\ude00"},"cost":2}"#),
        ("", r#"{"domain":"shop","attributes":{"user":"late"},"patience_ms":60000}"#),
        ("", r#"{"domain":"shop","attributes":{"user":"never"},"cost":4}"#),
        ("", &long),
        ("", r#"{"domain":"shop","patience_ms":60001}"#),
        ("", r#"{"domain":"shop","attributes":{"ip":"x"}}"#),
        ("", r#"{"domain":"shop""#),
        ("", ""),
    ];
    for (lines, body) in rows {
        let mut stream = connect(without.http);
        stream.write_all(whole_check(lines, body).as_bytes()).unwrap();
        let whole = reply(&mut stream);
        let closes = whole_check(&format!("Connection: close\r\n{lines}"), body);
        let closed = parse(&raw(with.http, closes.as_bytes()));

        assert_eq!(gist(&whole), gist(&closed), "{lines:?} {body:?}");
        let ids = [&whole, &closed].map(|reply| reply.header("x-request-id").unwrap().to_owned());
        assert_eq!(ids[0] == ids[1], lines.contains("a.b-c_1"), "{ids:?}");
        let date = |reply: &Reply| httpdate::parse_http_date(reply.header("date").unwrap());
        let apart = date(&closed).unwrap().duration_since(date(&whole).unwrap());
        let apart = apart.unwrap_or_else(|error| error.duration());
        assert!(apart < Duration::from_secs(600), "{whole:?} {closed:?}");
    }
    for running in [&without, &with] {
        assert_eq!(outcomes(running.admin, "http"), [8, 4, 0, 4]);
    }
}

/// Requests behind one another, of which hyper reads some, are answered once each and in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_may_change_its_mind() {
    let running = start().await;
    let (whole, other) = (whole_check("", USER), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    let remaining = |reply: &Reply| reply.json()["limits"][0]["remaining"].clone();

    let mut stream = connect(running.http);
    stream.write_all(format!("{whole}{whole}{other}{whole}{other}").as_bytes()).unwrap();

    let replies: Vec<Reply> = (0..5).map(|_| reply(&mut stream)).collect();
    let bodies: Vec<Value> = [0, 1, 3].map(|at| remaining(&replies[at])).into();
    assert_eq!(bodies, [2, 1, 0].map(Value::from));
    assert_eq!([2, 4].map(|at| replies[at].body.as_str()), ["ok\n"; 2]);
    stream.write_all(whole.as_bytes()).unwrap();
    assert_eq!(reply(&mut stream).json()["allowed"], false);
}

/// However a request is cut, it is one request.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_in_pieces_is_charged_once() {
    let running = start().await;
    for cut in (1..whole_check("", USER).len()).step_by(7) {
        let user = format!(r#"{{"domain":"shop","attributes":{{"user":"{cut:03}"}}}}"#);
        let text = whole_check("", &user);
        let mut stream = connect(running.http);
        let (first, second) = text.split_at(cut);
        stream.write_all(first.as_bytes()).unwrap();
        // So that they do not arrive together; if they do, this proves less.
        tokio::time::sleep(Duration::from_millis(2)).await;
        stream.write_all(second.as_bytes()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();

        for left in [2, 1] {
            let said = reply(&mut stream).json();
            assert_eq!(said["limits"][0]["remaining"], left, "cut at {cut}: {said}");
        }
    }
}

/// C19: what is behind a check cannot be smuggled in with it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_behind_a_check_is_read_as_strictly() {
    let running = start().await;
    let whole = whole_check("", USER);
    for behind in [
        "GET /healthz HTTP/1.1\nHost: a\r\n\r\n".to_owned(),
        whole_check("Content-Length: 43\r\n", USER),
        whole_check("Transfer-Encoding: chunked\r\n", USER),
        whole_check("Host: b\r\n", USER),
        whole_check("X : b\r\n", USER),
    ] {
        let replies = raw(running.http, format!("{whole}{behind}{whole}").as_bytes());
        let text = String::from_utf8_lossy(&replies);
        let statuses: Vec<&str> = text
            .matches("HTTP/1.1 ")
            .zip(text.split("HTTP/1.1 ").skip(1))
            .map(|it| &it.1[..3])
            .collect();
        assert_eq!(statuses, ["200", "400"], "{behind:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_asked_for_without_hyper_too() {
    let running = start_with(|settings| settings.api_token = Some("right".parse().unwrap())).await;
    let status = |lines: &str| {
        let mut stream = connect(running.http);
        stream.write_all(whole_check(lines, USER).as_bytes()).unwrap();
        reply(&mut stream).status
    };

    let right = "Authorization: Bearer right\r\n";
    assert_eq!(status(right), 200);
    assert_eq!(status("Authorization: bearer  right \r\n"), 200);
    for wrong in ["", "Authorization: Bearer wrong\r\n", "Authorization: right\r\n"] {
        assert_eq!(status(wrong), 401, "{wrong}");
    }
    assert_eq!(metric(running.admin, "tollgate_wrong_tokens_total{listener=\"http\"}"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_between_two_checks_ends_with_the_server() {
    // So that nobody is cut because its time is over.
    let running = start_with(|settings| settings.drain_timeout = Duration::from_secs(600)).await;
    let mut idle = connect(running.http);
    idle.write_all(whole_check("", USER).as_bytes()).unwrap();
    assert_eq!(reply(&mut idle).status, 200);
    let mut silent = connect(running.http);
    let state = std::sync::Arc::clone(running.server.state());
    until("both are open", || state.connections[Listener::Http].open.load(Relaxed) == 2).await;

    let ended = tokio::time::timeout(Duration::from_secs(60), running.server.stop()).await;

    assert!(ended.is_ok(), "somebody did not hear of it");
    for stream in [&mut idle, &mut silent] {
        assert_eq!(std::io::Read::read(stream, &mut [0]).unwrap(), 0);
    }
}

/// While the server drains, an answer closes its connection.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_check_before_the_end_closes_its_connection() {
    let running = start_with(|settings| settings.drain_delay = Duration::from_secs(600)).await;
    let mut kept = connect(running.http);
    kept.write_all(whole_check("", USER).as_bytes()).unwrap();
    assert_eq!(reply(&mut kept).header("connection"), None);
    let state = std::sync::Arc::clone(running.server.state());
    let stopping = tokio::spawn(running.server.stop());
    until("it drains", || state.is_draining()).await;

    kept.write_all(whole_check("", USER).as_bytes()).unwrap();

    assert_eq!(reply(&mut kept).header("connection"), Some("close"));
    assert_eq!(std::io::Read::read(&mut kept, &mut [0]).unwrap(), 0);
    stopping.abort();
}

/// B18: a server that ends under load answers everything that it was sent, and tells each client to go elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_who_asks_on_while_it_drains_is_left_without_an_answer() {
    let running = start_with(|settings| settings.drain_delay = Duration::from_secs(600)).await;
    let (http, admin) = (running.http, running.admin);
    let state = std::sync::Arc::clone(running.server.state());
    let answered = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let answered = std::sync::Arc::clone(&answered);
            std::thread::spawn(move || {
                let mut stream = connect(http);
                loop {
                    stream.write_all(whole_check("", USER).as_bytes()).unwrap();
                    let told = reply(&mut stream);
                    assert_eq!(told.status, 200);
                    answered.fetch_add(1, Relaxed);
                    if told.header("connection") == Some("close") {
                        break;
                    }
                }
            })
        })
        .collect();
    until("all are at it", || answered.load(Relaxed) > 1_000).await;

    let stopping = tokio::spawn(running.server.stop());

    until("all were told", || clients.iter().all(std::thread::JoinHandle::is_finished)).await;
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert!(state.is_draining());
    let offered = metric(admin, "tollgate_requests_offered_total{protocol=\"http\"}");
    assert_eq!(offered, answered.load(Relaxed));
    stopping.abort();
}

/// Half-closed clients are answered, on both paths.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_no_more_is_answered() {
    let redis = tollgate_harness::RedisServer::start().unwrap();
    let far = start_with(|settings| {
        settings.store = redis.url().parse().unwrap();
        settings.store_deadline = Duration::from_secs(10);
    })
    .await;
    let here = start().await;
    for at in [here.http, far.http] {
        for text in [whole_check("", USER), whole_check("X: y\r\nExpect: nothing\r\n", USER)] {
            for _ in 0..10 {
                let mut stream = connect(at);
                stream.write_all(text.as_bytes()).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(reply(&mut stream).status, 200, "{text}");
            }
        }
    }
}
