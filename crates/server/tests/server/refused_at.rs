//! When refusals were: by the store's clock, whoever refused.

use std::time::Duration;

use tollgate_harness::RedisServer;

use super::support::{Running, Wire, ask, check, metric, start_with};

/// The moments of the last refusals, the latest first, with their protocols and reasons.
fn refusals(running: &Running) -> Vec<(u64, String)> {
    let shown = ask(running.admin, "GET /v1/refusals", "").json();
    let rows = shown["refusals"].as_array().unwrap().iter().map(|row| {
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        (row["at_us"].as_u64().unwrap(), format!("{} {}", text("protocol"), text("reason")))
    });
    rows.collect()
}

/// Refused by a limit, which the store says the time of, before and after those that it does not.
fn refuse_all(running: &Running) {
    let limited = r#"{"domain":"shop","attributes":{"user":"u"},"cost":4}"#;
    let blocked = r#"{"domain":"shop","attributes":{"ip":"203.0.113.66"}}"#;
    check(running.http, limited);
    let mut client = Wire::new(running.resp);
    client.asks(
        &["CL.THROTTLE", "k", "0", "1", "86400", "2"],
        b"*5\r\n:1\r\n:1\r\n:1\r\n:-1\r\n:0\r\n",
    );
    check(running.http, blocked);
    let forward = "GET /v1/auth?domain=shop\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\nX-Forwarded-For: 203.0.113.66";
    assert_eq!(ask(running.http, forward, "").status, 403);
    check(running.http, &limited.replace("\"u\"", "\"v\""));
}

fn assert_told(running: &Running) {
    let mut told = refusals(running);
    told.reverse();
    let names: Vec<&str> = told.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "http limits",
            "cl.throttle limits",
            "http blocked",
            "forward-auth blocked",
            "http limits"
        ]
    );
    let times: Vec<u64> = told.iter().map(|(at, _)| *at).collect();
    assert!(times[0] > 1_700_000_000_000_000, "{times:?}");
    assert!(times.is_sorted(), "one after the other: {times:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_without_the_store_have_its_time() {
    let running = start_with(|settings| {
        settings.trust = tollgate::http::Trust::proxies(["127.0.0.0/8"]).unwrap();
    })
    .await;
    refuse_all(&running);
    assert_told(&running);
    assert_eq!(metric(running.admin, "tollgate_keys"), 0, "nobody was charged, and no key made");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_redis_they_have_its_time_too() {
    let redis = RedisServer::start().unwrap();
    let running = start_with(|settings| {
        settings.store = redis.url().parse().unwrap();
        // A busy machine is no outage.
        settings.store_deadline = Duration::from_secs(10);
        settings.trust = tollgate::http::Trust::proxies(["127.0.0.0/8"]).unwrap();
    })
    .await;
    refuse_all(&running);
    assert_told(&running);
}

/// Envoy's limit of nothing asks no store either.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_call_of_envoys_has_it_as_well() {
    let running = start_with(|settings| {
        let rules = settings.rules.as_ref().unwrap().with_file_name("edge.yaml");
        let text = "domain: edge\ndescriptors: [{ key: no, rate_limit: { unit: year, requests_per_unit: 0 } }]";
        std::fs::write(&rules, text).unwrap();
        settings.envoy.rules = vec![rules];
    })
    .await;
    let body = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"no","value":"a"}]}]}"#;
    assert_eq!(ask(running.http, "POST /json", body).status, 429);
    let told = refusals(&running);
    assert_eq!(told[0].1, "json blocked");
    assert!(told[0].0 > 1_700_000_000_000_000, "{told:?}");
}
