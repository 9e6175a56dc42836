//! The time that a layer adds to an axum handler, called in this process without a socket.
//!
//! The bare handler, the handler behind our layer with one rule and with three, and behind the
//! peer's, tower_governor, which checks one key, without and with its headers. Beside them the least
//! that a layer does, see `layers/by_hand.rs`. What is printed is what each adds to the bare handler;
//! `ratio` is the peer's over ours.
//!
//! Time on a busy machine says little; `count-library` is for counting the instructions of the same.

use axum::Router;
use axum::http::StatusCode;
use tollgate::http::RateLimitFields;
use tollgate_bench::layers::{self, bare};
use tollgate_bench::report::{ROUNDS, Rounds, time};
use tollgate_bench::rules::AMPLE;

const OPERATIONS: u64 = 200_000;
const ADDRESSES: u64 = 10_000;

/// The handlers, by name: the bare one first.
fn contenders() -> [(&'static str, Router); 7] {
    let one = layers::one_rule(AMPLE);
    let three = layers::three_rules(AMPLE);
    [
        ("bare", bare()),
        ("one-rule", bare().layer(layers::limit(&one))),
        (
            "one-rule-quiet",
            bare().layer(layers::limit(&one).ratelimit_fields(RateLimitFields::OnRefusal)),
        ),
        ("three-rules", bare().layer(layers::limit(&three))),
        ("tower_governor", layers::governor()),
        ("tower_governor-headers", layers::governor_with_headers()),
        ("by-hand", layers::by_hand()),
    ]
}

pub(super) fn run() {
    let contenders = contenders();
    let mut rounds: [Rounds; 7] = Default::default();
    // One round uncounted.
    for round in 0..=ROUNDS as u64 {
        for ((_, app), rounds) in contenders.iter().zip(&mut rounds) {
            let nanos = time(1, OPERATIONS, |_| {
                layers::call(app.clone(), OPERATIONS, ADDRESSES, round, StatusCode::OK);
            });
            if round > 0 {
                rounds.add(nanos);
            }
        }
    }
    let bare = rounds[0].median();
    println!("case=layer/bare-handler each={bare:.0} spread={}", rounds[0].spread());
    let added = |at: usize| rounds[at].median() - bare;
    for (ours, peer) in [(1, 5), (1, 6), (2, 4), (3, 5)] {
        let (name, peer_name) = (contenders[ours].0, contenders[peer].0);
        println!(
            "case=layer/{name} adds={:.0} peer={peer_name}:{:.0} ratio={:.2} spread={} peer-spread={}",
            added(ours),
            added(peer),
            added(peer) / added(ours),
            rounds[ours].spread(),
            rounds[peer].spread(),
        );
    }
}
