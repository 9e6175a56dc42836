//! The admin listener.

use std::io::{BufRead, BufReader, Write};

use super::support::{RULES, Running, ask, check, connect, metric, start, start_with};

fn put(running: &Running, expected: u64, rules: &str) -> super::support::Reply {
    let head =
        format!("PUT /v1/rules\r\nContent-Type: application/yaml\r\nIf-Match: \"{expected}\"");
    ask(running.admin, &head, rules)
}

fn version(number: u64) -> String {
    RULES.replacen("version: 1", &format!("version: {number}"), 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_replaced_by_compare_and_set_through_the_file() {
    let running = start().await;
    let got = ask(running.admin, "GET /v1/rules", "");
    assert_eq!((got.status, got.header("etag")), (200, Some("\"1\"")));

    let replaced = put(&running, 1, &version(2).replace("2 per 1m", "9 per 1m"));
    assert_eq!(
        (replaced.status, replaced.json()),
        (200, serde_json::json!({ "from": 1, "to": 2 }))
    );
    let file = std::fs::read_to_string(running.dir.path().join("rules.yaml")).unwrap();
    assert!(file.contains("9 per 1m"), "the file is the source");
    assert_eq!(check(running.http, r#"{"domain":"shop"}"#).json()["rules_version"], 2);

    assert_eq!(put(&running, 1, &version(3)).status, 409, "somebody else was faster");
    let stale = put(&running, 2, &version(2));
    assert_eq!((stale.status, &stale.json()["present"]), (409, &serde_json::json!(2)));
    let head = "PUT /v1/rules\r\nContent-Type: application/yaml";
    assert_eq!(ask(running.admin, head, &version(3)).status, 428);
    let json = ask(running.admin, "GET /v1/rules?format=json", "").body.replacen("2", "3", 1);
    let head = "PUT /v1/rules\r\nContent-Type: application/json\r\nIf-Match: \"2\"";
    assert_eq!(ask(running.admin, head, &json).status, 200);
    let file = std::fs::read_to_string(running.dir.path().join("rules.yaml")).unwrap();
    assert!(file.starts_with("version: 3"), "in the format of the file: {file}");
}

/// B21
#[tokio::test(flavor = "multi_thread")]
async fn of_admins_who_write_at_once_one_wins() {
    let running = start().await;
    for round in 1..6_u64 {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..6)
                .map(|_| scope.spawn(|| put(&running, round, &version(round + 1)).status))
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 5, "{statuses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_rules_are_told_with_their_places_and_change_nothing() {
    let running = start().await;
    let before = ask(running.admin, "GET /v1/rules", "").body;
    let reply = put(&running, 1, &version(2).replace("limits", "limit"));
    assert_eq!(reply.status, 400);
    let problem = reply.json();
    assert_eq!(problem["problems"][0]["line"], 8);
    assert!(problem["problems"][0]["hint"].as_str().unwrap().contains("limits"), "{problem}");
    assert_eq!(ask(running.admin, "GET /v1/rules", "").body, before);
    let checked = "POST /v1/rules/check\r\nContent-Type: application/yaml";
    assert_eq!(
        ask(running.admin, checked, RULES).json(),
        serde_json::json!({ "version": 1, "rules": 2 })
    );
    assert_eq!(ask(running.admin, checked, "version: x").status, 400);
}

/// C27
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_needed_and_failed_logins_are_counted() {
    let running =
        start_with(|settings| settings.admin_token = Some("right".parse().unwrap())).await;
    let with = |token: &str| {
        ask(running.admin, &format!("GET /v1/status\r\nAuthorization: Bearer {token}"), "").status
    };

    assert_eq!(with("right"), 200);
    assert_eq!(ask(running.admin, "GET /metrics", "").status, 401);
    assert_eq!(ask(running.admin, "GET /healthz", "").status, 200);
    assert_eq!(with("righ"), 401);
    let mut statuses: Vec<u16> = (0..12).map(|number| with(&format!("guess{number}"))).collect();
    statuses.dedup();
    assert_eq!(statuses, [401, 429]);
    assert_eq!(with("right"), 429, "an address with failed logins waits");
}

/// C28
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_cannot_write() {
    let running = start().await;
    let yaml = "Content-Type: application/yaml\r\nIf-Match: \"1\"";
    for (lines, status) in [
        (format!("{yaml}\r\nOrigin: https://evil.example"), 403),
        (format!("{yaml}\r\nSec-Fetch-Site: cross-site"), 403),
        ("Content-Type: text/plain\r\nIf-Match: \"1\"".to_owned(), 415),
        (format!("{yaml}\r\nOrigin: http://{}", running.admin), 200),
    ] {
        let reply = ask(running.admin, &format!("PUT /v1/rules\r\n{lines}"), &version(2));
        assert_eq!(reply.status, status, "{lines}: {reply:?}");
    }
    let rebound = "GET /v1/rules HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    let reply = super::support::parse(&super::support::raw(running.admin, rebound.as_bytes()));
    assert_eq!(reply.status, 403);
    assert!(reply.header("access-control-allow-origin").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_every_rule_and_charges_nothing() {
    let running = start().await;
    let body = r#"{"domain":"shop","attributes":{"user":"alice","path":"/"}}"#;
    let head = "POST /v1/explain\r\nContent-Type: application/json";
    for _ in 0..5 {
        let explained = ask(running.admin, head, body).json();
        assert_eq!(
            explained["rules"][0],
            serde_json::json!({ "rule": "login-per-ip", "fate": "unmatched", "because": "path" })
        );
        assert_eq!(explained["rules"][1]["fate"], "charged");
        assert_eq!(explained["counters"][0]["remaining"], 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_shown_with_their_reason_and_the_heaviest_key_first() {
    let running = start().await;
    for (user, count) in [("light", 4), ("heavy", 7)] {
        for _ in 0..count {
            check(
                running.http,
                &format!(r#"{{"domain":"shop","attributes":{{"user":"{user}"}}}}"#),
            );
        }
    }
    let top = ask(running.admin, "GET /v1/refusals/top", "").json();
    let row = |at: usize| (top["keys"][at]["key"].clone(), top["keys"][at]["count"].clone());
    assert_eq!(row(0), ("user=heavy".into(), 4.into()));
    assert_eq!(row(1), ("user=light".into(), 1.into()));
    let recent = ask(running.admin, "GET /v1/refusals?limit=2", "").json();
    assert_eq!(recent["refusals"].as_array().unwrap().len(), 2);
    let last = &recent["refusals"][0];
    assert_eq!(
        (&last["rule"], &last["reason"], &last["protocol"]),
        (&"per-user".into(), &"limits".into(), &"http".into())
    );
    assert!(last["retry_after_ms"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_as_they_happen() {
    let running = start().await;
    let mut stream = connect(running.admin);
    stream
        .write_all(format!("GET /v1/events HTTP/1.1\r\nHost: {}\r\n\r\n", running.admin).as_bytes())
        .unwrap();
    let mut lines = BufReader::new(stream).lines().map(|line| line.unwrap());
    assert!(lines.by_ref().any(|line| line == ": welcome"));

    for _ in 0..4 {
        check(running.http, r#"{"domain":"shop","attributes":{"user":"e"}}"#);
    }
    assert!(lines.by_ref().any(|line| line == "event: refused"));
    let data = lines.next().unwrap();
    assert!(data.starts_with("data: {") && data.contains("\"rule\":\"per-user\""), "{data}");
    assert_eq!(put(&running, 1, &version(2)).status, 200);
    assert!(lines.by_ref().any(|line| line == "event: rules"));
    assert_eq!(lines.next().unwrap(), "data: {\"from\":1,\"to\":2}");

    running.server.stop().await;
    assert!(
        lines.by_ref().last().is_some() || lines.next().is_none(),
        "the stream ends with the server"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_bounds_on_who_listens() {
    let running = start().await;
    let mut streams = Vec::new();
    for _ in 0..32 {
        let mut stream = connect(running.admin);
        stream
            .write_all(
                format!("GET /v1/events HTTP/1.1\r\nHost: {}\r\n\r\n", running.admin).as_bytes(),
            )
            .unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "HTTP/1.1 200 OK\r\n");
        streams.push(reader);
    }
    assert_eq!(ask(running.admin, "GET /v1/events", "").status, 503);
    streams.clear();
    let open = "tollgate_connections{listener=\"admin\"}";
    super::support::until("they left", || metric(running.admin, open) == 1).await;
}
