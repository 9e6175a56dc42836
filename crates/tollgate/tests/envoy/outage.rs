//! Answers in an outage of the store.

use std::sync::atomic::Ordering;

use tollgate::StoreErrorKind;
use tollgate::envoy::{CallError, CallPolicy, ChargeMode, EnvoyRules};
use tollgate::rules::declaration::OnOutage;
use tollgate::{DenyCacheMode, Limiter};

use crate::common::{ConnectionState, StoreConnection, backend, settle};
use crate::support::{ask, ask_as, d, told};

const SHOP: &str = "
domain: shop
descriptors:
  - { key: ten, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: one, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: other, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 3 } }
  - { key: free, rate_limit: { unlimited: true } }
";

fn node(connection: &StoreConnection, cache: DenyCacheMode) -> Limiter<StoreConnection> {
    let rules = EnvoyRules::load(1, [("f", SHOP)]).unwrap();
    Limiter::builder(connection.clone()).envoy_rules(rules).deny_cache(cache).build()
}

#[tokio::test(start_paused = true)]
async fn by_default_this_process_answers_by_its_share_and_owes_it() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, DenyCacheMode::Off);
    settle().await;
    assert_eq!(told(&ask(&limiter, &[d("ten=a").hits(4)]).await), "OK: OK 6");

    connection.set(ConnectionState::Closed);
    let answer = ask(&limiter, &[d("ten=a").hits(5)]).await;
    assert_eq!(told(&answer), "OK: OK 1");
    assert_eq!(answer.outage().unwrap().cause, StoreErrorKind::Unavailable);
    assert_eq!(told(&ask(&limiter, &[d("ten=a").hits(2)]).await), "OVER: OVER 0");

    connection.set(ConnectionState::Open);
    assert_eq!(told(&ask(&limiter, &[d("ten=a")]).await), "OK: OK 0", "4, 5 and 1");
    assert_eq!(limiter.stats().degraded, 2);
}

#[tokio::test(start_paused = true)]
async fn refusing_is_an_error_so_that_envoys_failure_mode_applies() {
    for charge in [ChargeMode::AllOrNone, ChargeMode::All] {
        let connection = StoreConnection::to(&backend());
        let limiter = node(&connection, DenyCacheMode::Off);
        connection.set(ConnectionState::Closed);
        let policy = CallPolicy::default().charging(charge).in_outages(OnOutage::Refuse);

        let error = ask_as(&limiter, &[d("ten=a"), d("one=a")], 0, policy).await.unwrap_err();

        assert_eq!(error, CallError::Unavailable(StoreErrorKind::Unavailable));
        let free = ask_as(&limiter, &[d("free=a")], 0, policy).await.unwrap();
        assert_eq!(told(&free), "OK: OK 4294967295", "who needs no store does not notice");
        let policy = policy.in_outages(OnOutage::Admit);
        let admitted = ask_as(&limiter, &[d("ten=a")], 0, policy).await;
        assert_eq!(told(&admitted.unwrap()), "OK: OK 0");
        assert_eq!(limiter.stats().degraded, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_any_quota_rule_suffices_and_only_it_owes() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, DenyCacheMode::Off);
    settle().await;
    connection.set(ConnectionState::Closed);
    let both = [d("one=a"), d("other=a")];
    for left in ["OK: OK 0, OK 2", "OK: OVER 0, OK 1", "OK: OVER 0, OK 0", "OVER: OVER 0, OVER 0"] {
        assert_eq!(told(&ask(&limiter, &both).await), left);
    }

    connection.set(ConnectionState::Open);
    let peek = [d("one=a").hits(0), d("other=a").hits(0)];
    assert_eq!(told(&ask(&limiter, &peek).await), "OK: OK 0, OK 0");
    assert_eq!(limiter.stats().settled_debts, 2, "each was told of what passed");
}

#[tokio::test(start_paused = true)]
async fn known_refusals_are_not_asked_for_and_a_group_is_known_when_all_of_it_is() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, DenyCacheMode::On);
    settle().await;
    let reached = || connection.reached.load(Ordering::SeqCst);
    let both = [d("one=a"), d("other=a")];
    for _ in 0..3 {
        let _ = ask(&limiter, &both).await;
    }
    assert_eq!(told(&ask(&limiter, &both).await), "OVER: OVER 0, OVER 0");
    let asked = reached();
    assert_eq!(told(&ask(&limiter, &both).await), "OVER: OVER 0, OVER 0");
    assert_eq!(reached(), asked, "both are known to refuse");
    assert_eq!(told(&ask(&limiter, &[d("one=a"), d("other=b")]).await), "OK: OVER 0, OK 2");
    assert_eq!(told(&ask(&limiter, &[d("other=a").back()]).await), "OK: OK 1");
    assert_eq!(told(&ask(&limiter, &both).await), "OK: OVER 0, OK 0", "given back, so not known");
}
