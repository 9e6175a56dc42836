//! Which rules a request is judged by, and when there are too many of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::sync::mpsc;

use crate::common::{backend, log, rule, rules, user};
use tollgate::RuleSet;
use tollgate::{EmbeddedStore, Limiter, Reason};
use tollgate::{Retry, Verdict};

#[tokio::test(start_paused = true)]
async fn a_request_under_more_limits_than_can_be_charged_is_refused_and_charged_by_none() {
    let set = |version, count: u64| {
        let rule = |i| log(rule(&format!("r{i}"), &["user"], &["10 per 1h"]));
        rules(version, (0..count).map(rule))
    };
    let limiter = Limiter::builder(backend()).rules(set(1, 65)).build();

    for _ in 0..20 {
        let refused = limiter.admit(&user("alice")).await;
        assert_eq!(refused.verdict(), Verdict::Deny(Retry::Never));
        assert_eq!(refused.ruling().reason(), Reason::TooManyLimits);
    }

    limiter.set_rules(set(2, 64)).unwrap();
    let passed = limiter.admit(&user("alice")).await;
    assert!(passed.passes());
    let left: Vec<u64> = passed.ruling().findings().map(|it| it.decision.remaining).collect();
    assert_eq!(left, [9; 64], "one of each, and nothing before");
}

/// Version v has two rules of v an hour each, so every finding says by which version it was made.
fn set(version: u64) -> RuleSet {
    let quota = format!("{version} per 1h");
    rules(version, [log(rule("a", &["user"], &[&quota])), log(rule("b", &["user"], &[&quota]))])
}

#[test]
fn threads_judge_each_request_by_one_version_while_another_swaps_them() {
    const VERSIONS: u64 = 200;
    let limiter = Limiter::builder(EmbeddedStore::new()).rules(set(1)).build();
    let (tell, told) = mpsc::channel();
    let judge = || {
        let (limiter, tell) = (limiter.clone(), tell.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut last = 0;
            while last < VERSIONS {
                // Only asked about, so that what is left is what the rules allow.
                let admission = runtime.block_on(limiter.peek(&user("alice")));
                let version = admission.ruling().version();
                assert_eq!(admission.ruling().findings().count(), 2);
                for finding in admission.ruling().findings() {
                    assert_eq!(finding.limit.unwrap().limit().quota().count().get(), version);
                    assert_eq!(finding.decision.remaining, version);
                }
                assert!(version >= last, "versions only rise");
                if version > last {
                    tell.send(version).unwrap();
                }
                last = version;
            }
        }
    };

    let threads: Vec<_> = (0..3).map(|_| std::thread::spawn(judge())).collect();
    drop(tell);
    for version in 2..=VERSIONS {
        // Somebody judges by each version, and all go on while it is swapped.
        assert!(told.iter().any(|judged| judged + 1 == version));
        limiter.set_rules(set(version)).unwrap();
    }

    for thread in threads {
        thread.join().unwrap();
    }
}
