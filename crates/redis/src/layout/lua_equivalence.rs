//! Compares each algorithm in Lua with core, turn by turn, on a real server.
//!
//! A case is one turn on one state: settle, decide, and apply if it passes. Rust goes first, since
//! a history depends on its answers; then Lua decides many cases at once. The verdict, the wait, the
//! changes, the stored state and its time to live must be equal.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::float_arithmetic,
    reason = "a test shall stop at an overflow; what it converts fits"
)]

use std::time::Duration;

use tollgate_core::algorithm::Smooth;
use tollgate_core::state::{
    ConcurrencyPlan as Permits, HeldPermit, Holders, MAX_USED, Panes, SmoothState,
};
use tollgate_core::testing::history::{AlgorithmKind, ClockMode, Edits, Turn};
use tollgate_core::testing::{History, Rng};
use tollgate_core::{
    Charge, Counter, Decision, Effect, Holder, Key, Limit, Op, Plan, Quota, State, Timestamp,
    Verdict,
};
use tollgate_harness::{RedisServer, Reply};

use super::{MAX_EXACT, concurrency, micros};

const STEPS: &str = concat!(
    include_str!("../../lua/prelude.lua"),
    include_str!("../../lua/steps.lua"),
    include_str!("../../lua/sliding_window.lua"),
    include_str!("../../lua/smooth.lua"),
    include_str!("../../lua/concurrency.lua"),
);

/// ARGV[1] is the algorithm; then three for each case: plan, state or nothing, and terms. Answers
/// nothing for poison.
const DRIVER: &str = r"
local step, answers, t = steps[tonumber(ARGV[1])], {}, {}
for i = 2, #ARGV, 3 do
  local plan, past = step.plan('!' .. ARGV[i], 2)
  assert(past == #ARGV[i] + 2)
  local now
  t.op, t.cost, t.w, t.p, t.patience, t.at, t.lease, t.holder, now =
    struct.unpack('<Bddddddc16d', ARGV[i + 2])
  local state, settled = nil, false
  if ARGV[i + 1] ~= '' then state = step.decode(plan, 'tag' .. ARGV[i + 1], 4) end
  if ARGV[i + 1] ~= '' and not state then
    answers[#answers + 1] = ''
  else
    assert(not state or step.encode(state, '') == ARGV[i + 1])
    if state then state, settled = step.settle(plan, state, now) end
    assert(not state or step.idle(plan, state) > now or settled)
    local before = state and step.encode(state, '')
    local wait, edited, new = step.decide(plan, state, t, now)
    assert(not state or step.encode(state, '') == before)
    if wait and edited then state = new end
    answers[#answers + 1] =
      struct.pack('<dBBd', wait or -1, settled and 1 or 0, edited and 1 or 0,
        state and step.idle(plan, state) or -1) .. (state and step.encode(state, '') or '')
  end
end
return answers
";

fn pack_plan(plan: &Plan) -> Vec<u8> {
    let mut out = Vec::new();
    super::pack_plan(plan, &mut out);
    out
}

fn encode(state: &State) -> Vec<u8> {
    let mut out = Vec::new();
    super::encode(state, &mut out);
    out
}

fn decode(limit: &Limit, bytes: &[u8]) -> Option<State> {
    if bytes.is_empty() { Some(State::Absent) } else { super::decode(limit, bytes) }
}

/// One turn on one stored state.
#[derive(Debug)]
struct Case {
    turn: Turn,
    prior: Vec<u8>,
}

/// The result of a case.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// `None` when refused.
    wait_us: Option<u64>,
    settled: bool,
    edited: bool,
    /// `None` when nothing is remembered.
    idle_at: Option<u64>,
    state: Vec<u8>,
}

impl Outcome {
    fn read(answer: &[u8]) -> Option<Self> {
        let (head, state) = answer.split_first_chunk::<18>()?;
        let number = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let natural = |n: f64| (n >= 0.0).then(|| (n as u64).min(MAX_EXACT));
        Some(Self {
            wait_us: natural(number(&head[..8])),
            settled: head[8] == 1,
            edited: head[9] == 1,
            idle_at: natural(number(&head[10..])),
            state: state.to_vec(),
        })
    }
}

impl Case {
    /// Returns core's result and the counter then; `None` for a malformed state.
    fn run(&self) -> Option<(Outcome, Decision, State)> {
        let Turn { limit, op, patience, now } = self.turn;
        let mut counter = Counter::new(decode(&limit, &self.prior)?, &limit);
        let key = Key::new("k").expect("a short key");
        // The limit of a charge says what may be asked; the counter's own decides.
        let asked = Limit::new(limit.algorithm(), longest(limit.quota())).unwrap_or(limit);
        let charge = Charge::new(key, &asked, op).expect("fits").with_patience(patience);
        let settled = counter.settle(&limit, now);
        let (decision, effect) = counter.decide(&charge, now);
        let edited = effect != Effect::None;
        let wait_us = match decision.verdict {
            Verdict::Allow => Some(0),
            Verdict::Wait(wait) => Some(micros(wait)),
            Verdict::Deny(_) => None,
        };
        if decision.passes() {
            counter.apply(effect);
        }
        let state = counter.into_state();
        let idle_at = limit.idle_at(&state).map_or(MAX_EXACT, Timestamp::as_micros);
        let idle_at = (state != State::Absent).then(|| idle_at.min(MAX_EXACT));
        let stored = encode(&state);
        Some((Outcome { wait_us, settled, edited, idle_at, state: stored }, decision, state))
    }

    fn terms(&self) -> Vec<u8> {
        let Turn { limit, op, patience, now } = self.turn;
        let mut out = Vec::new();
        super::pack_terms(&limit, op, micros(patience), 0, &mut out);
        super::double(now.as_micros(), &mut out);
        out
    }
}

/// The same count in the longest period.
fn longest(quota: Quota) -> Quota {
    Quota::new(quota.count().get(), Quota::MAX_PERIOD).expect("slower than it was")
}

/// Runs the steps over all cases; `None` for poison.
fn run_lua(server: &RedisServer, cases: &[Case]) -> Vec<Option<Outcome>> {
    let script = [STEPS, DRIVER].concat();
    let code = cases[0].turn.limit.code().to_string();
    let mut args: Vec<Vec<u8>> = Vec::new();
    for case in cases {
        args.extend([pack_plan(case.turn.limit.plan()), case.prior.clone(), case.terms()]);
    }
    let mut command = vec![&b"EVAL"[..], script.as_bytes(), b"0", code.as_bytes()];
    command.extend(args.iter().map(Vec::as_slice));
    let Reply::Array(answers) = server.command(&command).expect("the server answers") else {
        panic!("{:?}", server.command(&command));
    };
    let outcome = |reply: &Reply| match reply {
        Reply::Bulk(answer) => Outcome::read(answer),
        other => panic!("{other:?}"),
    };
    answers.iter().map(outcome).collect()
}

/// Compares the steps with core; returns how many cases were poison.
fn compare(server: &RedisServer, cases: &[Case]) -> usize {
    let mut poison = 0;
    for batch in cases.chunks(500) {
        let outcomes = run_lua(server, batch);
        assert_eq!(outcomes.len(), batch.len());
        for (case, outcome) in batch.iter().zip(outcomes) {
            let expected = case.run().map(|(expected, ..)| expected);
            poison += usize::from(expected.is_none());
            assert_eq!(outcome, expected, "{case:?}");
        }
    }
    poison
}

/// Turns of histories in a row, each on the state that the one before it left.
fn replay(kind: AlgorithmKind, histories: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in 0..histories {
        let mut history = History::new(kind, ClockMode::Unsteady, Edits::None, seed);
        let mut prior = Vec::new();
        for _ in 0..400 {
            let turn = history.turn();
            // Later, what lies ahead of now would leave what doubles count exactly.
            if turn.now.as_micros() >= 1 << 52 {
                break;
            }
            let case = Case { turn, prior };
            let (outcome, decision, state) = case.run().expect("what was encoded decodes");
            assert_eq!(decode(&turn.limit, &outcome.state), Some(state));
            history.hear(&decision);
            prior = outcome.state;
            cases.push(case);
        }
    }
    cases
}

/// Any state that decodes, possible or not, near `now`.
fn any_state(plan: &Plan, rng: &mut Rng, now: u64) -> State {
    let near = |rng: &mut Rng, span: u64| {
        let by = rng.magnitude(span);
        Timestamp::from_micros(if rng.chance(1, 2) { now + by } else { now.saturating_sub(by) })
    };
    match plan {
        Plan::SlidingWindow(plan) => {
            let most = rng.pick(&[plan.capacity, MAX_USED]);
            let counts = (0..=plan.panes).map(|_| rng.magnitude(most)).collect();
            let pane = now / plan.pane_us;
            let newest = (pane + rng.below(5)).saturating_sub(rng.below(5));
            State::SlidingWindow(Panes { newest, counts })
        }
        Plan::Smooth(plan) => {
            let share = rng.pick(&[0.0, 1e-9, 0.3, 0.7, 1.0]);
            State::Smooth(SmoothState {
                stored: plan.max_permits * share,
                free_at: near(rng, 1 << 48),
                written_at: near(rng, 1 << 48),
            })
        }
        Plan::Concurrency(_) => {
            let most = if rng.chance(1, 200) { 10_000 } else { rng.pick(&[1, 8, 20, 100, 500]) };
            let count = rng.within(1, most);
            let holders = rng.pick(&[4, 1_000, u64::MAX]);
            let mut held: Vec<HeldPermit> = (0..count)
                .map(|_| HeldPermit { holder: any_holder(rng, holders), until: near(rng, 1 << 40) })
                .collect();
            held.sort_by_key(|hold| hold.until);
            let written_at = near(rng, 1 << 40);
            State::Concurrency(Holders::restored(written_at, held))
        }
        other => unreachable!("{other:?} is compared elsewhere"),
    }
}

/// Few holders, or ones whose bytes also match across the border of two permits, or any.
fn any_holder(rng: &mut Rng, most: u64) -> Holder {
    let low = u128::from(rng.below(most));
    Holder(if most == u64::MAX { low << 64 | low } else { low << (8 * rng.below(3)) })
}

/// Turns on states that need not follow from anything.
fn wild(
    kind: AlgorithmKind,
    cases: u64,
    mut spoil: impl FnMut(&mut Rng, &mut Vec<u8>),
) -> Vec<Case> {
    let mut rng = Rng::new(7);
    let mut all = Vec::new();
    for seed in 0..cases {
        let mut history = History::new(kind, ClockMode::Unsteady, Edits::None, seed);
        let mut turn = history.turn();
        let now = turn.now.as_micros();
        let state = any_state(turn.limit.plan(), &mut rng, now);
        if rng.chance(1, 2) {
            turn.patience = Duration::from_micros(rng.magnitude(micros(Charge::MAX_PATIENCE)));
            turn.op = wilder(turn.op, &state, &mut rng);
        }
        let mut prior = encode(&state);
        spoil(&mut rng, &mut prior);
        all.push(Case { turn, prior });
    }
    all
}

/// Asked by somebody who holds, and for longer than the limit allows.
fn wilder(op: Op, state: &State, rng: &mut Rng) -> Op {
    let State::Concurrency(state) = state else { return op };
    let holder = state.held()[rng.below(state.held().len() as u64) as usize].holder;
    let lease = Duration::from_micros(rng.magnitude(micros(Quota::MAX_PERIOD)).max(1));
    match op {
        Op::Acquire { .. } => Op::Acquire { holder, lease },
        Op::Renew { .. } => Op::Renew { holder, lease },
        Op::Release { .. } => Op::Release { holder },
        other => other,
    }
}

/// One to three blows: a bit, a number at some edge, or a length that is off.
fn spoil(rng: &mut Rng, bytes: &mut Vec<u8>) {
    const EDGES: [u64; 12] = [
        0,
        1,
        MAX_USED,
        MAX_USED + 1,
        MAX_EXACT - 1,
        MAX_EXACT,
        i64::MAX as u64,
        u64::MAX,
        0x7ff0_0000_0000_0000, // infinity
        0x7ff8_0000_0000_0000, // not a number
        0x8000_0000_0000_0000, // minus zero
        0x3ff0_0000_0000_0000, // one
    ];
    for _ in 0..rng.pick(&[1, 1, 2, 3]) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(6) {
            0 | 1 => bytes[at] ^= 1 << rng.below(8),
            2 | 3 => {
                let at = at / 8 * 8;
                let edge = rng.pick(&EDGES).to_le_bytes();
                bytes.iter_mut().skip(at).zip(edge).for_each(|(byte, edge)| *byte = edge);
            }
            4 => bytes.truncate(if rng.chance(1, 2) { at } else { at / 8 * 8 }),
            _ => bytes.extend((0..rng.pick(&[1, 8, 16, 24, 48])).map(|_| 0xff)),
        }
    }
}

fn is_a_twin(kinds: &[AlgorithmKind]) {
    let server = RedisServer::start().expect("redis-server starts");
    let mut turns = 0;
    for kind in kinds {
        let cases = replay(*kind, 320 / kinds.len() as u64);
        turns += cases.len();
        assert_eq!(compare(&server, &cases), 0);
        assert_eq!(compare(&server, &wild(*kind, 5_000, |_, _| {})), 0);
        let poison = compare(&server, &wild(*kind, 5_000, spoil));
        assert!((500..4_500).contains(&poison), "{poison} of 5000 spoilt states are poison");
    }
    assert!(turns > 100_000, "{turns} turns");
}

#[test]
fn the_sliding_window_is_the_same_in_lua() {
    is_a_twin(&[AlgorithmKind::Conservative, AlgorithmKind::Weighted]);
}

#[test]
fn the_smooth_limiter_is_the_same_in_lua() {
    is_a_twin(&[AlgorithmKind::Smooth]);
}

#[test]
fn concurrency_is_the_same_in_lua() {
    is_a_twin(&[AlgorithmKind::Concurrency]);
}

// What is repaid is worth a hair more than what it was bought for: storage must not go below zero.
#[test]
fn a_repaid_debt_leaves_no_negative_permits() {
    let quota = Quota::new(26, Duration::from_micros(68_591_374)).expect("a plain quota");
    let limit = Limit::new(Smooth::bursty(), quota).expect("slow enough");
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let free_at = Timestamp::from_micros(now.as_micros() + 13 * 68_591_374 / 26);
    let debt = State::Smooth(SmoothState { stored: 0.0, free_at, written_at: now });
    let op = Op::Credit { cost: 13, at: now };
    let turn = Turn { limit, op, patience: Duration::ZERO, now };
    let case = Case { turn, prior: encode(&debt) };

    let after = case.run().map(|(_, _, state)| state);

    assert_eq!(after, Some(State::Smooth(SmoothState::empty(now))));
    let server = RedisServer::start().expect("redis-server starts");
    assert_eq!(compare(&server, &[case]), 0);
}

#[test]
fn no_more_holders_are_stored_than_can_be() {
    let plan = Permits { capacity: 1, longest_us: 1 };
    let mut bytes = vec![0; 8 + 24 * 10_000];
    assert!(concurrency::decode(&plan, &bytes).is_some());
    assert_eq!(concurrency::decode(&plan, &bytes[..8]), None, "nobody holds");

    bytes.extend([0; 24]);

    assert_eq!(concurrency::decode(&plan, &bytes), None);
    let turn = History::new(AlgorithmKind::Concurrency, ClockMode::Forward, Edits::None, 1).turn();
    let server = RedisServer::start().expect("redis-server starts");
    assert_eq!(compare(&server, &[Case { turn, prior: bytes }]), 1);
}
