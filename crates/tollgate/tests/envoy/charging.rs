//! `ChargeMode::All`: every descriptor by itself, and what is over as well.

use std::time::Duration;

use tollgate::envoy::{CallPolicy, ChargeMode, Code};

use crate::support::{TestDescriptor, ask_as, d, limiter, told};

const SHOP: &str = "
domain: shop
descriptors:
  - { key: ten, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: two, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: ban, rate_limit: { unit: minute, requests_per_unit: 0 } }
  - { key: dark, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: one, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: other, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
";

const ALL: CallPolicy = CallPolicy::DEFAULT.charging(ChargeMode::All);

#[tokio::test]
async fn one_descriptor_over_charges_the_others_and_itself() {
    let (limiter, clock) = limiter(SHOP);
    let ask =
        async |asked: &[TestDescriptor<'_>]| told(&ask_as(&limiter, asked, 0, ALL).await.unwrap());

    assert_eq!(ask(&[d("ten=a"), d("two=a").hits(3)]).await, "OVER: OK 9, OVER 0");
    assert_eq!(ask(&[d("ten=a"), d("two=a")]).await, "OVER: OK 8, OVER 0", "3 were burnt");
    assert_eq!(ask(&[d("two=a").hits(2).back()]).await, "OK: OK 0", "4 are counted");
    assert_eq!(ask(&[d("two=a").hits(1).back()]).await, "OK: OK 1");
    assert_eq!(ask(&[d("two=a")]).await, "OK: OK 0");
    assert_eq!(ask(&[d("ban=a"), d("ten=a")]).await, "OVER: OVER 0, OK 7");
    clock.advance(Duration::from_secs(60));
    assert_eq!(ask(&[d("two=a")]).await, "OK: OK 1", "the window's end forgives");
}

/// A charge after the end of a response cannot be refused, and must count all the same, or a
/// check before the next request would never find it.
#[tokio::test]
async fn a_check_finds_what_was_charged_after_the_fact() {
    let (limiter, _) = limiter(SHOP);
    let ask =
        async |asked: TestDescriptor<'_>| told(&ask_as(&limiter, &[asked], 0, ALL).await.unwrap());

    assert_eq!(ask(d("ten=a").hits(0)).await, "OK: OK 10");
    assert_eq!(ask(d("ten=a").hits(7)).await, "OK: OK 3");
    assert_eq!(ask(d("ten=a").hits(0)).await, "OK: OK 3");
    assert_eq!(ask(d("ten=a").hits(7)).await, "OVER: OVER 0");
    assert_eq!(ask(d("ten=a").hits(0)).await, "OVER: OVER 0");
}

#[tokio::test]
async fn quota_rules_are_all_charged_and_any_one_suffices() {
    let (limiter, _) = limiter(SHOP);
    let ask =
        async |asked: &[TestDescriptor<'_>]| told(&ask_as(&limiter, asked, 0, ALL).await.unwrap());

    assert_eq!(ask(&[d("one=a")]).await, "OK: OK 0");
    assert_eq!(ask(&[d("one=a"), d("other=a")]).await, "OK: OVER 0, OK 0");
    assert_eq!(ask(&[d("one=a"), d("other=a")]).await, "OVER: OVER 0, OVER 0");
    assert_eq!(ask(&[d("two=x").hits(3), d("other=b")]).await, "OVER: OVER 0, OK 0");
}

#[tokio::test]
async fn shadow_rules_count_and_never_answer() {
    let (limiter, _) = limiter(SHOP);
    for left in ["OK: OK 1", "OK: OK 0", "OK: OK 0"] {
        let answer = ask_as(&limiter, &[d("dark=a")], 0, ALL).await.unwrap();
        assert_eq!(told(&answer), left);
        assert_eq!(answer.code(), Code::Ok);
    }
    let stats = limiter.stats();
    assert_eq!((stats.shadow_admitted, stats.shadow_refused, stats.admitted), (2, 1, 3));
}

#[tokio::test]
async fn requests_that_are_refused_say_by_whom() {
    let (limiter, _) = limiter(SHOP);
    let answer = ask_as(&limiter, &[d("ten=a"), d("two=a").hits(u64::MAX)], 0, ALL).await.unwrap();

    assert_eq!(told(&answer), "OVER: OK 9, OVER 0");
    assert_eq!(limiter.stats().refused, 1);
}
