//! The same sentences on the embedded store and on a real Redis.

#![cfg(feature = "redis")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::time::Duration;

use crate::common::{on, rule, rules, user, with};
use tollgate::redis::{Config, RedisStore};
use tollgate::rules::declaration::{Mode, Rule};
use tollgate::rules::{Format, load};
use tollgate::store::{Key, MAX_VALUE};
use tollgate::{Algorithm, Limit, Store};
use tollgate::{Ask, Attribute, RuleSet};
use tollgate::{Concurrency, FixedWindow, SlidingLog, TokenBucket};
use tollgate::{
    DenyCacheMode, EmbeddedStore, Limiter, RateError, RateLimiter, RateType, ReservationError,
};
use tollgate_core::testing::Rng;
use tollgate_harness::RedisServer;

/// Runs a body on each store, each fresh.
macro_rules! on_both {
    ($($name:ident,)+) => {
        mod embedded {
            $(#[tokio::test]
            async fn $name() {
                super::$name(|| async { super::EmbeddedStore::new() }).await;
            })+
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let server = super::RedisServer::start().unwrap();
                let url = server.url();
                super::$name(|| async { super::connect(&url).await }).await;
                // Its keys may be gone again.
                let run = server.command(&[b"INFO", b"commandstats"]).unwrap();
                let tollgate_harness::Reply::Bulk(run) = run else { panic!("{run:?}") };
                assert!(String::from_utf8_lossy(&run).contains("cmdstat_evalsha"), "it was used");
            })+
        }
    };
}

on_both! {
    one_refusal_charges_no_rule,
    the_verdict_is_that_of_all_rules_and_their_order_does_not_matter,
    another_rule_never_turns_a_refusal_into_a_pass,
    lowering_a_limit_binds_at_once_and_raising_takes_nothing_away,
    shadow_rules_count_alike_and_answer_nobody,
    each_request_is_judged_by_one_version_and_an_invalid_one_changes_nothing,
    every_spelling_of_a_path_is_one_counter,
    counters_are_told_apart_by_every_value,
    a_reservation_is_settled_once,
    a_permit_comes_back_when_it_is_dropped,
    a_value_is_set_by_whoever_knows_it,
    of_two_rates_the_first_wins_until_it_is_set_anew,
}

async fn connect(url: &str) -> RedisStore {
    // A busy machine must not look like an outage.
    let config = Config::new(url).unwrap().deadline(Duration::from_secs(10));
    RedisStore::connect(config).await.unwrap()
}

fn hourly(name: &str, by: &[&str], count: u64, algorithm: impl Into<Algorithm>) -> Rule {
    with(rule(name, by, &[&format!("{count} per 1h")]), algorithm)
}

fn limiter<S: Store + 'static>(store: S, set: RuleSet) -> Limiter<S> {
    Limiter::builder(store).rules(set).deny_cache(DenyCacheMode::Off).build()
}

async fn remaining<S: Store + 'static>(limiter: &Limiter<S>, ask: &Ask<'_>, rule: &str) -> u64 {
    let explained = limiter.explain(ask).await;
    assert_eq!(explained.outage, None);
    explained.counters.iter().find(|counter| counter.rule == rule).unwrap().remaining
}

/// E23
async fn one_refusal_charges_no_rule<S: Store + 'static, F: Future<Output = S>>(
    store: impl Fn() -> F,
) {
    let set = rules(
        1,
        [
            hourly("all", &[], 1_000, TokenBucket),
            hourly("per-user", &["user"], 3, SlidingLog),
            hourly("per-plan", &["plan"], 100, FixedWindow::default()),
        ],
    );
    let limiter = limiter(store().await, set);
    let ask = || user("alice").with("plan", "gold").unwrap();

    let mut passed = 0;
    for _ in 0..20 {
        passed += u32::from(limiter.admit(&ask()).await.passes());
    }

    assert_eq!(passed, 3);
    assert_eq!(remaining(&limiter, &ask(), "all").await, 997);
    assert_eq!(remaining(&limiter, &ask(), "per-plan").await, 97);
}

/// E24, E25
async fn the_verdict_is_that_of_all_rules_and_their_order_does_not_matter<
    S: Store + 'static,
    F: Future<Output = S>,
>(
    store: impl Fn() -> F,
) {
    let declared = |domain: &str| {
        let name = |rule: &str| format!("{domain}-{rule}");
        vec![
            hourly(&name("a"), &["user"], 5, SlidingLog),
            hourly(&name("b"), &["ip"], 7, SlidingLog),
            hourly(&name("c"), &["user", "ip"], 3, SlidingLog),
        ]
    };
    let store = std::sync::Arc::new(store().await);
    let forth = limiter(std::sync::Arc::clone(&store), rules(1, declared("forth")));
    let mut reversed = declared("back");
    reversed.reverse();
    let back = limiter(store, rules(1, reversed));
    let mut rng = Rng::new(11);

    for step in 0..120 {
        let name = format!("u{}", rng.below(3));
        let ip = format!("10.0.0.{}", rng.below(3));
        let ask = || user(&name).with("ip", &ip).unwrap();
        let explained = forth.explain(&ask()).await;
        let (a, b) = (forth.admit(&ask()).await, back.admit(&ask()).await);

        assert_eq!(a.passes(), b.passes(), "step {step}");
        assert_eq!(a.passes(), explained.counters.iter().all(|counter| counter.passes));
        if !a.passes() {
            let longest = explained.counters.iter().filter_map(|c| c.clears_after).max();
            let by = a.ruling().refusing().unwrap();
            let told = explained.counters.iter().find(|c| c.rule == by.rule.unwrap().name());
            assert_eq!(told.unwrap().clears_after, longest, "the longest retry is named");
        }
    }
}

/// E26
async fn another_rule_never_turns_a_refusal_into_a_pass<
    S: Store + 'static,
    F: Future<Output = S>,
>(
    store: impl Fn() -> F,
) {
    let store = std::sync::Arc::new(store().await);
    let few = limiter(
        std::sync::Arc::clone(&store),
        rules(1, [hourly("few-a", &["user"], 4, TokenBucket)]),
    );
    let more = limiter(
        store,
        rules(
            1,
            [
                hourly("more-a", &["user"], 4, TokenBucket),
                hourly("more-b", &[], 6, FixedWindow::default()),
            ],
        ),
    );
    let mut rng = Rng::new(5);
    for _ in 0..60 {
        let name = format!("u{}", rng.below(4));
        let (few, more) = (few.admit(&user(&name)).await, more.admit(&user(&name)).await);
        assert!(few.passes() || !more.passes());
    }
}

/// E28
async fn lowering_a_limit_binds_at_once_and_raising_takes_nothing_away<
    S: Store + 'static,
    F: Future<Output = S>,
>(
    store: impl Fn() -> F,
) {
    let limiter = limiter(store().await, RuleSet::empty());
    for (name, algorithm) in [
        ("bucket", Algorithm::from(TokenBucket)),
        ("log", SlidingLog.into()),
        ("window", FixedWindow::default().into()),
    ] {
        let base = limiter.rules().version();
        let set = |edit, count| rules(base + edit, [hourly(name, &["user"], count, algorithm)]);
        limiter.set_rules(set(1, 10)).unwrap();
        for _ in 0..4 {
            assert!(limiter.admit(&user("alice")).await.passes(), "{name}");
        }
        limiter.set_rules(set(2, 5)).unwrap();
        assert!(limiter.admit(&user("alice")).await.passes(), "{name}: four of five are used");
        assert!(!limiter.admit(&user("alice")).await.passes(), "{name}: five of five are used");
        limiter.set_rules(set(3, 8)).unwrap();
        for _ in 0..3 {
            assert!(limiter.admit(&user("alice")).await.passes(), "{name}: three more");
        }
        assert!(!limiter.admit(&user("alice")).await.passes(), "{name}");
    }
}

/// E30
async fn shadow_rules_count_alike_and_answer_nobody<S: Store + 'static, F: Future<Output = S>>(
    store: impl Fn() -> F,
) {
    let mut shadow = hourly("candidate", &["user"], 2, SlidingLog);
    shadow.mode = Mode::Shadow;
    let enforced = hourly("per-user", &["user"], 5, SlidingLog);
    let limiter = limiter(store().await, rules(1, [enforced, shadow]));

    let mut passed = 0;
    for _ in 0..8 {
        passed += u64::from(limiter.admit(&user("alice")).await.passes());
    }

    assert_eq!(passed, 5);
    for _ in 0..500 {
        let stats = limiter.stats();
        if stats.shadow_admitted + stats.shadow_refused == 5 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stats = limiter.stats();
    assert_eq!((stats.shadow_admitted, stats.shadow_refused), (2, 3));
}

/// E27, E29
async fn each_request_is_judged_by_one_version_and_an_invalid_one_changes_nothing<
    S: Store + 'static,
    F: Future<Output = S>,
>(
    store: impl Fn() -> F,
) {
    // Every version names its rule after itself and has two limits: whoever is judged by two of them
    // would find both names, or one limit.
    let text = |version: u64| {
        format!(
            "{{ version: {version}, domain: shop, rules: [{{ name: v{version}, by: [user], \
             limits: [{version}000 per 1h, {version}0000 per 1d] }}] }}"
        )
    };
    let load = |version| load(&text(version), Format::Yaml).unwrap();
    let limiter = limiter(store().await, load(1));

    let askers = (0..4).map(|asker: u32| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let (name, mut newest) = (asker.to_string(), 0);
            for _ in 0..100 {
                let admission = limiter.admit(&user(&name)).await;
                let ruling = admission.ruling();
                let version = ruling.version();
                let rules: Vec<_> =
                    ruling.findings().map(|finding| finding.rule.unwrap().name()).collect();
                assert!(admission.passes());
                assert_eq!(rules, vec![format!("v{version}"); 2]);
                assert!(version >= newest, "versions only rise");
                newest = version;
            }
        })
    });
    let askers: Vec<_> = askers.collect();
    for version in 2..40 {
        let before = limiter.rules();
        let broken = text(version).replace("per 1d", "per 1x");
        assert!(tollgate::rules::load(&broken, Format::Yaml).is_err(), "{broken}");
        assert_eq!(limiter.set_rules(load(version - 1)).unwrap_err().present, version - 1);
        assert!(std::sync::Arc::ptr_eq(&before, &limiter.rules()), "the last good set stays");
        limiter.set_rules(load(version)).unwrap();
        tokio::task::yield_now().await;
    }
    for asker in askers {
        asker.await.unwrap();
    }
}

/// E39, C13
async fn every_spelling_of_a_path_is_one_counter<S: Store + 'static, F: Future<Output = S>>(
    store: impl Fn() -> F,
) {
    let rule = on(hourly("orders", &["path.id"], 5, SlidingLog), "path", "/orders/{id}");
    let limiter = limiter(store().await, rules(1, [rule]));
    let spellings =
        ["/orders/17", "//orders//17", "/x/../orders/./17", "/orders/%31%37", "/orders/17?a"];

    for (spent, spelling) in spellings.into_iter().enumerate() {
        let ask = Ask::new("shop").with("path", spelling).unwrap();
        let Some(Attribute::Text(path)) = ask.attribute("path") else { panic!("{spelling}") };
        let again = Ask::new("shop").with("path", path).unwrap();
        assert_eq!(again.attribute("path"), Some(Attribute::Text(path)), "its own canonical form");
        assert_eq!(remaining(&limiter, &again, "orders").await, 5 - spent as u64);
        assert!(limiter.admit(&ask).await.passes());
    }

    for spelling in spellings {
        let ask = Ask::new("shop").with("path", spelling).unwrap();
        assert!(!limiter.admit(&ask).await.passes(), "{spelling} is another counter");
    }
}

/// E38, C11, C12
async fn counters_are_told_apart_by_every_value<S: Store + 'static, F: Future<Output = S>>(
    store: impl Fn() -> F,
) {
    let limiter =
        limiter(store().await, rules(1, [hourly("pair", &["user", "plan"], 1, TokenBucket)]));
    let long = "x".repeat(1_000_000);
    let longer = format!("{long}y");
    let pairs: Vec<(&str, &str)> = vec![
        ("ab", "c"),
        ("a", "bc"),
        ("a:b", "c"),
        ("a", "b:c"),
        ("{a}", "c"),
        ("a\0b", "c"),
        ("a", "\0b\nc"),
        ("t1:a", "c"),
        (&long, "c"),
        (&longer, "c"),
    ];
    for (name, plan) in &pairs {
        let ask = user(name).with("plan", plan).unwrap();
        assert!(limiter.admit(&ask).await.passes(), "{:.20} {plan} is a counter of its own", name);
    }
    for (name, plan) in &pairs {
        let ask = user(name).with("plan", plan).unwrap();
        assert!(!limiter.admit(&ask).await.passes());
    }
}

async fn a_reservation_is_settled_once<S: Store + 'static, F: Future<Output = S>>(
    store: impl Fn() -> F,
) {
    let set = rules(
        1,
        [
            hourly("tokens", &["user"], 100, TokenBucket),
            hourly("daily", &[], 1_000, FixedWindow::default()),
        ],
    );
    let limiter = limiter(store().await, set);
    let reserved = limiter.reserve(&user("alice").cost(50), Duration::from_secs(60)).await.unwrap();

    limiter.commit(&reserved, 20).await.unwrap();

    assert!(matches!(limiter.refund(&reserved).await, Err(ReservationError::AlreadyUsed)));
    assert_eq!(remaining(&limiter, &user("alice"), "daily").await, 980);
    let tokens = remaining(&limiter, &user("alice"), "tokens").await;
    assert!((79..=80).contains(&tokens), "{tokens}: a credit is worth what time has left of it");
}

async fn a_permit_comes_back_when_it_is_dropped<S: Store + 'static, F: Future<Output = S>>(
    store: impl Fn() -> F,
) {
    let at_once = with(rule("at-once", &["user"], &["1 per 30s"]), Concurrency);
    let limiter = limiter(store().await, rules(1, [on(at_once, "service", "render")]));
    let ask = || user("alice").with("service", "render").unwrap();
    let held = limiter.admit(&ask()).await;
    assert!(held.passes() && !limiter.admit(&ask()).await.passes());

    drop(held);

    let mut passes = false;
    for _ in 0..500 {
        if limiter.admit(&ask()).await.passes() {
            passes = true;
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(passes, "long before its lease ends");
}

async fn a_value_is_set_by_whoever_knows_it<S: Store + 'static, F: Future<Output = S>>(
    store: impl Fn() -> F,
) {
    let store = store().await;
    let name = Key::new(b"k\0{x}").unwrap();
    let text = |value: Option<Vec<u8>>| value.map(|value| String::from_utf8(value).unwrap());

    assert_eq!(store.read(name).await.unwrap(), None);
    let vain = store.compare_and_set(name, Some(b"a"), b"b").await.unwrap();
    assert_eq!(vain, None, "there is nothing to compare with");
    assert_eq!(text(store.compare_and_set(name, None, b"one").await.unwrap()).unwrap(), "one");
    assert_eq!(text(store.compare_and_set(name, None, b"two").await.unwrap()).unwrap(), "one");
    let two = store.compare_and_set(name, Some(b"one"), b"two").await.unwrap();
    assert_eq!(text(two).unwrap(), "two");
    assert_eq!(text(store.read(name).await.unwrap()).unwrap(), "two");
    assert!(store.compare_and_set(name, Some(b"two"), &[0; MAX_VALUE + 1]).await.is_err());
    let empty = store.compare_and_set(name, Some(b"two"), b"").await.unwrap();
    assert_eq!(empty, Some(Vec::new()), "an empty value is a value");

    // No counter has the name of a value, whatever the key.
    let limit = Limit::new(TokenBucket, "1 per 1h".parse().unwrap()).unwrap();
    let limiter = Limiter::new(store);
    assert!(limiter.check(b"k\0{x}", &limit, 1).await.unwrap().passes());
    assert_eq!(limiter.store().read(name).await.unwrap(), Some(Vec::new()));
}

/// Row 9 of the mission.
async fn of_two_rates_the_first_wins_until_it_is_set_anew<
    S: Store + 'static,
    F: Future<Output = S>,
>(
    store: impl Fn() -> F,
) {
    let store = std::sync::Arc::new(store().await);
    let node = || limiter(std::sync::Arc::clone(&store), RuleSet::empty());
    let (one, two) = (node(), node());
    let (a, b) = (RateLimiter::new(&one, "mail").unwrap(), RateLimiter::new(&two, "mail").unwrap());
    let hourly = |count: u64| format!("{count} per 1h").parse().unwrap();

    assert!(matches!(a.try_acquire(1).await, Err(RateError::NotSet)));
    assert!(a.try_set_rate(RateType::Overall, hourly(5)).await.unwrap());
    assert!(!b.try_set_rate(RateType::Overall, hourly(5)).await.unwrap(), "not even the same");
    assert!(a.try_acquire(3).await.unwrap());
    assert!(b.try_acquire(2).await.unwrap());
    assert!(!a.try_acquire(1).await.unwrap() && !b.try_acquire(1).await.unwrap());
    assert!(matches!(b.try_acquire(6).await, Err(RateError::NotAdmitted(_))), "there are five");
    assert!(!b.try_acquire_timeout(1, Duration::from_secs(60)).await.unwrap(), "told at once");

    // Set anew by one, it binds the other: what was used stays used.
    b.set_rate(RateType::Overall, hourly(7)).await.unwrap();
    assert_eq!(b.rate().await.unwrap().unwrap().edit, 2);
    assert_eq!(b.available().await.unwrap(), 2);
    b.acquire(1).await.unwrap();
    assert!(a.try_acquire(1).await.unwrap(), "charged under the old rate, judged by the new");
    assert!(!a.try_acquire(1).await.unwrap() && !b.try_acquire(1).await.unwrap());

    // Each client for itself.
    let (a, b) = (RateLimiter::new(&one, "own").unwrap(), RateLimiter::new(&two, "own").unwrap());
    a.set_rate(RateType::PerClient, hourly(1)).await.unwrap();
    assert!(a.try_acquire(1).await.unwrap() && b.try_acquire(1).await.unwrap());
    assert!(!a.try_acquire(1).await.unwrap() && !b.try_acquire(1).await.unwrap());
    assert!(RateLimiter::new(&one, "").is_err());
    assert!(RateLimiter::new(&one, &"x".repeat(1024)).is_err());
}
