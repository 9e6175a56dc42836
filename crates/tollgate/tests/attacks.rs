//! Bugs that a second attack on the limiter found, each with its story: outages, shadows, lists,
//! partitions, runtimes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::sync::mpsc;
use std::time::Duration;

use crate::common::*;
use tollgate::Concurrency;
use tollgate::rules::declaration::{Ban, Declaration, Domain, Mode, OnMissing, OnOutage, Rule};
use tollgate::rules::declaration::{Subject, Value};
use tollgate::{Ask, RuleSet};
use tollgate::{Event, ExplainedOutcome, Limiter, Observer};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn ms(n: u64) -> tokio::time::Sleep {
    tokio::time::sleep(Duration::from_millis(n))
}

/// Ten pass without the store, which is back then, with replies that take 30 ms.
async fn owing_ten(connection: &StoreConnection) -> Limiter<StoreConnection> {
    let limiter = node(connection, [log(rule("a", &["user"], &["100 per 1h"]))]).await;
    connection.set(ConnectionState::Closed);
    for _ in 0..10 {
        assert!(limiter.admit(&user("a")).await.passes());
    }
    connection.set(ConnectionState::Open);
    connection.takes(0, 30);
    limiter
}

/// One request carried a debt to the store while another met a blip. The blip took the part back, which
/// was under way, and it was told again under another name: 10 were debited twice.
#[tokio::test(start_paused = true)]
async fn a_debt_under_way_is_not_told_again_under_another_name() {
    let connection = StoreConnection::to(&backend());
    let limiter = owing_ten(&connection).await;
    let first = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.admit(&user("a")).await.passes() }
    });
    ms(5).await;

    connection.set(ConnectionState::Closed);
    assert!(limiter.admit(&user("a")).await.passes());
    connection.set(ConnectionState::Open);
    assert!(first.await.unwrap());
    connection.takes(0, 0);
    tokio::time::sleep(s(2)).await;

    assert_eq!(left(&limiter, "a").await, 88, "12 of 100 passed");
}

/// The same when the caller that carried it has gone away.
#[tokio::test(start_paused = true)]
async fn a_debt_whose_carrier_left_is_not_told_again_under_another_name() {
    let connection = StoreConnection::to(&backend());
    let limiter = owing_ten(&connection).await;
    let ask = user("a");
    let carrier = tokio::time::timeout(Duration::from_millis(10), limiter.admit(&ask));
    assert!(carrier.await.is_err(), "it left");

    connection.set(ConnectionState::Closed);
    assert!(limiter.admit(&user("a")).await.passes());
    connection.set(ConnectionState::Open);
    connection.takes(0, 0);
    tokio::time::sleep(s(2)).await;

    assert_eq!(left(&limiter, "a").await, 88, "whoever left was charged");
}

/// Every counter that was only asked about took one of the 65 536 places for debts, so 70 000 peeks
/// made the process forget what it let through.
#[tokio::test(start_paused = true)]
async fn peeks_take_no_place_of_a_debt() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [log(rule("a", &["user"], &["2 per 1h"]))]).await;
    assert!(limiter.admit(&user("seen").cost(2)).await.passes());
    connection.set(ConnectionState::Closed);

    for i in 0..100 {
        assert!(limiter.peek(&user(&format!("u{i}"))).await.passes());
    }

    assert_eq!(limiter.stats().counters_in_debt, 0);
    assert!(!limiter.peek(&user("seen")).await.passes(), "the store said that nothing is left");
    assert!(!limiter.admit(&user("seen")).await.passes());
    assert!(limiter.admit(&user("u1")).await.passes());
    assert_eq!(limiter.stats().counters_in_debt, 2, "who was asked for is remembered");
}

/// A ban was a counter as others are, and so `on-outage: admit` let the banned pass.
#[tokio::test(start_paused = true)]
async fn a_ban_that_was_seen_goes_on_under_admit() {
    let mut rule = log(rule("a", &["user"], &["1 per 1h"]));
    rule.on_outage = OnOutage::Admit;
    rule.ban = Some(Ban { after: 2, within: s(3600), lasts: s(60) });
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [rule]).await;
    for _ in 0..6 {
        let _ = limiter.admit(&user("mallory")).await;
        ms(60).await;
    }
    connection.set(ConnectionState::Closed);

    let banned = limiter.admit(&user("mallory")).await;

    assert!(!banned.passes());
    assert!(banned.outage().is_some_and(|outage| !outage.unavailable), "{banned:?}");
    assert!(limiter.admit(&user("alice")).await.passes(), "nobody else is");
    tokio::time::sleep(s(60)).await;
    assert!(limiter.admit(&user("mallory")).await.passes(), "it ends as it would have");
}

/// A refusal that was under way during a refund was learnt after it, and repeated for 50 ms.
#[tokio::test(start_paused = true)]
async fn a_refusal_from_before_a_refund_is_not_repeated() {
    let connection = StoreConnection::to(&backend());
    let limiter = node(&connection, [log(rule("a", &["user"], &["10 per 1h"]))]).await;
    let reserved = limiter.reserve(&user("a").cost(10), s(60)).await.unwrap();
    connection.takes(0, 20);
    let refused = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.admit(&user("a")).await.passes() }
    });
    ms(2).await;
    connection.takes(0, 0);
    limiter.refund(&reserved).await.unwrap();
    assert!(!refused.await.unwrap(), "it was asked before");

    assert!(limiter.admit(&user("a")).await.passes());
}

/// A shadow rule counted no refusals, so its ban never began: it reported less than it would refuse.
#[tokio::test(start_paused = true)]
async fn a_shadow_rule_bans_in_its_shadow() {
    for remote in [false, true] {
        let mut reported = Vec::new();
        for mode in [Mode::Enforce, Mode::Shadow] {
            let mut rule = log(rule("a", &["user"], &["1 per 100ms"]));
            rule.mode = mode;
            rule.ban = Some(Ban { after: 2, within: s(3600), lasts: s(3600) });
            let stats = if remote {
                let limiter = node(&StoreConnection::to(&backend()), [rule]).await;
                twenty(&limiter).await;
                limiter.stats()
            } else {
                let limiter = Limiter::builder(backend()).rules(rules(1, [rule])).build();
                twenty(&limiter).await;
                limiter.stats()
            };
            reported.push(if mode == Mode::Shadow { stats.shadow_refused } else { stats.refused });
        }
        assert_eq!(reported[0], reported[1], "remote: {remote}");
        assert!(reported[0] > 15, "{reported:?}");
    }
}

async fn twenty<S: tollgate::Store + 'static>(limiter: &Limiter<S>) {
    for _ in 0..20 {
        let _ = limiter.admit(&user("a")).await;
        ms(60).await;
    }
}

/// A concurrency limit did not look at costs: a question of cost 0 was refused, or held a permit.
#[tokio::test(start_paused = true)]
async fn a_cost_of_0_takes_no_permit() {
    let rule = with(rule("k", &[], &["1 per 1m"]), Concurrency);
    let limiter = Limiter::builder(backend()).rules(rules(1, [rule])).build();
    let (one, nothing) = (Ask::new("shop"), Ask::new("shop").cost(0));

    let asked = limiter.admit(&nothing).await;
    let held = limiter.admit(&one).await;

    assert!(asked.passes() && held.passes());
    assert!(limiter.admit(&nothing).await.passes());
    assert!(limiter.peek(&nothing).await.passes());
    assert!(!limiter.admit(&one).await.passes());
    drop(held);
    settle().await;
    assert!(limiter.admit(&one.clone().cost(5)).await.passes(), "any other cost is one permit");
}

/// In a domain with a partition, an ask without its attribute was limited by no rule at all, whatever
/// they counted by: leaving out a header switched every limit off.
#[tokio::test(start_paused = true)]
async fn without_the_partitions_attribute_rules_still_limit() {
    let mut domain = Domain::new("shop");
    domain.partition = vec!["tenant".to_owned()];
    let own = Rule { on_missing: OnMissing::Skip, ..log(rule("own", &["tenant"], &["5 per 1h"])) };
    let strict = on(log(rule("strict", &["user"], &["9 per 1h"])), "service", "login");
    let strict = Rule { on_missing: OnMissing::Refuse, ..strict };
    domain.rules = vec![log(rule("all", &[], &["3 per 1h"])), own, strict];
    let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).unwrap();
    let limiter = Limiter::builder(backend()).rules(set).build();
    let (bare, full) = (Ask::new("shop"), Ask::new("shop").with("tenant", "t").unwrap());

    for ask in [&bare, &full] {
        for i in 0..5 {
            assert_eq!(limiter.admit(ask).await.passes(), i < 3, "{ask:?}");
        }
    }

    let outcomes = limiter.explain(&bare).await.rules;
    assert_eq!(outcomes[0].outcome, ExplainedOutcome::Charged);
    assert_eq!(
        outcomes[1].outcome,
        ExplainedOutcome::Skipped { attribute: "tenant".to_owned() },
        "its own `by`"
    );
    let login = user("a").with("service", "login").unwrap();
    assert_eq!(
        limiter.explain(&login).await.rules[2].outcome,
        ExplainedOutcome::Charged,
        "it has its `by`"
    );
}

/// `explain` showed rules as charged that are not, as a list decides before them.
#[tokio::test(start_paused = true)]
async fn explain_charges_nothing_where_a_list_or_a_rule_decides_before() {
    let listed = |name: &str| Subject::Attribute {
        name: "user".to_owned(),
        value: Value::Text(name.to_owned()),
    };
    let mut domain = Domain::new("shop");
    (domain.exempt, domain.block) = (vec![listed("x")], vec![listed("y")]);
    let mut blocks = on(Rule::new("no"), "user", "z");
    blocks.block = true;
    let shadow = Rule { mode: Mode::Shadow, ..rule("s", &[], &["1 per 1h"]) };
    domain.rules = vec![rule("a", &[], &["1 per 1h"]), shadow, blocks];
    let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).unwrap();
    let limiter = Limiter::builder(backend()).rules(set).build();

    for who in ["x", "y", "z"] {
        let explained = limiter.explain(&user(who)).await;
        let outcomes: Vec<_> = explained.rules.into_iter().map(|rule| rule.outcome).collect();
        assert_eq!(outcomes[..2], [ExplainedOutcome::Spared, ExplainedOutcome::Spared], "{who}");
        assert_eq!(outcomes[2] == ExplainedOutcome::Blocks, who == "z");
    }
    let explained = limiter.explain(&user("w")).await;
    assert_eq!(
        [&explained.rules[0].outcome, &explained.rules[1].outcome],
        [&ExplainedOutcome::Charged, &ExplainedOutcome::Shadow]
    );
}

/// On a runtime without timers the background task panicked at its first sleep, and no ban ever began.
#[test]
fn a_runtime_without_timers_runs_background_jobs() {
    struct BanObserver(mpsc::Sender<()>);
    impl Observer for BanObserver {
        fn observe(&self, event: &Event) {
            if let Event::Banned { .. } = event {
                let _ = self.0.send(());
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (sender, bans) = mpsc::channel();
    runtime.block_on(async {
        let mut rule = log(rule("a", &["user"], &["1 per 1h"]));
        rule.ban = Some(Ban { after: 2, within: s(3600), lasts: s(7200) });
        let store = tollgate::EmbeddedStore::new();
        let builder = Limiter::builder(store).rules(rules(1, [rule]));
        let limiter = builder.observer(BanObserver(sender)).build();
        for _ in 0..5 {
            let _ = limiter.admit(&user("a")).await;
        }
        // The jobs have a thread of their own here. Ends with an error when the limiter is gone.
        bans.recv_timeout(s(60)).expect("banned");
        let retry = limiter.admit(&user("a")).await.retry_after();
        assert!(retry > Some(s(3600)), "{retry:?}");
    });
}

/// An observer whose panic carried something that panics when dropped ended the thread of all.
#[tokio::test]
async fn observers_survive_what_panics_when_it_is_dropped() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any(Fuse);
        }
    }
    struct Fuse;
    struct PanickingObserver(mpsc::Sender<()>);
    impl Observer for PanickingObserver {
        fn observe(&self, _: &Event) {
            let _ = self.0.send(());
            std::panic::panic_any(Bomb);
        }
    }
    let (sender, told) = mpsc::channel();
    let limiter = Limiter::builder(backend()).observer(PanickingObserver(sender)).build();

    for _ in 0..3 {
        let _ = limiter.admit(&Ask::new("shop")).await;
        told.recv().expect("the thread is alive");
    }
}
