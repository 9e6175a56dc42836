//! Envoy's files while the server runs: followed, refused, and beside the other rules.

use tollgate_server::settings::Settings;
use tollgate_server::settings::value::WithoutRules;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::server::{RULES, Running, ask, metric, start_with, until};
use crate::support::{Client, RateLimitRequest, channel, d, event, grpc, shop, told};

fn domain(name: &str, limit: u32) -> String {
    format!(
        "# rules for {name}\ndomain: {name}\ndescriptors:\n  - {{ key: two, rate_limit: {{ unit: year, requests_per_unit: {limit} }} }}\n"
    )
}

/// A server whose directory `envoy` has these files.
async fn start(files: &[(&str, String)], change: impl FnOnce(&mut Settings)) -> Running {
    start_with(|settings| {
        let dir = settings.rules.as_ref().unwrap().with_file_name("envoy");
        std::fs::create_dir(&dir).unwrap();
        for (name, text) in files {
            std::fs::write(dir.join(name), text).unwrap();
        }
        settings.envoy.rules = vec![dir];
        change(settings);
    })
    .await
}

fn version(running: &Running) -> u64 {
    running.server.state().limiter.envoy_rules().version()
}

fn error(running: &Running) -> String {
    running.server.state().envoy.error().unwrap_or_default()
}

fn asked(domain: &str) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned(), ..shop(&[d("two=a")]) }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_directory_are_followed_and_what_was_used_stays_used() {
    let running =
        start(&[("edge.yaml", domain("edge", 2)), ("notes.txt", "no".into())], |_| {}).await;
    let dir = running.dir.path().join("envoy");
    let mut client = Client::at(grpc(&running)).await;
    for left in ["OK: OK 1", "OK: OK 0", "OVER: OVER 0"] {
        assert_eq!(told(&client.ask(asked("edge")).await.unwrap()), left);
    }

    std::fs::write(dir.join("edge.yaml"), domain("edge", 4)).unwrap();
    until("the edit applies", || version(&running) == 2).await;
    assert_eq!(told(&client.ask(asked("edge")).await.unwrap()), "OK: OK 1");

    std::fs::write(dir.join("more.yml"), domain("more", 1)).unwrap();
    until("the new file applies", || version(&running) == 3).await;
    let response = client.raw(tonic::Request::new(asked("more"))).await.unwrap();
    assert_eq!(response.metadata().get("x-tollgate-rules-version").unwrap(), "3");
    assert_eq!(told(response.get_ref()), "OK: OK 0");

    std::fs::remove_file(dir.join("more.yml")).unwrap();
    until("it is gone", || version(&running) == 4).await;
    let status = ask(running.admin, "GET /v1/status", "").json();
    assert_eq!(status["envoy_files"].as_array().unwrap().len(), 1);
    assert_eq!(status["envoy_rules_version"], 4);
    assert_eq!(metric(running.admin, "tollgate_envoy_rules_version"), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_keeps_what_was_right() {
    let running = start(&[("edge.yaml", domain("edge", 2))], |_| {}).await;
    let mut events = running.server.state().events.subscribe().unwrap();
    let file = running.dir.path().join("envoy/edge.yaml");

    std::fs::write(&file, "domain: edge\ndescriptor: []\n").unwrap();
    until("it is told", || error(&running).contains("edge.yaml:2:1: unknown key `descriptor`"))
        .await;
    assert_eq!(version(&running), 1);
    assert!(event(&mut events, "envoy-rules-rejected").await.contains("\"version\":1"));
    assert_eq!(metric(running.admin, "tollgate_envoy_rules_trouble"), 1);
    let status = ask(running.admin, "GET /v1/status", "").json();
    assert!(status["envoy_trouble"].as_str().unwrap().contains("did you mean"));
    std::fs::remove_file(&file).unwrap();
    until("it is told", || error(&running).contains("has no .yaml file")).await;
    let mut client = Client::at(grpc(&running)).await;
    assert_eq!(told(&client.ask(asked("edge")).await.unwrap()), "OK: OK 1", "the last good ones");
    assert!(metric(running.admin, "tollgate_envoy_rules_rejected_total") >= 2);

    std::fs::write(&file, domain("edge", 3)).unwrap();
    until("it is right again", || version(&running) == 2).await;
    assert!(event(&mut events, "envoy-rules").await.contains("\"to\":2"));
    assert_eq!(metric(running.admin, "tollgate_envoy_rules_trouble"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_of_both_kinds_of_rules_is_an_error_that_names_both_places() {
    let running = start(&[("edge.yaml", domain("edge", 2))], |_| {}).await;
    let native = running.dir.path().join("rules.yaml");
    let file = running.dir.path().join("envoy/edge.yaml");
    let applies = || running.server.state().limiter.rules().version();
    let rules = |number: u32, domain: &str| {
        let text = RULES.replacen("version: 1", &format!("version: {number}"), 1);
        text.replacen("domain: shop", &format!("domain: {domain}"), 1)
    };

    // Envoy's file takes the others' domain.
    std::fs::write(&file, domain("shop", 2)).unwrap();
    until("both are named", || {
        let why = error(&running);
        why.contains("edge.yaml:2, and in ") && why.contains("rules.yaml:3; rename")
    })
    .await;
    assert_eq!(version(&running), 1);
    // When the others give it up, it is Envoy's without another edit.
    std::fs::write(&native, rules(2, "store")).unwrap();
    until("it is taken", || version(&running) == 2).await;
    assert_eq!((applies(), error(&running)), (2, String::new()));

    // The others want it back: by their file, and over the admin API.
    std::fs::write(&native, rules(3, "shop")).unwrap();
    let why = || running.server.state().rules.error().unwrap_or_default();
    until("both are named", || why().contains("edge.yaml:2, and in ")).await;
    assert_eq!(applies(), 2);
    let head = "PUT /v1/rules\r\nContent-Type: application/yaml\r\nIf-Match: \"2\"";
    let put = ask(running.admin, head, &rules(4, "shop"));
    assert_eq!(put.status, 409, "{put:?}");
    assert!(put.json()["detail"].as_str().unwrap().contains("edge.yaml:2"), "{put:?}");
    assert_eq!(std::fs::read_to_string(&native).unwrap(), rules(3, "shop"), "nothing was written");
    std::fs::write(&file, domain("edge", 2)).unwrap();
    until("they have it", || applies() == 3).await;
    assert_eq!(why(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_rules_it_is_not_ready_and_refuses_if_told_to() {
    let running = start(&[], |settings| settings.without_rules = WithoutRules::Refuse).await;
    let mut client = Client::at(grpc(&running)).await;
    let mut health = HealthClient::new(channel(grpc(&running)).await);
    let mut status = async || {
        let asked = HealthCheckRequest::default();
        health.check(asked).await.unwrap().into_inner().status()
    };

    assert_eq!(status().await, ServingStatus::NotServing);
    assert_eq!(ask(running.http, "GET /readyz", "").status, 503);
    let refused = client.ask(asked("edge")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert_eq!(ask(running.http, "POST /json", "{}").status, 503);

    std::fs::write(running.dir.path().join("envoy/edge.yaml"), domain("edge", 2)).unwrap();
    until("it applies", || version(&running) == 1).await;
    assert_eq!(told(&client.ask(asked("edge")).await.unwrap()), "OK: OK 1");
    while status().await != ServingStatus::Serving {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(running.http, "GET /readyz", "").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_good_files_are_there_after_a_restart() {
    let kept = crate::server::TempDir::new();
    let state = kept.path().to_owned();
    let first = start(&[("edge.yaml", domain("edge", 2))], |settings| {
        settings.state_dir = Some(state.clone());
    })
    .await;
    assert_eq!(version(&first), 1);
    drop(first);

    let second = start(&[("edge.yaml", "domain: [".to_owned())], |settings| {
        settings.state_dir = Some(state);
    })
    .await;

    let mut client = Client::at(grpc(&second)).await;
    assert_eq!(told(&client.ask(asked("edge")).await.unwrap()), "OK: OK 1");
    assert!(error(&second).contains("edge.yaml:"), "{}", error(&second));
}
