//! The promises of the limiter, on the embedded store in virtual time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{StoreConnection, backend, log, on, rule, rules, settle, user, with};
use tollgate::Ask;
use tollgate::RuleSet;
use tollgate::rules::declaration::{Ban, Declaration, Domain, Mode, OnOutage, Subject};
use tollgate::{Concurrency, FixedWindow, SlidingLog, TokenBucket};
use tollgate::{DenyCacheMode, ExplainedOutcome, Limiter, Reason, Source, StaleRules};
use tollgate::{Limit, Retry, StoreErrorKind, Verdict};

fn limiter(set: RuleSet) -> Limiter<Arc<tollgate::EmbeddedStore<crate::common::TokioClock>>> {
    Limiter::builder(backend()).rules(set).build()
}

fn refusing(admission: &tollgate::Admission) -> Option<String> {
    let by = admission.ruling().refusing()?;
    Some(by.rule?.name().to_owned())
}

#[tokio::test(start_paused = true)]
async fn one_refusal_charges_nobody_and_names_who_refuses() {
    // E23, E24
    let set = rules(
        1,
        [
            log(rule("all", &[], &["100 per 1m"])),
            log(rule("per-user", &["user"], &["2 per 1m", "5 per 1h"])),
        ],
    );
    let limiter = limiter(set);

    for _ in 0..2 {
        assert!(limiter.admit(&user("alice")).await.passes());
    }
    for _ in 0..50 {
        let refused = limiter.admit(&user("alice")).await;
        assert_eq!(refusing(&refused).as_deref(), Some("per-user"));
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
    }

    let explained = limiter.explain(&user("bob")).await;
    let all = explained.counters.iter().find(|counter| counter.rule == "all").unwrap();
    assert_eq!(all.remaining, 98, "a refused request must not spend what all share");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_refusal_charges_nobody_under_concurrency() {
    // E23: a hundred users with 5 each against a shared 1000, and many more questions than that.
    let set = rules(
        1,
        [
            with(rule("all", &[], &["1000 per 1h"]), FixedWindow::default()),
            with(rule("per-user", &["user"], &["5 per 1h"]), FixedWindow::default()),
        ],
    );
    let limiter = limiter(set);
    let admitted = Arc::new(AtomicU64::new(0));

    let mut tasks = Vec::new();
    for task in 0..8_u64 {
        let (limiter, admitted) = (limiter.clone(), Arc::clone(&admitted));
        tasks.push(tokio::spawn(async move {
            for i in 0..500_u64 {
                let name = format!("user-{}", (i * 7 + task) % 100);
                if limiter.admit(&user(&name)).await.passes() {
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }

    let explained = limiter.explain(&user("nobody")).await;
    let all = explained.counters.iter().find(|counter| counter.rule == "all").unwrap().remaining;
    assert_eq!(admitted.load(Ordering::Relaxed), 500, "each of a hundred users passes five times");
    assert_eq!(1000 - all, 500, "and nothing else was charged");
}

#[tokio::test(start_paused = true)]
async fn a_shadow_rule_counts_and_never_answers() {
    // E30
    let mut shadow = log(rule("candidate", &["user"], &["1 per 1m"]));
    shadow.mode = Mode::Shadow;
    let set = rules(1, [log(rule("per-user", &["user"], &["3 per 1m"])), shadow]);
    let limiter = limiter(set);

    for _ in 0..3 {
        assert!(limiter.admit(&user("alice")).await.passes());
    }
    assert_eq!(refusing(&limiter.admit(&user("alice")).await).as_deref(), Some("per-user"));

    let stats = limiter.stats();
    assert_eq!(
        (stats.shadow_admitted, stats.shadow_refused),
        (1, 2),
        "charged iff enforced passed"
    );
    assert_eq!((stats.admitted, stats.refused), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn repeated_refusals_are_banned_for_a_time() {
    let mut banning = log(rule("login", &["user"], &["1 per 1s"]));
    banning.ban =
        Some(Ban { after: 3, within: Duration::from_secs(60), lasts: Duration::from_secs(900) });
    let limiter = limiter(rules(1, [banning]));

    assert!(limiter.admit(&user("mallory")).await.passes());
    for _ in 0..3 {
        assert!(!limiter.admit(&user("mallory")).await.passes());
        settle().await;
    }
    tokio::time::advance(Duration::from_secs(2)).await;

    let banned = limiter.admit(&user("mallory")).await;
    assert!(banned.retry_after().unwrap() > Duration::from_secs(890), "the log would let it pass");
    assert!(limiter.admit(&user("alice")).await.passes(), "others are not banned");

    tokio::time::advance(Duration::from_secs(900)).await;
    assert!(limiter.admit(&user("mallory")).await.passes());
}

#[tokio::test(start_paused = true)]
async fn a_ban_does_not_prolong_itself() {
    let mut banning = log(rule("login", &["user"], &["1 per 1s"]));
    let (within, lasts) = (Duration::from_secs(60), Duration::from_secs(100));
    banning.ban = Some(Ban { after: 2, within, lasts });
    let limiter = limiter(rules(1, [banning]));
    let _ = limiter.admit(&user("mallory")).await;
    for _ in 0..2 {
        let _ = limiter.admit(&user("mallory")).await;
        settle().await;
    }

    for _ in 0..50 {
        tokio::time::advance(Duration::from_secs(2)).await;
        let _ = limiter.admit(&user("mallory")).await;
        settle().await;
    }

    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(limiter.admit(&user("mallory")).await.passes(), "a hundred seconds are over");
}

#[tokio::test(start_paused = true)]
async fn a_permit_lasts_as_long_as_its_admission_and_is_renewed() {
    let set = rules(1, [with(rule("at-once", &["user"], &["2 per 10s"]), Concurrency)]);
    let limiter = limiter(set);

    let first = limiter.admit(&user("alice")).await;
    let second = limiter.admit(&user("alice")).await.into_permits();
    assert_eq!(second.len(), 1);
    assert!(!limiter.admit(&user("alice")).await.passes(), "two are at work");

    // Work that takes longer than a lease keeps its permit.
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(3)).await;
        settle().await;
    }
    assert!(!limiter.admit(&user("alice")).await.passes(), "both still are");

    drop(first);
    assert!(limiter.admit(&user("alice")).await.passes(), "one is done");
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_or_is_cancelled_leaks_no_permit() {
    let set = rules(1, [with(rule("at-once", &["user"], &["1 per 1h"]), Concurrency)]);
    let limiter = limiter(set);

    let held = limiter.clone();
    let panics = tokio::spawn(async move {
        let _permit = held.admit(&user("alice")).await;
        panic!("on purpose");
    });
    assert!(panics.await.is_err());
    assert!(limiter.admit(&user("alice")).await.passes());

    let held = limiter.clone();
    let hangs = tokio::spawn(async move {
        let _permit = held.admit(&user("alice")).await;
        std::future::pending::<()>().await;
    });
    settle().await;
    hangs.abort();
    assert!(hangs.await.is_err());
    assert!(limiter.admit(&user("alice")).await.passes());
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_while_the_store_is_asked_leaks_no_permit() {
    let set = rules(1, [with(rule("at-once", &["user"], &["1 per 1h"]), Concurrency)]);
    let limiter = Limiter::builder(StoreConnection::to(&backend())).rules(set).build();

    for polls in 1..6 {
        let ask = user("alice");
        let mut asking = Box::pin(limiter.admit(&ask));
        // Left at every point where it waits.
        for _ in 0..polls {
            let polled = futures_poll(asking.as_mut()).await;
            if polled {
                break;
            }
        }
        drop(asking);
        settle().await;
        let next = limiter.admit(&ask).await;
        assert!(next.passes(), "left after {polls} polls");
        drop(next);
        settle().await;
    }
}

/// Polls once; whether it is done.
async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_ready()))
        .await
}

#[tokio::test(start_paused = true)]
async fn peeking_and_explaining_charge_nothing() {
    let mut off = log(rule("off", &[], &["1 per 1m"]));
    off.mode = Mode::Off;
    let mut shadow = log(rule("shadow", &[], &["1 per 1m"]));
    shadow.mode = Mode::Shadow;
    let mut special = log(rule("special", &["user"], &["3 per 1m"]));
    special.replaces = vec!["usual".into()];
    let set = rules(
        1,
        [
            log(rule("usual", &["user"], &["1 per 1m"])),
            on(special, "plan", "gold"),
            on(log(rule("elsewhere", &[], &["1 per 1m"])), "service", "mail"),
            log(rule("per-tenant", &["tenant"], &["1 per 1m"])),
            off,
            shadow,
        ],
    );
    let limiter = limiter(set);
    let gold = || user("alice").with("plan", "gold").unwrap();
    assert!(limiter.admit(&gold()).await.passes());

    let mut explained = limiter.explain(&gold()).await;
    for _ in 0..10 {
        explained = limiter.explain(&gold()).await;
        assert!(limiter.peek(&gold()).await.passes());
    }

    let outcomes: Vec<_> =
        explained.rules.iter().map(|rule| (rule.rule.as_str(), rule.outcome.clone())).collect();
    assert_eq!(
        outcomes,
        [
            ("usual", ExplainedOutcome::Replaced { by: "special".into() }),
            ("special", ExplainedOutcome::Charged),
            ("elsewhere", ExplainedOutcome::Unmatched { attribute: "service".into() }),
            ("per-tenant", ExplainedOutcome::Skipped { attribute: "tenant".into() }),
            ("off", ExplainedOutcome::Off),
            ("shadow", ExplainedOutcome::Shadow),
        ]
    );
    let [counter] = &explained.counters[..] else { panic!("{explained:?}") };
    assert_eq!((counter.rule.as_str(), counter.remaining, counter.passes), ("special", 2, true));
    assert_eq!(counter.allows, "3 per 1m (sliding-log)");

    for _ in 0..2 {
        assert!(limiter.admit(&gold()).await.passes());
    }
    let refused = limiter.explain(&gold()).await;
    assert_eq!(refused.counters[0].clears_after, Some(Duration::from_secs(60)));
    assert_eq!(refused.verdict, Verdict::Deny(Retry::After(Duration::from_secs(60))));
}

#[tokio::test(start_paused = true)]
async fn lists_come_before_rules() {
    let mut domain = Domain::new("shop");
    domain.rules = vec![log(rule("all", &[], &["1 per 1h"]))];
    domain.exempt = vec![Subject::Network("10.0.0.0/8".parse().unwrap())];
    domain.block = vec![Subject::Network("10.6.6.6".parse().unwrap())];
    let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).unwrap();
    let limiter = limiter(set);
    let from = |ip: &'static str| Ask::new("shop").with("ip", ip).unwrap();

    for _ in 0..5 {
        let exempt = limiter.admit(&from("10.1.2.3")).await;
        assert_eq!((exempt.passes(), exempt.ruling().reason()), (true, Reason::Exempt));
    }
    let blocked = limiter.admit(&from("10.6.6.6")).await;
    assert_eq!(blocked.verdict(), Verdict::Deny(Retry::Never));
    assert_eq!(blocked.ruling().reason(), Reason::Blocked);
    assert!(limiter.admit(&from("192.0.2.1")).await.passes());
    assert!(!limiter.admit(&from("192.0.2.2")).await.passes());
    let elsewhere = limiter.admit(&Ask::new("nowhere")).await;
    assert_eq!(elsewhere.ruling().reason(), Reason::UnknownDomain);
}

#[tokio::test(start_paused = true)]
async fn a_check_needs_no_rules_and_meets_no_rule() {
    let limit = Limit::new(TokenBucket, "2 per 1m".parse().unwrap()).unwrap();
    let limiter = limiter(rules(1, [with(rule("all", &[], &["1 per 1h"]), TokenBucket)]));
    let explained = limiter.explain(&user("alice")).await;
    let key = explained.counters[0].key.clone();

    // The very bytes of a rule's counter are another counter here.
    for _ in 0..2 {
        assert!(limiter.check(&key, &limit, 1).await.unwrap().passes());
    }
    assert!(!limiter.check(&key, &limit, 1).await.unwrap().passes());
    assert!(limiter.admit(&user("alice")).await.passes());

    let at_once = Limit::new(Concurrency, "2 per 1m".parse().unwrap()).unwrap();
    assert!(limiter.check("x", &at_once, 1).await.is_err(), "permits need an admission");
    assert!(limiter.check("", &limit, 1).await.is_err());
    assert!(limiter.check([0; 1024], &limit, 1).await.is_err(), "a byte too long with its kind");
    assert!(limiter.check([0; 1023], &limit, 1).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_decision_within_the_call_is_the_awaited_one_and_counts_as_one() {
    let limit = Limit::new(TokenBucket, "2 per 1m".parse().unwrap()).unwrap();
    let rules = || rules(1, [log(rule("all", &[], &["1 per 1h"]))]);
    let limiter = limiter(rules());

    let first = limiter.throttle_now(b"", &limit, 1).unwrap().unwrap();
    let second = limiter.throttle(b"", &limit, 1).await.unwrap();
    let third = limiter.throttle_now(b"", &limit, 1).unwrap().unwrap();
    assert_eq!([&first, &second, &third].map(|admission| admission.passes()), [true, true, false]);
    assert_eq!((third.retry_after(), third.ruling().version()), (Some(Duration::from_secs(30)), 0));
    assert!(limiter.throttle_now(&[0; 1024], &limit, 1).is_err(), "a byte too long with its kind");
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.refused), (2, 1));

    let store = StoreConnection::to(&backend());
    let remote = Limiter::builder(store.clone()).rules(rules()).build();
    assert!(remote.throttle_now(b"", &limit, 1).unwrap().is_none());
    assert!(remote.admit_now(&user("a"), Duration::ZERO).is_none());
    assert_eq!(store.reached.load(Ordering::SeqCst), 0, "nothing was charged");
}

#[tokio::test(start_paused = true)]
async fn versions_only_rise() {
    // E27, E29
    let limiter = limiter(rules(2, [log(rule("a", &[], &["1 per 1h"]))]));

    let stale = limiter.set_rules(rules(2, [log(rule("a", &[], &["100 per 1h"]))]));

    assert_eq!(stale, Err(StaleRules { present: 2, offered: 2 }));
    assert!(limiter.admit(&user("x")).await.passes());
    assert!(!limiter.admit(&user("x")).await.passes(), "the rules stayed");
    limiter.set_rules(rules(3, [log(rule("a", &[], &["2 per 1h"]))])).unwrap();
    let admission = limiter.admit(&user("x")).await;
    assert_eq!((admission.passes(), admission.ruling().version()), (true, 3), "one was used");
    assert!(!limiter.admit(&user("x")).await.passes());
}

#[tokio::test(start_paused = true)]
async fn two_versions_that_take_turns_refill_nothing() {
    // E28: a roll-out, where half of the nodes have the new rules.
    let store = backend();
    for algorithm in [TokenBucket.into(), SlidingLog.into(), FixedWindow::default().into()] {
        let algorithm: tollgate::Algorithm = algorithm;
        let name = algorithm.name();
        let set = |version, quota: &str| {
            rules(version, [with(rule(name, &["user"], &[quota]), algorithm)])
        };
        let old = Limiter::builder(StoreConnection::to(&store)).rules(set(1, "10 per 1h")).build();
        let new = Limiter::builder(StoreConnection::to(&store)).rules(set(2, "6 per 1h")).build();
        for _ in 0..4 {
            assert!(old.admit(&user("alice")).await.passes());
        }

        let mut passed = 0;
        for _ in 0..20 {
            passed += u32::from(new.admit(&user("alice")).await.passes());
            passed += u32::from(old.admit(&user("alice")).await.passes());
        }

        assert_eq!(passed, 2, "{name}: six in all, whoever asks");
    }
}

#[tokio::test(start_paused = true)]
async fn editing_one_rule_leaves_another_alone() {
    // E28
    let edited = |version, quota: &str| {
        rules(
            version,
            [
                with(rule("x", &[], &[quota]), TokenBucket),
                with(rule("y", &["user"], &["5 per 1m"]), TokenBucket),
            ],
        )
    };
    let plain = limiter(edited(1, "1000 per 1s"));
    let changing = limiter(edited(1, "1000 per 1s"));

    for version in 2..200 {
        changing.set_rules(edited(version, &format!("{} per 1s", 1000 + version))).unwrap();
        tokio::time::advance(Duration::from_millis(version * 37 % 5000)).await;
        let (a, b) = (plain.admit(&user("u")).await, changing.admit(&user("u")).await);
        let y = |admission: &tollgate::Admission| {
            let finding = admission.ruling().findings();
            let mut y = finding.filter(|f| f.rule.unwrap().name() == "y");
            let decision = y.next().unwrap().decision;
            (decision.verdict, decision.remaining, decision.reset_after)
        };
        assert_eq!(y(&a), y(&b), "at version {version}");
    }
}

#[tokio::test(start_paused = true)]
async fn rules_are_swapped_while_requests_run() {
    // E27: each request is judged by exactly one version, whose limits say which.
    let set = |version: u64| {
        let quota = format!("{version} per 1h");
        rules(version, [log(rule("a", &["user"], &[&quota])), log(rule("b", &["user"], &[&quota]))])
    };
    let limiter = limiter(set(1));
    let judged = limiter.clone();
    let task = tokio::spawn(async move {
        let mut last = 0;
        for i in 0..2_000_u64 {
            let name = format!("u{i}");
            let admission = judged.admit(&user(&name)).await;
            let ruling = admission.ruling();
            for finding in ruling.findings() {
                let count = finding.limit.unwrap().limit().quota().count().get();
                assert_eq!(count, ruling.version());
                assert_eq!(finding.decision.remaining, ruling.version() - 1);
            }
            assert!(ruling.version() >= last, "versions only rise");
            last = ruling.version();
            tokio::task::yield_now().await;
        }
        last
    });
    for version in 2..=500 {
        limiter.set_rules(set(version)).unwrap();
        tokio::task::yield_now().await;
    }
    assert!(task.await.unwrap() > 100);
}

#[tokio::test(start_paused = true)]
async fn a_guard_refuses_before_the_store_is_asked() {
    let mut guarded = with(rule("all", &[], &["10 per 1s"]), FixedWindow::default());
    guarded.local_guard = Some(1200);
    let connection = StoreConnection::to(&backend());
    let limiter = Limiter::builder(connection.clone())
        .rules(rules(1, [guarded]))
        .deny_cache(DenyCacheMode::Off)
        .build();
    settle().await;
    let before = connection.reached.load(Ordering::SeqCst);

    let mut sources = Vec::new();
    for _ in 0..100 {
        let admission = limiter.admit(&user("alice")).await;
        sources.push((admission.passes(), admission.ruling().source()));
    }

    assert_eq!(
        connection.reached.load(Ordering::SeqCst) - before,
        12,
        "1.2 times the limit, and no more"
    );
    let of = |what| sources.iter().filter(|source| **source == what).count();
    assert_eq!(of((true, Source::Store)), 10);
    assert_eq!(of((false, Source::Store)), 2);
    assert_eq!(of((false, Source::Guard)), 88);
    assert_eq!(limiter.stats().local_guard_refusals, 88);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_told_apart_from_a_refusal() {
    let mut strict = log(rule("payments", &["user"], &["10 per 1h"]));
    strict.on_outage = OnOutage::Refuse;
    let mut lax = log(rule("pages", &["user"], &["1 per 1h"]));
    lax.on_outage = OnOutage::Admit;
    let set = rules(1, [on(strict, "service", "pay"), on(lax, "service", "web")]);
    let connection = StoreConnection::to(&backend());
    let limiter = Limiter::builder(connection.clone()).rules(set).build();
    connection.set(crate::common::ConnectionState::Closed);

    let refused = limiter.admit(&user("alice").with("service", "pay").unwrap()).await;
    let outage = refused.outage().unwrap();
    assert!(!refused.passes() && outage.unavailable);
    assert_eq!(outage.cause, StoreErrorKind::Unavailable);
    assert!(refused.retry_after().is_some(), "a 503 says when to come back");

    for _ in 0..10 {
        let admitted = limiter.admit(&user("alice").with("service", "web").unwrap()).await;
        assert!(admitted.passes() && admitted.outage().is_some());
    }
    assert_eq!(limiter.stats().degraded, 11);
}
