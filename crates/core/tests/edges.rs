//! The ends of numbers and of time, and everything that must not be built.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    reason = "a test shall stop at an overflow"
)]

use std::time::Duration;

use crate::support::{NEVER, SECOND, START, Subject, at, deny_after, limit, micros};
use tollgate_core::algorithm::{
    Algorithm, Concurrency, Estimate, FixedWindow, LeakyMeter, LeakyQueue, SlidingLog,
    SlidingWindow, Smooth, TokenBucket,
};
use tollgate_core::state::MAX_USED;
use tollgate_core::state::SmoothState;
use tollgate_core::state::{AheadReason, Bucket, FURTHEST_US};
use tollgate_core::state::{HeldPermit, Holders};
use tollgate_core::testing::history::AlgorithmKind;
use tollgate_core::testing::{Rng, oracle::Ledger};
use tollgate_core::{
    Charge, ChargeError, Counter, Holder, Key, KeyError, Limit, LimitErrorKind, OnChange, Op,
    Quota, Revision, Span, State, Timestamp, Verdict,
};

/// Moments where arithmetic breaks: both ends, beyond 2^53, the year 2262 of signed nanoseconds.
const MOMENTS: [u64; 9] = [
    0,
    1,
    START,
    1 << 53,
    9_223_372_036_854_775,
    u64::MAX / 2,
    u64::MAX - 31_536_000_000_000,
    u64::MAX - 1,
    u64::MAX,
];

const COSTS: [u64; 8] = [0, 1, 2, 1_000, 1 << 53, 1_000_000_000_000_000, u64::MAX - 1, u64::MAX];

fn any_op(kind: AlgorithmKind, limit: &Limit, rng: &mut Rng) -> Op {
    let (cost, moment) = (rng.pick(&COSTS), at(rng.pick(&MOMENTS)));
    if kind == AlgorithmKind::Concurrency {
        let holder = Holder(rng.below(4).into());
        let lease = rng.pick(&[Duration::from_micros(1), limit.quota().period()]);
        return rng.pick(&[
            Op::Peek(cost),
            Op::Acquire { holder, lease },
            Op::Renew { holder, lease },
            Op::Release { holder },
        ]);
    }
    let small = rng.within(1, limit.quota().burst().get());
    rng.pick(&[
        Op::Take(cost),
        Op::Take(small),
        Op::Take(1),
        Op::Peek(cost),
        Op::Debit { cost, at: moment },
        Op::Credit { cost, at: moment },
    ])
}

// E21, C37
#[test]
fn no_cost_and_no_moment_makes_a_limiter_panic_or_leave_its_capacity() {
    let mut rng = Rng::new(21);
    for kind in AlgorithmKind::ALL {
        for round in 0..2_000 {
            let limit = kind.limit(&mut rng);
            let other = kind.limit(&mut rng).with_revision(Revision(round % 2));
            let how = rng.pick(&[OnChange::Keep, OnChange::Scale, OnChange::Reset]);
            let other = other.with_on_change(how);
            let most = |limit| Subject::new(limit).peek(0, START).remaining;
            let most = most(&limit).max(most(&other));
            let mut subject = Subject::new(&limit);
            for _ in 0..40 {
                subject.limit = if rng.chance(1, 20) { other } else { limit };
                let op = any_op(kind, &subject.limit, &mut rng);
                let now = rng.pick(&MOMENTS).saturating_sub(rng.below(3));
                let patience = rng.pick(&[0, 1, SECOND, 31_536_000_000_000]);
                let decision = subject.charge(op, patience, now);
                assert!(decision.remaining <= most, "{limit}, {other}: {decision:?}");
                if let Verdict::Wait(wait) = decision.verdict {
                    assert!(micros(wait) <= patience, "{limit}: {decision:?}");
                }
                let _ = subject.limit.idle_at(subject.counter.state());
            }
        }
    }
}

// E21
#[test]
fn nothing_is_admitted_twice_at_the_end_of_time() {
    for algorithm in [
        Algorithm::from(TokenBucket),
        LeakyMeter.into(),
        LeakyQueue.into(),
        FixedWindow::default().into(),
        SlidingLog.into(),
        SlidingWindow::conservative().into(),
        SlidingWindow::weighted().into(),
    ] {
        for now in MOMENTS {
            let mut subject = Subject::new(&limit(algorithm, "5 per 1m"));
            assert!(subject.drain(now, 100) <= 5, "{algorithm} at {now}");
            assert_eq!(subject.drain(now, 100), 0, "{algorithm} at {now}");
        }
    }
}

// E21: one permit a year and a thousand a microsecond, exact at both ends.
#[test]
fn the_slowest_and_the_fastest_rate_are_exact() {
    let year = 365 * 86_400 * SECOND;
    let mut slow = Subject::new(&limit(TokenBucket, "1 per 365d"));
    assert!(slow.take(1, START).passes());
    assert_eq!(slow.take(1, START).verdict, deny_after(year));
    assert!(!slow.take(1, START + year - 1).passes());
    assert!(slow.take(1, START + year).passes());

    let mut fast = Subject::new(&limit(TokenBucket, "1_000_000_000 per 1s"));
    assert!(fast.take(1_000_000_000, START).passes());
    assert_eq!(fast.take(1_001, START).verdict, deny_after(2));
    assert_eq!(fast.peek(0, START + 1).remaining, 1_000);
}

// C37
#[test]
fn a_cost_above_the_capacity_is_never_granted_and_changes_nothing() {
    let mut rng = Rng::new(37);
    for kind in AlgorithmKind::ALL {
        if matches!(kind, AlgorithmKind::Smooth | AlgorithmKind::Concurrency) {
            continue;
        }
        for _ in 0..200 {
            let mut subject = Subject::new(&kind.limit(&mut rng));
            let full = subject.peek(0, START).remaining;
            for cost in [full + 1, u64::MAX] {
                let decision = subject.charge(Op::Take(cost), 31_536_000_000_000, START);
                assert_eq!(decision.verdict, NEVER, "{}", subject.limit);
                assert_eq!(decision.remaining, full);
            }
        }
    }
}

// C37: quota texts are total: what is printed parses to the same.
#[test]
fn every_quota_prints_as_it_parses() {
    let mut rng = Rng::new(1);
    for _ in 0..200_000 {
        let count = rng.magnitude(Quota::MAX_COUNT);
        let unit = rng.pick(&[1, 1_000, SECOND, 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND]);
        let period = rng.magnitude(400).max(1).saturating_mul(unit);
        let Ok(quota) = Quota::new(count, Duration::from_micros(period)) else { continue };
        let quota = quota.with_burst(rng.magnitude(Quota::MAX_COUNT)).unwrap_or(quota);

        assert_eq!(quota.to_string().parse(), Ok(quota), "{quota}");
    }
}

// E50: a parser never panics, whatever it is fed.
#[test]
fn no_text_makes_the_parser_panic() {
    let mut rng = Rng::new(2);
    let words = ["per", "burst", "1", "_", "1.5", "1s", "1µs", "-1", "0", "99999999999999999999"];
    for _ in 0..100_000 {
        let text: Vec<&str> = (0..rng.below(7)).map(|_| rng.pick(&words)).collect();
        let text = text.join(rng.pick(&[" ", "", "  "]));
        if let Ok(quota) = text.parse::<Quota>() {
            assert_eq!(quota.to_string().parse(), Ok(quota));
        }
    }
}

// C38
#[test]
fn what_is_no_quota_is_refused_with_the_reason_and_the_way_out() {
    for (text, reason) in [
        ("0 per 1s", "a count of 0 is not a quota"),
        ("-1 per 1s", "\"-1\" is not a whole number"),
        ("1.5 per 1s", "3 per 2s"),
        ("0.1 per 1m", "1 per 10m"),
        ("1e3 per 1s", "is not a whole number"),
        ("18446744073709551616 per 1s", "is above 1000000000000000"),
        ("1000000000000001 per 365d", "is above 1000000000000000"),
        ("1_000_000_001 per 1s", "is above 1000000000 per 1s"),
        ("1 per 0s", "the period is zero"),
        ("1 per 366d", "366d is above 365d"),
        ("1 per 99999999999999999999d", "is not a period"),
        ("1 per m", "is not a period"),
        ("1 per 1s burst 0", "a burst of 0 would refuse everything"),
        ("1 per 1s burst 1000000000000000", "more than ten years to refill"),
        ("1 per 1s burst 2.5", "2.5 is not a whole number"),
        ("", "write `100 per 1m`"),
        ("five per 1s", "is not a whole number"),
        ("1 per 1s burst 2 x", "is not a quota"),
    ] {
        let error = text.parse::<Quota>().unwrap_err().to_string();
        assert!(error.contains(reason), "{text:?}: {error}");
    }
    let long = "1".repeat(1 << 20);
    assert!(long.parse::<Quota>().unwrap_err().to_string().len() < 200);
    assert!(Quota::new(1, Duration::from_nanos(1_500)).is_err());
}

// C38
#[test]
fn what_an_algorithm_cannot_represent_is_refused_with_the_reason() {
    let refused = |algorithm: Algorithm, quota: &str| {
        let error = Limit::new(algorithm, quota.parse().unwrap()).unwrap_err();
        (error.kind(), error.to_string())
    };
    let window = |panes, estimate| SlidingWindow { panes, estimate }.into();
    let (some, exact) = (Estimate::Weighted, Estimate::Conservative);
    let burst = "5 per 1s burst 6";
    for (algorithm, quota, kind, reason) in [
        (FixedWindow::default().into(), burst, LimitErrorKind::Burst, "no burst of its own"),
        (SlidingLog.into(), burst, LimitErrorKind::Burst, "no burst of its own"),
        (window(1, exact), burst, LimitErrorKind::Burst, "no burst of its own"),
        (Concurrency.into(), burst, LimitErrorKind::Burst, "no burst of its own"),
        (SlidingLog.into(), "100001 per 1h", LimitErrorKind::CountTooLarge, "100001 is above"),
        (Concurrency.into(), "10001 per 1h", LimitErrorKind::CountTooLarge, "10001 is above"),
        (Smooth::bursty().into(), "10001 per 1s", LimitErrorKind::TooFast, "10000 per second"),
        (window(7, exact), "5 per 1s", LimitErrorKind::Parameter, "7 equal panes"),
        (window(0, exact), "5 per 1s", LimitErrorKind::Parameter, "use 1 to 64"),
        (window(65, exact), "5 per 65s", LimitErrorKind::Parameter, "use 1 to 64"),
        (window(1, some), "1000000 per 365d", LimitErrorKind::Parameter, "exactly"),
        (
            Smooth::bursty().with_cold_factor(0).into(),
            "5 per 1s",
            LimitErrorKind::Parameter,
            "cold factor of 0",
        ),
    ] {
        let (got, text) = refused(algorithm, quota);
        assert_eq!(got, kind, "{quota}: {text}");
        assert!(text.contains(reason), "{quota}: {text}");
    }
    assert!(Limit::new(SlidingLog, "100000 per 1h".parse().unwrap()).is_ok());
    assert!(Limit::new(Smooth::bursty(), "10000 per 1s".parse().unwrap()).is_ok());
}

// C11
#[test]
fn keys_are_any_bytes_within_their_length() {
    let long = vec![b'x'; 1 << 20];

    assert_eq!(Key::new(""), Err(KeyError::Empty));
    assert_eq!(Key::new(&long[..1_025]), Err(KeyError::TooLong { len: 1_025 }));
    assert_eq!(Key::new(&long), Err(KeyError::TooLong { len: 1 << 20 }));
    assert!(Key::new(&long[..1_024]).is_ok());
    for bytes in [&b"\0"[..], b"{}", b"a:b|c\n", b"\xff\xfe"] {
        assert_eq!(Key::new(bytes).unwrap().as_bytes(), bytes);
    }
}

#[test]
fn an_operation_that_does_not_fit_the_algorithm_cannot_be_charged() {
    let (bucket, holders) = (limit(TokenBucket, "5 per 1s"), limit(Concurrency, "5 per 10s"));
    let key = Key::new("k").unwrap();
    let (holder, now) = (Holder(1), at(START));
    let lease = |micros| Duration::from_micros(micros);
    let error = |limit, op| Charge::new(key, limit, op).unwrap_err();

    for op in [Op::Take(1), Op::Debit { cost: 1, at: now }, Op::Credit { cost: 1, at: now }] {
        assert_eq!(error(&holders, op), ChargeError::NeedsHolder);
    }
    for op in [
        Op::Acquire { holder, lease: lease(1) },
        Op::Renew { holder, lease: lease(1) },
        Op::Release { holder },
    ] {
        assert_eq!(error(&bucket, op), ChargeError::NotConcurrency);
    }
    for asked in [0, 10 * SECOND + 1] {
        let expected = ChargeError::Lease { lease: lease(asked), longest: Duration::from_secs(10) };
        assert_eq!(error(&holders, Op::Acquire { holder, lease: lease(asked) }), expected);
        assert_eq!(error(&holders, Op::Renew { holder, lease: lease(asked) }), expected);
    }
    assert!(Charge::new(key, &holders, Op::Peek(1)).is_ok());
    assert!(Charge::new(key, &bucket, Op::Peek(1)).is_ok());
}

// Found by the oracle: the departure of a cost longer than the time since 1970 was taken to be
// the epoch, so a credit "made at the epoch" emptied the line. E12
#[test]
fn a_credit_of_what_never_departed_empties_no_queue() {
    let mut subject = Subject::new(&limit(LeakyQueue, "1 per 1s burst 3"));
    assert!(subject.take(1, START).passes());
    let credit = Op::Credit { cost: u64::MAX, at: Timestamp::EPOCH };

    let decision = subject.charge(credit, 0, START);

    assert_eq!(decision.remaining, 3, "nothing departed at the epoch");
}

// Found by the oracle: renewing with a shorter lease is answered as if the old one still ran.
#[test]
fn a_shorter_renewal_resets_when_the_new_lease_ends() {
    let mut subject = Subject::new(&limit(Concurrency, "5 per 10s"));
    let acquire = |secs| Op::Acquire { holder: Holder(1), lease: Duration::from_secs(secs) };
    assert!(subject.charge(acquire(10), 0, START).passes());

    let renewed = subject.charge(acquire(1), 0, START);

    assert_eq!(renewed.reset_after, Duration::from_secs(1));
}

/// States that somebody else wrote, as far ahead as a moment can be, refuse for as long as the longest
/// that could have been written, and no longer.
#[test]
fn what_lies_further_ahead_than_it_can_is_moved_back() {
    let (never, now) = (Timestamp::MAX, at(START));
    let arrival = Span { whole: u64::MAX, part: 0 };
    let bucket = |ahead| State::TokenBucket(Bucket { arrival, ahead });
    let queue = State::LeakyQueue(Bucket { arrival, ahead: AheadReason::Waiting(now) });
    let tickets = SmoothState { stored: 0.0, free_at: never, written_at: now };
    let hold = |holder, until| HeldPermit { holder: Holder(holder), until };
    let holders = Holders::restored(now, vec![hold(1, at(START + 5)), hold(2, never)]);
    let states = [
        (limit(TokenBucket, "10 per 1h"), bucket(AheadReason::WithinBurst), 3_600 * SECOND),
        (limit(TokenBucket, "10 per 1h"), bucket(AheadReason::Debt(now)), FURTHEST_US),
        (limit(TokenBucket, "10 per 1h"), bucket(AheadReason::Waiting(at(0))), FURTHEST_US),
        (limit(LeakyQueue, "10 per 1h"), queue, FURTHEST_US),
        (limit(Smooth::bursty(), "1 per 1s"), State::Smooth(tickets), FURTHEST_US + SECOND + 1),
        (limit(Concurrency, "10 per 1s"), State::Concurrency(holders), FURTHEST_US / 12),
    ];
    for (limit, mut state, furthest) in states {
        assert!(limit.settle(&mut state, now), "{limit}");

        assert_eq!(limit.idle_at(&state), Some(at(START + furthest)), "{limit}");
        let settled = state.clone();
        assert!(!limit.settle(&mut state, now), "{limit}: it is settled");
        assert_eq!(state, settled, "{limit}");
    }
}

#[test]
fn a_long_log_is_scaled_as_its_oracle_says() {
    let key = Key::new("k").unwrap();
    let before = limit(SlidingLog, "100_000 per 1h");
    for (count, entries) in [(30_000, 256), (30_000, 257), (70_000, 1_000), (100, 5_000)] {
        let after = limit(SlidingLog, &format!("{count} per 1h")).with_revision(Revision(1));
        let after = after.with_on_change(OnChange::Scale);
        let (mut counter, mut ledger) = (Counter::absent(&before), Ledger::new(&before));
        let mut compare = |limit: &Limit, op: Op, now: Timestamp| {
            let charge = Charge::new(key, limit, op).unwrap();
            let expected = ledger.charge(limit, op, Duration::ZERO, now);
            let decision = counter.charge(&charge, now);
            assert!(expected.agrees(&decision), "{op:?} at {now}: {decision:?}, not {expected:?}");
        };
        for i in 0..entries {
            compare(&before, Op::Take(1 + i % 7), at(START + i * SECOND / 2));
        }
        for i in 0..20 {
            // As the entries leave one by one, so does what may be taken.
            let now = at(START + 3_600 * SECOND + i * entries / 20 * SECOND / 2);
            for cost in [0, 1, count / 10, count / 2] {
                compare(&after, Op::Peek(cost), now);
            }
        }
    }
}

// Found by the oracle: scaling down leaves entries that cost nothing, and the log then waits for
// them to leave. E16
#[test]
fn a_scaled_log_is_full_when_its_last_charge_has_left() {
    let before = limit(SlidingLog, "4 per 10s");
    let after = limit(SlidingLog, "2 per 10s");
    let after = after.with_revision(Revision(1)).with_on_change(OnChange::Scale);
    let mut subject = Subject::new(&before);
    for second in 0..3 {
        assert!(subject.take(1, START + second * SECOND).passes());
    }
    subject.limit = after;

    // Totals 1, 2, 3 of 4 become 0, 1, 1 of 2: one permit, charged at the second moment.
    let scaled = subject.peek(0, START + 2 * SECOND);

    assert_eq!(scaled.remaining, 1);
    assert_eq!(scaled.reset_after, Duration::from_secs(9));
}

// Entries that cost nothing fill a scaled log, so that a take has no entry of its own and drags
// the newest charge along to now, which is meant to happen to debits only. E7
#[test]
fn a_scaled_log_lets_charges_leave_when_they_are_due() {
    let before = limit(SlidingLog, "10 per 10s");
    let after = limit(SlidingLog, "5 per 10s");
    let after = after.with_revision(Revision(1)).with_on_change(OnChange::Scale);
    let mut subject = Subject::new(&before);
    for second in 0..10 {
        assert!(subject.take(1, START + second * SECOND).passes());
    }
    subject.limit = after;
    assert_eq!(subject.peek(0, START + 9 * SECOND).remaining, 0);
    let first = START + 15 * SECOND;
    assert!(subject.take(1, first).passes());
    assert!(subject.take(1, first + SECOND / 2).passes());

    let due = subject.peek(0, first + 10 * SECOND);

    assert_eq!(due.remaining, 4, "what was taken first has left, whatever came after it");
}

// The module says that the oldest part of a debt above its cap is forgiven; what is dropped is
// the newest, though the answer speaks of it.
#[test]
fn a_log_at_its_cap_of_debt_forgives_the_oldest_part() {
    let mut subject = Subject::new(&limit(SlidingLog, "5 per 10s"));
    let later = START + 5 * SECOND;
    for now in [START, later] {
        let debit = Op::Debit { cost: 1 << 40, at: at(now) };
        assert_eq!(subject.charge(debit, 0, now).remaining, 0);
    }

    let when_the_first_has_left = subject.peek(1, START + 10 * SECOND);
    assert_eq!(when_the_first_has_left.verdict, deny_after(5 * SECOND));
}

// A clock that stepped back gathers all that lies ahead in the present pane. The sum was not
// capped: it left what doubles count exactly, and the next debit *lowered* it to the cap.
#[test]
fn a_pane_never_counts_above_the_cap_of_debt() {
    let mut subject = Subject::new(&limit(SlidingWindow::conservative(), "5 per 10s"));
    let most = |subject: &Subject| match subject.counter.state() {
        State::SlidingWindow(panes) => panes.counts.iter().max().copied(),
        _ => None,
    };
    let last = START + 9 * SECOND;
    for now in (START..=last).step_by(500_000) {
        let debit = Op::Debit { cost: u64::MAX, at: at(now) };
        assert!(subject.charge(debit, 0, now).passes());
    }
    assert_eq!(most(&subject), Some(MAX_USED));
    let mut edited = subject.clone();
    edited.limit = limit(SlidingWindow::weighted(), "5 per 10s").with_revision(Revision(1));

    assert!(subject.peek(0, START).passes());
    assert!(edited.peek(0, last).passes());

    assert_eq!(most(&subject), Some(MAX_USED), "ten panes that became one");
    assert_eq!(most(&edited), Some(MAX_USED), "ten panes under a limit that has two");
}

// A debit is counted as 10^15 at most, but a credit of the same cost took off all there was.
#[test]
fn a_window_gives_back_no_more_than_it_counted() {
    let mut subject = Subject::new(&limit(SlidingWindow::conservative(), "5 per 10s"));
    let both = [Op::Debit { cost: u64::MAX, at: at(START) }, Op::Debit { cost: 3, at: at(START) }];
    for debit in both {
        assert!(subject.charge(debit, 0, START).passes());
    }

    let after = subject.charge(Op::Credit { cost: u64::MAX, at: at(START) }, 0, START);

    assert_eq!(after.remaining, 2);
}
