//! Several charges, all or none; and limits that change under way.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::unwrap_used,
    reason = "a test shall stop at an overflow"
)]

use std::time::Duration;

use crate::support::{SECOND, START, Subject, at, deny_after, limit};
use tollgate_core::algorithm::{Anchor, Concurrency, FixedWindow, LeakyQueue, TokenBucket};
use tollgate_core::testing::history::{AlgorithmKind, ClockMode, Edits};
use tollgate_core::testing::{History, Rng};
use tollgate_core::{
    Answer, Charge, ChargeTarget, Counter, Decision, Holder, Key, Limit, OnChange, Op, Request,
    RequestError, Retry, Revision, State, Timestamp, Verdict,
};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn targets(places: &[usize]) -> Vec<ChargeTarget> {
    places.iter().copied().map(ChargeTarget::Counter).collect()
}

/// Some counters in the middle of their lives, and one take on each.
struct Scene {
    limits: Vec<Limit>,
    counters: Vec<Counter>,
    costs: Vec<u64>,
    now: Timestamp,
}

impl Scene {
    fn random(rng: &mut Rng) -> Self {
        let now = at(START + rng.below(SECOND));
        let mut scene = Self { limits: vec![], counters: vec![], costs: vec![], now };
        for _ in 0..rng.within(1, NAMES.len() as u64) {
            let kind = rng.pick(&AlgorithmKind::ALL);
            let kind =
                if kind == AlgorithmKind::Concurrency { AlgorithmKind::TokenBucket } else { kind };
            let limit = kind.limit(rng);
            let mut subject = Subject::new(&limit);
            let burst = limit.quota().burst().get();
            for _ in 0..rng.below(5) {
                let cost = rng.within(1, burst);
                let before = rng.below(SECOND);
                let _ = subject.take(cost, now.as_micros() - before);
            }
            subject.counter.settle(&limit, now);
            scene.limits.push(limit);
            scene.counters.push(subject.counter);
            scene.costs.push(rng.pick(&[1, 1, 2, burst, burst / 2 + 1]));
        }
        scene
    }

    fn charges(&self) -> Vec<Charge<'_>> {
        let key = |i: usize| Key::new(NAMES[i]).unwrap();
        let rows = self.limits.iter().zip(&self.costs).enumerate();
        rows.map(|(i, (limit, cost))| Charge::take(key(i), limit, *cost).unwrap()).collect()
    }

    /// The decision on each charge if it were alone.
    fn alone(&self) -> Vec<Decision> {
        let charges = self.charges();
        let rows = charges.iter().zip(&self.counters);
        rows.map(|(charge, counter)| counter.clone().charge(charge, self.now)).collect()
    }

    fn judge(&self, charges: &[Charge<'_>], place: &[usize]) -> (Answer, Vec<Counter>) {
        let mut counters = self.counters.clone();
        let answer = Request::new(charges).unwrap().judge(&mut counters, &targets(place), self.now);
        (answer, counters)
    }

    fn judge_all(&self) -> (Answer, Vec<Counter>) {
        let place: Vec<usize> = (0..self.limits.len()).collect();
        self.judge(&self.charges(), &place)
    }
}

fn each_scene(seed: u64, mut check: impl FnMut(&Scene)) {
    let mut rng = Rng::new(seed);
    let (mut passed, mut refused) = (0, 0);
    for _ in 0..5_000 {
        let scene = Scene::random(&mut rng);
        if scene.judge_all().0.passes() {
            passed += 1
        } else {
            refused += 1
        }
        check(&scene);
    }
    assert!(passed > 500 && refused > 500, "{passed} passed, {refused} refused");
}

// E23, E24
#[test]
fn a_request_is_the_and_of_its_charges_and_charges_all_or_none() {
    each_scene(23, |scene| {
        let alone = scene.alone();
        let (answer, counters) = scene.judge_all();
        let worst = alone.iter().map(|decision| decision.verdict).max().unwrap();
        assert_eq!(answer.verdict, worst);
        if answer.passes() {
            assert_eq!(answer.decisions.as_slice(), alone.as_slice());
            for ((counter, charge), before) in
                counters.iter().zip(scene.charges()).zip(&scene.counters)
            {
                let mut expected = before.clone();
                let _ = expected.charge(&charge, scene.now);
                assert_eq!(*counter, expected, "charged its own cost");
            }
            assert_eq!(answer.refused_by, None);
        } else {
            assert_eq!(counters, scene.counters, "a refused request charges nobody");
            let by = answer.refused_by.unwrap();
            assert_eq!(alone[by].verdict, worst, "the longest retry binds");
        }
    });
}

// E23
#[test]
fn in_a_refused_request_what_would_pass_is_shown_uncharged() {
    each_scene(24, |scene| {
        let (answer, _) = scene.judge_all();
        if answer.passes() {
            return;
        }
        for (i, decision) in answer.decisions.iter().enumerate() {
            let charge =
                Charge::new(Key::new("k").unwrap(), &scene.limits[i], Op::Peek(0)).unwrap();
            let stands = scene.counters[i].clone().charge(&charge, scene.now);
            assert_eq!(decision.remaining, stands.remaining);
            assert_eq!(decision.reset_after, stands.reset_after);
        }
    });
}

// E25
#[test]
fn the_order_of_charges_does_not_matter() {
    let mut rng = Rng::new(25);
    each_scene(25, |scene| {
        let mut place: Vec<usize> = (0..scene.limits.len()).collect();
        for i in (1..place.len()).rev() {
            place.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let charges = scene.charges();
        let shuffled: Vec<Charge<'_>> = place.iter().map(|i| charges[*i]).collect();

        let (answer, counters) = scene.judge(&shuffled, &place);

        let (expected, expected_counters) = scene.judge_all();
        assert_eq!(answer.verdict, expected.verdict);
        assert_eq!(counters, expected_counters);
        for (i, decision) in place.iter().zip(&answer.decisions) {
            assert_eq!(*decision, expected.decisions[*i]);
        }
    });
}

// E26
#[test]
fn adding_a_charge_never_turns_a_refusal_into_a_pass() {
    each_scene(26, |scene| {
        let charges = scene.charges();
        let place: Vec<usize> = (0..charges.len()).collect();
        let mut before = Verdict::Allow;
        for some in 1..=charges.len() {
            let (answer, _) = scene.judge(&charges[..some], &place[..some]);
            assert!(answer.verdict >= before, "{before:?} became {:?}", answer.verdict);
            before = answer.verdict;
        }
    });
}

#[test]
fn an_empty_request_passes() {
    assert!(Request::new(&[]).unwrap().judge(&mut [], &[], at(START)).passes());
}

#[test]
fn of_a_group_any_one_suffices_and_those_that_refuse_are_not_charged() {
    each_scene(30, |scene| {
        let alone = scene.alone();
        let charges: Vec<Charge<'_>> = scene.charges().into_iter().map(Charge::any_of).collect();
        let place: Vec<usize> = (0..charges.len()).collect();

        let (answer, counters) = scene.judge(&charges, &place);

        let best = alone.iter().map(|decision| decision.verdict).min().unwrap();
        assert_eq!(answer.verdict, best);
        for (i, decision) in alone.iter().enumerate() {
            let mut expected = scene.counters[i].clone();
            if decision.passes() {
                let _ = expected.charge(&charges[i], scene.now);
            }
            assert_eq!(counters[i], expected);
        }
    });
}

#[test]
fn a_group_does_not_outvote_what_must_pass() {
    let (spent, free) = (limit(TokenBucket, "1 per 1s"), limit(TokenBucket, "5 per 1s"));
    let key = |name| Key::new(name).unwrap();
    let charges = [
        Charge::take(key("must"), &spent, 1).unwrap(),
        Charge::take(key("any"), &free, 1).unwrap().any_of(),
        Charge::take(key("other"), &spent, 1).unwrap().any_of(),
    ];
    let mut used = Subject::new(&spent);
    assert!(used.take(1, START).passes());
    let fresh = [Counter::absent(&spent), Counter::absent(&free), Counter::absent(&spent)];
    let request = Request::new(&charges).unwrap();

    let mut must_refuses = fresh.clone();
    must_refuses[0] = used.counter.clone();
    let answer = request.judge(&mut must_refuses, &targets(&[0, 1, 2]), at(START));
    assert_eq!((answer.verdict, answer.refused_by), (deny_after(SECOND), Some(0)));
    assert_eq!(must_refuses[1], fresh[1], "nobody is charged");

    let mut one_refuses = fresh;
    one_refuses[2] = used.counter;
    let answer = request.judge(&mut one_refuses, &targets(&[0, 1, 2]), at(START));
    assert_eq!((answer.verdict, answer.refused_by), (Verdict::Allow, None));
    assert_eq!(answer.decisions[1].remaining, 4);
}

// E13 across one request: charges on one key see what those before them would leave.
#[test]
fn charges_on_one_key_add_up() {
    let bucket = limit(TokenBucket, "1 per 1s burst 5");
    let key = Key::new("k").unwrap();
    let twice = |a, b| {
        let charges =
            [Charge::take(key, &bucket, a).unwrap(), Charge::take(key, &bucket, b).unwrap()];
        let mut counters = [Counter::absent(&bucket)];
        let request = Request::new(&charges).unwrap();
        (request.judge(&mut counters, &targets(&[0, 0]), at(START)), counters[0].clone())
    };

    let (answer, counter) = twice(2, 3);
    assert_eq!(answer.verdict, Verdict::Allow);
    assert_eq!([answer.decisions[0].remaining, answer.decisions[1].remaining], [3, 0]);
    assert_ne!(counter, Counter::absent(&bucket));

    let (answer, counter) = twice(3, 3);
    let never = Verdict::Deny(Retry::Never);
    assert_eq!((answer.verdict, answer.refused_by), (never, Some(1)), "six never fit into five");
    assert_eq!(counter, Counter::absent(&bucket), "all or none");
    assert_eq!(answer.decisions[1].remaining, 5, "shown as it stands");
    assert_eq!(answer.decisions[0].remaining, 5, "shown as it stands");
}

#[test]
fn what_is_no_request_is_refused() {
    let (queue, other) = (limit(LeakyQueue, "1 per 1s"), limit(LeakyQueue, "2 per 1s"));
    let bucket = limit(TokenBucket, "1 per 1s");
    let key = |name| Key::new(name).unwrap();
    let wait = Duration::from_secs(1);
    let take = |name, limit| Charge::take(key(name), limit, 1).unwrap();

    let two_wait = [take("a", &queue).with_patience(wait), take("b", &queue).with_patience(wait)];
    let two_limits = [take("a", &queue), take("a", &other)];
    let many = vec![take("a", &queue); 65];

    assert_eq!(Request::new(&two_wait).err(), Some(RequestError::SeveralWait { charges: 2 }));
    assert_eq!(Request::new(&two_limits).err(), Some(RequestError::TwoLimits { charge: 1 }));
    assert_eq!(Request::new(&many).err(), Some(RequestError::TooMany { charges: 65 }));
    assert!(Request::new(&many[..64]).is_ok());
    assert!(Request::new(&[take("a", &queue).with_patience(wait), take("b", &queue)]).is_ok());
    assert!(Request::new(&[take("a", &queue), take("a", &bucket)]).is_ok(), "they count apart");
}

#[test]
fn a_request_with_one_that_waits_waits() {
    let (queue, bucket) = (limit(LeakyQueue, "1 per 1s burst 5"), limit(TokenBucket, "5 per 1s"));
    let key = |name| Key::new(name).unwrap();
    let patience = Duration::from_secs(1);
    let charges = [
        Charge::take(key("b"), &bucket, 1).unwrap(),
        Charge::take(key("q"), &queue, 1).unwrap().with_patience(patience),
    ];
    let mut counters = [Counter::absent(&bucket), Counter::absent(&queue)];
    let request = Request::new(&charges).unwrap();

    let verdicts: Vec<Verdict> = (0..3)
        .map(|_| request.judge(&mut counters, &targets(&[0, 1]), at(START)).verdict)
        .collect();

    assert_eq!(verdicts, [Verdict::Allow, Verdict::Wait(patience), deny_after(SECOND)]);
    let left = Charge::new(key("b"), &bucket, Op::Peek(0)).unwrap();
    assert_eq!(counters[0].charge(&left, at(START)).remaining, 3, "the third charged nobody");
}

#[test]
fn of_a_group_nobody_waits_when_another_passes_at_once() {
    let (queue, bucket) = (limit(LeakyQueue, "1 per 1s burst 5"), limit(TokenBucket, "5 per 1s"));
    let key = |name| Key::new(name).unwrap();
    let mut line = Subject::new(&queue);
    assert!(line.take(1, START).passes());
    let charges = [
        Charge::take(key("q"), &queue, 1).unwrap().with_patience(Duration::from_secs(1)).any_of(),
        Charge::take(key("b"), &bucket, 1).unwrap().any_of(),
    ];
    let mut counters = [line.counter.clone(), Counter::absent(&bucket)];

    let answer = Request::new(&charges).unwrap().judge(&mut counters, &targets(&[0, 1]), at(START));

    assert_eq!(answer.verdict, Verdict::Allow);
    assert_eq!(counters[0], line.counter, "no place is taken in the line");
    assert_eq!(answer.decisions[1].remaining, 4);
}

fn revision(quota: &str, number: u64, how: OnChange) -> Limit {
    limit(TokenBucket, quota).with_revision(Revision(number)).with_on_change(how)
}

#[test]
fn a_higher_revision_converts_what_was_used_once() {
    for (how, left) in [(OnChange::Keep, 410), (OnChange::Scale, 50), (OnChange::Reset, 500)] {
        let mut subject = Subject::new(&revision("100 per 1h", 1, how));
        assert!(subject.take(90, START).passes());
        subject.limit = revision("500 per 1h", 2, how);

        assert_eq!(subject.peek(0, START).remaining, left);
        assert_eq!(subject.peek(0, START).remaining, left, "once, not at every charge");
    }
}

#[test]
fn a_lower_revision_is_judged_by_the_newer_limit() {
    let (old, new) =
        (revision("100 per 1h", 1, OnChange::Keep), revision("5 per 1h", 2, OnChange::Keep));
    let mut subject = Subject::new(&new);
    assert!(subject.take(5, START).passes());
    subject.limit = old;

    assert_eq!(subject.take(50, START).verdict, Verdict::Deny(Retry::Never), "above 5");
    assert_eq!(*subject.counter.under(), new);
}

// Two versions of a rule during a roll-out: neither may give back what the other counted.
#[test]
fn alternating_revisions_refill_nothing() {
    for kind in AlgorithmKind::ALL.into_iter().filter(|kind| *kind != AlgorithmKind::Concurrency) {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let how = rng.pick(&[OnChange::Keep, OnChange::Scale, OnChange::Reset]);
            let old = kind.limit(&mut rng).with_revision(Revision(1)).with_on_change(how);
            let new = kind.limit(&mut rng).with_revision(Revision(2)).with_on_change(how);
            let mut subject = Subject::new(&new);
            let mut before = subject.take(1, START).remaining;
            if *subject.counter.state() == State::Absent {
                continue; // Who pays for itself and cannot wait never begins.
            }
            for turn in 0..40 {
                subject.limit = if turn % 2 == 0 { old } else { new };
                let decision = subject.take(rng.within(1, 3), START);
                assert!(decision.remaining <= before, "{old} and {new}: {decision:?}");
                before = decision.remaining;
            }
        }
    }
}

// E28
#[test]
fn raising_a_limit_takes_no_credit_away() {
    let mut rng = Rng::new(28);
    for _ in 0..20_000 {
        let burst = rng.within(1, 1_000);
        let quota = |count: u64, burst: u64| format!("{count} per 997ms burst {burst}");
        let count = rng.within(1, 1_000);
        let how = rng.pick(&[OnChange::Keep, OnChange::Reset]);
        let more = quota(count + rng.below(100), burst + rng.below(100));
        let mut subject = Subject::new(&revision(&quota(count, burst), 1, how));
        let _ = subject.take(rng.within(1, burst), START);
        let now = START + rng.below(SECOND);
        let before = subject.peek(0, now).remaining;
        subject.limit = revision(&more, 2, how);

        let after = subject.peek(0, now).remaining;

        assert!(after >= before, "{before} became {after} under {}", subject.limit);
    }
}

// E28
#[test]
fn after_lowering_a_limit_the_new_bound_holds_at_once() {
    let mut rng = Rng::new(29);
    for seed in 0..300 {
        let how = rng.pick(&[OnChange::Keep, OnChange::Scale, OnChange::Reset]);
        let mut history =
            History::new(AlgorithmKind::TokenBucket, ClockMode::Forward, Edits::None, seed);
        let mut subject = Subject::new(history.limit());
        let mut grants: Vec<(u64, u64)> = Vec::new();
        for turn in 0..200 {
            if turn == 60 {
                let quota = history.limit().quota();
                let text =
                    format!("{} per {}us burst 2", quota.count(), quota.period().as_micros());
                subject.limit = revision(&text, 7, how);
            }
            let asked = history.turn();
            let Op::Take(cost) = asked.op else { continue };
            let now = asked.now.as_micros();
            let decision = subject.take(if turn < 60 { cost } else { 1 }, now);
            history.hear(&decision);
            if turn >= 60 && decision.passes() {
                grants.push((now, 1));
            }
        }
        let quota = subject.limit.quota();
        for (i, first) in grants.iter().enumerate() {
            for (n, last) in grants[i..].iter().enumerate() {
                let refilled = u128::from(last.0 - first.0) * u128::from(quota.count().get())
                    / quota.period().as_micros();
                assert!((n as u128) < 2 + refilled, "{}", subject.limit);
            }
        }
    }
}

#[test]
fn two_quotas_that_take_turns_on_one_key_refill_nothing() {
    // The second quota's burst is a millisecond long. Cut back to that, the first one's hour was
    // forgotten at every turn.
    let (hourly, brief) =
        (limit(TokenBucket, "10 per 1h"), limit(TokenBucket, "1000 per 1s burst 1"));
    let key = Key::new("k").unwrap();
    let mut counter = Counter::absent(&hourly);
    let mut passed = 0;

    for _ in 0..100 {
        passed += (0..10)
            .filter(|_| counter.charge(&Charge::take(key, &hourly, 1).unwrap(), at(START)).passes())
            .count();
        let _ = counter.charge(&Charge::new(key, &brief, Op::Peek(1)).unwrap(), at(START));
    }

    assert_eq!(passed, 10);
}

#[test]
fn an_aligned_window_keeps_its_bound_when_its_period_changes() {
    let aligned = FixedWindow { anchor: Anchor::Epoch };
    let minute = limit(aligned, "10 per 1m").with_revision(Revision(1));
    let hour = limit(aligned, "10 per 1h").with_revision(Revision(2));
    let key = Key::new("k").unwrap();
    let mut counter = Counter::absent(&minute);
    let begin = START - START % (3_600 * SECOND);
    let take = |counter: &mut Counter, limit: &Limit, now| {
        counter.charge(&Charge::take(key, limit, 1).unwrap(), at(now)).passes()
    };
    assert!(take(&mut counter, &minute, begin + 3_569 * SECOND));
    assert!(take(&mut counter, &hour, begin + 3_570 * SECOND), "converts");

    // A window that kept the minute's beginning would end at 7140 s, within an aligned one.
    let granted: usize = [7_139, 7_140, 7_200]
        .map(|second| begin + second * SECOND)
        .map(|now| (0..12).filter(|_| take(&mut counter, &hour, now)).count())
        .iter()
        .sum();

    assert_eq!(granted, 20, "twice the count, around one boundary");
}

#[test]
fn an_older_revision_gets_no_longer_lease_than_the_newer_one_allows() {
    let old = limit(Concurrency, "1 per 1h").with_revision(Revision(1));
    let new = limit(Concurrency, "1 per 1s").with_revision(Revision(2));
    let key = Key::new("k").unwrap();
    let hold = |limit, lease| {
        let lease = Duration::from_secs(lease);
        Charge::new(key, limit, Op::Acquire { holder: Holder(1), lease }).unwrap()
    };
    let mut counter = Counter::absent(&new);
    assert!(counter.charge(&hold(&new, 1), at(START)).passes());

    let decision = counter.charge(&hold(&old, 3600), at(START));

    assert!(decision.passes());
    assert_eq!(decision.reset_after, Duration::from_secs(1));
}

#[test]
fn a_member_of_a_group_that_is_not_charged_leaves_nothing_to_others_on_its_counter() {
    let (ten, other) = (limit(TokenBucket, "1 per 1s burst 10"), limit(TokenBucket, "1 per 1s"));
    let (k, o) = (Key::new("k").unwrap(), Key::new("o").unwrap());
    let mut counters = [Counter::absent(&ten), Counter::absent(&other)];
    assert!(counters[0].charge(&Charge::take(k, &ten, 5).unwrap(), at(START)).passes());
    let debit = Op::Debit { cost: 1, at: at(START) };
    let charges = [
        Charge::take(k, &ten, 6).unwrap().with_patience(Duration::from_secs(60)).any_of(),
        Charge::take(o, &other, 1).unwrap().any_of(),
        Charge::new(k, &ten, debit).unwrap(),
    ];

    let answer =
        Request::new(&charges).unwrap().judge(&mut counters, &targets(&[0, 1, 0]), at(START));

    assert_eq!(answer.verdict, Verdict::Allow);
    let peek = Charge::new(k, &ten, Op::Peek(0)).unwrap();
    assert_eq!(counters[0].charge(&peek, at(START)).remaining, 4, "five and the debit");
}
