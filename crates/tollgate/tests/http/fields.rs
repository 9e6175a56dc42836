//! The fields, read by a parser that is not ours; E18.

use std::time::Duration;

use sfv::{BareItem, List, ListEntry, Parser};
use tollgate::EmbeddedStore;
use tollgate::Limiter;
use tollgate::http::{LegacyReset, LimitLayer, RateLimitFields};
use tollgate::{Concurrency, FixedWindow, TokenBucket};
use tollgate_core::testing::{ManualClock, Rng};

use crate::common::{on, rule, rules, with};
use crate::wire::{Reply, limiter, serve};

/// A member of a list: its name and its parameters.
type Member = (String, Vec<(String, String)>);

fn read(reply: &Reply, field: &str) -> Vec<Member> {
    let list: List = Parser::new(&reply.lines(field).join(", ")).parse().expect(field);
    let bare = |item: &BareItem| match item {
        BareItem::Integer(number) => number.to_string(),
        BareItem::String(text) => format!("{:?}", text.as_str()),
        other => panic!("{other:?}"),
    };
    let member = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list") };
        let name = item.bare_item.as_string().expect("a string").as_str().to_owned();
        let params = item.params.iter().map(|(key, item)| (key.as_str().to_owned(), bare(item)));
        (name, params.collect())
    };
    list.iter().map(member).collect()
}

fn member(name: &str, params: &[(&str, &str)]) -> Member {
    let params = params.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    (name.to_owned(), params.collect())
}

#[tokio::test]
async fn every_response_says_where_the_client_stands() {
    let login = with(rule("login", &["ip"], &["2 per 1m", "20 per 1h"]), FixedWindow::default());
    let fast = with(rule("fast", &[], &["50 per 100ms"]), TokenBucket);
    let slots = with(rule("slots", &[], &["8 per 1m"]), Concurrency);
    let server = serve(LimitLayer::new(limiter(rules(1, [login, fast, slots])), "shop")).await;
    let policies = [
        member("login/1m", &[("q", "2"), ("w", "60")]),
        member("login/1h", &[("q", "20"), ("w", "3600")]),
        member("fast", &[("q", "50")]),
        member("slots", &[("q", "8"), ("qu", "\"concurrent-requests\"")]),
    ];
    let sorted = |mut members: Vec<Member>| {
        members.sort();
        members
    };

    let first = server.get(&[]).await;
    assert_eq!(first.status, 200);
    assert_eq!(sorted(read(&first, "ratelimit-policy")), sorted(policies.to_vec()));
    assert_eq!(
        sorted(read(&first, "ratelimit")),
        sorted(vec![
            member("login/1m", &[("r", "1"), ("t", "60")]),
            member("login/1h", &[("r", "19"), ("t", "3600")]),
            member("fast", &[("r", "49"), ("t", "1")]),
            member("slots", &[("r", "7")]),
        ])
    );
    assert_eq!(first.field("retry-after"), None);

    assert_eq!(server.get(&[]).await.status, 200);
    let third = server.get(&[]).await;
    assert_eq!((third.status, third.field("retry-after")), (429, Some("60")));
    assert_eq!(sorted(read(&third, "ratelimit-policy")), sorted(policies.to_vec()), "stable");
    let limits = read(&third, "ratelimit");
    assert!(limits.contains(&member("login/1m", &[("r", "0"), ("t", "60")])), "{limits:?}");
    assert!(
        limits.contains(&member("login/1h", &[("r", "18")])),
        "no t beyond Retry-After: {limits:?}"
    );
}

/// Twice as many lists of limits as are kept written, so that most of them meet another one in
/// their place; and an edit, after which nothing that was written holds any more.
#[tokio::test]
async fn policies_are_those_of_the_request_however_many_there_are() {
    let set = |version: u64, count: u64| {
        let of_path = |i: u64| {
            let quota = format!("{} per 1h", count + i);
            let rule = with(rule(&format!("r{i}"), &[], &[&quota]), FixedWindow::default());
            on(rule, "path", &format!("/{i}"))
        };
        let all = with(rule("all", &[], &["9000 per 1h"]), FixedWindow::default());
        rules(version, (0..130).map(of_path).chain([all]))
    };
    let limiter = limiter(set(1, 1000));
    let server = serve(LimitLayer::new(limiter.clone(), "shop")).await;
    for (version, count) in [(1, 1000), (2, 2000)] {
        if version > 1 {
            limiter.set_rules(set(version, count)).expect("newer");
        }
        for i in (0..130_u64).chain(0..130) {
            let reply = server.ask("GET", &format!("/{i}"), &[]).await;

            let q = (count + i).to_string();
            let own = member(&format!("r{i}"), &[("q", &q), ("w", "3600")]);
            let all = member("all", &[("q", "9000"), ("w", "3600")]);
            assert_eq!(read(&reply, "ratelimit-policy"), [own, all]);
            let told = read(&reply, "ratelimit").into_iter().map(|(name, _)| name);
            assert_eq!(told.collect::<Vec<_>>(), [format!("r{i}"), "all".to_owned()]);
        }
    }
}

/// E18
#[tokio::test]
async fn seconds_are_rounded_up_and_never_zero_on_a_refusal() {
    let mut rng = Rng::new(18);
    for _ in 0..40 {
        let period = rng.magnitude(400_000_000).max(1);
        let clock = ManualClock::default();
        let store = EmbeddedStore::builder().with_clock(clock.clone());
        let quota = format!("1 per {period}us");
        let rule = with(rule("one", &[], &[&quota]), FixedWindow::default());
        let limiter = Limiter::builder(store).rules(rules(1, [rule])).build();
        let server = serve(LimitLayer::new(limiter, "shop")).await;
        assert_eq!(server.get(&[]).await.status, 200);
        let passed = rng.below(period);
        clock.advance(Duration::from_micros(passed));

        let refused = server.get(&[]).await;

        let seconds = (period - passed).div_ceil(1_000_000);
        assert_eq!(refused.status, 429);
        assert_eq!(refused.field("retry-after"), Some(seconds.to_string().as_str()), "{period}");
        assert!(seconds > 0);
        let t = ("t".to_owned(), seconds.to_string());
        assert!(read(&refused, "ratelimit")[0].1.contains(&t));
    }
}

#[tokio::test]
async fn what_can_never_pass_has_no_retry_after() {
    let limiter = limiter(rules(1, [rule("small", &[], &["3 per 1h"])]));
    let server = serve(LimitLayer::new(limiter, "shop").cost(|_| 4)).await;

    let reply = server.get(&[]).await;

    assert_eq!((reply.status, reply.field("retry-after")), (429, None));
    assert_eq!(read(&reply, "ratelimit"), [member("small", &[("r", "3")])]);
}

#[tokio::test]
async fn names_of_any_text_are_structured_strings() {
    let names = ["a \"quoted\" \\ one", "größe 100%", "日本"];
    let set = rules(1, names.map(|name| rule(name, &[], &["5 per 1h"])));
    let server = serve(LimitLayer::new(limiter(set), "shop")).await;

    let reply = server.get(&[]).await;

    let mut read: Vec<String> =
        read(&reply, "ratelimit").into_iter().map(|(name, _)| name).collect();
    read.sort();
    assert_eq!(read, ["%E6%97%A5%E6%9C%AC", "a \"quoted\" \\ one", "gr%C3%B6%C3%9Fe 100%25"]);
}

#[tokio::test]
async fn legacy_fields_tell_of_the_limit_that_matters_most() {
    let set = || {
        let wide = with(rule("wide", &[], &["100 per 1h"]), FixedWindow::default());
        rules(1, [wide, with(rule("narrow", &[], &["1 per 10s"]), FixedWindow::default())])
    };
    let legacy = |reply: &Reply| {
        ["limit", "remaining", "reset"].map(|name| {
            reply.field(&format!("x-ratelimit-{name}")).map(str::to_owned).unwrap_or_default()
        })
    };
    let left =
        serve(LimitLayer::new(limiter(set()), "shop").legacy_fields(LegacyReset::SecondsLeft))
            .await;
    let epoch =
        serve(LimitLayer::new(limiter(set()), "shop").legacy_fields(LegacyReset::Epoch)).await;

    assert_eq!(legacy(&left.get(&[]).await), ["1", "0", "10"]);
    assert_eq!(legacy(&left.get(&[]).await), ["1", "0", "10"], "also when refused");
    assert_eq!(legacy(&epoch.get(&[]).await), ["1", "0", "1700000010"]);
}

#[tokio::test]
async fn only_those_are_told_who_are_to_be_told() {
    let set = rules(1, [on(rule("posts", &[], &["1 per 1h"]), "method", "POST")]);
    let limiter = limiter(set);
    let server = serve(LimitLayer::new(limiter.clone(), "shop")).await;
    let quiet = serve(
        LimitLayer::new(limiter.clone(), "shop").ratelimit_fields(RateLimitFields::OnRefusal),
    )
    .await;

    let silent =
        serve(LimitLayer::new(limiter, "shop").ratelimit_fields(RateLimitFields::Never)).await;

    assert_eq!(server.get(&[]).await.field("ratelimit"), None, "under no rule");
    assert_eq!(quiet.ask("POST", "/", &[]).await.field("ratelimit"), None);
    let refused = quiet.ask("POST", "/", &[]).await;
    assert_eq!((refused.status, refused.field("ratelimit")), (429, Some("\"posts\";r=0;t=3600")));
    let refused = silent.ask("POST", "/", &[]).await;
    assert_eq!((refused.status, refused.field("ratelimit-policy")), (429, None));
    assert_eq!(refused.field("retry-after"), Some("3600"));
}
