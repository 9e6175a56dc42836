//! Forward-auth: what the proxy's address says after the question mark.

use super::program::{rules, serve};
use super::support::{TempDir, ask, check, metric};

const LINES: &str = "X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /";

#[test]
fn a_query_that_is_misspelt_lets_nobody_pass() {
    let dir = TempDir::new();
    let program = serve(&["--rules", &rules(&dir), "--trust", "127.0.0.0/8"], &[]);
    let (http, admin) = (program.at[0], program.at[2]);
    let asked = |query: &str| ask(http, &format!("GET /v1/auth{query}\r\n{LINES}"), "");

    for query in ["", "?", "?domain=shop", "?refuse=401&domain=shop", "?domain=sho%70"] {
        assert_eq!(asked(query).status, 204, "{query}");
    }
    for (query, why) in [
        ("?domian=shop", "unknown query field `domian`: only `domain` and `refuse` are known"),
        ("?domain=shop&domain=shop", "the query repeats `domain`"),
        ("?domain=shop&refuse=401&refuse=403", "the query repeats `refuse`"),
        ("?refuse=500", "`refuse` must be 401, 403 or 429"),
        ("?domain=", "`domain` is empty or not UTF-8"),
        ("?domain=%ff", "`domain` is empty or not UTF-8"),
    ] {
        let reply = asked(query);
        assert_eq!((reply.status, &reply.json()["detail"]), (400, &why.into()), "{query}");
    }
    let errors = "tollgate_requests_total{protocol=\"forward-auth\",outcome=\"error\"}";
    assert_eq!(metric(admin, errors), 6);
    assert_eq!(metric(admin, "tollgate_unknown_domain_total"), 0);
}

#[test]
fn a_domain_without_rules_passes_and_is_told_once() {
    let dir = TempDir::new();
    let program = serve(&["--rules", &rules(&dir), "--trust", "127.0.0.0/8"], &[]);
    let (http, admin) = (program.at[0], program.at[2]);
    let asked =
        |domain: &str| ask(http, &format!("GET /v1/auth?domain={domain}\r\n{LINES}"), "").status;

    assert_eq!(["shpo", "shpo", "shpo", "shop"].map(asked), [204; 4]);
    let same = check(http, r#"{"domain":"shpo"}"#).json();
    assert_eq!((&same["allowed"], &same["reason"]), (&true.into(), &"unknown-domain".into()));
    assert_eq!(metric(admin, "tollgate_unknown_domain_total"), 4);
    for number in 0..40 {
        asked(&format!("other{number}"));
    }

    let (_, log) = program.end();
    let told = |domain: &str| {
        let told = log.lines().filter(|line| line.contains(&format!("\"domain\":\"{domain}\"")));
        told.filter(|line| line.contains("every request there is allowed")).count()
    };
    assert_eq!((told("shpo"), told("shop"), told("other0")), (1, 0, 1), "{log}");
    assert_eq!(log.matches("every request there is allowed").count(), 32, "there is a bound");
}
