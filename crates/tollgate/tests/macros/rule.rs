//! Functions that name a rule of the limiter.

use std::time::Duration;

use tollgate::Ask;
use tollgate::RuleSet;
use tollgate::rules::declaration;
use tollgate::rules::declaration::{Ban, Mode, OnOutage, Subject, Value};
use tollgate::scope::{self, Scope};
use tollgate::{Blocked, EmbeddedStore, Limiter, Refused, RefusedKind, limit};

use crate::common::{
    ConnectionState, StoreConnection, TokioClock, backend, on, rule, rules, settle,
};
use crate::wire::limiter;

#[limit(rule = "login", domain = "shop", by = user, message = "too many attempts")]
async fn login(user: &str) -> Result<(), Refused> {
    Ok(())
}

#[limit(rule = "login")]
async fn login_of_request() -> Result<(), Refused> {
    Ok(())
}

/// A rule and limits of its own, in one decision.
#[limit(rule = "login", domain = "shop", by = user)]
#[limit("5 per 1h", "2 per 1m", message = "slowly")]
async fn mixed(user: &str) -> Result<(), Refused> {
    Ok(())
}

fn login_rule() -> declaration::Rule {
    on(rule("login", &["user"], &["2 per 1h"]), "path", "/login")
}

#[tokio::test]
async fn the_rules_limits_hold_on_the_rules_counters() {
    let limiter = limiter(rules(1, [login_rule()]));
    let call = |user| scope::with(&limiter, login(user));

    assert!(call("alice").await.is_ok());
    let by_rule = Ask::new("shop").with("user", "alice").unwrap().with("path", "/login").unwrap();
    assert!(limiter.admit(&by_rule).await.passes());
    let refused = call("alice").await.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.message()),
        (RefusedKind::Limited, Some("too many attempts"))
    );
    assert_eq!(refused.refusing().unwrap().rule.unwrap().name(), "login");
    assert!(call("bob").await.is_ok());

    let more = on(rule("login", &["user"], &["3 per 1h"]), "path", "/login");
    limiter.set_rules(rules(2, [more])).unwrap();
    assert!(call("alice").await.is_ok(), "an edit of the rules holds at once");
    assert!(call("alice").await.is_err());
}

#[tokio::test]
async fn without_values_they_are_the_requests() {
    let limiter = limiter(rules(1, [login_rule()]));
    let of = |user: &str| Scope::new(&limiter).domain("shop").attribute("user", user);

    assert!(of("alice").run(login_of_request()).await.is_ok());
    assert!(of("alice").run(login_of_request()).await.is_ok());
    assert!(of("alice").run(login_of_request()).await.is_err());
    assert!(of("bob").run(login_of_request()).await.is_ok());

    let refused = Scope::new(&limiter).domain("shop").run(login_of_request()).await.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Misconfigured);
    assert!(refused.to_string().contains("nothing provides the request's `user`"), "{refused}");
}

#[limit(rule = "place", by = attribute("path"))]
fn by_path() -> Result<(), Refused> {
    Ok(())
}

#[limit(rule = "place and kind", by = (attribute("host"), kind))]
fn by_host(kind: u8) -> Result<(), Refused> {
    Ok(())
}

/// They were counted as the client spelt them, and whoever spelt them otherwise began anew.
#[test]
fn paths_and_hosts_that_are_given_are_counted_in_their_one_spelling() {
    let place = rule("place", &["path"], &["1 per 1h"]);
    let both = rule("place and kind", &["host", "kind"], &["1 per 1h"]);
    let limiter = limiter(rules(1, [place, both]));
    let scope = || Scope::new(&limiter).domain("shop").attribute("path", "/");

    for (at, path) in ["/a", "/%61", "/x/../a", "/A", "/a/"].into_iter().enumerate() {
        assert_eq!(scope().attribute("path", path).call(by_path).is_ok(), at == 0, "{path}");
    }
    for (at, host) in ["a.com", "A.com", "a.com:80", "a.com."].into_iter().enumerate() {
        let passed = scope().attribute("host", host).call(|| by_host(1)).is_ok();
        assert_eq!(passed, at == 0, "{host}");
    }
    assert!(scope().attribute("host", "a.com").call(|| by_host(2)).is_ok());
    let malformed = scope().attribute("path", "/a%2fb").call(by_path).unwrap_err();
    assert_eq!(malformed.kind(), RefusedKind::Malformed);
}

#[tokio::test]
async fn a_rule_or_domain_that_is_not_there_refuses_and_says_so() {
    let limiter = limiter(rules(1, [rule("logn", &["user"], &["2 per 1h"])]));
    let refused = scope::with(&limiter, login("alice")).await.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Misconfigured);
    assert!(refused.to_string().contains("no rule `login` in the domain `shop`"), "{refused}");

    let refused = scope::with(&limiter, login_of_request()).await.unwrap_err();
    assert!(refused.to_string().contains("write `domain = \"…\"`"), "{refused}");
    let elsewhere = Scope::new(&limiter).domain("bank").run(login_of_request());
    let refused = elsewhere.await.unwrap_err();
    assert!(refused.to_string().contains("no domain `bank`"), "{refused}");

    let two = rule("login", &["user", "ip"], &["2 per 1h"]);
    limiter.set_rules(rules(2, [two])).unwrap();
    let refused = scope::with(&limiter, login("alice")).await.unwrap_err();
    assert!(refused.to_string().contains("counts by 2 values, and 1 are given"), "{refused}");
}

#[tokio::test]
async fn a_rule_and_limits_of_the_function_are_one_decision() {
    let limiter = limiter(rules(1, [rule("login", &["user"], &["3 per 1h"])]));
    let call = |user| scope::with(&limiter, mixed(user));
    assert!(call("alice").await.is_ok());
    assert!(call("alice").await.is_ok());
    let refused = call("alice").await.unwrap_err();
    assert_eq!(refused.message(), Some("slowly"), "the function's minute");

    // That charged nothing of the rule: one of three is left.
    assert!(scope::with(&limiter, login("alice")).await.is_ok());
    let refused = call("alice").await.unwrap_err();
    let refusing =
        refused.ruling().unwrap().findings().filter(|finding| !finding.decision.passes());
    let refusing: Vec<_> = refusing
        .map(|finding| (finding.rule.unwrap().name(), finding.limit.unwrap().name()))
        .collect();
    assert_eq!(refusing, [("mixed", "1m"), ("login", "1h")]);
    assert_eq!(refused.refusing().unwrap().rule.unwrap().name(), "login", "it lasts longer");
    assert_eq!(limiter.stats().admitted, 3);
}

#[tokio::test]
async fn shadow_rules_count_and_rules_that_are_off_do_not() {
    let set = |version, mode| {
        let mut login = rule("login", &["user"], &["1 per 1h"]);
        login.mode = mode;
        rules(version, [login])
    };
    let limiter = limiter(set(1, Mode::Shadow));
    for _ in 0..3 {
        assert!(scope::with(&limiter, login("alice")).await.is_ok());
    }
    let stats = limiter.stats();
    assert_eq!((stats.shadow_admitted, stats.shadow_refused), (1, 2));

    limiter.set_rules(set(2, Mode::Off)).unwrap();
    assert!(scope::with(&limiter, login("alice")).await.is_ok());
    assert_eq!(limiter.stats().shadow_refused, 2);
    limiter.set_rules(set(3, Mode::Enforce)).unwrap();
    assert!(scope::with(&limiter, login("alice")).await.is_err());
}

#[tokio::test]
async fn lists_block_and_exempt() {
    let mut domain = declaration::Domain::new("shop");
    domain.rules.push(rule("login", &["user"], &["1 per 1h"]));
    let named = |user: &str| Subject::Attribute {
        name: "user".to_owned(),
        value: Value::Text(user.to_owned()),
    };
    domain.block.push(named("mallory"));
    domain.exempt.push(named("root"));
    let set = RuleSet::new(declaration::Declaration { version: 1, domains: vec![domain] }).unwrap();
    let limiter = limiter(set);

    let refused = scope::with(&limiter, login("mallory")).await.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Blocked);
    assert!(matches!(refused.ruling().unwrap().blocked_by(), Some(Blocked::List { .. })));
    for _ in 0..3 {
        assert!(scope::with(&limiter, login("root")).await.is_ok());
    }
    assert!(scope::with(&limiter, login("alice")).await.is_ok());
    assert!(scope::with(&limiter, login("alice")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn refusals_lead_to_the_rules_ban() {
    let mut strict = rule("login", &["user"], &["1 per 1m"]);
    let (within, lasts) = (Duration::from_secs(600), Duration::from_secs(3600));
    strict.ban = Some(Ban { after: 2, within, lasts });
    let store = EmbeddedStore::builder().with_clock(TokioClock::new());
    let limiter = Limiter::builder(store).rules(rules(1, [strict])).build();

    assert!(scope::with(&limiter, login("alice")).await.is_ok());
    for _ in 0..2 {
        let refused = scope::with(&limiter, login("alice")).await.unwrap_err();
        assert_eq!(refused.kind(), RefusedKind::Limited);
        settle().await;
    }
    let banned = scope::with(&limiter, login("alice")).await.unwrap_err();
    assert_eq!(banned.kind(), RefusedKind::Banned);
    assert!(banned.retry_after() > Some(Duration::from_secs(3000)));
}

#[tokio::test]
async fn an_outage_is_answered_as_the_rule_says() {
    let connection = StoreConnection::to(&backend());
    connection.set(ConnectionState::Closed);
    let mut login_rule = rule("login", &["user"], &["1 per 1h"]);
    login_rule.on_outage = OnOutage::Refuse;
    let limiter = Limiter::builder(connection).rules(rules(1, [login_rule.clone()])).build();
    let refused = scope::with(&limiter, login("alice")).await.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Unavailable);
    assert_eq!(refused.response().status(), 503);

    login_rule.on_outage = OnOutage::Admit;
    limiter.set_rules(rules(2, [login_rule])).unwrap();
    for _ in 0..3 {
        assert!(scope::with(&limiter, login("alice")).await.is_ok());
    }
}

#[tokio::test]
async fn what_is_of_different_partitions_is_not_decided_at_once() {
    let mut domain = declaration::Domain::new("shop");
    domain.partition.push("tenant".to_owned());
    domain.rules.push(rule("login", &["user"], &["2 per 1h"]));
    let set = RuleSet::new(declaration::Declaration { version: 1, domains: vec![domain] }).unwrap();
    let limiter = limiter(set);
    let scope = || Scope::new(&limiter).attribute("tenant", "acme");

    let refused = scope().run(mixed("alice")).await.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Misconfigured);
    assert!(refused.to_string().contains("`partition`"), "{refused}");
    assert!(scope().run(login("alice")).await.is_ok(), "alone it can be");
    assert_eq!(limiter.stats().admitted, 1);
}
