//! Every algorithm against its oracle: the whole answer, step by step, over random histories.
//!
//! `TOLLGATE_SOAK=n` multiplies the number of decisions; the default is 1.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    reason = "a test shall stop at an overflow"
)]

use tollgate_core::testing::history::{AlgorithmKind, ClockMode, Edits};
use tollgate_core::testing::{History, oracle::Ledger};
use tollgate_core::{Charge, Counter, Key, Retry, Verdict};

/// Decisions per algorithm and test.
const DECISIONS: u64 = 100_000;

/// Short enough that a failure can be read, long enough for a bucket to drain and refill.
const TURNS: u64 = 200;

fn soak() -> u64 {
    std::env::var("TOLLGATE_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// The verdicts of a run by kind: a test that never waits proves nothing about waiting.
#[derive(Default, Debug)]
struct VerdictCounts {
    allowed: u64,
    waited: u64,
    denied: u64,
    never: u64,
}

impl VerdictCounts {
    fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Allow => self.allowed += 1,
            Verdict::Wait(_) => self.waited += 1,
            Verdict::Deny(Retry::After(_)) => self.denied += 1,
            Verdict::Deny(Retry::Never) => self.never += 1,
        }
    }
}

fn replay(kind: AlgorithmKind, clockwork: ClockMode, edits: Edits) {
    let decisions = DECISIONS * soak();
    let mut seen = VerdictCounts::default();
    for seed in 0..decisions / TURNS {
        follow(kind, clockwork, edits, seed, &mut seen);
        if soak() > 1 && seed % 50_000 == 49_999 {
            println!("{kind:?}: {} of {decisions} decisions", (seed + 1) * TURNS);
        }
    }
    assert!(seen.allowed > DECISIONS / 10, "{kind:?}: {seen:?}");
    assert!(seen.denied > DECISIONS / 100, "{kind:?}: {seen:?}");
    assert!(seen.never > DECISIONS / 1_000, "{kind:?}: {seen:?}");
    let waits = matches!(
        kind,
        AlgorithmKind::TokenBucket
            | AlgorithmKind::LeakyMeter
            | AlgorithmKind::LeakyQueue
            | AlgorithmKind::Smooth
    );
    assert_eq!(seen.waited > DECISIONS / 1_000, waits, "{kind:?}: {seen:?}");
}

fn follow(
    kind: AlgorithmKind,
    clockwork: ClockMode,
    edits: Edits,
    seed: u64,
    seen: &mut VerdictCounts,
) {
    let mut history = History::new(kind, clockwork, edits, seed);
    let mut counter = Counter::absent(history.limit());
    let mut ledger = Ledger::new(history.limit());
    let mut story = Vec::new();
    for number in 0..TURNS {
        let turn = history.turn();
        ledger.shown(counter.state());
        let before = counter.clone();
        let charge = Charge::new(Key::new("k").unwrap(), &turn.limit, turn.op).unwrap();
        let got = counter.charge(&charge.with_patience(turn.patience), turn.now);
        let expected = ledger.charge(&turn.limit, turn.op, turn.patience, turn.now);
        story.push((turn.now, turn.op, turn.patience, got.verdict));
        assert!(
            expected.agrees(&got),
            "{kind:?}, seed {seed}, turn {number}, under {} (rev {:?}, {:?}), named {} (rev \
             {:?})\nexpected {expected:?}\n     got {got:?}\n  before {before:?}\n   after \
             {counter:?}\nlast turns: {:#?}",
            ledger.under(),
            ledger.under().revision(),
            ledger.under().on_change(),
            turn.limit,
            turn.limit.revision(),
            &story[story.len().saturating_sub(6)..],
        );
        seen.count(got.verdict);
        history.hear(&got);
    }
}

macro_rules! replays {
    ($($kind:ident: $steady:ident, $unsteady:ident, $edited:ident;)+) => {$(
        // E7, E10, E11, E12, E15
        #[test]
        fn $steady() {
            replay(AlgorithmKind::$kind, ClockMode::Forward, Edits::None);
        }

        // E7, E15, E19, E20
        #[test]
        fn $unsteady() {
            replay(AlgorithmKind::$kind, ClockMode::Unsteady, Edits::None);
        }

        // E19, E28
        #[test]
        fn $edited() {
            replay(AlgorithmKind::$kind, ClockMode::Unsteady, Edits::Live);
        }
    )+};
}

replays! {
    FixedWindow: fixed_window_answers_as_its_oracle, fixed_window_on_an_unsteady_clock_answers_as_its_oracle, fixed_window_edited_live_answers_as_its_oracle;
    SlidingLog: sliding_log_answers_as_its_oracle, sliding_log_on_an_unsteady_clock_answers_as_its_oracle, sliding_log_edited_live_answers_as_its_oracle;
    Conservative: conservative_window_answers_as_its_oracle, conservative_window_on_an_unsteady_clock_answers_as_its_oracle, conservative_window_edited_live_answers_as_its_oracle;
    Weighted: weighted_window_answers_as_its_oracle, weighted_window_on_an_unsteady_clock_answers_as_its_oracle, weighted_window_edited_live_answers_as_its_oracle;
    TokenBucket: token_bucket_answers_as_its_oracle, token_bucket_on_an_unsteady_clock_answers_as_its_oracle, token_bucket_edited_live_answers_as_its_oracle;
    LeakyMeter: leaky_meter_answers_as_its_oracle, leaky_meter_on_an_unsteady_clock_answers_as_its_oracle, leaky_meter_edited_live_answers_as_its_oracle;
    LeakyQueue: leaky_queue_answers_as_its_oracle, leaky_queue_on_an_unsteady_clock_answers_as_its_oracle, leaky_queue_edited_live_answers_as_its_oracle;
    Smooth: smooth_answers_as_its_oracle, smooth_on_an_unsteady_clock_answers_as_its_oracle, smooth_edited_live_answers_as_its_oracle;
    Concurrency: concurrency_answers_as_its_oracle, concurrency_on_an_unsteady_clock_answers_as_its_oracle, concurrency_edited_live_answers_as_its_oracle;
}
