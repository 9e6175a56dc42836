//! Properties of every algorithm, by the rows of the table of properties.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::unwrap_used,
    reason = "a test shall stop at an overflow"
)]

use std::time::Duration;

use crate::support::{SECOND, START, Subject, at, limit, micros};
use tollgate_core::algorithm::{
    Anchor, Concurrency, FixedWindow, LeakyMeter, LeakyQueue, SlidingLog, SlidingWindow, Smooth,
    TokenBucket,
};
use tollgate_core::testing::history::{AlgorithmKind, ClockMode, Edits, Turn};
use tollgate_core::testing::{History, Rng};
use tollgate_core::{Charge, Holder, Key, Limit, Op, Retry, State, Timestamp, Verdict};

const HISTORIES: u64 = 150;
const TURNS: usize = 100;

/// Plays histories of `kind` on a clock that never steps back, and shows `check` every turn:
/// the subject as it was, settled, and the turn about to be taken.
fn each_turn(kind: AlgorithmKind, mut check: impl FnMut(&Subject, &Turn)) {
    for seed in 0..HISTORIES {
        let mut history = History::new(kind, ClockMode::Forward, Edits::None, seed + 5_000_000);
        let mut subject = Subject::new(history.limit());
        for _ in 0..TURNS {
            let turn = history.turn();
            subject.counter.settle(&turn.limit, turn.now);
            check(&subject, &turn);
            let decision = subject.charge(turn.op, micros(turn.patience), turn.now.as_micros());
            history.hear(&decision);
        }
    }
}

fn capacity(limit: &Limit) -> u64 {
    Subject::new(limit).peek(0, START).remaining
}

fn remaining(subject: &Subject, now: u64) -> u64 {
    subject.clone().peek(0, now).remaining
}

const SPENDING: [AlgorithmKind; 7] = [
    AlgorithmKind::FixedWindow,
    AlgorithmKind::SlidingLog,
    AlgorithmKind::Conservative,
    AlgorithmKind::Weighted,
    AlgorithmKind::TokenBucket,
    AlgorithmKind::LeakyMeter,
    AlgorithmKind::LeakyQueue,
];

/// Asks for one permit whenever the exact rate says so, a million times.
fn steady_source(limit: &Limit, patience: u64) {
    let quota = limit.quota();
    let (count, period) = (u128::from(quota.count().get()), quota.period().as_micros());
    let phase = u128::from(Rng::new(8).below(10 * SECOND));
    let mut subject = Subject::new(limit);
    for number in 0..1_000_000_u128 {
        let now = START + u64::try_from(phase + number * period / count).unwrap();
        let decision = subject.charge(Op::Take(1), patience, now);
        assert!(decision.passes(), "{limit}: request {number} at {now}: {decision:?}");
    }
}

// E8: where a permit takes no whole number of microseconds, a source that can only ask at whole
// ones comes up to one early; a burst of two bridges that.
#[test]
fn a_source_at_exactly_the_rate_is_never_refused_by_a_bucket() {
    for quota in
        ["10 per 1s burst 1", "1 per 3us burst 1", "7 per 1s burst 2", "3_000_003 per 1s burst 7"]
    {
        steady_source(&limit(TokenBucket, quota), 0);
        steady_source(&limit(LeakyMeter, quota), 0);
    }
}

// E8
#[test]
fn a_source_at_exactly_the_rate_is_never_refused_by_a_fixed_window_or_a_log() {
    for quota in
        ["7 per 1s", "1 per 3us", "100 per 1m", "13 per 999_983us".replace('_', "").as_str()]
    {
        steady_source(&limit(FixedWindow::default(), quota), 0);
        steady_source(&limit(FixedWindow { anchor: Anchor::Epoch }, quota), 0);
        steady_source(&limit(SlidingLog, quota), 0);
    }
}

// E8
#[test]
fn a_source_at_exactly_the_rate_is_never_refused_by_a_queue_or_a_bursty_limiter() {
    steady_source(&limit(LeakyQueue, "10 per 1s burst 1"), 0);
    steady_source(&limit(LeakyQueue, "7 per 1s burst 1"), 1);
    // Four of these may fall into one microsecond and have to line up.
    steady_source(&limit(LeakyQueue, "3_000_003 per 1s burst 4"), 2);
    steady_source(&limit(Smooth::bursty(), "10 per 1s"), 0);
    steady_source(&limit(Smooth::bursty(), "7 per 1s"), 0);
}

// E7
#[test]
fn a_conservative_window_never_refuses_a_source_at_the_rate_it_is_sure_of() {
    for (panes, count, period) in
        [(10_u8, 7_u64, 1_000_000_u64), (1, 100, 60_000_000), (64, 3, 640)]
    {
        let shape = SlidingWindow { panes, ..SlidingWindow::conservative() };
        let limit = limit(shape, &format!("{count} per {period}us"));
        let stretched = u128::from(period + period / u64::from(panes));
        let mut subject = Subject::new(&limit);
        for number in 0..100_000_u128 {
            let now = START + 123 + (number * stretched / u128::from(count)) as u64;
            assert!(subject.take(1, now).passes(), "{limit}: request {number}");
        }
    }
}

// E9
#[test]
fn after_idling_for_a_refill_exactly_the_burst_is_admitted() {
    let mut rng = Rng::new(9);
    for _ in 0..300 {
        let kind = rng.pick(&[AlgorithmKind::TokenBucket, AlgorithmKind::LeakyMeter]);
        let limit = kind.limit(&mut rng);
        let burst = limit.quota().burst().get();
        if burst > 10_000 {
            continue;
        }
        let mut subject = Subject::new(&limit);
        assert_eq!(subject.drain(START, burst + 5), burst, "{limit}");
        let refill = limit.quota().rate().span(burst).ceil();
        let idle = refill + rng.pick(&[0, 1, 12_345_678]);
        assert!(remaining(&subject, START + refill - 1) < burst, "{limit}: full too early");
        assert_eq!(subject.drain(START + idle, burst + 5), burst, "{limit}");
    }
}

// E11
#[test]
fn remaining_stays_within_the_capacity_and_only_time_and_credits_raise_it() {
    for kind in AlgorithmKind::ALL {
        each_turn(kind, |subject, turn| {
            let now = turn.now.as_micros();
            let before = remaining(subject, now);
            assert!(before <= capacity(&subject.limit), "{}", subject.limit);
            let later = remaining(subject, now + 1 + before % 1_000_000);
            assert!(later >= before, "{}: {before} then {later}", subject.limit);
            if matches!(turn.op, Op::Take(_) | Op::Peek(_) | Op::Debit { .. }) {
                let after = subject.clone().charge(turn.op, micros(turn.patience), now);
                assert!(after.remaining <= before, "{}: {turn:?}", subject.limit);
            }
        });
    }
}

// E12
#[test]
fn an_admission_lowers_remaining_by_exactly_its_cost() {
    for kind in SPENDING
        .into_iter()
        .filter(|kind| !matches!(kind, AlgorithmKind::Weighted | AlgorithmKind::LeakyQueue))
    {
        each_turn(kind, |subject, turn| {
            let now = turn.now.as_micros();
            let Op::Take(cost) = turn.op else { return };
            let before = remaining(subject, now);
            let decision = subject.clone().take(cost, now);
            let spent = if decision.passes() { cost } else { 0 };
            assert_eq!(decision.remaining, before - spent, "{}: {turn:?}", subject.limit);
        });
    }
    each_turn(AlgorithmKind::Concurrency, |subject, turn| {
        let now = turn.now.as_micros();
        let holder = Holder(u128::MAX);
        let lease = Duration::from_micros(1);
        let before = remaining(subject, now);
        let decision = subject.clone().charge(Op::Acquire { holder, lease }, 0, now);
        assert_eq!(decision.passes(), before > 0);
        assert_eq!(decision.remaining, before.saturating_sub(1));
    });
}

// E12
#[test]
fn refusals_and_peeks_change_nothing() {
    for kind in AlgorithmKind::ALL {
        let mut refused = 0;
        each_turn(kind, |subject, turn| {
            let now = turn.now.as_micros();
            let mut after = subject.clone();
            let decision = after.charge(turn.op, micros(turn.patience), now);
            if !decision.passes() || matches!(turn.op, Op::Peek(_) | Op::Take(0)) {
                refused += 1;
                assert_eq!(after.counter, subject.counter, "{turn:?}");
            }
        });
        assert!(refused > 100, "{kind:?}");
    }
}

// E12
#[test]
fn a_credit_never_lets_more_through_than_if_the_charge_had_not_happened() {
    let mut rng = Rng::new(12);
    let mut compared = 0;
    for _ in 0..20_000 {
        let kind = rng.pick(&SPENDING);
        let limit = match kind {
            // A charge anchors a first-hit window, whether it is credited or not.
            AlgorithmKind::FixedWindow => limit(FixedWindow { anchor: Anchor::Epoch }, "10 per 1s"),
            kind => kind.limit(&mut rng),
        };
        let refill = limit.quota().rate().span(limit.quota().burst().get()).ceil();
        let (mut with, mut without) = (Subject::new(&limit), Subject::new(&limit));
        let mut now = START + rng.below(refill + 1);
        let cost = rng.within(1, limit.quota().burst().get());
        let charged = rng.below(4);
        let mut granted = now;
        let mut same = true;
        for step in 0..6 {
            if step == charged {
                granted = now;
                same &= with.take(cost, now).verdict == Verdict::Allow;
            }
            same &= with.take(1, now).passes() == without.take(1, now).passes();
            now += rng.magnitude(refill.min(1 << 40));
        }
        if !same {
            continue;
        }
        compared += 1;
        let _ = with.charge(Op::Credit { cost, at: at(granted) }, 0, now);
        for _ in 0..5 {
            let (a, b) = (remaining(&with, now), remaining(&without, now));
            assert!(a <= b, "{limit}: {a} with the credit, {b} without the charge");
            now += rng.magnitude(refill.min(1 << 40));
        }
    }
    assert!(compared > 2_000, "{compared}");
}

// E13
#[test]
fn many_of_cost_one_pass_iff_one_of_many_passes() {
    for kind in SPENDING.into_iter().filter(|kind| *kind != AlgorithmKind::LeakyQueue) {
        each_turn(kind, |subject, turn| {
            let now = turn.now.as_micros();
            let left = remaining(subject, now);
            for cost in [left, left + 1, left / 2].into_iter().filter(|cost| *cost < 300) {
                let at_once = subject.clone().take(cost, now).passes();
                let one_by_one = subject.clone().drain(now, cost) == cost;
                assert_eq!(at_once, one_by_one, "{}: {cost} of {left}", subject.limit);
            }
        });
    }
}

// E14
#[test]
fn the_order_of_equal_requests_at_one_instant_does_not_matter() {
    let mut rng = Rng::new(14);
    for kind in AlgorithmKind::ALL {
        each_turn(kind, |subject, turn| {
            let now = turn.now.as_micros();
            let cost = rng.within(1, 3);
            let lease = subject.limit.quota().period();
            let mut ops: Vec<Op> = match kind {
                AlgorithmKind::Concurrency => {
                    (100..110).map(|n| Op::Acquire { holder: Holder(n), lease }).collect()
                }
                _ => (0..6).flat_map(|_| [Op::Take(cost), Op::Peek(cost), Op::Peek(0)]).collect(),
            };
            let mut passing = || {
                for i in (1..ops.len()).rev() {
                    ops.swap(i, rng.below(i as u64 + 1) as usize);
                }
                let mut copy = subject.clone();
                let takes = ops
                    .iter()
                    .filter(|op| copy.charge(**op, 0, now).passes() && !matches!(op, Op::Peek(_)));
                takes.count()
            };
            assert_eq!(passing(), passing(), "{}", subject.limit);
        });
    }
}

/// Alone on the key: passes when told to come back, and not one microsecond earlier.
fn retries_are_exact(kind: AlgorithmKind) {
    let mut checked = 0;
    each_turn(kind, |subject, turn| {
        let (now, patience) = (turn.now.as_micros(), micros(turn.patience));
        let cost = match turn.op {
            Op::Take(cost) | Op::Peek(cost) => cost,
            _ => 1,
        };
        let verdict = |at| subject.clone().charge(Op::Peek(cost), patience, at).verdict;
        match verdict(now) {
            Verdict::Deny(Retry::After(after)) => {
                let then = now + micros(after);
                let seen = format!("{}: {cost} after {after:?}, {subject:?}", subject.limit);
                assert!(!after.is_zero(), "{seen}");
                assert!(verdict(then).passes(), "refused when told to come back; {seen}");
                assert!(!verdict(then - 1).passes(), "passes a microsecond early; {seen}");
                checked += 1;
            }
            Verdict::Deny(Retry::Never) if kind != AlgorithmKind::Smooth => {
                assert!(cost > capacity(&subject.limit), "{}: never {cost}", subject.limit);
            }
            _ if kind != AlgorithmKind::Smooth => assert!(cost <= capacity(&subject.limit)),
            _ => {}
        }
    });
    assert!(checked > 500, "{kind:?}: {checked}");
}

// E15, E18
#[test]
fn retry_after_is_the_first_moment_that_passes() {
    for kind in SPENDING {
        retries_are_exact(kind);
    }
    retries_are_exact(AlgorithmKind::Concurrency);
}

// E15, E18
#[test]
fn retry_after_of_a_smooth_limiter_is_the_first_moment_that_passes() {
    retries_are_exact(AlgorithmKind::Smooth);
}

// E16
#[test]
fn at_reset_the_full_capacity_is_back() {
    for kind in SPENDING {
        each_turn(kind, |subject, turn| {
            let now = turn.now.as_micros();
            let decision = subject.clone().charge(turn.op, 0, now);
            if let Verdict::Deny(Retry::After(after)) = decision.verdict {
                assert!(decision.reset_after >= after, "{}: {decision:?}", subject.limit);
            }
            let mut charged = subject.clone();
            let reset = micros(charged.charge(turn.op, 0, now).reset_after);
            let full = capacity(&subject.limit);
            assert_eq!(remaining(&charged, now + reset), full, "{}: {turn:?}", subject.limit);
            if reset > 0 && kind != AlgorithmKind::Weighted {
                let early = remaining(&charged, now + reset - 1);
                assert!(early < full, "{}: full before its reset, {turn:?}", subject.limit);
            }
        });
    }
}

// E17
#[test]
fn the_moment_of_reset_does_not_wobble() {
    for kind in SPENDING {
        each_turn(kind, |subject, turn| {
            let now = turn.now.as_micros();
            let reset = micros(subject.clone().peek(0, now).reset_after);
            for later in [reset / 3, reset / 2, reset.saturating_sub(1)] {
                let then = subject.clone().peek(0, now + later).reset_after;
                assert_eq!(now + reset, now + later + micros(then), "{}", subject.limit);
            }
        });
    }
}

// E20
#[test]
fn a_jump_forward_gains_at_most_the_capacity() {
    for kind in SPENDING {
        each_turn(kind, |subject, turn| {
            let full = capacity(&subject.limit);
            let jump = turn.now.as_micros() + 400 * 86_400 * SECOND;
            if full <= 50 && remaining(subject, turn.now.as_micros()) == 0 {
                let most = if kind == AlgorithmKind::LeakyQueue { 1 } else { full };
                let admitted = subject.clone().drain(jump, 2 * full + 10);
                assert!(admitted <= most, "{}: {admitted}", subject.limit);
            }
        });
    }
}

// E22: aligned kinds are shifted by whole periods, which are whole panes too.
#[test]
fn shifting_a_history_in_time_changes_nothing() {
    for kind in AlgorithmKind::ALL {
        for seed in 0..HISTORIES {
            let mut history = History::new(kind, ClockMode::Unsteady, Edits::None, seed + 22);
            let period = micros(history.limit().quota().period());
            let aligned = matches!(
                kind,
                AlgorithmKind::FixedWindow | AlgorithmKind::Conservative | AlgorithmKind::Weighted
            );
            let shift = if aligned { period * (seed % 7 + 1) } else { 987_654_321 * (seed + 1) };
            let mut here = Subject::new(history.limit());
            let mut there = here.clone();
            for _ in 0..TURNS {
                let turn = history.turn();
                let (now, patience) = (turn.now.as_micros(), micros(turn.patience));
                let later = |moment: Timestamp| at(moment.as_micros() + shift);
                let shifted = match turn.op {
                    Op::Debit { cost, at } => Op::Debit { cost, at: later(at) },
                    Op::Credit { cost, at } => Op::Credit { cost, at: later(at) },
                    op => op,
                };
                let decision = here.charge(turn.op, patience, now);
                assert_eq!(there.charge(shifted, patience, now + shift), decision, "{turn:?}");
                history.hear(&decision);
            }
        }
    }
}

// E36
#[test]
fn dropping_an_idle_key_changes_no_later_decision() {
    let mut rng = Rng::new(36);
    // A fixed window that is over is not decided upon at all; its oracle covers that.
    for kind in AlgorithmKind::ALL.into_iter().filter(|kind| *kind != AlgorithmKind::FixedWindow) {
        let mut dropped = 0;
        each_turn(kind, |subject, turn| {
            let (limit, state) = (&subject.limit, subject.counter.state());
            let Some(idle) = limit.idle_at(state).filter(|_| *state != State::Absent) else {
                return;
            };
            let charge = Charge::new(Key::new("k").unwrap(), limit, turn.op).unwrap();
            let charge = charge.with_patience(turn.patience);
            for later in [0, 1, rng.below(10 * SECOND)] {
                let now = at(idle.as_micros() + later);
                let kept = limit.decide(state, &charge, now).0;
                let absent = limit.decide(&State::Absent, &charge, now).0;
                assert_eq!(kept, absent, "{limit}: {state:?} at {now}, {turn:?}");
            }
            dropped += 1;
        });
        assert!(dropped > 500, "{kind:?}");
    }
}

// E36: nothing is kept for longer than it is worth something.
#[test]
fn a_key_is_idle_as_soon_as_it_is_full() {
    for kind in SPENDING {
        each_turn(kind, |subject, turn| {
            let state = subject.counter.state();
            let reset = micros(subject.clone().peek(0, turn.now.as_micros()).reset_after);
            let idle = subject.limit.idle_at(state).unwrap().as_micros();
            if *state != State::Absent {
                assert_eq!(idle, turn.now.as_micros() + reset, "{}: {state:?}", subject.limit);
            }
        });
    }
}

// E19
#[test]
fn a_clock_stepping_back_never_raises_what_remains() {
    for kind in AlgorithmKind::ALL.into_iter().filter(|kind| *kind != AlgorithmKind::Concurrency) {
        each_turn(kind, |subject, turn| {
            let now = turn.now.as_micros();
            let before = remaining(subject, now);
            for back in [1, 1_000, 12_345_678, 4_000_000_000] {
                let after = remaining(subject, now - back);
                assert!(after <= before, "{}: {before}, then {after}", subject.limit);
            }
        });
    }
    let mut subject = Subject::new(&limit(Concurrency, "3 per 10s"));
    let acquire = Op::Acquire { holder: Holder(1), lease: Duration::from_secs(10) };
    assert!(subject.charge(acquire, 0, START).passes());
    assert_eq!(remaining(&subject, START - 3_600 * SECOND), 2);
}
