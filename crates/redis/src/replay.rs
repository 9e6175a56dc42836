//! The replay: the same histories through core and through the shipped script, on a real server whose clock
//! the test moves. It compares who passed, every field of every answer, and what is stored.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a test that overflows fails, as it should"
)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use foldhash::fast::RandomState;
use tollgate_core::algorithm::{Anchor, FixedWindow, LeakyMeter, SlidingLog, TokenBucket};
use tollgate_core::state::Log;
use tollgate_core::testing::Rng;
use tollgate_core::testing::history::{AlgorithmKind, ClockMode, Edits};
use tollgate_core::testing::suite::{self, StoreModel, StoreUnderTest};
use tollgate_core::{
    Algorithm, Answer, Charge, Counter, Key, Limit, OnChange, Op, Plan, Request, Revision, State,
    Timestamp,
};
use tollgate_harness::{Client, RedisServer, Reply as Raw, ServerClock};

use crate::batch::{Batch, BatchBuffer, BatchCounts, HashedName, PendingAnswer};
use crate::link::{Call, Reply};
use crate::{keys, layout, script::SCRIPT};

/// The script behind a blocking connection.
struct ScriptStore {
    /// Ends with the test.
    #[expect(dead_code, reason = "kept alive")]
    server: RedisServer,
    clock: ServerClock,
    client: RefCell<Client<UnixStream>>,
    sha: Vec<u8>,
    /// Looks at what is stored.
    eyes: RefCell<Client<UnixStream>>,
    hasher: RandomState,
    tally: RefCell<BatchCounts>,
    charged: RefCell<HashMap<AlgorithmKind, u64>>,
    passed: Cell<usize>,
    refused: Cell<usize>,
}

impl ScriptStore {
    fn start() -> Self {
        let clock = ServerClock::new().unwrap();
        // Keys that nobody touches would be expired by a timer in real time: a clock that jumps
        // ahead and back again would find them or not as it happens.
        let builder = RedisServer::builder().config("enable-debug-command yes");
        let server = builder.clock(&clock).start().unwrap();
        clock.set(START).unwrap();
        server.command(&[b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0"]).unwrap();
        let socket = server.unix_url();
        let connect = || Client::unix(Path::new(socket.trim_start_matches("unix://"))).unwrap();
        let mut client = connect();
        let loaded = client.command(&[b"SCRIPT", b"LOAD", SCRIPT.as_bytes()]).unwrap();
        let Raw::Bulk(sha) = loaded else { panic!("{loaded:?}") };
        Self {
            clock,
            client: RefCell::new(client),
            eyes: RefCell::new(connect()),
            server,
            sha,
            hasher: RandomState::default(),
            tally: RefCell::default(),
            charged: RefCell::default(),
            passed: Cell::default(),
            refused: Cell::default(),
        }
    }

    fn run(&self, call: &Call<'_>) -> Reply {
        let count = call.keys.len().to_string();
        let mut parts: Vec<&[u8]> = vec![b"EVALSHA", &self.sha, count.as_bytes()];
        parts.extend(call.keys.iter());
        parts.extend([&b"0"[..], b""]);
        parts.extend(call.args.iter().map(Vec::as_slice));
        let raw = self.client.borrow_mut().command(&parts).unwrap();
        let Raw::Bulk(bytes) = raw else { panic!("{raw:?}") };
        let (now, rest) = bytes.split_first_chunk().unwrap();
        Reply { now: u64::from_le_bytes(*now), values: vec![Some(rest.to_vec())] }
    }
}

impl ScriptStore {
    /// Runs the requests here and on the model, and compares every answer and every stored value.
    fn answers_as<'c, C: AsRef<[Charge<'c>]>>(
        &self,
        model: &mut StoreModel,
        requests: &'c [C],
        now: Timestamp,
        context: impl fmt::Display,
    ) {
        let request = |charges: &'c C| Request::new(charges.as_ref()).unwrap();
        let batch: Vec<_> = requests.iter().map(request).collect();
        self.set_time(now);

        let answers = self.charge(&batch);

        let expected: Vec<_> = batch.iter().map(|one| model.charge(one, now)).collect();
        assert_eq!(answers, expected, "{batch:?} at {now}, {context}");
        let charged = batch.iter().flat_map(|request| request.charges());
        let counters: Vec<_> =
            charged.map(|charge| (charge.key(), model.counter(charge).unwrap())).collect();
        self.holds(&counters, now);
        let passed = answers.iter().filter(|answer| answer.passes()).count();
        self.passed.set(self.passed.get() + passed);
        self.refused.set(self.refused.get() + answers.len() - passed);
    }

    /// Asserts that more than this many requests passed, and were refused.
    fn has_decided(&self, least_passed: usize, least_refused: usize) {
        let (passed, refused) = (self.passed.get(), self.refused.get());
        let enough = passed > least_passed && refused > least_refused;
        assert!(enough, "{passed} passed, {refused} were refused");
    }
}

/// The next moment of a clock that may step back.
fn unsteady(at: u64, rng: &mut Rng) -> u64 {
    match rng.below(12) {
        0 => at - rng.within(1, 400_000),
        1 => at + rng.within(1, 2_000_000),
        _ => at + rng.below(60_000),
    }
}

/// A moment long after the epoch.
const START: u64 = 1_700_000_000_000_000;

fn charge<'c>(key: &'c str, limit: &'c Limit, op: Op) -> Charge<'c> {
    Charge::new(Key::new(key).unwrap(), limit, op).unwrap()
}

impl StoreUnderTest for ScriptStore {
    fn charge(&self, batch: &[Request<'_>]) -> Vec<Answer> {
        for charge in batch.iter().flat_map(|request| request.charges()) {
            let kind = AlgorithmKind::of(&charge.limit().algorithm());
            *self.charged.borrow_mut().entry(kind).or_default() += 1;
        }
        let (requests, mut buffer) = (batch, BatchBuffer::default());
        for request in requests {
            let charges = request.charges().iter();
            let name = |charge| HashedName::new(request.partition(), charge, &self.hasher);
            let names: Vec<_> = charges.map(name).collect();
            buffer.push(request, &mut names.iter());
        }
        let mut told: Vec<PendingAnswer> = Vec::new();
        told.resize_with(requests.len(), PendingAnswer::default);
        let mut batch = Batch::new(buffer, Vec::new());
        for round in 0.. {
            assert!(round < 10, "never decided: {batch:?}");
            let reply = self.run(&batch.call());
            let tally = batch.answer(&reply, &mut told).unwrap();
            assert_eq!(tally.mismatches, 0, "Lua and Rust disagree");
            self.tally.borrow_mut().converted += tally.converted;
            self.tally.borrow_mut().poisoned += tally.poisoned;
            if batch.is_done() {
                break;
            }
        }
        told.into_iter()
            .zip(requests)
            .map(|(told, request)| told.answer(request).unwrap())
            .collect()
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now.as_micros()).unwrap();
    }

    fn holds(&self, counters: &[(Key<'_>, &Counter)], now: Timestamp) {
        let name = |(key, counter): &(Key<'_>, &Counter)| keys::name(None, *key, counter.under());
        let names: Vec<_> = counters.iter().map(name).collect();
        let mut questions: Vec<Vec<&[u8]>> = Vec::new();
        for (name, (_, counter)) in names.iter().zip(counters) {
            questions.push(vec![b"PTTL", name]);
            questions.push(match counter.under().plan() {
                Plan::SlidingLog(_) => vec![b"ZRANGE", name, b"0", b"-1", b"WITHSCORES"],
                _ => vec![b"GET", name],
            });
        }
        let mut eyes = self.eyes.borrow_mut();
        eyes.send_all(questions.iter().map(Vec::as_slice)).unwrap();
        for (key, counter) in counters {
            let (ttl, stored) = (eyes.receive().unwrap(), eyes.receive().unwrap());
            is_stored(*key, counter, now, &ttl, stored);
        }
    }
}

/// Asserts that Redis holds this counter, and for as long as it must.
fn is_stored(key: Key<'_>, counter: &Counter, now: Timestamp, ttl: &Raw, stored: Raw) {
    if matches!(counter.state(), State::Absent) {
        assert_eq!(*ttl, Raw::Integer(-2), "{key:?} is absent");
        return;
    }
    let Raw::Integer(ttl) = *ttl else { panic!("{ttl:?}") };
    let idle = counter.under().idle_at(counter.state()).unwrap();
    let millis = i64::try_from(idle.since(now).as_micros() / 1_000).unwrap() + 1;
    assert!(
        ttl >= 0 && (ttl - millis).abs() <= 1,
        "{key:?} lives {ttl} ms, not {millis}: {counter:?} at {now}"
    );
    let mut expected = Vec::new();
    layout::write_tag(counter.under(), &mut expected);
    if let (State::SlidingLog(log), Plan::SlidingLog(plan)) =
        (counter.state(), counter.under().plan())
    {
        let (tag, stored) = log_of(stored);
        assert_eq!(tag, expected);
        let live = |log: &Log| log.live(plan.window_us, now).collect::<Vec<_>>();
        assert_eq!(live(&stored), live(log), "{key:?}");
    } else {
        layout::encode(counter.state(), &mut expected);
        assert_eq!(stored, Raw::Bulk(expected), "{key:?} {counter:?}");
    }
}

/// The tag and the log that a sorted set holds.
fn log_of(stored: Raw) -> (Vec<u8>, Log) {
    let Raw::Array(all) = stored else { panic!("{stored:?}") };
    let all: Vec<Vec<u8>> = all
        .into_iter()
        .map(|part| match part {
            Raw::Bulk(bytes) => bytes,
            other => panic!("{other:?}"),
        })
        .collect();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let base = number(&all[2][..8]) - number(&all[2][8..]);
    let mut dump = base.to_le_bytes().to_vec();
    for pair in all[2..].chunks(2) {
        let at: f64 = String::from_utf8(pair[1].clone()).unwrap().parse().unwrap();
        dump.extend_from_slice(&(at as u64).to_le_bytes());
        dump.extend_from_slice(&pair[0][..8]);
    }
    (all[0].clone(), layout::read_dump(&dump).unwrap())
}

/// The number of batches replayed by each of the four tests below: in all, more than 10^5 charges of
/// every algorithm, and a hundred times that in `make soak`.
fn steps() -> u64 {
    let times = std::env::var("TOLLGATE_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    48_000 * times
}

fn replay(clockwork: ClockMode, edits: Edits) {
    let seed = std::env::var("TOLLGATE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let store = ScriptStore::start();
    // Histories end after a while, and new ones begin on new keys.
    for round in 0..steps() / 2_000 {
        suite::replay(&store, clockwork, edits, seed + round, 2_000);
        if steps() > 48_000 {
            eprintln!("{clockwork:?} {edits:?}: {} of {} batches", (round + 1) * 2_000, steps());
        }
    }
    let charged = store.charged.borrow();
    for kind in AlgorithmKind::ALL {
        let count = charged.get(&kind).copied().unwrap_or(0);
        assert!(count >= steps() / 48 * 25, "{kind:?} was charged {count} times only");
    }
    assert_eq!(store.tally.borrow().converted > 0, edits == Edits::Live);
    assert_eq!(store.tally.borrow().poisoned, 0);
}

#[test]
fn the_rest_of_a_conversion_counts_until_the_next_look() {
    let store = ScriptStore::start();
    let mut model = StoreModel::default();
    let slow = limit(TokenBucket, "1_000 per 1s");
    let fast = limit(TokenBucket, "1_000_000 per 1s").with_revision(Revision(1));
    // A thousandth of a permit is left, and less than a microsecond of it under the faster limit;
    // then the clock steps back to where it is worth something.
    for (after, limit, op) in
        [(0, slow, Op::Take(1)), (999, fast, Op::Peek(1)), (990, fast, Op::Peek(1))]
    {
        let now = Timestamp::from_micros(START + after);
        let charges = [charge("k", &limit, op)];
        store.answers_as(&mut model, &[charges], now, format_args!("after {after} µs"));
    }
}

/// More entries than are scaled one by one, and more than the lower count lets stay.
#[test]
fn a_long_log_is_carried_over_as_core_does() {
    let store = ScriptStore::start();
    let log = |quota, revision| limit(SlidingLog, quota).with_revision(Revision(revision));
    let old = log("5_000 per 1m", 1);
    let edits = [
        log("5_000 per 1h", 2),
        log("5_000 per 2s", 2),
        log("5_000 per 1h", 1),
        log("300 per 1m", 2),
        log("3 per 2s", 2),
        log("7_919 per 1m", 2).with_on_change(OnChange::Scale),
        log("1_013 per 2s", 2).with_on_change(OnChange::Scale),
        log("100 per 1m", 2).with_on_change(OnChange::Scale),
        log("9_000 per 1m", 2).with_on_change(OnChange::Reset),
    ];
    let mut rng = Rng::new(11);
    // Before the last charge, at it, and a while after it; and when some have left.
    for (round, later) in [-1_000_000_i64, 0, 5_000, 57_500_000].into_iter().enumerate() {
        for (i, new) in edits.iter().enumerate() {
            let (mut model, key) = (StoreModel::default(), format!("{round}:{i}"));
            let mut at = START;
            let mut ask = |limit: &Limit, op: Op, at: u64| {
                let now = Timestamp::from_micros(at);
                store.answers_as(&mut model, &[[charge(&key, limit, op)]], now, limit);
            };
            for _ in 0..700 {
                at += rng.within(1, 8_000);
                ask(&old, Op::Take(rng.within(1, 9)), at);
            }
            at = at.checked_add_signed(later).unwrap();
            for op in [Op::Peek(1), Op::Take(200), Op::Peek(3_000)] {
                ask(new, op, at);
            }
            ask(new, Op::Peek(2_000), at + 1_000_000);
        }
    }
}

/// Requests whose charges meet on one log that is too long to be sent: takes, questions, debits beyond
/// the count, credits, and groups.
#[test]
fn charges_that_share_a_log_are_answered_as_in_core() {
    let store = ScriptStore::start();
    let mut rng = Rng::new(12);
    let mut at = START;
    for round in 0..60 {
        let limit = limit(SlidingLog, rng.pick(&["12 per 1s", "40 per 1s", "300 per 1s"]));
        let (mut model, key) = (StoreModel::default(), format!("shared:{round}"));
        for _ in 0..150 {
            at += rng.within(0, 9_000);
            let now = Timestamp::from_micros(at);
            let mut any_charge = || {
                let most = rng.pick(&[2, 2, 9, 200]);
                let (cost, at) = (rng.within(1, most), Timestamp::from_micros(at - rng.below(9)));
                let op = match rng.below(12) {
                    0 => Op::Debit { cost, at },
                    1 => Op::Credit { cost, at },
                    2 => Op::Peek(cost),
                    _ => Op::Take(cost),
                };
                let charge = charge(&key, &limit, op);
                if rng.chance(1, 8) { charge.any_of() } else { charge }
            };
            let batch: [Vec<Charge<'_>>; 3] =
                [1, 2, 4].map(|n| (0..n).map(|_| any_charge()).collect());
            store.answers_as(&mut model, &batch, now, limit);
        }
    }
    store.has_decided(4_000, 4_000);
}

/// Batches of equal takes from different buckets, which the script does in another way than all
/// others, between charges that leave counters as that way cannot take them: in debt, or with places in
/// the future. The clock may step back.
#[test]
fn equal_takes_are_answered_as_in_core() {
    let store = ScriptStore::start();
    let mut rng = Rng::new(13);
    let mut at = START;
    for round in 0..120 {
        let quota = rng.pick(&["5 per 1s", "7 per 1s", "100 per 1m", "2 per 1ms"]);
        let limit = match rng.below(3) {
            0 => limit(LeakyMeter, quota),
            _ => limit(TokenBucket, quota),
        };
        let mut model = StoreModel::default();
        let names: Vec<String> = (0..12).map(|i| format!("equal:{round}:{i}")).collect();
        for step in 0..60 {
            at = unsteady(at, &mut rng);
            let now = Timestamp::from_micros(at);
            let most = rng.pick(&[1, 1, 2, 6]);
            let (cost, odd) = (rng.within(1, most), rng.chance(1, 6));
            let from = rng.below(12) as usize;
            let count = rng.within(1, 12) as usize;
            let charges: Vec<[Charge<'_>; 1]> = (from..from + count)
                .map(|i| {
                    let op = match rng.below(4) {
                        0 if odd => Op::Debit { cost: 9, at: now },
                        1 if odd => Op::Credit { cost, at: now },
                        _ => Op::Take(cost),
                    };
                    let charge = charge(&names[i % 12], &limit, op);
                    if odd { [charge.with_patience(Duration::from_millis(300))] } else { [charge] }
                })
                .collect();
            store.answers_as(&mut model, &charges, now, format_args!("{limit}, {step}"));
        }
    }
    store.has_decided(10_000, 5_000);
}

#[test]
fn takes_from_several_buckets_are_answered_as_in_core() {
    let quotas = ["40 per 1s", "7 per 1s", "300 per 1m", "11 per 1ms"];
    takes_are_answered_as_in_core(quotas.map(|quota| limit(TokenBucket, quota)));
}

fn limit(algorithm: impl Into<Algorithm>, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap()
}

fn window(anchor: Anchor, quota: &str) -> Limit {
    limit(FixedWindow { anchor }, quota)
}

#[test]
fn takes_from_several_windows_are_answered_as_in_core() {
    takes_are_answered_as_in_core([
        window(Anchor::Epoch, "40 per 1s"),
        window(Anchor::FirstHit, "7 per 1s"),
        window(Anchor::Epoch, "11 per 1ms"),
        window(Anchor::FirstHit, "300 per 1m"),
    ]);
}

#[test]
fn takes_from_windows_and_buckets_are_answered_as_in_core() {
    takes_are_answered_as_in_core([
        window(Anchor::Epoch, "40 per 1s"),
        window(Anchor::FirstHit, "7 per 1s"),
        window(Anchor::Epoch, "11 per 1ms"),
        limit(TokenBucket, "300 per 1m"),
    ]);
}

/// Requests of one to four takes under several limits, some of them several times in a row, and now and
/// then a debit. The clock may step back.
fn takes_are_answered_as_in_core(limits: [Limit; 4]) {
    let store = ScriptStore::start();
    let mut rng = Rng::new(14);
    let mut at = START;
    for round in 0..60 {
        let mut model = StoreModel::default();
        let names: Vec<String> = (0..16).map(|i| format!("several:{round}:{i}")).collect();
        for _ in 0..80 {
            at = unsteady(at, &mut rng);
            let now = Timestamp::from_micros(at);
            let (most, odd) = (rng.pick(&[1, 1, 2, 5]), rng.chance(1, 8));
            let charges: Vec<Vec<Charge<'_>>> = (0..rng.within(1, 9))
                .flat_map(|_| {
                    let count = rng.pick(&[1, 1, 2, 3, 4]);
                    let any = |_| {
                        let (i, cost) = (rng.below(16) as usize, rng.within(1, most));
                        let op = match rng.below(9) {
                            0 if odd => Op::Debit { cost: 20, at: now },
                            _ => Op::Take(cost),
                        };
                        charge(&names[i], &limits[i % 4], op)
                    };
                    let charges: Vec<_> = (0..count).map(any).collect();
                    vec![charges; rng.pick(&[1, 1, 1, 2, 6])]
                })
                .collect();
            store.answers_as(&mut model, &charges, now, round);
        }
    }
    store.has_decided(5_000, 5_000);
}

#[test]
fn every_sentence_about_stores_holds() {
    suite::all(&ScriptStore::start(), 1, 50);
}

#[test]
fn replay_on_a_steady_clock() {
    replay(ClockMode::Forward, Edits::None);
}

#[test]
fn replay_on_a_clock_that_steps_back() {
    replay(ClockMode::Unsteady, Edits::None);
}

#[test]
fn replay_while_rules_change() {
    replay(ClockMode::Forward, Edits::Live);
}

#[test]
fn replay_while_rules_change_on_a_clock_that_steps_back() {
    replay(ClockMode::Unsteady, Edits::Live);
}
