//! Smooth limiters against Guava's published numbers (`semantics.md` §1).
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::float_arithmetic,
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "golden numbers are exact; a test shall stop at an overflow"
)]

use std::time::Duration;

use crate::support::{NEVER, SECOND, START, Subject, at, deny_after, limit, micros, wait};
use tollgate_core::algorithm::{Payment, Smooth};
use tollgate_core::state::{SmoothPlan as Numbers, SmoothState};
use tollgate_core::{Counter, Limit, OnChange, Op, Plan, Revision, State, Verdict};

const MILLI: u64 = 1_000;
const PATIENT: u64 = 3_600 * SECOND;

fn numbers(limit: &Limit) -> Numbers {
    let Plan::Smooth(numbers) = limit.plan() else { panic!("a smooth limit") };
    *numbers
}

fn warming() -> Limit {
    limit(Smooth::warming_up(Duration::from_secs(4)), "2 per 1s")
}

fn tickets(subject: &Subject) -> SmoothState {
    let State::Smooth(tickets) = subject.counter.state() else { panic!("something stored") };
    *tickets
}

/// Acquires one permit after the other, each as soon as the last was granted.
fn waits(subject: &mut Subject, now: &mut u64, times: usize) -> Vec<u64> {
    (0..times)
        .map(|_| match subject.charge(Op::Take(1), PATIENT, *now).verdict {
            Verdict::Allow => 0,
            Verdict::Wait(wait) => {
                *now += micros(wait);
                micros(wait) / MILLI
            }
            Verdict::Deny(_) => panic!("patient enough"),
        })
        .collect()
}

#[test]
fn two_per_second_warming_over_four_have_guavas_numbers() {
    let numbers = numbers(&warming());

    assert_eq!(numbers.stable, 500_000.0);
    assert_eq!(numbers.threshold, 4.0);
    assert_eq!(numbers.max_permits, 8.0);
    assert_eq!(numbers.slope, 250_000.0);
    assert_eq!(numbers.cooldown, 500_000.0);
}

#[test]
fn a_cold_limiter_makes_callers_wait_along_the_ramp() {
    let (mut subject, mut now) = (Subject::new(&warming()), START);
    let ramp = [0, 1375, 1125, 875, 625, 500, 500, 500];

    assert_eq!(waits(&mut subject, &mut now, 8), ramp);

    // Cold again after the warm-up period of idling beyond the next free ticket.
    now = tickets(&subject).free_at.as_micros() + 4 * SECOND;
    assert_eq!(waits(&mut subject, &mut now, 8), ramp);
}

#[test]
fn the_ramp_takes_the_warm_up_period_and_the_rest_half_of_it() {
    let cold = Subject::new(&warming());
    let price = |cost: u64| {
        let mut subject = cold.clone();
        assert!(subject.take(cost, START).passes());
        tickets(&subject).free_at.since(at(START))
    };

    assert_eq!(price(4), Duration::from_secs(4), "from M down to T");
    assert_eq!(price(8) - price(4), Duration::from_secs(2), "from T down to 0");
}

#[test]
fn a_cold_factor_of_one_is_flat() {
    let flat = Smooth::warming_up(Duration::from_secs(4)).with_cold_factor(1);
    let limit = limit(flat, "2 per 1s");
    let (mut subject, mut now) = (Subject::new(&limit), START);

    assert_eq!(numbers(&limit).slope, 0.0);
    assert_eq!(numbers(&limit).max_permits, 12.0, "one and a half times W/s");
    assert_eq!(waits(&mut subject, &mut now, 5), [0, 500, 500, 500, 500]);
}

#[test]
fn splitting_an_acquire_changes_its_price_by_no_more_than_truncation() {
    for quota in ["2 per 1s", "7 per 1s", "997 per 1s"] {
        let limit = limit(Smooth::warming_up(Duration::from_secs(3)).with_max_debt(10_000), quota);
        let after = |parts: &[u64]| {
            let mut subject = Subject::new(&limit);
            for part in parts {
                assert!(subject.charge(Op::Take(*part), PATIENT, START).passes());
            }
            (tickets(&subject).free_at.as_micros(), tickets(&subject).stored)
        };
        for parts in [[1, 9, 1], [4, 4, 3], [10, 0, 1]] {
            let (whole, split) = (after(&[11]), after(&parts));
            assert!(whole.0.abs_diff(split.0) <= 3 * 3, "{quota}: {whole:?} and {split:?}");
            assert!((whole.1 - split.1).abs() < 1e-9);
        }
    }
}

#[test]
fn stored_permits_stay_between_zero_and_the_maximum_and_the_next_free_moment_only_rises() {
    let limit = warming();
    let (mut subject, mut free) = (Subject::new(&limit), 0);
    let mut rng = tollgate_core::testing::Rng::new(1);
    let mut now = START;
    for _ in 0..10_000 {
        now += rng.magnitude(10 * SECOND);
        if subject.charge(Op::Take(rng.within(1, 20)), PATIENT, now).passes() {
            let tickets = tickets(&subject);
            assert!((0.0..=8.0).contains(&tickets.stored), "{tickets:?}");
            assert!(tickets.free_at.as_micros() >= free, "{tickets:?}");
            free = tickets.free_at.as_micros();
        }
    }
}

#[test]
fn a_bursty_limiter_starting_empty_waits_from_the_second_caller_on() {
    let limit = limit(Smooth::bursty(), "5 per 1s");
    let empty = State::Smooth(SmoothState::empty(at(START)));
    let mut subject = Subject { limit, counter: Counter::new(empty, &limit) };
    let mut now = START;

    assert_eq!(waits(&mut subject, &mut now, 4), [0, 200, 200, 200]);
}

#[test]
fn a_bursty_limiter_gives_stored_permits_away() {
    let (mut subject, mut now) = (Subject::new(&limit(Smooth::bursty(), "5 per 1s")), START);

    assert_eq!(waits(&mut subject, &mut now, 8), [0, 0, 0, 0, 0, 0, 200, 200]);
}

#[test]
fn a_large_charge_passes_at_once_and_the_next_caller_pays() {
    let generous = limit(Smooth::bursty().with_max_debt(1_000), "10 per 1s");
    let mut subject = Subject::new(&generous);

    assert_eq!(subject.take(1_000, START).verdict, Verdict::Allow);
    assert_eq!(subject.take(1, START).verdict, deny_after(99 * SECOND));
    let patient = subject.charge(Op::Take(1), 99 * SECOND, START).verdict;
    assert_eq!(patient, wait(99 * SECOND));

    assert_eq!(Subject::new(&generous).take(1_001, START).verdict, NEVER);
    let default = limit(Smooth::bursty(), "10 per 1s");
    assert_eq!(Subject::new(&default).take(101, START).verdict, NEVER, "ten bursts unless said");
    assert_eq!(Subject::new(&default).take(100, START).verdict, Verdict::Allow);
}

#[test]
fn the_cost_does_not_enter_the_question_whether_a_ticket_is_free() {
    let mut subject = Subject::new(&warming());
    assert!(subject.take(1, START).passes());

    for cost in [1, 5, 20] {
        let peek = |patience| subject.clone().charge(Op::Peek(cost), patience, START).verdict;
        assert_eq!(peek(1_375 * MILLI), wait(1_375 * MILLI));
        assert_eq!(peek(1_375 * MILLI - 1), deny_after(1));
    }
}

#[test]
fn who_pays_for_itself_waits_for_its_own_permits() {
    let own = Smooth::warming_up(Duration::from_secs(4)).with_payment(Payment::Own);
    let mut subject = Subject::new(&limit(own, "2 per 1s"));

    assert_eq!(subject.charge(Op::Take(1), PATIENT, START).verdict, wait(1_375 * MILLI));
    assert_eq!(subject.charge(Op::Take(1), PATIENT, START).verdict, wait(2_500 * MILLI));
}

/// A limiter with half its permits stored, then charged under another rate.
fn revised(how: OnChange) -> (SmoothState, Limit) {
    let before = limit(Smooth::bursty(), "10 per 1s");
    let after = limit(Smooth::bursty(), "20 per 1s").with_revision(Revision(1)).with_on_change(how);
    let mut subject = Subject::new(&before);
    assert!(subject.take(6, START).passes());
    subject.counter.settle(&after, at(START));
    (tickets(&subject), after)
}

#[test]
fn a_new_rate_scales_what_is_stored() {
    let (scaled, _) = revised(OnChange::Scale);
    assert_eq!(scaled.stored, 8.0, "4 of 10 become 8 of 20");
    let (kept, _) = revised(OnChange::Keep);
    assert_eq!(kept.stored, 14.0, "6 stay used");
}

#[test]
fn a_new_rate_leaves_debt_as_it_was_priced() {
    let before = limit(Smooth::bursty(), "10 per 1s");
    let after = limit(Smooth::bursty(), "1 per 1s")
        .with_revision(Revision(1))
        .with_on_change(OnChange::Scale);
    let mut subject = Subject::new(&before);
    assert!(subject.take(20, START).passes());
    subject.limit = after;

    assert_eq!(subject.take(1, START).verdict, deny_after(SECOND), "ten permits at the old rate");
}
