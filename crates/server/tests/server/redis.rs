//! The server on Redis: the same answers, shared by two servers, and an outage.

use std::time::Duration;

use tollgate_harness::RedisServer;

use super::support::{Running, Wire, ask, check, encode, metric, start_with, until};

async fn on(redis: &RedisServer) -> Running {
    start_with(|settings| {
        settings.store = redis.url().parse().unwrap();
        // A busy machine is no outage.
        settings.store_deadline = Duration::from_secs(10);
    })
    .await
}

fn five(numbers: [i64; 5]) -> Vec<u8> {
    let lines: String = numbers.iter().map(|number| format!(":{number}\r\n")).collect();
    format!("*5\r\n{lines}").into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_share_what_they_count() {
    let redis = RedisServer::start().unwrap();
    let (a, b) = (on(&redis).await, on(&redis).await);

    Wire::new(a.resp).asks(&["CL.THROTTLE", "k", "1", "1", "86400"], &five([0, 2, 1, -1, 86_400]));
    Wire::new(b.resp)
        .asks(&["CL.THROTTLE", "k", "1", "1", "86400", "2"], &five([1, 2, 1, 86_400, 86_400]));
    let user = r#"{"domain":"shop","attributes":{"user":"u"}}"#;
    let allowed =
        |running: &Running| check(running.http, user).json()["allowed"].as_bool().unwrap();
    assert_eq!(
        [allowed(&a), allowed(&b), allowed(&a), allowed(&b), allowed(&a)],
        [true, true, true, false, false]
    );
    let reset = ["TG.RESET", "shop", "user", "u"];
    Wire::new(a.resp).asks(&reset, b":1\r\n");
    assert!(allowed(&a));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_is_answered_in_order_and_a_reset_waits_its_turn() {
    let redis = RedisServer::start().unwrap();
    let running = on(&redis).await;
    let mut client = Wire::new(running.resp);
    let take = encode(&["CL.THROTTLE", "p", "199", "1", "86400"]);
    let mut commands = take.repeat(100);
    commands.extend(encode(&["DEL", "p"]));
    commands.extend(encode(&["CL.THROTTLE", "p", "199", "1", "86400", "200"]));
    commands.extend(encode(&["PING"]));

    client.send(&commands);

    for number in 1..=100 {
        client.expect(&five([0, 200, 200 - number, -1, 86_400 * number]));
    }
    client.expect(b":1\r\n");
    client.expect(&five([0, 200, 0, -1, 86_400 * 200]));
    client.expect(b"+PONG\r\n");
    let runs = metric(running.admin, "tollgate_redis_runs_total");
    assert!(runs < 60, "a pipeline takes few trips, not one a command: {runs}");
    assert_eq!(metric(running.admin, "tollgate_redis_twin_mismatches_total"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_without_redis_and_finds_it() {
    let redis = RedisServer::start().unwrap();
    redis.kill().unwrap();
    let running = start_with(|settings| settings.store = redis.url().parse().unwrap()).await;
    let user = r#"{"domain":"shop","attributes":{"user":"u"}}"#;

    let degraded = check(running.http, user).json();
    assert_eq!((&degraded["allowed"], &degraded["degraded"]), (&true.into(), &true.into()));
    let state = ask(running.http, "GET /readyz", "").json();
    assert_eq!((&state["state"], &state["store_up"]), (&"ready".into(), &false.into()));
    Wire::new(running.resp)
        .asks(&["CL.THROTTLE", "k", "0", "1", "86400"], &five([0, 1, 0, -1, 86_400]));
    assert_eq!(
        metric(
            running.admin,
            "tollgate_requests_total{protocol=\"cl.throttle\",outcome=\"degraded\"}"
        ),
        1
    );

    redis.restart().unwrap();
    until("the store decides", || check(running.http, user).json()["degraded"] == false).await;
    assert_eq!(metric(running.admin, "tollgate_store_up"), 1);
}

/// Every key that a server leaves in Redis ends by itself.
#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_without_an_end() {
    use tollgate_harness::Reply;
    let redis = RedisServer::start().unwrap();
    let running = on(&redis).await;
    let mut client = Wire::new(running.resp);
    for number in 0..20 {
        client.asks(
            &["CL.THROTTLE", &format!("k{number}"), "0", "1", "3600"],
            &five([0, 1, 0, -1, 3_600]),
        );
        check(running.http, &format!(r#"{{"domain":"shop","attributes":{{"user":"{number}"}}}}"#));
    }
    let script = b"local n = 0; for _, k in ipairs(redis.call('KEYS', 'tg:*')) do if redis.call('PTTL', k) < 0 then n = n + 1 end end; return n";
    assert_eq!(redis.command(&[b"EVAL", script, b"0"]).unwrap(), Reply::Integer(0));
}
