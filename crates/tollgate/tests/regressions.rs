//! Bugs that were found by attacking the limiter, each with its story.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use crate::common::*;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use std::time::Duration;
use tollgate::Ask;
use tollgate::rules::declaration::*;
use tollgate::*;
use tollgate::{Limit, OnChange};

fn log(name: &str, quota: &str) -> Rule {
    with(rule(name, &["user"], &[quota]), SlidingLog)
}
const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}
async fn node(connection: &StoreConnection, r: Rule) -> Limiter<StoreConnection> {
    let l = Limiter::builder(connection.clone()).rules(rules(1, [r])).build();
    settle().await;
    tokio::time::sleep(s(6)).await;
    l
}

/// Releases shared a bounded queue with refusals: when it was full a release was dropped, and its
/// permit renewed for ever.
#[tokio::test(start_paused = true)]
async fn a_release_behind_seventy_thousand_refusals_comes_back() {
    let mut r = on(log("login", "1 per 1h"), "service", "login");
    r.ban = Some(Ban { after: 1_000_000, within: s(3600), lasts: s(900) });
    let c = on(with(rule("c", &["user"], &["1 per 10s"]), Concurrency), "service", "export");
    let l = Limiter::builder(backend()).rules(rules(1, [r, c])).build();
    let export = || user("a").with("service", "export").unwrap();
    let held = l.admit(&export()).await;
    settle().await;
    for _ in 0..70_000 {
        let _ = l.admit(&user("m").with("service", "login").unwrap()).await;
    }
    drop(held);
    tokio::time::sleep(s(600)).await;
    assert!(l.peek(&export()).await.passes(), "the permit came back");
}
/// Jobs that were dropped at a full queue were counted nowhere.
#[tokio::test(start_paused = true)]
async fn jobs_dropped_at_a_full_queue_are_counted() {
    let mut r = log("login", "1 per 1h");
    r.ban = Some(Ban { after: 1_000_000, within: s(3600), lasts: s(900) });
    let l = Limiter::builder(backend()).rules(rules(1, [r])).build();
    for _ in 0..70_000 {
        let _ = l.admit(&user("a")).await;
    }
    assert!(l.stats().lost_jobs > 0);
}
/// Long values of clients were hashed under the very key that signs reservations, and shown in the
/// keys of counters: whoever sent the text of a token as a user name was shown its signature.
#[tokio::test(start_paused = true)]
async fn no_token_is_forged_from_a_long_value() {
    let l = Limiter::builder(backend())
        .secret([9; 16])
        .rules(rules(1, [log("r", "100 per 1h")]))
        .build();
    let at = 1_700_000_000_000_000_u64;
    let mut p = vec![1_u8];
    p.extend(42_u128.to_le_bytes());
    p.extend(at.to_le_bytes());
    p.extend((at + 3_600_000_000).to_le_bytes());
    let key = b"r4:shop1:r2:1ht5:alice";
    for _ in 0..6 {
        p.extend(100_u64.to_le_bytes());
        p.push(1);
        p.extend((key.len() as u16).to_le_bytes());
        p.extend(key);
        p.extend(0_u16.to_le_bytes());
    }
    let mut value = b"tollgate reservation\0".to_vec();
    value.extend(&p);
    let shown =
        l.explain(&Ask::new("shop").with("user", &value).unwrap()).await.counters[0].key.clone();
    let raw = unescape(&shown);
    let token = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(&p),
        URL_SAFE_NO_PAD.encode(&raw[raw.len() - 16..])
    );
    assert!(l.redeem(&token).is_err());
}
/// Debts of nothing were never settled, and kept those behind them from being told.
#[tokio::test(start_paused = true)]
async fn debts_worth_nothing_go_and_hide_no_others() {
    let connection = StoreConnection::to(&backend());
    let l = node(&connection, log("q", "100 per 1h")).await;
    connection.set(ConnectionState::Closed);
    for i in 0..2000 {
        // Refused, as it is more than there is.
        let _ = l.admit(&user(&format!("p{i}")).cost(101)).await;
    }
    assert_eq!(l.stats().counters_in_debt, 2000);
    for i in 0..100 {
        assert!(l.admit(&user(&format!("u{i}"))).await.passes());
    }
    connection.set(ConnectionState::Open);
    tokio::time::sleep(s(600)).await;
    assert_eq!(l.stats().counters_in_debt, 0);
}
/// A debt that grew after a lost reply was told anew as a whole.
#[tokio::test(start_paused = true)]
async fn a_debt_that_grows_after_a_lost_reply_counts_once() {
    let connection = StoreConnection::to(&backend());
    let l = node(&connection, log("r", "1000 per 1h")).await;
    connection.set(ConnectionState::Closed);
    for _ in 0..10 {
        assert!(l.admit(&user("a")).await.passes());
    }
    connection.set(ConnectionState::LosesReplies);
    tokio::time::sleep(s(1)).await;
    connection.set(ConnectionState::Closed);
    assert!(l.admit(&user("a")).await.passes());
    connection.set(ConnectionState::Open);
    tokio::time::sleep(s(1)).await;
    assert_eq!(1000 - l.explain(&user("a")).await.counters[0].remaining, 11);
}
/// Three 503s of `on-outage: refuse` were counted as refusals, and banned a client.
#[tokio::test(start_paused = true)]
async fn refusals_of_an_outage_ban_nobody() {
    let mut r = log("login", "100 per 1h");
    r.on_outage = OnOutage::Refuse;
    r.ban = Some(Ban { after: 3, within: s(60), lasts: s(900) });
    let connection = StoreConnection::to(&backend());
    let l = node(&connection, r).await;
    for _ in 0..3 {
        connection.set(ConnectionState::Closed);
        let _ = l.admit(&user("a")).await;
        connection.set(ConnectionState::Open);
        settle().await;
    }
    assert!(l.admit(&user("a")).await.passes());
}
/// Explain was answered by the deny cache, which knows nothing of counters that do not refuse.
#[tokio::test(start_paused = true)]
async fn explain_tells_counters_also_beside_a_cached_refusal() {
    let l = Limiter::builder(StoreConnection::to(&backend()))
        .rules(rules(
            1,
            [with(rule("all", &[], &["100 per 1h"]), SlidingLog), log("r", "1 per 1h")],
        ))
        .build();
    for _ in 0..2 {
        let _ = l.admit(&user("a")).await;
    }
    let all = l.explain(&user("a")).await.counters.into_iter().find(|c| c.rule == "all").unwrap();
    assert_eq!(all.remaining, 99);
}
/// Where no rule matched, a reservation was made at the epoch, and had expired since.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_nothing_counts_can_be_committed() {
    let l = Limiter::builder(backend())
        .rules(rules(1, [on(log("r", "10 per 1h"), "service", "x")]))
        .build();
    let r = l.reserve(&user("a"), s(60)).await.unwrap();
    assert!(l.commit(&r, 1).await.is_ok());
}
/// Marks of use were kept for a day, and in a full store shared one counter, so that every
/// reservation but the first was said to have been used.
#[tokio::test(start_paused = true)]
async fn a_full_store_says_that_it_is_full() {
    let store = EmbeddedStore::builder().max_keys(64).shards(1).with_clock(TokioClock::new());
    let l = Limiter::builder(store)
        .rules(rules(1, [with(rule("r", &["user"], &["100000 per 1h"]), TokenBucket)]))
        .build();
    let mut settled = 0;
    for _ in 0..200 {
        let r = l.reserve(&user("a"), s(60)).await.unwrap();
        match l.commit(&r, 1).await {
            Ok(()) => settled += 1,
            Err(error) => assert!(matches!(error, ReservationError::NoRoom), "{error:?}"),
        }
    }
    assert!(settled >= 60, "{settled}: as many as there is room for");
    tokio::time::advance(s(121)).await;
    let r = l.reserve(&user("a"), s(60)).await.unwrap();
    assert!(l.commit(&r, 1).await.is_ok(), "and those who are remembered are forgotten in time");
}
/// A node that had never met the store took the whole limit for its share.
#[tokio::test(start_paused = true)]
async fn nodes_that_start_in_an_outage_have_shares_if_they_are_told_how_many_they_are() {
    let store = backend();
    let (mut passed, mut fleet) = (0, vec![]);
    for _ in 0..4 {
        let connection = StoreConnection::to(&store);
        connection.set(ConnectionState::Closed);
        fleet.push(
            Limiter::builder(connection).nodes(4).rules(rules(1, [log("r", "10 per 1h")])).build(),
        );
    }
    settle().await;
    for l in &fleet {
        for _ in 0..20 {
            passed += u64::from(l.admit(&user("a")).await.passes());
        }
    }
    assert!(passed <= 10 + 4 * 3, "{passed} of 10");
}
/// Blocks in shadow mode were neither counted nor told.
#[tokio::test(start_paused = true)]
async fn a_shadow_rule_that_blocks_is_told() {
    let mut b = Rule::new("b");
    b.block = true;
    b.mode = Mode::Shadow;
    let l = Limiter::builder(backend()).rules(rules(1, [b])).build();
    assert!(l.admit(&user("a")).await.passes());
    assert_eq!(l.stats().shadow_refused, 1);
}
/// Where only shadow rules matched, an empty request was sent, and failed in an outage.
#[tokio::test(start_paused = true)]
async fn nothing_but_shadow_rules_is_no_outage() {
    let mut r = log("s", "10 per 1h");
    r.mode = Mode::Shadow;
    let connection = StoreConnection::to(&backend());
    let l = node(&connection, r).await;
    connection.set(ConnectionState::Closed);
    assert!(l.admit(&user("a")).await.outage().is_none());
}
/// Permits of shadow rules were never released.
#[tokio::test(start_paused = true)]
async fn a_shadow_permit_ends_with_its_request() {
    let mut r = with(rule("c", &["user"], &["1 per 10s"]), Concurrency);
    r.mode = Mode::Shadow;
    let l = Limiter::builder(backend()).rules(rules(1, [r, log("e", "1000 per 1s")])).build();
    for _ in 0..3 {
        drop(l.admit(&user("a")).await);
        settle().await;
    }
    assert_eq!(l.stats().shadow_refused, 0);
}
/// A caller that waited behind another in the queue of a gate was told to retry after nothing, once its
/// whole patience was over.
#[tokio::test(start_paused = true)]
async fn nobody_is_told_to_retry_after_nothing() {
    let l = Limiter::new(backend());
    let g = l.gate("w", Limit::new(SlidingLog, "1 per 10s".parse().unwrap()).unwrap()).unwrap();
    g.acquire(1).await.unwrap();
    let other = g.clone();
    tokio::spawn(async move { other.acquire(1).await });
    settle().await;
    let Err(NotAdmitted::Late { retry_after }) = g.acquire_timeout(1, s(3)).await else { panic!() };
    assert!(retry_after > Duration::ZERO);
}
/// Permits were renewed at the store only: in an outage longer than a lease they ended here, and
/// others were let in beside those who went on.
#[tokio::test(start_paused = true)]
async fn permits_last_through_an_outage_that_is_longer_than_a_lease() {
    let connection = StoreConnection::to(&backend());
    let l = node(&connection, with(rule("c", &["user"], &["2 per 10s"]), Concurrency)).await;
    connection.set(ConnectionState::Closed);
    let mut held = vec![];
    for _ in 0..60 {
        let admission = l.admit(&user("a")).await;
        if admission.passes() {
            held.push(admission);
        }
        tokio::time::sleep(s(1)).await;
    }
    assert_eq!(held.len(), 2);
}

/// An outage's windows began at the first moment of this process's clock, not at the epoch, and so
/// rolled over within the store's.
#[tokio::test(start_paused = true)]
async fn windows_that_follow_the_epoch_follow_it_in_an_outage() {
    let window = FixedWindow { anchor: Anchor::Epoch };
    let connection = StoreConnection::to(&backend());
    let l = node(&connection, with(rule("w", &["user"], &["10 per 1h"]), window)).await;
    assert!(l.admit(&user("seen")).await.passes());
    connection.set(ConnectionState::Closed);
    // The store's clock began 13 m 20 s into an hour.
    let (mut passed, mut last) = (0, None);
    for minute in 0..50 {
        let before = passed;
        while l.admit(&user("a")).await.passes() {
            passed += 1;
        }
        if passed > before {
            last = Some(minute);
        }
        tokio::time::sleep(s(60)).await;
    }
    assert_eq!((passed, last), (20, Some(47)), "ten in each of two hours of the wall clock");
}

/// A request that another rule refused was spent on a guard all the same: one client over its own limit
/// could shut out everybody.
#[tokio::test(start_paused = true)]
async fn one_clients_refusals_do_not_use_up_the_guard_of_all() {
    let mut all = with(rule("all", &[], &["100 per 1s"]), SlidingLog);
    all.local_guard = Some(1200);
    let l = Limiter::builder(backend()).rules(rules(1, [all, log("own", "1 per 1m")])).build();
    for _ in 0..1_000 {
        let _ = l.admit(&user("mallory")).await;
    }
    for i in 0..50 {
        assert!(l.admit(&user(&format!("u{i}"))).await.passes());
    }
}

/// Every limit has the version of its file as revision, so an edit of one rule reset all others that
/// say `on-change: reset`, and lifted their bans.
#[tokio::test(start_paused = true)]
async fn an_edit_of_one_rule_resets_no_other() {
    let set = |version, quota: &str| {
        let mut y = log("y", "5 per 1h");
        y.on_change = OnChange::Reset;
        rules(version, [with(rule("x", &[], &[quota]), TokenBucket), y])
    };
    let l = Limiter::builder(backend()).rules(set(1, "1000 per 1s")).build();
    for _ in 0..5 {
        assert!(l.admit(&user("a")).await.passes());
    }
    l.set_rules(set(2, "2000 per 1s")).unwrap();
    assert!(!l.admit(&user("a")).await.passes());
}

/// A commit of tokens was debited from rules that count requests as well.
#[tokio::test(start_paused = true)]
async fn a_commit_settles_what_was_measured_and_a_refund_everything() {
    let mut tokens = log("tokens", "10000 per 1h");
    tokens.cost.attribute = Some("tokens".into());
    let l =
        Limiter::builder(backend()).rules(rules(1, [log("requests", "60 per 1h"), tokens])).build();
    let ask = || user("a").with("tokens", "1000").unwrap();
    let left = || async {
        let explained = l.explain(&ask()).await.counters;
        let of = |rule: &str| explained.iter().find(|c| c.rule == rule).unwrap().remaining;
        (of("requests"), of("tokens"))
    };
    let reserved = l.reserve(&ask(), s(60)).await.unwrap();
    l.commit(&l.redeem(&l.token(&reserved)).unwrap(), 800).await.unwrap();
    assert_eq!(left().await, (59, 9_200));
    let reserved = l.reserve(&ask(), s(60)).await.unwrap();
    l.refund(&reserved).await.unwrap();
    assert_eq!(left().await, (59, 9_200));
}

/// One request that two limits of a rule refused was two refusals towards a ban.
#[tokio::test(start_paused = true)]
async fn one_refused_request_is_one_refusal() {
    let mut r = with(rule("r", &["user"], &["1 per 1s", "1 per 2s"]), SlidingLog);
    r.ban = Some(Ban { after: 4, within: s(3600), lasts: s(900) });
    let l = Limiter::builder(backend()).rules(rules(1, [r])).build();
    for _ in 0..4 {
        let _ = l.admit(&user("a")).await;
        settle().await;
    }
    tokio::time::sleep(s(3)).await;
    assert!(l.admit(&user("a")).await.passes(), "three refusals");
}

/// While one rule refused from the cache, the refusals of another that bans were not counted.
#[tokio::test(start_paused = true)]
async fn a_cached_refusal_hides_no_refusal_from_a_ban() {
    let mut banning = on(log("b", "1 per 1h"), "service", "s");
    banning.ban = Some(Ban { after: 3, within: s(3600), lasts: s(86_400) });
    let l = Limiter::builder(StoreConnection::to(&backend()))
        .rules(rules(1, [log("a", "1 per 100ms"), banning]))
        .build();
    let ask = || user("m").with("service", "s").unwrap();
    assert!(l.admit(&ask()).await.passes());
    tokio::time::sleep(s(1)).await;
    for _ in 0..10 {
        let _ = l.admit(&user("m")).await;
        let _ = l.admit(&ask()).await;
        settle().await;
    }
    // The cached refusal knows nothing of the ban yet.
    tokio::time::sleep(Duration::from_millis(60)).await;
    let told = l.admit(&ask()).await.retry_after().unwrap();
    assert!(told > s(4_000), "{told:?}: banned");
}

/// The refusal that a waiter left behind was repeated after the waiter had given its place back.
#[tokio::test(start_paused = true)]
async fn a_place_that_comes_back_is_seen_at_once() {
    let l = Limiter::new(StoreConnection::to(&backend()));
    let g = l.gate("g", Limit::new(TokenBucket, "1 per 10s".parse().unwrap()).unwrap()).unwrap();
    g.acquire(1).await.unwrap();
    tokio::time::sleep(s(9)).await;
    let waiter = g.clone();
    let waiting = tokio::spawn(async move { waiter.acquire(1).await });
    settle().await;
    tokio::time::sleep(Duration::from_millis(980)).await;
    assert!(g.try_acquire(1).await.is_err());
    waiting.abort();
    settle().await;
    tokio::time::sleep(Duration::from_millis(25)).await;
    assert!(g.try_acquire(1).await.is_ok());
}

/// Callers that asked without waiting overtook those in the queue of the gate, for ever.
#[tokio::test(start_paused = true)]
async fn those_who_only_try_do_not_starve_those_who_wait() {
    let l = Limiter::new(backend());
    let g = l.gate("g", Limit::new(SlidingLog, "2 per 1s".parse().unwrap()).unwrap()).unwrap();
    g.acquire(2).await.unwrap();
    let waiter = g.clone();
    let waiting = tokio::spawn(async move { waiter.acquire(2).await });
    for _ in 0..300 {
        let _ = g.try_acquire(1).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(waiting.is_finished());
}

/// In an outage whoever wanted more than the share was turned away, though it would have waited.
#[tokio::test(start_paused = true)]
async fn who_waits_for_more_than_a_share_waits_for_the_store() {
    let connection = StoreConnection::to(&backend());
    let l = node(&connection, log("r", "1 per 1h")).await;
    let g = l.gate("g", Limit::new(TokenBucket, "10 per 1h".parse().unwrap()).unwrap()).unwrap();
    let other = Limiter::builder(StoreConnection::to(&connection.backend)).build();
    tokio::time::sleep(s(6)).await;
    assert_eq!(l.stats().nodes, 2);
    connection.set(ConnectionState::Closed);
    let waiting = tokio::spawn(async move { g.acquire(8).await });
    tokio::time::sleep(s(5)).await;
    assert!(!waiting.is_finished());
    connection.set(ConnectionState::Open);
    tokio::time::sleep(s(5)).await;
    assert!(waiting.await.unwrap().is_ok());
    drop(other);
}

/// A block named nobody.
#[tokio::test(start_paused = true)]
async fn who_blocks_is_named() {
    let mut block = on(Rule::new("no-bots"), "user", "bot");
    block.block = true;
    let mut needs = on(log("tenants", "1 per 1s"), "service", "x");
    needs.by = vec!["tenant".into()];
    needs.on_missing = OnMissing::Refuse;
    let l = Limiter::builder(backend()).rules(rules(1, [block, needs])).build();
    let by = |admission: Admission| admission.ruling().blocked_by().cloned();
    assert_eq!(by(l.admit(&user("bot")).await), Some(Blocked::Rule { rule: "no-bots".into() }));
    let missing = l.admit(&user("a").with("service", "x").unwrap()).await;
    let expected = Blocked::Missing { rule: "tenants".into(), attribute: "tenant".into() };
    assert_eq!(by(missing), Some(expected));
    assert!(l.explain(&user("bot")).await.blocked_by.is_some());
}

/// A debt was capped by the share under the old rule, though more passed under the new one.
#[tokio::test(start_paused = true)]
async fn what_passes_under_an_edit_in_an_outage_is_owed_too() {
    let connection = StoreConnection::to(&backend());
    let l = node(&connection, log("r", "10 per 1h")).await;
    connection.set(ConnectionState::Closed);
    for _ in 0..10 {
        assert!(l.admit(&user("a")).await.passes());
    }
    l.set_rules(rules(2, [log("r", "1000 per 1h")])).unwrap();
    for _ in 0..500 {
        assert!(l.admit(&user("a")).await.passes());
    }
    connection.set(ConnectionState::Open);
    tokio::time::sleep(s(1)).await;
    assert_eq!(l.explain(&user("a")).await.counters[0].remaining, 490);
}

/// Rules could not make anybody wait.
#[tokio::test(start_paused = true)]
async fn a_rule_can_let_a_patient_caller_wait() {
    let queue = with(rule("q", &[], &["10 per 1s burst 5"]), LeakyQueue);
    let l = Limiter::builder(backend()).rules(rules(1, [queue, log("own", "100 per 1h")])).build();
    let mut waits = vec![];
    for _ in 0..7 {
        let admission = l.admit_within(&user("a"), s(1)).await;
        waits.push(admission.passes().then(|| admission.wait().as_millis()));
    }
    assert_eq!(waits, [Some(0), Some(100), Some(200), Some(300), Some(400), Some(500), None]);
    assert!(!l.admit(&user("a")).await.passes(), "and the impatient do not");
}

fn unescape(s: &str) -> Vec<u8> {
    let b = s.as_bytes();
    let mut o = vec![];
    let mut i = 0;
    while i < b.len() {
        if b[i] == b'\\' {
            match b[i + 1] {
                b'x' => {
                    o.push(u8::from_str_radix(&s[i + 2..i + 4], 16).unwrap());
                    i += 4;
                }
                b'n' => {
                    o.push(b'\n');
                    i += 2;
                }
                b't' => {
                    o.push(b'\t');
                    i += 2;
                }
                b'r' => {
                    o.push(b'\r');
                    i += 2;
                }
                c => {
                    o.push(c);
                    i += 2;
                }
            }
        } else {
            o.push(b[i]);
            i += 1;
        }
    }
    o
}
