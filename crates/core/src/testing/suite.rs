//! The store suite, which every store must pass.
//!
//! A store crate implements [`StoreUnderTest`] over its store and calls [`all`]. The main check is
//! [`replay`]: random histories of every algorithm, in requests of several charges and batches of
//! several requests, executed by the store and by a plain map of counters; every field of every
//! answer must be equal. The other checks are promises that users rely on.

use std::collections::HashMap;
use std::time::Duration;

use super::Rng;
use super::history::{AlgorithmKind, ClockMode, Edits, History, Turn};
use crate::algorithm::{LeakyQueue, TokenBucket};
use crate::counter::Counter;
use crate::request::ChargeTarget;
use crate::{Answer, Charge, Key, Limit, Need, Op, Quota, Request, Timestamp, Verdict};

/// A store under test, with a clock that the test moves.
pub trait StoreUnderTest {
    /// Executes the batch.
    fn charge(&self, batch: &[Request<'_>]) -> Vec<Answer>;

    /// Sets the store's clock.
    fn set_time(&self, now: Timestamp);

    /// Panics unless the store holds these counters of keys that were just charged at `now`. A
    /// store that hides its state from tests does nothing.
    fn holds(&self, _counters: &[(Key<'_>, &Counter)], _now: Timestamp) {}
}

/// Runs every check. `steps` is the number of batches replayed.
///
/// # Panics
///
/// When the store fails a check.
pub fn all(subject: &impl StoreUnderTest, seed: u64, steps: u64) {
    one_refusal_charges_nobody(subject);
    the_longest_retry_names_who_refuses(subject);
    the_order_of_charges_does_not_matter(subject, seed);
    another_charge_never_turns_a_refusal_into_a_pass(subject, seed);
    one_key_under_two_algorithms_counts_apart(subject);
    any_one_of_a_group_suffices(subject);
    a_batch_is_decided_in_order(subject);
    for clockwork in [ClockMode::Forward, ClockMode::Unsteady] {
        for edits in [Edits::None, Edits::Live] {
            replay(subject, clockwork, edits, seed, steps);
        }
    }
}

/// The simplest store: a map that only grows.
#[derive(Clone, Debug, Default)]
pub struct StoreModel {
    counters: HashMap<(Vec<u8>, u8), Counter>,
}

impl StoreModel {
    /// The counter of an executed charge.
    pub fn counter(&self, charge: &Charge<'_>) -> Option<&Counter> {
        self.counters.get(&name(charge))
    }

    /// Executes one request.
    pub fn charge(&mut self, request: &Request<'_>, now: Timestamp) -> Answer {
        let mut names = Vec::new();
        let mut counters = Vec::new();
        let mut targets = Vec::new();
        for charge in request.charges() {
            let name = name(charge);
            let at = names.iter().position(|other| *other == name).unwrap_or_else(|| {
                let found = self.counters.get(&name).cloned();
                counters.push(found.unwrap_or_else(|| Counter::absent(charge.limit())));
                names.push(name);
                names.len() - 1
            });
            targets.push(ChargeTarget::Counter(at));
        }
        let answer = request.judge(&mut counters, &targets, now);
        self.counters.extend(names.into_iter().zip(counters));
        answer
    }
}

fn name(charge: &Charge<'_>) -> (Vec<u8>, u8) {
    (charge.key().as_bytes().to_vec(), charge.limit().algorithm().code())
}

/// Replays random histories through the store and through a plain map of counters. E31
pub fn replay(
    subject: &impl StoreUnderTest,
    clockwork: ClockMode,
    edits: Edits,
    seed: u64,
    steps: u64,
) {
    let mut rng = Rng::new(seed);
    let mut players: Vec<KeyHistory> = AlgorithmKind::ALL
        .iter()
        .cycle()
        .take(2 * AlgorithmKind::ALL.len())
        .enumerate()
        .map(|(i, kind)| {
            let history = History::new(*kind, clockwork, edits, rng.any());
            KeyHistory { key: format!("replay:{clockwork:?}:{edits:?}:{seed}:{i}"), history }
        })
        .collect();
    let mut model = StoreModel::default();
    let mut now = Timestamp::from_micros(1_700_000_000_000_000);
    for step in 0..steps {
        let leader = rng.below(players.len() as u64) as usize;
        players[leader].history.move_to(now);
        let mut batch: Vec<Vec<OwnedCharge>> = Vec::new();
        for i in 0..rng.pick(&[1, 1, 1, 2, 4]) {
            let plays = play(&mut players, leader, &mut rng, now, i == 0);
            now = plays[0].turn.now;
            batch.push(plays);
        }
        let charges: Vec<Vec<Charge<'_>>> =
            batch.iter().map(|plays| plays.iter().map(OwnedCharge::charge).collect()).collect();
        let requests: Vec<Request<'_>> =
            charges.iter().filter_map(|charges| Request::new(charges).ok()).collect();

        subject.set_time(now);
        let answers = subject.charge(&requests);

        assert_eq!(answers.len(), requests.len(), "seed {seed} step {step}");
        for (request, answer) in requests.iter().zip(&answers) {
            let expected = model.charge(request, now);
            assert_eq!(*answer, expected, "seed {seed} step {step} at {now}: {request:#?}");
            for (charge, decision) in request.charges().iter().zip(&answer.decisions) {
                let player =
                    players.iter_mut().find(|p| p.key.as_bytes() == charge.key().as_bytes());
                player.expect("a player's key").history.hear(decision);
            }
        }
        let charged = requests.iter().flat_map(|request| request.charges());
        let counters: Vec<_> =
            charged.map(|charge| (charge.key(), model.counter(charge).expect("charged"))).collect();
        subject.holds(&counters, now);
    }
}

/// A key and its history.
struct KeyHistory {
    key: String,
    history: History,
}

/// One charge, owned.
struct OwnedCharge {
    key: String,
    turn: Turn,
    need: Need,
}

impl OwnedCharge {
    fn charge(&self) -> Charge<'_> {
        let key = Key::new(&self.key).expect("a short key");
        let charge = Charge::new(key, &self.turn.limit, self.turn.op).expect("fits");
        let charge = charge.with_patience(self.turn.patience);
        if self.need == Need::AnyOf { charge.any_of() } else { charge }
    }
}

/// The charges of one request: that of one history, and sometimes others at the same moment.
fn play(
    players: &mut [KeyHistory],
    leader: usize,
    rng: &mut Rng,
    now: Timestamp,
    leads: bool,
) -> Vec<OwnedCharge> {
    let others = rng.pick(&[0, 0, 0, 1, 2, 3, 6]);
    let mut plays = Vec::new();
    let mut moment = now;
    for i in 0..=others {
        let who = if i == 0 { leader } else { rng.below(players.len() as u64) as usize };
        let player = &mut players[who];
        player.history.move_to(moment);
        let mut turn = player.history.turn();
        if i == 0 && leads {
            moment = turn.now;
        }
        turn.now = moment;
        if i > 0 {
            turn.patience = Duration::ZERO;
        }
        let need = if rng.chance(1, 8) { Need::AnyOf } else { Need::Must };
        plays.push(OwnedCharge { key: player.key.clone(), turn, need });
    }
    plays
}

fn bucket(count: u64, per: Duration) -> Limit {
    let quota = Quota::new(count, per).expect("a plain quota");
    Limit::new(TokenBucket, quota).expect("a bucket takes any quota")
}

const HOUR: Duration = Duration::from_secs(3600);

fn take<'a>(key: &'a str, limit: &'a Limit, cost: u64) -> Charge<'a> {
    Charge::take(Key::new(key).expect("a short key"), limit, cost).expect("not concurrency")
}

fn ask(subject: &impl StoreUnderTest, charges: &[Charge<'_>]) -> Answer {
    let request = Request::new(charges).expect("a plain request");
    subject.charge(&[request]).pop().expect("one answer a request")
}

fn remaining(subject: &impl StoreUnderTest, key: &str, limit: &Limit) -> u64 {
    let key = Key::new(key).expect("a short key");
    let peek = Charge::new(key, limit, Op::Peek(0)).expect("anything can be peeked at");
    ask(subject, &[peek]).decisions[0].remaining
}

/// A request that one charge refuses spends nothing of the others. E23
pub fn one_refusal_charges_nobody(subject: &impl StoreUnderTest) {
    let (tenant, user) = (bucket(100, HOUR), bucket(3, HOUR));

    let answer = ask(subject, &[take("s1:tenant", &tenant, 5), take("s1:user", &user, 5)]);

    assert!(!answer.passes());
    assert_eq!(answer.refused_by, Some(1));
    assert_eq!(answer.decisions[0].remaining, 100, "shown as it stands");
    assert_eq!(remaining(subject, "s1:tenant", &tenant), 100);
    assert_eq!(remaining(subject, "s1:user", &user), 3);
    let answer = ask(subject, &[take("s1:tenant", &tenant, 3), take("s1:user", &user, 3)]);
    assert!(answer.passes());
    assert_eq!(remaining(subject, "s1:tenant", &tenant), 97);
    assert_eq!(remaining(subject, "s1:user", &user), 0);
}

/// Of several charges that refuse, the answer names the one that does so longest. E24
pub fn the_longest_retry_names_who_refuses(subject: &impl StoreUnderTest) {
    let (short, long) = (bucket(1, Duration::from_secs(1)), bucket(1, HOUR));
    let both = [take("s2:short", &short, 1), take("s2:long", &long, 1)];
    assert!(ask(subject, &both).passes());

    let answer = ask(subject, &both);

    assert_eq!(answer.refused_by, Some(1));
    assert_eq!(answer.verdict, answer.decisions[1].verdict);
    assert!(answer.decisions[0].verdict < answer.decisions[1].verdict);
}

/// Two requests with the same charges in another order are answered alike. E25
pub fn the_order_of_charges_does_not_matter(subject: &impl StoreUnderTest, seed: u64) {
    let mut rng = Rng::new(seed);
    let limits: Vec<Limit> = (0..3).map(|_| bucket(rng.within(1, 20), HOUR)).collect();
    for _ in 0..50 {
        let costs: Vec<u64> = (0..3).map(|_| rng.within(1, 4)).collect();
        let mut verdicts = Vec::new();
        for (store, order) in [("s3a", [0, 1, 2]), ("s3b", [2, 0, 1])] {
            let keys = order.map(|i: usize| format!("{store}:{i}"));
            let charge = |at: usize| take(&keys[at], &limits[order[at]], costs[order[at]]);
            verdicts.push(ask(subject, &[charge(0), charge(1), charge(2)]).verdict);
        }
        assert_eq!(verdicts[0], verdicts[1]);
    }
}

/// A request that is refused is also refused with one more charge. E26
pub fn another_charge_never_turns_a_refusal_into_a_pass(subject: &impl StoreUnderTest, seed: u64) {
    let mut rng = Rng::new(seed);
    let (a, b) = (bucket(10, HOUR), bucket(5, HOUR));
    for i in 0..50 {
        let cost = rng.within(1, 12);
        let key = format!("s4:{}", i / 5);
        let peek = Charge::new(Key::new(&key).expect("short"), &a, Op::Peek(cost)).expect("fits");
        let alone = ask(subject, &[peek]);

        let both = ask(subject, &[take(&key, &a, cost), take("s4:other", &b, 1)]);

        assert!(alone.passes() || !both.passes());
    }
}

/// Algorithms do not share counters, even under one key.
pub fn one_key_under_two_algorithms_counts_apart(subject: &impl StoreUnderTest) {
    let bucket = bucket(5, HOUR);
    let queue = Limit::new(LeakyQueue, bucket.quota()).expect("a queue takes any quota");

    assert!(ask(subject, &[take("s5", &bucket, 5)]).passes());

    assert_eq!(remaining(subject, "s5", &queue), 6, "five places and the one departing");
    assert_eq!(remaining(subject, "s5", &bucket), 0);
}

/// A group passes if one of its charges does. A charge of it that refuses is not made.
pub fn any_one_of_a_group_suffices(subject: &impl StoreUnderTest) {
    let (small, large) = (bucket(1, HOUR), bucket(10, HOUR));
    let either = [take("s6:small", &small, 2).any_of(), take("s6:large", &large, 2).any_of()];

    assert_eq!(ask(subject, &either).verdict, Verdict::Allow);

    assert_eq!(remaining(subject, "s6:small", &small), 1);
    assert_eq!(remaining(subject, "s6:large", &large), 8);
}

/// Each request of a batch sees the charges of those before it.
pub fn a_batch_is_decided_in_order(subject: &impl StoreUnderTest) {
    let limit = bucket(3, HOUR);
    let two = [take("s7", &limit, 2)];
    let one = [take("s7", &limit, 1)];
    let request = |charges| Request::new(charges).expect("a plain request");

    let answers = subject.charge(&[request(&two), request(&two), request(&one)]);

    let passed: Vec<bool> = answers.iter().map(Answer::passes).collect();
    assert_eq!(passed, [true, false, true]);
}
