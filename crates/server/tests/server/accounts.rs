//! E49: what was offered is what was allowed, refused, degraded or in error, and is what clients
//! sent.

use super::support::{Wire, ask, check, metric, outcomes, start};

#[tokio::test(flavor = "multi_thread")]
async fn every_request_is_counted_once() {
    let running = start().await;
    let (http, resp) = (running.http, running.resp);
    let user = |name: &str| format!(r#"{{"domain":"shop","attributes":{{"user":"{name}"}}}}"#);

    // Four clients at once, each over its own user: 3 pass, 7 do not, 2 are malformed.
    std::thread::scope(|scope| {
        for number in 0..4 {
            let user = &user;
            scope.spawn(move || {
                for _ in 0..10 {
                    check(http, &user(&format!("h{number}")));
                }
                check(http, "{");
                check(http, r#"{"domain":"shop","attributes":{"ip":"x"}}"#);
                let mut client = Wire::new(resp);
                for _ in 0..5 {
                    client.line(&["TG.CHECK", "shop", "1", "user", &format!("r{number}")]);
                    let mut rest = [0; 4096];
                    let _ = std::io::Read::read(&mut client.0, &mut rest).unwrap();
                }
                for _ in 0..8 {
                    let _ = client.line(&["CL.THROTTLE", &format!("t{number}"), "4", "1", "3600"]);
                    let mut rest = [0; 4096];
                    let _ = std::io::Read::read(&mut client.0, &mut rest).unwrap();
                }
                assert!(client.line(&["CL.THROTTLE", "t", "x", "1", "1"]).starts_with("-Cell"));
            });
        }
    });
    ask(http, "POST /v1/peek", &user("h0"));

    let row = |protocol: &str| outcomes(running.admin, protocol);
    assert_eq!(row("http"), [12, 28, 0, 8]);
    assert_eq!(row("resp"), [12, 8, 0, 0]);
    assert_eq!(row("cl.throttle"), [20, 12, 0, 4]);
    for protocol in ["http", "resp", "cl.throttle", "forward-auth"] {
        let offered = metric(
            running.admin,
            &format!("tollgate_requests_offered_total{{protocol=\"{protocol}\"}}"),
        );
        assert_eq!(offered, row(protocol).iter().sum::<u64>(), "{protocol}");
    }
    // The time of each request is counted once; commands that CL.THROTTLE cannot read have none.
    for (protocol, seen) in [("http", 48), ("resp", 20), ("cl.throttle", 32), ("forward-auth", 0)] {
        let name = "tollgate_request_duration_seconds";
        let of = |row: String| metric(running.admin, &row);
        assert_eq!(of(format!("{name}_count{{protocol=\"{protocol}\"}}")), seen, "{protocol}");
        assert_eq!(
            of(format!("{name}_bucket{{protocol=\"{protocol}\",le=\"+Inf\"}}")),
            seen,
            "{protocol}"
        );
    }
    let rule = |outcome: &str| {
        metric(
            running.admin,
            &format!(
                "tollgate_rule_requests_total{{domain=\"shop\",rule=\"per-user\",outcome=\"{outcome}\"}}"
            ),
        )
    };
    assert_eq!([rule("allowed"), rule("refused"), rule("degraded")], [24, 36, 0]);
}

/// A reservation is a request as any: its rules and its domain are counted.
#[tokio::test(flavor = "multi_thread")]
async fn reservations_are_counted_for_their_rules() {
    let running = start().await;
    let reserve = |body: &str| ask(running.http, "POST /v1/reserve", body).json();
    let user = r#"{"domain":"shop","cost":2,"attributes":{"user":"u"}}"#;

    assert!(reserve(user)["expires_at_us"].as_u64().unwrap() > 1_600_000_000_000_000);
    assert_eq!(reserve(user)["allowed"], false);
    let nowhere = reserve(r#"{"domain":"nowhere"}"#);
    assert_eq!((&nowhere["allowed"], nowhere.get("expires_at_us")), (&true.into(), None));

    let rule = |outcome: &str| {
        let labels = format!("domain=\"shop\",rule=\"per-user\",outcome=\"{outcome}\"");
        metric(running.admin, &format!("tollgate_rule_requests_total{{{labels}}}"))
    };
    assert_eq!([rule("allowed"), rule("refused")], [1, 1]);
    assert_eq!(metric(running.admin, "tollgate_unknown_domain_total"), 1);
    assert_eq!(outcomes(running.admin, "http"), [2, 1, 0, 0]);
}

/// A request that one rule refuses is no refusal of another.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_is_not_blamed_for_what_another_refused() {
    let running = start().await;
    let both = r#"{"domain":"shop","attributes":{"user":"u","ip":"203.0.113.9","path":"/login","method":"POST"}}"#;
    for _ in 0..4 {
        check(running.http, both);
    }
    let rule = |rule: &str, outcome: &str| {
        metric(
            running.admin,
            &format!(
                "tollgate_rule_requests_total{{domain=\"shop\",rule=\"{rule}\",outcome=\"{outcome}\"}}"
            ),
        )
    };
    assert_eq!([rule("login-per-ip", "allowed"), rule("login-per-ip", "refused")], [2, 2]);
    assert_eq!([rule("per-user", "allowed"), rule("per-user", "refused")], [2, 0]);
    assert_eq!(rule("per-user", "refused-by-another"), 2);
}
