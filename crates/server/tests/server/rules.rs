//! Rules that change while the server runs, and those that must not.

use std::os::unix::fs::symlink;

use super::support::{RULES, Running, ask, check, metric, start, start_with, until};
use tollgate_server::settings::value::WithoutRules;

fn version(number: u64) -> String {
    RULES.replacen("version: 1", &format!("version: {number}"), 1)
}

fn applies(running: &Running) -> u64 {
    running.server.state().limiter.rules().version()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_the_file_applies_and_what_was_used_stays_used() {
    let running = start().await;
    let file = running.dir.path().join("rules.yaml");
    let ask = r#"{"domain":"shop","attributes":{"user":"u"}}"#;
    for _ in 0..3 {
        assert!(check(running.http, ask).json()["allowed"].as_bool().unwrap());
    }

    std::fs::write(&file, version(2).replace("3 per 1h", "4 per 1h")).unwrap();
    until("version 2 applies", || applies(&running) == 2).await;
    let fourth = check(running.http, ask).json();
    assert_eq!((&fourth["allowed"], &fourth["rules_version"]), (&true.into(), &2.into()));
    assert_eq!(check(running.http, ask).json()["allowed"], false);

    // As editors do it: another file in its place.
    std::fs::write(running.dir.path().join("new"), version(3)).unwrap();
    std::fs::rename(running.dir.path().join("new"), &file).unwrap();
    until("version 3 applies", || applies(&running) == 3).await;
    // A set is counted after it applies.
    let applied = || metric(running.admin, "tollgate_rules_applied_total");
    until("all three are counted", || applied() == 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_swap_is_followed() {
    let running = start_with(|settings| {
        let dir = settings.rules.clone().unwrap().parent().unwrap().to_owned();
        std::fs::create_dir(dir.join("..1")).unwrap();
        std::fs::write(dir.join("..1/live.yaml"), RULES).unwrap();
        symlink("..1", dir.join("..data")).unwrap();
        symlink("..data/live.yaml", dir.join("live.yaml")).unwrap();
        settings.rules = Some(dir.join("live.yaml"));
    })
    .await;
    let dir = running.dir.path();
    assert_eq!(applies(&running), 1);

    std::fs::create_dir(dir.join("..2")).unwrap();
    std::fs::write(dir.join("..2/live.yaml"), version(2)).unwrap();
    symlink("..2", dir.join("..data.new")).unwrap();
    std::fs::rename(dir.join("..data.new"), dir.join("..data")).unwrap();

    until("version 2 applies", || applies(&running) == 2).await;
    let head = "PUT /v1/rules\r\nContent-Type: application/yaml\r\nIf-Match: \"2\"";
    let refused = ask(running.admin, head, &version(3));
    assert_eq!(refused.status, 503, "a link is not replaced by a file");
    assert!(refused.json()["detail"].as_str().unwrap().contains("ConfigMap"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_keeps_what_was_right() {
    let running = start().await;
    let file = running.dir.path().join("rules.yaml");
    let error = || running.server.state().rules.error();

    std::fs::write(&file, "version: 2\ndomain: shop\nrule: []\n").unwrap();
    until("it is told", || error().is_some_and(|why| why.contains("3:1: unknown field `rule`")))
        .await;
    assert_eq!(applies(&running), 1);
    std::fs::write(&file, RULES.replace("3 per 1h", "5 per 1h")).unwrap();
    until("it is told", || error().is_some_and(|why| why.contains("raise `version`"))).await;
    std::fs::remove_file(&file).unwrap();
    until("it is told", || error().is_some_and(|why| why.contains("cannot read the rules"))).await;
    assert_eq!(ask(running.http, "GET /readyz", "").status, 200, "the last good ones apply");
    assert_eq!(metric(running.admin, "tollgate_rules_trouble"), 1);

    std::fs::write(&file, version(2)).unwrap();
    until("all is well", || applies(&running) == 2 && error().is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_good_rules_outlive_a_restart() {
    let keep = |settings: &mut tollgate_server::settings::Settings, dir: std::path::PathBuf| {
        settings.state_dir = Some(dir);
    };
    let state = super::support::TempDir::new();
    let first = start_with(|settings| {
        std::fs::write(settings.rules.as_ref().unwrap(), version(7)).unwrap();
        keep(settings, state.path().to_owned());
    })
    .await;
    assert_eq!(applies(&first), 7);
    first.server.stop().await;

    let broken = start_with(|settings| {
        std::fs::write(settings.rules.as_ref().unwrap(), "version: 8\nrules: [").unwrap();
        keep(settings, state.path().to_owned());
    })
    .await;
    assert_eq!(applies(&broken), 7);
    assert_eq!(ask(broken.http, "GET /readyz", "").status, 200);
    drop(broken);

    let older = start_with(|settings| keep(settings, state.path().to_owned())).await;
    assert_eq!(applies(&older), 7, "versions only rise");
}

/// B22
#[tokio::test(flavor = "multi_thread")]
async fn without_rules_a_server_is_not_ready_and_does_as_it_was_told() {
    for (told, status) in [(WithoutRules::Admit, 200), (WithoutRules::Refuse, 503)] {
        let running = start_with(|settings| {
            std::fs::remove_file(settings.rules.as_ref().unwrap()).unwrap();
            settings.without_rules = told;
        })
        .await;
        assert_eq!(ask(running.http, "GET /readyz", "").status, 503);
        assert_eq!(ask(running.http, "GET /healthz", "").status, 200);
        assert_eq!(check(running.http, r#"{"domain":"shop"}"#).status, status);

        std::fs::write(running.dir.path().join("rules.yaml"), RULES).unwrap();
        until("it is ready", || ask(running.http, "GET /readyz", "").status == 200).await;
        assert_eq!(check(running.http, r#"{"domain":"shop"}"#).status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_source_the_admin_api_is_one() {
    let running = start_with(|settings| settings.rules = None).await;
    assert_eq!(ask(running.http, "GET /readyz", "").status, 200);
    let head = "PUT /v1/rules\r\nContent-Type: application/yaml\r\nIf-Match: \"0\"";
    assert_eq!(ask(running.admin, head, RULES).status, 200);
    assert_eq!(applies(&running), 1);
}
