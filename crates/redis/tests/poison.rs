//! Values under our names that are not ours, or no longer: each is treated as absent, repaired and
//! counted; never an error that stays, never a refusal for good.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test stops there")]

use std::time::Duration;

use crate::common::*;
use tollgate_core::testing::suite::StoreModel;
use tollgate_harness::{RedisServer, Reply};
use tollgate_redis::RedisStore;
use tollgate_redis::core::algorithm::{SlidingLog, TokenBucket};
use tollgate_redis::core::{Algorithm, Answer, Limit, Request, Store, Timestamp};

/// The longest period, in microseconds.
const YEAR: u64 = 365 * 86_400 * 1_000_000;
/// Longer than any of ours.
const YEARS: u64 = 10 * 366 * 86_400 * 1_000_000;

fn is_log(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::SlidingLog(_))
}

/// The counter's name, after one charge of it.
async fn charged_once(store: &RedisStore, server: &RedisServer, limit: &Limit) -> Vec<u8> {
    run(server, &[b"FLUSHALL"]);
    assert!(ask(store, &[one("poisoned", limit, 1)]).await.unwrap().passes());
    the_name(server)
}

/// Returns the answers to the first charges of a counter that is absent.
fn expected(limit: &Limit) -> [Answer; 2] {
    let mut model = StoreModel::default();
    [1, 2].map(|holder| {
        let charge = [one("poisoned", limit, holder)];
        model.charge(&Request::new(&charge).unwrap(), Timestamp::from_micros(START))
    })
}

/// Commands that put something foreign under a name, after what was there was deleted; and what they
/// are called.
type Poison = (&'static str, Vec<Vec<Vec<u8>>>);

fn command(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    parts.iter().map(|part| part.to_vec()).collect()
}

fn other_types(name: &[u8], limit: &Limit) -> Vec<Poison> {
    let mut poisons = vec![
        ("a list", vec![command(&[b"RPUSH", name, b"x", b"y"])]),
        ("a hash", vec![command(&[b"HSET", name, b"tokens", b"5"])]),
        ("a set", vec![command(&[b"SADD", name, b"x"])]),
        ("a stream", vec![command(&[b"XADD", name, b"*", b"x", b"1"])]),
        ("a sorted set", vec![command(&[b"ZADD", name, b"1", b"x", b"2", b"y"])]),
    ];
    if is_log(limit) {
        poisons.push(("a string", vec![command(&[b"SET", name, b"42"])]));
    }
    poisons
}

/// Strings that are no states, made from one that is.
fn texts(name: &[u8], stored: &[u8]) -> Vec<Poison> {
    let with = |at: usize, byte: u8| {
        let mut text = stored.to_vec();
        text[at] = byte;
        text
    };
    let large = vec![b'x'; 1 << 20];
    let (half, most) = (stored.len() / 2, stored.len() - 1);
    let texts = [
        ("text", b"not a state".to_vec()),
        ("a number", b"42".to_vec()),
        ("nothing", Vec::new()),
        ("one byte", vec![1]),
        ("half a state", stored[..half].to_vec()),
        ("most of a state", stored[..most].to_vec()),
        ("more than a state", [stored, b"!"].concat()),
        ("an older layout", with(0, 0)),
        ("a newer layout", with(0, 2)),
        ("no layout", with(0, b'{')),
        ("an unknown algorithm", with(1, 200)),
        ("another algorithm", with(1, (stored[1] + 1) % 8)),
        ("a mebibyte", large),
    ];
    texts.map(|(what, text)| (what, vec![command(&[b"SET", name, &text])])).into()
}

/// Sorted sets that are no logs, made from one that is: its tag and its one entry.
fn sets(name: &[u8], tag: &[u8], entry: &[u8]) -> Vec<Poison> {
    let start = START.to_string();
    let zadd = |members: &[(&str, &[u8])]| {
        let mut parts = command(&[b"ZADD", name]);
        for (score, member) in members {
            parts.extend([score.as_bytes().to_vec(), member.to_vec()]);
        }
        parts
    };
    let long = vec![b'x'; 300];
    let large = vec![b'x'; 1 << 20];
    let older = [&[0], &tag[1..]].concat();
    let newer = [&[2], &tag[1..]].concat();
    let zero = [0; 16];
    vec![
        ("a log without entries", vec![zadd(&[("-1", tag)])]),
        ("a log of text", vec![zadd(&[("-1", tag), (&start, b"x")])]),
        ("a log that never ends", vec![zadd(&[("-1", tag), (&start, entry), ("inf", b"x")])]),
        ("entries without a tag", vec![zadd(&[(&start, entry)])]),
        ("an entry of nothing", vec![zadd(&[("-1", tag), (&start, &zero)])]),
        ("an entry between moments", vec![zadd(&[("-1", tag), ("1700000000000000.5", entry)])]),
        ("text in place of the tag", vec![zadd(&[("-1", b"tag"), (&start, entry)])]),
        ("text before the tag", vec![zadd(&[("-1", b"\0"), ("-1", tag), (&start, entry)])]),
        ("a long text in place of the tag", vec![zadd(&[("-1", &long), (&start, entry)])]),
        ("a mebibyte in place of the tag", vec![zadd(&[("-1", &large)])]),
        ("half a tag", vec![zadd(&[("-1", &tag[..tag.len() / 2]), (&start, entry)])]),
        ("an older layout", vec![zadd(&[("-1", &older), (&start, entry)])]),
        ("a newer layout", vec![zadd(&[("-1", &newer), (&start, entry)])]),
        (
            "something earlier than the tag",
            vec![zadd(&[("-2", b"x"), ("-1", tag), (&start, entry)])],
        ),
    ]
}

/// The tag and the one entry of a log.
fn log(server: &RedisServer, name: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let Reply::Array(members) = run(server, &[b"ZRANGE", name, b"0", b"-1"]) else { panic!() };
    let [Reply::Bulk(tag), Reply::Bulk(entry)] = &members[..] else { panic!("{members:?}") };
    (tag.clone(), entry.clone())
}

fn string(server: &RedisServer, name: &[u8]) -> Vec<u8> {
    let Reply::Bulk(stored) = run(server, &[b"GET", name]) else { panic!("not a string") };
    stored
}

fn poisons(server: &RedisServer, name: &[u8], limit: &Limit) -> Vec<Poison> {
    let mut poisons = other_types(name, limit);
    if is_log(limit) {
        let (tag, entry) = log(server, name);
        poisons.extend(sets(name, &tag, &entry));
    } else {
        poisons.extend(texts(name, &string(server, name)));
    }
    poisons
}

fn put(server: &RedisServer, name: &[u8], commands: &[Vec<Vec<u8>>]) {
    run(server, &[b"DEL", name]);
    for command in commands {
        run(server, &command.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
}

/// Nothing takes longer than this: what is not decided after a few runs never will be.
fn config(server: &RedisServer) -> tollgate_redis::Config {
    without_timeout(&server.url()).deadline(Duration::from_secs(5))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_ours_counts_as_absent_and_is_repaired() {
    let (server, _clock) = clockwork();
    let store = connect(config(&server)).await;
    for limit in every_algorithm() {
        let name = charged_once(&store, &server, &limit).await;
        for (what, commands) in poisons(&server, &name, &limit) {
            put(&server, &name, &commands);
            let before = store.stats().poisoned;

            let charges = [1, 2].map(|holder| one("poisoned", &limit, holder));
            let first = ask(&store, &charges[..1]).await;
            // Callers are told before what they met is counted.
            until("it is counted", || store.stats().poisoned > before).await;
            let second = ask(&store, &charges[1..]).await;

            let context = format!("{limit}, {what}");
            assert_eq!(
                [first, second].map(|told| told.expect(&context)),
                expected(&limit),
                "{context}"
            );
            assert_eq!(store.stats().poisoned, before + 1, "repaired: {context}");
            assert!(pttl(&server, &name) > 0, "{context}");
        }
    }
    assert_eq!(store.stats().twin_mismatches, 0);
}

/// E23 beside poison: all or none, and what is charged is charged right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_three_whose_second_is_poisoned_is_all_or_none() {
    let (server, _clock) = clockwork();
    let store = connect(config(&server)).await;
    let (first, third) = (limit(SlidingLog, "5 per 1h"), limit(TokenBucket, "1 per 1h"));
    for second in every_algorithm() {
        let name = charged_once(&store, &server, &second).await;
        for (what, commands) in poisons(&server, &name, &second) {
            run(&server, &[b"FLUSHALL"]);
            put(&server, &name, &commands);
            let context = format!("{second}, {what}");
            let three =
                |cost| [of("a", &first, 1), one("poisoned", &second, 1), of("c", &third, cost)];

            let refused = ask(&store, &three(2)).await.expect(&context);

            assert_eq!(refused.refused_by, Some(2), "{context}");
            assert_eq!(remaining(&store, "a", &first).await, 5, "{context}");
            assert_eq!(remaining(&store, "c", &third).await, 1, "{context}");
            let passed = ask(&store, &three(1)).await.expect(&context);
            assert!(passed.passes(), "{context}");
            assert_eq!(passed.decisions[1], expected(&second)[0].decisions[0], "{context}");
            assert_eq!(remaining(&store, "a", &first).await, 4, "{context}");
            assert_eq!(remaining(&store, "c", &third).await, 0, "{context}");
        }
    }
    assert_eq!(store.stats().twin_mismatches, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_on_a_poisoned_key_is_decided_in_order() {
    let (server, _clock) = clockwork();
    let store = connect(config(&server)).await;
    for limit in [limit(TokenBucket, "10 per 1h"), limit(SlidingLog, "10 per 1h")] {
        let name = charged_once(&store, &server, &limit).await;
        let charge = [of("poisoned", &limit, 1)];
        for (what, commands) in poisons(&server, &name, &limit) {
            put(&server, &name, &commands);

            let batch = [Request::new(&charge).unwrap(); 12];
            let answers = store.charge(&batch).await.expect(what);

            let left: Vec<u64> = answers.iter().map(|a| a.decisions[0].remaining).collect();
            assert_eq!(left, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0], "{limit}, {what}");
            assert_eq!(answers.iter().filter(|a| a.passes()).count(), 10, "{limit}, {what}");
        }
    }
    assert_eq!(store.stats().twin_mismatches, 0);
}

/// A byte that was changed may make another state of it, but never an error, and nothing that lasts:
/// even a counter that never expires is idle some day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_byte_anywhere_is_no_error_and_no_refusal_for_good() {
    let (server, clock) = clockwork();
    let store = connect(config(&server)).await;
    for limit in every_algorithm().iter().filter(|limit| !is_log(limit)) {
        clock.set(START).unwrap();
        let name = charged_once(&store, &server, limit).await;
        let stored = string(&server, &name);
        for (at, flip) in (0..stored.len()).flat_map(|at| [1, 0x80, 0xff].map(|flip| (at, flip))) {
            let mut changed = stored.clone();
            changed[at] ^= flip;
            clock.set(START).unwrap();
            put(&server, &name, &[command(&[b"SET", &name, &changed])]);
            let context = format!("{limit}, byte {at} ^ {flip}");

            for holder in 1..4 {
                let _ = ask(&store, &[one("poisoned", limit, holder)]).await.expect(&context);
            }
            clock.set(START + YEARS).unwrap();
            let answer = ask(&store, &[one("poisoned", limit, 4)]).await.expect(&context);

            assert!(answer.passes(), "{context}: {answer:?}");
            assert!(pttl(&server, &name) > 0, "{context}");
        }
    }
    assert_eq!(store.stats().twin_mismatches, 0);
}

/// Each stored value with its moments far in the future, as it may be by its form, and without a time
/// to live. It used to be believed: a refusal for 285 years.
fn far_ahead(limit: &Limit, stored: &[u8]) -> Vec<Vec<u8>> {
    let far = ((1_u64 << 53) - 1).to_le_bytes();
    let with = |from_the_end: usize| {
        let (mut value, at) = (stored.to_vec(), stored.len() - from_the_end);
        value[at..at + 8].copy_from_slice(&far);
        value
    };
    match limit.algorithm() {
        Algorithm::FixedWindow(_) => vec![with(16)],
        Algorithm::TokenBucket(_) | Algorithm::LeakyMeter(_) | Algorithm::LeakyQueue(_) => {
            let ahead =
                |code: u8, since: u64| [&with(16)[..], &[code], &since.to_le_bytes()].concat();
            vec![with(16), ahead(1, 1), ahead(2, 1), ahead(1, START), ahead(2, START + 1)]
        }
        Algorithm::Smooth(_) => vec![with(16)],
        Algorithm::Concurrency(_) => vec![with(8)],
        Algorithm::SlidingLog(_) | Algorithm::SlidingWindow(_) => vec![],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_further_ahead_than_it_can_is_moved_back() {
    let (server, clock) = clockwork();
    let store = connect(config(&server)).await;
    for limit in every_algorithm() {
        clock.set(START).unwrap();
        let name = charged_once(&store, &server, &limit).await;
        if is_log(&limit) {
            continue;
        }
        let longest = match limit.algorithm() {
            Algorithm::Concurrency(_) => YEAR,
            _ => 12 * YEAR + 2 * 3_600_000_000,
        };
        for value in far_ahead(&limit, &string(&server, &name)) {
            let context = format!("{limit}: {}", value.escape_ascii());
            clock.set(START).unwrap();
            put(&server, &name, &[command(&[b"SET", &name, &value])]);

            // Ten permits: one is not enough to be refused by all.
            for holder in 1..=10 {
                let _ = ask(&store, &[one("poisoned", &limit, holder)]).await.expect(&context);
            }

            let ttl = u64::try_from(pttl(&server, &name)).expect(&context);
            assert!(ttl <= longest / 1_000 + 1, "{context}: {ttl} ms");
            clock.set(START + longest + 1_000).unwrap();
            let answer = ask(&store, &[one("poisoned", &limit, 99)]).await.expect(&context);
            assert!(answer.passes(), "{context}: {answer:?}");
        }
    }
    assert_eq!(store.stats().twin_mismatches, 0);
}

/// Entries of a log between its ends are not looked at by everybody, so what is foreign there is
/// found by those who read the whole log: requests that charge it twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_with_a_foreign_middle_is_no_error() {
    let (server, clock) = clockwork();
    let store = connect(config(&server)).await;
    let limit = limit(SlidingLog, "10 per 1h");
    let twice = [of("poisoned", &limit, 1), of("poisoned", &limit, 2)];
    let member = |total: u64, cost: u64| [total.to_le_bytes(), cost.to_le_bytes()].concat();
    let foreign: [(&str, &[u8]); 4] = [
        ("text", b"x"),
        ("a total too high", &member(500, 1)),
        ("a total too low", &member(1, 1)),
        ("a cost above its total", &member(3, 500)),
    ];
    for (what, middle) in foreign {
        for charges in [&twice[..1], &twice[..]] {
            run(&server, &[b"FLUSHALL"]);
            for second in 0..3 {
                clock.set(START + second * 2_000_000).unwrap();
                assert!(ask(&store, &[of("poisoned", &limit, 2)]).await.unwrap().passes());
            }
            let name = the_name(&server);
            let between = (START + 1_000_000).to_string();
            run(&server, &[b"ZADD", &name, between.as_bytes(), middle]);

            let context = format!("{what}, {} charges", charges.len());
            let answer = ask(&store, charges).await.expect(&context);

            assert!(answer.passes(), "{context}: {answer:?}");
            assert!(pttl(&server, &name) > 0, "{context}");
            let stays = run(&server, &[b"ZSCORE", &name, middle]) != Reply::Nil;
            assert_eq!(stays, charges.len() == 1, "{context}");
        }
    }
    assert_eq!(store.stats().twin_mismatches, 0);
}
