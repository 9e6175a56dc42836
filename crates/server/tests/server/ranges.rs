//! Times that are asked for and not granted are refused, not cut short.

use super::support::{ask, check, metric, start};

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_time_than_is_granted_is_an_error_that_names_the_longest() {
    let running = start().await;
    let reserve = |lifetime: &str| {
        let body =
            format!(r#"{{"domain":"shop","attributes":{{"user":"u"}},"lifetime_ms":{lifetime}}}"#);
        ask(running.http, "POST /v1/reserve", &body)
    };

    let long = reserve("43200001");
    assert_eq!(long.status, 400);
    assert_eq!(long.json()["detail"], "`lifetime_ms` is 43200001: at most 43200000 is allowed");
    assert_eq!(reserve("18446744073709551615").status, 400);
    let longest = reserve("43200000");
    assert_eq!(longest.json()["allowed"], true, "{longest:?}");

    let patient = check(running.http, r#"{"domain":"shop","patience_ms":60001}"#);
    assert_eq!(patient.status, 400);
    assert_eq!(patient.json()["detail"], "`patience_ms` is 60001: at most 60000 is allowed");
    assert_eq!(check(running.http, r#"{"domain":"shop","patience_ms":60000}"#).status, 200);
    let row = |outcome: &str| {
        let name = format!("tollgate_requests_total{{protocol=\"http\",outcome=\"{outcome}\"}}");
        metric(running.admin, &name)
    };
    assert_eq!([row("allowed"), row("error")], [2, 3]);
}
