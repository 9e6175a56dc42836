//! `/json` in the histogram of durations: every call is seen once, however it ends.

use super::support::{ask, metric, start_with};

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_json_are_timed() {
    let running = start_with(|settings| {
        let rules = settings.rules.as_ref().unwrap().with_file_name("edge.yaml");
        let text = "domain: edge\ndescriptors: [{ key: one, rate_limit: { unit: year, requests_per_unit: 1 } }]";
        std::fs::write(&rules, text).unwrap();
        settings.envoy.rules = vec![rules];
    })
    .await;
    let body = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"one","value":"a"}]}]}"#;
    let name = "tollgate_request_duration_seconds";
    let count = || metric(running.admin, &format!("{name}_count{{protocol=\"json\"}}"));
    assert_eq!(count(), 0);

    assert_eq!(ask(running.http, "POST /json", body).status, 200);
    assert_eq!(count(), 1);
    assert_eq!(ask(running.http, "POST /json", body).status, 429);
    assert_eq!(ask(running.http, "POST /json", "{").status, 400);
    assert_eq!(count(), 3);
    assert_eq!(
        metric(running.admin, &format!("{name}_bucket{{protocol=\"json\",le=\"+Inf\"}}")),
        3
    );
    let page = ask(running.admin, "GET /metrics", "").body;
    let sum = page
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}_sum{{protocol=\"json\"}} ")));
    assert!(sum.unwrap().parse::<f64>().unwrap() > 0.0, "{sum:?}");
}
