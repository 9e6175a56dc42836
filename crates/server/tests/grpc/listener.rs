//! The listener of a server in this process: accounts, refusals, who may ask, and the end.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate::envoy::CallPolicy;
use tollgate::rules::declaration::OnOutage;
use tollgate_harness::RedisServer;
use tollgate_server::Listener;
use tollgate_server::settings::Settings;
use tollgate_server::settings::value::ListenAddress;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::answers::hits;
use crate::program::SHOP;
use crate::server::{Running, ask, metric, outcomes, start_with, until};
use crate::support::{Client, channel, d, event, grpc, shop, told};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;

async fn start(change: impl FnOnce(&mut Settings)) -> Running {
    start_with(|settings| {
        let rules = settings.rules.as_ref().unwrap().with_file_name("envoy.yaml");
        std::fs::write(&rules, SHOP.replace("shop", "edge")).unwrap();
        settings.envoy.rules = vec![rules];
        change(settings);
    })
    .await
}

fn edge(descriptors: &[RateLimitDescriptor]) -> crate::support::RateLimitRequest {
    crate::support::RateLimitRequest { domain: "edge".to_owned(), ..shop(descriptors) }
}

/// E49 at this listener: what was offered is the sum, and is what clients sent.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_counted_once() {
    let running = start(|_| {}).await;
    let json = |value: &str| {
        let body = format!(
            r#"{{"domain":"edge","descriptors":[{{"entries":[{{"key":"two","value":"{value}"}}]}}]}}"#
        );
        ask(running.http, "POST /json", &body).status
    };

    let mut clients = tokio::task::JoinSet::new();
    for number in 0..4 {
        let mut client = Client::at(grpc(&running)).await;
        clients.spawn(async move {
            let value = format!("two=g{number}");
            for _ in 0..5 {
                client.ask(edge(&[d(&value), d("ten=shared"), d(&value)])).await.unwrap();
            }
            let nowhere = crate::support::RateLimitRequest {
                domain: "nowhere".to_owned(),
                ..edge(&[d("two=a")])
            };
            client.ask(nowhere).await.unwrap();
            client.ask(edge(&[])).await.unwrap_err();
            let huge = format!("two={}", "x".repeat(2 << 20));
            client.ask(edge(&[d(&huge)])).await.unwrap_err();
        });
    }
    clients.join_all().await;
    assert_eq!([json("j"), json("j"), json("j")], [200, 200, 429]);
    assert_eq!(ask(running.http, "POST /json", "{").status, 400);

    let row = |protocol| outcomes(running.admin, protocol);
    // Each value twice in a call takes both of its two.
    assert_eq!(row("grpc"), [4 + 4, 4 * 4, 0, 4 * 2]);
    assert_eq!(row("json"), [2, 1, 0, 1]);
    for protocol in ["grpc", "json"] {
        let name = format!("tollgate_requests_offered_total{{protocol=\"{protocol}\"}}");
        assert_eq!(metric(running.admin, &name), row(protocol).iter().sum::<u64>(), "{protocol}");
    }
    assert_eq!(metric(running.admin, "tollgate_envoy_unknown_domain_total"), 4);
    let rule = |rule: &str| {
        ["allowed", "refused", "degraded", "refused-by-another"].map(|outcome| {
            let labels = format!("domain=\"edge\",rule=\"{rule}\",outcome=\"{outcome}\"");
            metric(running.admin, &format!("tollgate_rule_requests_total{{{labels}}}"))
        })
    };
    assert_eq!(rule("two"), [4 + 2, 4 * 4 + 1, 0, 0], "once a call, though it is there twice");
    assert_eq!(rule("ten"), [4, 0, 0, 4 * 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_keys_and_events_know_the_protocol() {
    let running = start(|_| {}).await;
    let mut events = running.server.state().events.subscribe().unwrap();
    let mut client = Client::at(grpc(&running)).await;
    let both = [d("ten=b"), hits(d("two=a"), 3)];

    assert_eq!(told(&client.ask(edge(&both)).await.unwrap()), "OVER: OK 10, OVER 0");

    let seen = ask(running.admin, "GET /v1/refusals", "").json()["refusals"][0].clone();
    assert_eq!(seen["protocol"], "grpc");
    assert_eq!((&seen["domain"], &seen["rule"]), (&"edge".into(), &"two".into()));
    assert_eq!((&seen["key"], &seen["limit"]), (&"two=a".into(), &"2 per year".into()));
    assert_eq!((&seen["reason"], &seen["rules_version"]), (&"limits".into(), &1.into()));
    assert!(seen["at_us"].as_u64().unwrap() > 0 && seen["retry_after_ms"].as_u64().unwrap() > 0);
    let top = ask(running.admin, "GET /v1/refusals/top", "").json();
    assert_eq!((&top["keys"][0]["key"], &top["keys"][0]["count"]), (&"two=a".into(), &1.into()));
    let refused = event(&mut events, "refused").await;
    assert!(refused.contains("\"protocol\":\"grpc\""), "{refused}");
}

/// Explain reports every descriptor, and charges nothing.
#[tokio::test(flavor = "multi_thread")]
async fn calls_can_be_explained() {
    let running = start(|_| {}).await;
    let mut client = Client::at(grpc(&running)).await;
    let explain =
        |body: &str| ask(running.admin, "POST /v1/explain\r\nContent-Type: application/json", body);
    let both = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"two","value":"a"}]},{"entries":[{"key":"free","value":"a"}]},{"entries":[{"key":"none"}]}]}"#;
    for _ in 0..2 {
        client.ask(edge(&[d("two=a")])).await.unwrap();
    }
    let metrics = || {
        let page = ask(running.admin, "GET /metrics", "").body;
        let counts = page.lines().filter(|line| line.starts_with("tollgate_requests_total"));
        counts.map(str::to_owned).collect::<Vec<_>>()
    };
    let counted = metrics();

    for _ in 0..3 {
        let said = explain(both).json();
        assert_eq!((&said["allowed"], &said["knows_domain"]), (&false.into(), &true.into()));
        let of = |at: usize| said["descriptors"][at].clone();
        assert_eq!((&of(0)["rule"], &of(0)["mode"]), (&"two".into(), &"enforce".into()));
        assert_eq!((&of(0)["allows"], &of(0)["passes"]), (&"2 per year".into(), &false.into()));
        assert_eq!((&of(0)["remaining"], &of(0)["entries"][0]), (&0.into(), &"two=a".into()));
        assert!(of(0)["resets_after_ms"].as_u64().unwrap() > 0);
        assert_eq!((&of(1)["rule"], &of(1)["allows"]), (&"free".into(), &serde_json::Value::Null));
        assert_eq!((&of(2)["rule"], &of(2)["passes"]), (&serde_json::Value::Null, &true.into()));
        let fresh = explain(&both.replace("\"a\"", "\"b\"")).json();
        assert_eq!(
            (&fresh["allowed"], &fresh["descriptors"][0]["remaining"]),
            (&true.into(), &2.into())
        );
    }
    assert_eq!(metrics(), counted, "nothing was counted");
    assert_eq!(told(&client.ask(edge(&[d("two=b")])).await.unwrap()), "OK: OK 1", "nor charged");

    // A domain of ours, in Envoy's words.
    let own = r#"{"domain":"shop","hitsAddend":2,"descriptors":[{"entries":[{"key":"user","value":"u"}]}]}"#;
    let said = explain(own).json();
    assert_eq!(
        (&said["counters"][0]["cost"], &said["counters"][0]["remaining"]),
        (&2.into(), &3.into())
    );
    assert_eq!(explain(r#"{"domain":"edge","descriptors":[]}"#).status, 400);
    assert_eq!(explain(r#"{"domain":"shop","descriptors":[]}"#).status, 400);
    assert_eq!(explain(r#"{"domain":"edge","descriptors":7}"#).status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn giving_back_needs_a_token_off_loopback() {
    let everywhere: ListenAddress = "0.0.0.0:0".parse().unwrap();
    let running = start(|settings| {
        settings.listen[Listener::Grpc] = everywhere;
        settings.listen[Listener::Http] = everywhere;
    })
    .await;
    let at = std::net::SocketAddr::from(([127, 0, 0, 1], grpc(&running).port()));
    let mut client = Client::at(at).await;
    let back = RateLimitDescriptor { is_negative_hits: true, ..d("two=a") };

    assert_eq!(told(&client.ask(edge(&[d("two=a")])).await.unwrap()), "OK: OK 1");
    let status = client.ask(edge(&[back])).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::PermissionDenied);
    let body = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"two","value":"a"}],"isNegativeHits":true}]}"#;
    let http = std::net::SocketAddr::from(([127, 0, 0, 1], running.http.port()));
    assert_eq!(ask(http, "POST /json", body).status, 403);
    assert_eq!(told(&client.ask(edge(&[d("two=a")])).await.unwrap()), "OK: OK 0");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_drains_it_says_so_and_still_answers() {
    let running = start(|settings| {
        settings.drain_delay = std::time::Duration::from_secs(3_600);
    })
    .await;
    let mut client = Client::at(grpc(&running)).await;
    let mut health = HealthClient::new(channel(grpc(&running)).await);
    let mut status = async || {
        let asked = HealthCheckRequest { service: "ratelimit".to_owned() };
        health.check(asked).await.unwrap().into_inner().status()
    };
    assert_eq!(status().await, ServingStatus::Serving);

    let stopping = tokio::spawn(running.server.stop());

    while status().await == ServingStatus::Serving {
        tokio::task::yield_now().await;
    }
    assert_eq!(status().await, ServingStatus::NotServing);
    assert_eq!(told(&client.ask(edge(&[d("two=a")])).await.unwrap()), "OK: OK 1");
    stopping.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_too_many_is_told_so() {
    let running = start(|settings| settings.max_connections = 1).await;
    let mut client = Client::at(grpc(&running)).await;
    assert_eq!(told(&client.ask(edge(&[d("two=a")])).await.unwrap()), "OK: OK 1");

    let told_off = crate::server::raw(grpc(&running), b"");

    assert_eq!(told_off[3], 4, "settings, as every connection begins");
    assert_eq!((told_off[12], told_off[25]), (7, 11), "GOAWAY, ENHANCE_YOUR_CALM");
    // The admin listener has room for one as well, and the last may not have left it yet.
    let says = |line: &str| ask(running.admin, "GET /metrics", "").body.contains(line);
    let turned = "\ntollgate_connections_turned_away_total{listener=\"grpc\"} 1\n";
    until("it is counted once", || says(turned)).await;
    drop(client);
    let open = "\ntollgate_connections{listener=\"grpc\"} 0\n";
    until("it is gone", || says(open)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_bounded_and_takes_post() {
    let running = start(|_| {}).await;
    let long = format!(r#"{{"domain":"{}"}}"#, "x".repeat(64 * 1024));
    assert_eq!(ask(running.http, "POST /json", &long).status, 413);
    assert_eq!(ask(running.http, "GET /json", "").status, 405);
    let body = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"two","value":"a"}]}]}"#;
    let reply = ask(running.http, "POST /json", body);
    assert_eq!(reply.header("x-tollgate-rules-version"), Some("1"));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.json()["overallCode"], "OK");
    assert_eq!(
        ask(running.http, "POST /json", "nonsense").header("content-type").unwrap(),
        "text/plain; charset=utf-8"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_answered_without_the_store_is_counted_as_degraded() {
    for on_outage in [OnOutage::Local, OnOutage::Refuse] {
        let redis = RedisServer::start().unwrap();
        let running = start(|settings| {
            settings.store = redis.url().parse().unwrap();
            // A busy machine must not look like an outage.
            settings.store_deadline = std::time::Duration::from_secs(10);
            settings.envoy.calls.policy = CallPolicy::DEFAULT.in_outages(on_outage);
        })
        .await;
        let mut client = Client::at(grpc(&running)).await;
        assert_eq!(told(&client.ask(edge(&[d("ten=a")])).await.unwrap()), "OK: OK 9");

        drop(redis);

        let answered = client.ask(edge(&[d("ten=a")])).await;
        match on_outage {
            OnOutage::Refuse => {
                assert_eq!(answered.unwrap_err().code(), tonic::Code::Unavailable);
            }
            _ => assert_eq!(answered.unwrap().overall_code, 1),
        }
        let count = |outcome: &str| {
            let name =
                format!("tollgate_requests_total{{protocol=\"grpc\",outcome=\"{outcome}\"}}");
            metric(running.admin, &name)
        };
        assert_eq!(["allowed", "refused", "degraded", "error"].map(count), [1, 0, 1, 0]);
    }
}

/// C21 at this listener, in virtual time.
#[tokio::test]
async fn who_says_nothing_and_who_does_not_go_on_is_not_waited_for() {
    let running = start(|settings| {
        settings.rules_poll = std::time::Duration::from_secs(3_600);
    })
    .await;
    let mut silent = TcpStream::connect(grpc(&running)).await.unwrap();
    let mut begun = TcpStream::connect(grpc(&running)).await.unwrap();
    begun.write_all(&crate::hostile::begun()).await.unwrap();
    tokio::time::pause();
    let began = tokio::time::Instant::now();

    // A connection that is cut may be reset.
    let _ = silent.read_to_end(&mut Vec::new()).await;
    assert!(began.elapsed().as_secs() >= 10);
    let timed_out = &running.server.state().connections[Listener::Grpc].timed_out;
    assert_eq!(timed_out.load(std::sync::atomic::Ordering::Relaxed), 1);

    let (mut told, mut buffer) = (Vec::new(), [0; 1024]);
    while !crate::hostile::has_head(&told) {
        let read = begun.read(&mut buffer).await.unwrap();
        assert!(read > 0, "closed without an answer");
        told.extend_from_slice(&buffer[..read]);
    }
    assert!(began.elapsed().as_secs() >= 10, "DEADLINE_EXCEEDED, and others could go on");
}
