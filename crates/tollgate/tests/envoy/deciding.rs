//! The answer to a call, sentence by sentence of the reference, on a clock that tests set.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::envoy::{
    Call, CallError, CallPolicy, Code, Descriptor, Entry, EnvoyRules, MAX_ENTRIES, Unit,
};
use tollgate::{Blocked, EmbeddedStore, Event, Limiter, Observer, Reason, StaleRules};
use tollgate_core::testing::ManualClock;

use crate::support::{NOW, ask, ask_as, d, entries, limiter, rules, told};

const SHOP: &str = "
domain: shop
descriptors:
  - { key: ten, rate_limit: { unit: minute, requests_per_unit: 10, name: ten-a-minute } }
  - { key: two, rate_limit: { unit: hour, requests_per_unit: 2 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: ban, rate_limit: { unit: day, requests_per_unit: 0 } }
  - { key: listed }
";

#[tokio::test]
async fn a_status_has_the_limit_what_is_left_and_when_the_window_ends() {
    let (limiter, clock) = limiter(SHOP);

    let answer = ask(&limiter, &[d("ten=a")]).await;

    let status = answer.statuses()[0];
    let limit = status.limit.unwrap();
    assert_eq!((limit.requests_per_unit(), limit.unit()), (10, Unit::Minute));
    assert_eq!((status.code, status.remaining), (Code::Ok, 9));
    assert_eq!(status.reset_after, Some(Duration::from_secs(40)), "20 s into the minute");
    assert_eq!(answer.rule(&status).unwrap().name(), "ten-a-minute");
    assert_eq!((answer.version(), answer.knows_domain(), answer.outage()), (1, true, None));

    clock.advance(Duration::from_millis(38_500));
    let status = ask(&limiter, &[d("ten=a")]).await.statuses()[0];
    assert_eq!((status.remaining, status.reset_after), (8, Some(Duration::from_secs(2))));
    clock.advance(Duration::from_millis(1_500));
    let status = ask(&limiter, &[d("ten=a")]).await.statuses()[0];
    assert_eq!((status.remaining, status.reset_after), (9, Some(Duration::from_secs(60))), "anew");
}

#[tokio::test]
async fn over_the_limit_nothing_is_left() {
    let (limiter, _) = limiter(SHOP);
    for left in ["OK: OK 1", "OK: OK 0", "OVER: OVER 0", "OVER: OVER 0"] {
        assert_eq!(told(&ask(&limiter, &[d("two=a")]).await), left);
    }
    let over = ask(&limiter, &[d("two=a")]).await.statuses()[0];
    assert!(over.limit.is_some());
    assert_eq!(over.reset_after, Some(Duration::from_secs(3600 - 800)));
    assert_eq!(told(&ask(&limiter, &[d("two=b")]).await), "OK: OK 1", "each value counts apart");
}

#[tokio::test]
async fn windows_follow_the_epoch_whatever_the_unit() {
    for (unit, seconds) in [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("day", 86_400),
        ("week", 604_800),
        ("month", 2_592_000),
        ("year", 31_536_000),
    ] {
        let file = format!(
            "domain: shop\ndescriptors: [{{ key: a, rate_limit: {{ unit: {unit}, requests_per_unit: 1 }} }}]"
        );
        let (limiter, clock) = limiter(&file);
        let left = seconds - NOW % seconds;

        let status = ask(&limiter, &[d("a=1").hits(0)]).await.statuses()[0];
        assert_eq!(status.reset_after, Some(Duration::from_secs(left)), "{unit}, nothing counted");
        assert_eq!(told(&ask(&limiter, &[d("a=1")]).await), "OK: OK 0");
        assert_eq!(told(&ask(&limiter, &[d("a=1")]).await), "OVER: OVER 0");
        clock.set(Timestamp::from_micros((NOW + left) * 1_000_000 - 1));
        assert_eq!(told(&ask(&limiter, &[d("a=1")]).await), "OVER: OVER 0", "{unit}");
        clock.advance(Duration::from_micros(1));
        assert_eq!(told(&ask(&limiter, &[d("a=1")]).await), "OK: OK 0", "{unit}");
    }
}

#[tokio::test]
async fn without_a_rule_and_unlimited_never_touch_the_store() {
    let (limiter, _) = limiter(SHOP);

    let answer = ask(&limiter, &[d("nobody=a"), d("free=a"), d("listed=a"), d("two=a x=y")]).await;

    assert_eq!(told(&answer), "OK: OK 0, OK 4294967295, OK 0, OK 0");
    for status in answer.statuses() {
        assert_eq!((status.limit, status.reset_after), (None, None));
    }
    assert_eq!(limiter.store().stats().keys, 0, "no counter was made");
    assert_eq!(limiter.stats().admitted, 1);
}

#[tokio::test]
async fn an_unknown_domain_has_no_rules_and_ignores_limits() {
    let (limiter, _) = limiter(SHOP);
    let entries = entries("two=a");
    let limit = d("x").limit(0, None).limit;
    let descriptors = [Descriptor { limit, ..Descriptor::new(&entries) }; 2];

    let call = Call::new("other", &descriptors);
    let answer = limiter.should_rate_limit(&call, CallPolicy::default());

    let answer = answer.await.unwrap();
    assert_eq!((told(&answer), answer.knows_domain()), ("OK: OK 0, OK 0".to_owned(), false));
}

#[tokio::test]
async fn zero_requests_are_a_block() {
    let (limiter, _) = limiter(SHOP);

    let answer = ask(&limiter, &[d("ban=a"), d("two=a")]).await;

    assert_eq!(told(&answer), "OVER: OVER 0, OK 0");
    assert_eq!(answer.statuses()[0].limit.unwrap().requests_per_unit(), 0);
    assert_eq!(limiter.store().stats().keys, 0, "nothing is counted");
    assert_eq!(told(&ask(&limiter, &[d("two=a")]).await), "OK: OK 1", "nor charged elsewhere");
    assert_eq!(told(&ask(&limiter, &[d("ban=a").hits(0)]).await), "OVER: OVER 0");
    assert_eq!(told(&ask(&limiter, &[d("ban=a").back()]).await), "OK: OK 0", "giving back is OK");
}

#[tokio::test]
async fn one_descriptor_over_charges_none() {
    let (limiter, _) = limiter(SHOP);
    for _ in 0..2 {
        let _ = ask(&limiter, &[d("two=a")]).await;
    }

    for _ in 0..5 {
        assert_eq!(told(&ask(&limiter, &[d("ten=a"), d("two=a")]).await), "OVER: OK 10, OVER 0");
    }

    assert_eq!(told(&ask(&limiter, &[d("ten=a")]).await), "OK: OK 9");
}

#[tokio::test]
async fn a_call_of_cost_0_costs_1_and_a_descriptor_of_cost_0_asks() {
    let (limiter, _) = limiter(SHOP);
    let policy = CallPolicy::default();
    let with = async |asked, hits| ask_as(&limiter, &[asked], hits, policy).await.unwrap();

    assert_eq!(told(&with(d("ten=a"), 0).await), "OK: OK 9");
    assert_eq!(told(&with(d("ten=a"), 3).await), "OK: OK 6");
    assert_eq!(told(&with(d("ten=a").hits(2), 3).await), "OK: OK 4", "the descriptor's cost wins");
    for _ in 0..3 {
        assert_eq!(told(&with(d("ten=a").hits(0), 3).await), "OK: OK 4", "also if it is 0");
    }
    assert_eq!(told(&with(d("ten=a"), 5).await), "OVER: OVER 0");
    assert_eq!(told(&with(d("ten=a"), 4).await), "OK: OK 0", "a refused cost is not burnt");
    assert_eq!(told(&with(d("ten=a").hits(0), 0).await), "OK: OK 0", "not above its limit");
    for hits in [u64::from(u32::MAX), u64::MAX] {
        assert_eq!(told(&with(d("ten=b").hits(hits), 0).await), "OVER: OVER 0");
    }
    assert_eq!(told(&with(d("ten=b"), u32::MAX).await), "OVER: OVER 0");
    assert_eq!(told(&with(d("ten=b"), 0).await), "OK: OK 9");
}

#[tokio::test]
async fn negative_hits_give_back_down_to_nothing_and_are_always_ok() {
    let (limiter, clock) = limiter(SHOP);
    let _ = ask(&limiter, &[d("ten=a").hits(10)]).await;

    assert_eq!(told(&ask(&limiter, &[d("ten=a")]).await), "OVER: OVER 0");
    assert_eq!(told(&ask(&limiter, &[d("ten=a").hits(4).back()]).await), "OK: OK 4");
    assert_eq!(told(&ask(&limiter, &[d("ten=a").hits(u64::MAX).back()]).await), "OK: OK 10");
    assert_eq!(told(&ask(&limiter, &[d("ten=a").hits(5).back()]).await), "OK: OK 10", "the floor");
    assert_eq!(told(&ask(&limiter, &[d("ten=a").hits(0).back()]).await), "OK: OK 10");
    assert_eq!(told(&ask(&limiter, &[d("ten=a").back()]).await), "OK: OK 10", "of cost 1");
    assert_eq!(told(&ask(&limiter, &[d("ten=new").hits(3).back()]).await), "OK: OK 10");

    let _ = ask(&limiter, &[d("ten=a").hits(10)]).await;
    let both = [d("two=a").hits(3), d("ten=a").hits(4).back()];
    assert_eq!(told(&ask(&limiter, &both).await), "OVER: OVER 0, OK 0", "refused: not given back");
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        told(&ask(&limiter, &[d("ten=a").hits(3).back()]).await),
        "OK: OK 10",
        "a new window"
    );
}

#[tokio::test]
async fn a_limit_of_the_call_takes_the_place_of_the_files() {
    let (limiter, _) = limiter(SHOP);
    let minute = Some(Unit::Minute);

    let answer = ask(&limiter, &[d("two=a").limit(5, minute)]).await;
    assert_eq!(told(&answer), "OK: OK 4");
    let status = answer.statuses()[0];
    assert_eq!(
        status.limit.map(|limit| (limit.requests_per_unit(), limit.unit())),
        Some((5, Unit::Minute))
    );
    assert!(answer.rule(&status).is_none());
    assert_eq!(told(&ask(&limiter, &[d("two=a")]).await), "OK: OK 1", "another unit counts apart");

    let hour = Some(Unit::Hour);
    assert_eq!(
        told(&ask(&limiter, &[d("two=a").limit(5, hour)]).await),
        "OK: OK 3",
        "the same: together"
    );
    assert_eq!(told(&ask(&limiter, &[d("two=a")]).await), "OVER: OVER 0");
    assert_eq!(
        told(&ask(&limiter, &[d("no-rule=a").limit(1, hour)]).await),
        "OK: OK 0",
        "without a rule"
    );
    assert_eq!(
        told(&ask(&limiter, &[d("free=a").limit(0, hour)]).await),
        "OVER: OVER 0",
        "a block"
    );

    let asked = [d("two=a"), d("two=b").limit(5, None)];
    let unknown = ask_as(&limiter, &asked, 0, CallPolicy::default()).await;
    assert_eq!(unknown.unwrap_err(), CallError::UnknownUnit { descriptor: 1 });
    let asked = [d("a=a").limit(u32::MAX, Some(Unit::Second))];
    let fast = ask_as(&limiter, &asked, 0, CallPolicy::default()).await;
    assert!(matches!(fast.unwrap_err(), CallError::TooFast(_)));
}

#[tokio::test]
async fn one_counter_under_two_limits_is_judged_by_the_stricter() {
    let (limiter, _) = limiter(SHOP);
    let hour = Some(Unit::Hour);
    let both = [d("two=a"), d("two=a").limit(5, hour)];

    assert_eq!(told(&ask(&limiter, &both).await), "OK: OK 1, OK 0");
    assert_eq!(told(&ask(&limiter, &both).await), "OVER: OVER 0, OVER 0");
    assert_eq!(told(&ask(&limiter, &[d("ten=a"), d("ten=a")]).await), "OK: OK 9, OK 8", "a pair");
}

const QUOTAS: &str = "
domain: shop
descriptors:
  - { key: must, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: one, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: other, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: none, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 0 } }
";

/// Every combination of what is over: the call is over if a rule without quota mode is, or if all
/// with it are.
#[tokio::test]
async fn of_quota_rules_any_one_suffices() {
    for case in 0..8_u8 {
        let over = |bit: u8| case & (1 << bit) != 0;
        let (limiter, _) = limiter(QUOTAS);
        let all = [d("must=a"), d("one=a"), d("other=a")];
        for (bit, asked) in (0_u8..).zip(all).filter(|(bit, _)| over(*bit)) {
            assert_eq!(told(&ask(&limiter, &[asked]).await), "OK: OK 0", "bit {bit}");
        }

        let answer = ask(&limiter, &all).await;

        let expected = over(0) || (over(1) && over(2));
        assert_eq!(answer.code() == Code::OverLimit, expected, "case {case}");
        for (bit, status) in (0_u8..).zip(answer.statuses()) {
            assert_eq!(status.code == Code::OverLimit, over(bit), "case {case}, status {bit}");
            let charged = u32::from(!over(bit) && expected);
            assert_eq!(status.remaining, charged, "case {case}: charged only if the call passed");
        }
        for (bit, asked) in (0_u8..).zip(all) {
            let left = u32::from(expected && !over(bit));
            let peeked = ask(&limiter, &[asked.hits(0)]).await;
            assert_eq!(peeked.statuses()[0].remaining, left, "case {case}, counter {bit}");
        }
    }
}

#[tokio::test]
async fn a_blocked_quota_rule_refuses_alone_and_is_outvoted_by_another() {
    let (limiter, _) = limiter(QUOTAS);

    assert_eq!(told(&ask(&limiter, &[d("none=a")]).await), "OVER: OVER 0");
    assert_eq!(told(&ask(&limiter, &[d("none=a"), d("one=a")]).await), "OK: OVER 0, OK 0");
    assert_eq!(told(&ask(&limiter, &[d("none=a"), d("one=a")]).await), "OVER: OVER 0, OVER 0");
    assert_eq!(told(&ask(&limiter, &[d("one=a"), d("other=a")]).await), "OK: OVER 0, OK 0");
}

const REPLACING: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 1, name: per-user } }
  - { key: tier, value: gold, rate_limit: { unit: hour, requests_per_unit: 5, name: gold, replaces: [{ name: per-user }] } }
  - { key: tier, value: staff, rate_limit: { unlimited: true, replaces: [{ name: per-user }, { name: gold }] } }
  - { key: left, rate_limit: { unit: hour, requests_per_unit: 1, name: left, replaces: [{ name: right }] } }
  - { key: right, rate_limit: { unit: hour, requests_per_unit: 1, name: right, replaces: [{ name: left }] } }
";

#[tokio::test]
async fn a_rule_that_replaces_another_takes_it_out_wherever_it_stands() {
    let (limiter, _) = limiter(REPLACING);

    assert_eq!(told(&ask(&limiter, &[d("user=a"), d("tier=gold")]).await), "OK: OK 0, OK 4");
    let replaced = ask(&limiter, &[d("tier=gold"), d("user=a")]).await;
    assert_eq!(told(&replaced), "OK: OK 3, OK 0");
    assert_eq!(replaced.statuses()[1].limit, None, "as if there were no rule");
    let answer = ask(&limiter, &[d("user=a"), d("tier=staff")]).await;
    assert_eq!(told(&answer), "OK: OK 0, OK 4294967295", "an unlimited rule replaces as well");
    assert_eq!(told(&ask(&limiter, &[d("left=a"), d("right=a")]).await), "OK: OK 0, OK 0");
    assert_eq!(told(&ask(&limiter, &[d("user=a")]).await), "OK: OK 0", "it was never charged");
    assert_eq!(told(&ask(&limiter, &[d("user=a")]).await), "OVER: OVER 0");
}

const WILD: &str = "
domain: shop
descriptors:
  - { key: path, value: /shared/*, share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 3 } }
  - { key: path, value: /each/*, rate_limit: { unit: hour, requests_per_unit: 3 } }
  - key: tenant
    value: t-*
    share_threshold: true
    descriptors: [{ key: user, rate_limit: { unit: hour, requests_per_unit: 3 } }]
";

#[tokio::test]
async fn values_of_a_pattern_share_a_counter_only_where_the_rule_says_so() {
    let (limiter, _) = limiter(WILD);
    for (asked, left) in [
        ("path=/shared/a", "OK: OK 2"),
        ("path=/shared/b", "OK: OK 1"),
        ("path=/each/a", "OK: OK 2"),
        ("path=/each/b", "OK: OK 2"),
        ("tenant=t-1 user=a", "OK: OK 2"),
        ("tenant=t-2 user=a", "OK: OK 1"),
        ("tenant=t-2 user=b", "OK: OK 2"),
        ("path=/shared/*", "OK: OK 0"),
    ] {
        assert_eq!(told(&ask(&limiter, &[d(asked)]).await), left, "{asked}");
    }
}

#[tokio::test]
async fn parts_of_a_descriptor_never_run_together() {
    let file = |descriptors: &str| format!("domain: shop\ndescriptors: [{descriptors}]");
    let limit = "rate_limit: { unit: hour, requests_per_unit: 1 }";
    let (limiter, _) = limiter(&file(&format!(
        "{{ key: a, {limit}, descriptors: [{{ key: b, {limit} }}] }}, {{ key: a_b, {limit} }}"
    )));
    let long = "x".repeat(5_000);
    let (one, two) = (format!("a={long}1"), format!("a={long}2"));
    for asked in ["a=b_c", "a_b=c", "a=b", "a=1 b=", "a=1 b=1", "a=", &one, &two] {
        assert_eq!(told(&ask(&limiter, &[d(asked)]).await), "OK: OK 0", "{asked}");
        assert_eq!(told(&ask(&limiter, &[d(asked)]).await), "OVER: OVER 0", "{asked}");
    }
}

const SHADOW: &str = "
domain: shop
descriptors:
  - { key: dark, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 2 } }
  - { key: void, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 0 } }
  - { key: must, rate_limit: { unit: hour, requests_per_unit: 3 } }
";

#[tokio::test]
async fn a_shadow_rule_counts_and_never_answers() {
    let (limiter, _) = limiter(SHADOW);
    for left in ["OK: OK 1", "OK: OK 0", "OK: OK 0"] {
        let answer = ask(&limiter, &[d("dark=a")]).await;
        assert_eq!(told(&answer), left);
        assert!(answer.statuses()[0].limit.is_some() && answer.statuses()[0].reset_after.is_some());
    }
    assert_eq!((limiter.stats().shadow_admitted, limiter.stats().shadow_refused), (2, 1));

    assert_eq!(told(&ask(&limiter, &[d("void=a")]).await), "OK: OK 0");
    assert_eq!(limiter.stats().shadow_refused, 2);

    for left in ["OK: OK 2, OK 1", "OK: OK 1, OK 0", "OK: OK 0, OK 0", "OVER: OVER 0, OK 0"] {
        assert_eq!(told(&ask(&limiter, &[d("must=a"), d("dark=b")]).await), left);
    }
    assert_eq!(limiter.stats().shadow_refused, 3, "a refused call does not reach shadow rules");
}

#[tokio::test]
async fn a_call_that_says_nothing_is_an_error() {
    let (limiter, _) = limiter(SHOP);
    let ask = async |domain, descriptors: &[Descriptor<'_>]| {
        limiter.should_rate_limit(&Call::new(domain, descriptors), CallPolicy::default()).await
    };
    let one = entries("ten=a");
    let ten = Descriptor::new(&one);

    let error = ask("", &[ten]).await.unwrap_err();
    assert_eq!(
        (error, error.to_string().as_str()),
        (CallError::EmptyDomain, "rate limit domain must not be empty")
    );
    let error = ask("shop", &[]).await.unwrap_err();
    assert_eq!(
        (error, error.to_string().as_str()),
        (CallError::NoDescriptors, "rate limit descriptor list must not be empty")
    );

    assert!(ask("shop", &vec![ten.with_hits(0); Call::MAX_DESCRIPTORS]).await.is_ok());
    let many = vec![ten; Call::MAX_DESCRIPTORS + 1];
    assert_eq!(ask("shop", &many).await.unwrap_err(), CallError::TooManyDescriptors { count: 65 });
    let entry = Entry { key: "k", value: "v" };
    let (most, more) = (vec![entry; MAX_ENTRIES], vec![entry; MAX_ENTRIES + 1]);
    let limit = d("x").limit(1, Some(Unit::Hour)).limit.unwrap();
    assert_eq!(
        told(&ask("shop", &[Descriptor::new(&most).with_limit(limit)]).await.unwrap()),
        "OK: OK 0"
    );
    let error = ask("shop", &[ten, Descriptor::new(&more)]).await.unwrap_err();
    assert_eq!(error, CallError::TooManyEntries { descriptor: 1, count: 17 });

    assert_eq!(
        told(&ask("shop", &[Descriptor::new(&[])]).await.unwrap()),
        "OK: OK 0",
        "no entries"
    );
    let empty = [Entry { key: "", value: "" }];
    assert_eq!(told(&ask("shop", &[Descriptor::new(&empty)]).await.unwrap()), "OK: OK 0");
}

#[tokio::test]
async fn the_tightest_status_is_one_that_refuses_or_has_the_least_left() {
    let (limiter, _) = limiter(SHOP);
    let tightest = async |asked: &[_]| {
        let answer = ask(&limiter, asked).await;
        answer.tightest().map(|status| status.limit.unwrap().requests_per_unit())
    };
    assert_eq!(tightest(&[d("none=a"), d("free=a")]).await, None);
    assert_eq!(tightest(&[d("ten=a"), d("two=a"), d("none=a")]).await, Some(2));
    assert_eq!(tightest(&[d("ten=a").hits(9), d("two=b")]).await, Some(10));
    assert_eq!(tightest(&[d("ten=b"), d("two=c").hits(3), d("two=d").hits(2)]).await, Some(2));
}

struct EventSender(Mutex<Sender<Event>>);

impl Observer for EventSender {
    fn observe(&self, event: &Event) {
        let _ = self.0.lock().unwrap().send(event.clone());
    }
}

#[tokio::test]
async fn observers_hear_of_calls_as_of_other_requests() {
    let (sender, events) = channel();
    let store = EmbeddedStore::builder().with_clock(ManualClock::default());
    let limiter = Limiter::builder(store).observer(EventSender(Mutex::new(sender))).build();
    let set = |version| EnvoyRules::load(version, [("f", SHOP)]).unwrap();

    limiter.set_envoy_rules(set(7)).unwrap();
    assert_eq!(limiter.set_envoy_rules(set(7)), Err(StaleRules { present: 7, offered: 7 }));
    assert_eq!(limiter.envoy_rules().version(), 7);
    for asked in [d("two=a"), d("two=a").hits(2), d("ban=a")] {
        let _ = ask(&limiter, &[asked]).await;
    }

    let Event::EnvoyRulesChanged { from: 0, to: 7 } = events.recv().unwrap() else { panic!() };
    let Event::Admitted { ruling } = events.recv().unwrap() else { panic!() };
    assert_eq!((ruling.version(), ruling.reason()), (7, Reason::Limits));
    let Event::Refused { ruling } = events.recv().unwrap() else { panic!() };
    assert_eq!(ruling.refusing().unwrap().envoy.unwrap().path(), "two");
    let Event::Refused { ruling } = events.recv().unwrap() else { panic!() };
    assert_eq!(ruling.blocked_by(), Some(&Blocked::Rule { rule: "ban".to_owned() }));
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.refused, stats.degraded), (1, 2, 0));
}

#[tokio::test]
async fn counts_outlive_an_edit_and_the_new_limit_binds_at_once() {
    let (limiter, _) = limiter(SHOP);
    let edit = |version, text: &str| {
        let rules = EnvoyRules::load(version, [("f", text)]).unwrap();
        limiter.set_envoy_rules(rules).unwrap();
    };
    let _ = ask(&limiter, &[d("ten=a").hits(6)]).await;

    edit(2, &SHOP.replace("requests_per_unit: 10", "requests_per_unit: 5"));
    assert_eq!(told(&ask(&limiter, &[d("ten=a")]).await), "OVER: OVER 0");
    edit(3, &SHOP.replace("requests_per_unit: 10", "requests_per_unit: 100"));
    assert_eq!(told(&ask(&limiter, &[d("ten=a")]).await), "OK: OK 93");
    edit(4, &SHOP.replace("domain: shop", "domain: mall"));
    assert_eq!(told(&ask(&limiter, &[d("ten=a")]).await), "OK: OK 0", "no rules");
}

#[tokio::test]
async fn metadata_of_rules_that_pass_is_merged() {
    let file = "
domain: shop
descriptors:
  - { key: a, metadata: { who: a, deep: { x: 1 } }, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: b, metadata: { who: b, deep: { x: 2, y: 2 } }, rate_limit: { unit: hour, requests_per_unit: 9 } }
";
    let (limiter, _) = limiter(file);
    let metadata = async || format!("{:?}", ask(&limiter, &[d("a=1"), d("b=1")]).await.metadata());

    assert_eq!(
        metadata().await,
        r#"Some(Map([("who", Text("a")), ("deep", Map([("x", Number(1.0)), ("y", Number(2.0))]))]))"#
    );
    assert!(metadata().await.contains(r#"("who", Text("b"))"#), "a is over its limit");
    assert_eq!(rules(SHOP).rules()[0].metadata(), None);
}
