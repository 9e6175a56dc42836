//! The same sentences on the embedded store and on a real Redis.

use std::time::Duration;

use tollgate::Store;
use tollgate::envoy::{CallPolicy, ChargeMode, Code, EnvoyRules};
use tollgate::redis::{Config, RedisStore};
use tollgate::{DenyCacheMode, EmbeddedStore, Limiter};
use tollgate_core::testing::Rng;
use tollgate_harness::RedisServer;

use crate::support::{TestDescriptor, ask, ask_as, d, told};

/// Only years, so that no window ends while a test runs on a real clock.
const SHOP: &str = "
domain: shop
descriptors:
  - { key: hundred, rate_limit: { unit: year, requests_per_unit: 100 } }
  - { key: ten, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: one, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: other, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: dark, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
";

fn node<S: Store + 'static>(store: S) -> Limiter<S> {
    let rules = EnvoyRules::load(1, [("f", SHOP)]).unwrap();
    Limiter::builder(store).envoy_rules(rules).deny_cache(DenyCacheMode::Off).build()
}

async fn connect(server: &RedisServer) -> RedisStore {
    // A busy machine must not look like an outage.
    let config = Config::new(&server.url()).unwrap().deadline(Duration::from_secs(10));
    RedisStore::connect(config).await.unwrap()
}

/// Runs a body on each store.
macro_rules! on_both {
    ($($name:ident,)+) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::node(super::EmbeddedStore::new())).await;
            })+
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let server = super::RedisServer::start().unwrap();
                super::$name(super::node(super::connect(&server).await)).await;
                // Its keys may be gone again.
                let run = server.command(&[b"INFO", b"commandstats"]).unwrap();
                let tollgate_harness::Reply::Bulk(run) = run else { panic!("{run:?}") };
                assert!(String::from_utf8_lossy(&run).contains("cmdstat_evalsha"), "it was used");
            })+
        }
    };
}

on_both! {
    calls_are_answered_alike,
    one_refusal_charges_none_of_many_at_once,
    charged_apart_each_limit_holds_of_many_at_once,
}

async fn calls_are_answered_alike<S: Store + 'static>(limiter: Limiter<S>) {
    let steps: &[(&[TestDescriptor<'_>], &str)] = &[
        (&[d("hundred=a"), d("ten=a").hits(4)], "OK: OK 99, OK 6"),
        (&[d("hundred=a"), d("ten=a").hits(7)], "OVER: OK 99, OVER 0"),
        (&[d("hundred=a").hits(0), d("ten=a").hits(0)], "OK: OK 99, OK 6"),
        (&[d("ten=a").hits(u64::MAX)], "OVER: OVER 0"),
        (&[d("ten=a").hits(2).back()], "OK: OK 8"),
        (&[d("ten=a").hits(u64::MAX).back()], "OK: OK 10"),
        (&[d("one=a"), d("other=a")], "OK: OK 0, OK 2"),
        (&[d("one=a"), d("other=a")], "OK: OVER 0, OK 1"),
        (&[d("one=a"), d("other=a").hits(2)], "OVER: OVER 0, OVER 0"),
        (&[d("dark=a").hits(2)], "OK: OK 0"),
        (&[d("dark=a"), d("ten=b")], "OK: OK 0, OK 9"),
        (&[d("ten=c").limit(5, Some(tollgate::envoy::Unit::Year))], "OK: OK 4"),
        (&[d("ten=c")], "OK: OK 8"),
        (
            &[d("ten=d"), d("ten=d").limit(1, Some(tollgate::envoy::Unit::Year))],
            "OVER: OK 1, OVER 0",
        ),
    ];
    for (asked, expected) in steps {
        assert_eq!(told(&ask(&limiter, asked).await), *expected, "{asked:?}");
    }
    let all = CallPolicy::default().charging(ChargeMode::All);
    for (asked, expected) in [
        ([d("hundred=z"), d("ten=z").hits(11)], "OVER: OK 99, OVER 0"),
        ([d("hundred=z"), d("ten=z").hits(0)], "OVER: OK 98, OVER 0"),
        ([d("hundred=z"), d("ten=z").hits(2).back()], "OK: OK 97, OK 1"),
        ([d("hundred=z").hits(u64::MAX), d("ten=z")], "OVER: OVER 0, OK 0"),
    ] {
        let answer = ask_as(&limiter, &asked, 0, all).await.unwrap();
        assert_eq!(told(&answer), expected, "{asked:?}");
    }
    let status = ask(&limiter, &[d("ten=b")]).await.statuses()[0];
    let year = Duration::from_secs(365 * 86_400);
    assert!(status.reset_after.is_some_and(|left| !left.is_zero() && left <= year), "{status:?}");
}

/// Sends calls from several tasks; each names its own counter and one that all share.
async fn call_from_many_tasks<S: Store + 'static>(
    limiter: &Limiter<S>,
    policy: CallPolicy,
) -> Vec<u64> {
    let mut tasks = Vec::new();
    for task in 0..8_u64 {
        let limiter = limiter.clone();
        tasks.push(tokio::spawn(async move {
            let (own, mut passed) = (format!("hundred=t{task}"), 0);
            let mut rng = Rng::new(task);
            for _ in 0..40 {
                let mut asked = vec![d(&own), d("ten=shared")];
                if rng.chance(1, 2) {
                    asked.reverse();
                }
                let answer = ask_as(&limiter, &asked, 0, policy).await.unwrap();
                assert_eq!(answer.outage(), None);
                passed += u64::from(answer.code() == Code::Ok);
            }
            passed
        }));
    }
    let mut passed = Vec::new();
    for task in tasks {
        passed.push(task.await.unwrap());
    }
    passed
}

async fn one_refusal_charges_none_of_many_at_once<S: Store + 'static>(limiter: Limiter<S>) {
    let passed = call_from_many_tasks(&limiter, CallPolicy::default()).await;

    assert_eq!(passed.iter().sum::<u64>(), 10, "exactly the shared limit");
    for (task, passed) in passed.into_iter().enumerate() {
        let own = format!("hundred=t{task}");
        let status = ask(&limiter, &[d(&own).hits(0)]).await.statuses()[0];
        assert_eq!(u64::from(status.remaining), 100 - passed, "only what passed was charged");
    }
}

async fn charged_apart_each_limit_holds_of_many_at_once<S: Store + 'static>(limiter: Limiter<S>) {
    let passed =
        call_from_many_tasks(&limiter, CallPolicy::default().charging(ChargeMode::All)).await;

    assert_eq!(passed.iter().sum::<u64>(), 10, "exactly the shared limit");
    for task in 0..8 {
        let own = format!("hundred=t{task}");
        let status = ask(&limiter, &[d(&own).hits(0)]).await.statuses()[0];
        assert_eq!(status.remaining, 60, "what was refused was charged as well");
    }
}

/// Two nodes share their counts, and nodes with different files take nothing from each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_counts_whatever_their_files_say() {
    let server = RedisServer::start().unwrap();
    let (old, new) = (node(connect(&server).await), node(connect(&server).await));
    let edited = SHOP.replace("requests_per_unit: 10 ", "requests_per_unit: 5 ");
    new.set_envoy_rules(EnvoyRules::load(2, [("f", &*edited)]).unwrap()).unwrap();

    for (limiter, expected) in [
        (&old, "OK: OK 9"),
        (&new, "OK: OK 3"),
        (&old, "OK: OK 7"),
        (&new, "OK: OK 1"),
        (&new, "OK: OK 0"),
        (&new, "OVER: OVER 0"),
        (&old, "OK: OK 4"),
    ] {
        assert_eq!(told(&ask(limiter, &[d("ten=a")]).await), expected);
    }
}
