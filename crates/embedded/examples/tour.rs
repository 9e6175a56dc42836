//! A tour of the embedded store, in virtual time (`make run`).
//!
//! Three scenes: how each algorithm answers the same bursts, a request over three limits of which
//! one refuses, and a limit that is raised while it is in use. The clock is set by hand, so
//! nothing here sleeps. Everything shown is asserted: if the store answered otherwise, this
//! program would stop instead of printing it.

use std::error::Error;
use std::time::Duration;

use tollgate_embedded::EmbeddedStore;
use tollgate_embedded::core::algorithm::{
    Algorithm, Anchor, Concurrency, FixedWindow, LeakyMeter, LeakyQueue, SlidingLog, SlidingWindow,
    Smooth, TokenBucket,
};
use tollgate_embedded::core::testing::ManualClock;
use tollgate_embedded::core::{
    Charge, Decision, Holder, Key, Limit, OnChange, Op, Request, Retry, Revision, Verdict,
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    same_bursts_for_all()?;
    three_limits_one_request()?;
    a_limit_raised_in_use()?;
    println!("\nWhat each algorithm promises, and how to use it: README.md");
    Ok(())
}

/// When bursts come, in seconds after the start.
const MOMENTS: [u64; 4] = [0, 1, 5, 10];

/// The number of tasks that ask at once.
const BURST: u64 = 8;

/// One row of the table: an algorithm, and what it must answer at each of the moments.
struct Row {
    name: &'static str,
    algorithm: Algorithm,
    patience: Duration,
    answers: [&'static str; MOMENTS.len()],
}

fn rows() -> [Row; 10] {
    let none = Duration::ZERO;
    let some = Duration::from_secs(4);
    let row = |name, algorithm, patience, answers| Row { name, algorithm, patience, answers };
    let aligned = FixedWindow { anchor: Anchor::Epoch }.into();
    let (exact, weighted) = (SlidingWindow::conservative(), SlidingWindow::weighted());
    let warming = Smooth::warming_up(Duration::from_secs(10));
    [
        row(
            "fixed window",
            aligned,
            none,
            ["5, retry 1s", "5, retry 10s", "0, retry 6s", "0, retry 1s"],
        ),
        row(
            "sliding log",
            SlidingLog.into(),
            none,
            ["5, retry 10s", "0, retry 9s", "0, retry 5s", "5, retry 10s"],
        ),
        row(
            "sliding window",
            exact.into(),
            none,
            ["5, retry 11s", "0, retry 10s", "0, retry 6s", "0, retry 1s"],
        ),
        row(
            "  weighted",
            weighted.into(),
            none,
            ["5, retry 3s", "0, retry 2s", "2, retry 2s", "2, retry 1s"],
        ),
        row(
            "token bucket",
            TokenBucket.into(),
            none,
            ["5, retry 2s", "0, retry 1s", "2, retry 1s", "3, retry 2s"],
        ),
        row(
            "leaky meter",
            LeakyMeter.into(),
            some,
            ["5+2, retry 2s", "0, retry 1s", "0+2, retry 1s", "1+2, retry 2s"],
        ),
        row(
            "leaky queue",
            LeakyQueue.into(),
            some,
            ["1+2, retry 2s", "0, retry 1s", "0+2, retry 1s", "1+2, retry 2s"],
        ),
        row(
            "smooth, bursty",
            Smooth::bursty().into(),
            none,
            ["6, retry 2s", "0, retry 1s", "2, retry 1s", "3, retry 2s"],
        ),
        row(
            "smooth, warming up",
            warming.into(),
            none,
            ["1, retry 5.2s", "0, retry 4.2s", "0, retry 200ms", "1, retry 5.2s"],
        ),
        row(
            "concurrency",
            Concurrency.into(),
            none,
            ["5, retry 10s", "0, retry 9s", "0, retry 5s", "5, retry 10s"],
        ),
    ]
}

/// Every algorithm is given `5 per 10s` and asked for eight permits at once, four times.
fn same_bursts_for_all() -> Outcome {
    println!(
        "Eight requests at once, four times, under `5 per 10s`. `5` pass now; `5+2`: five pass"
    );
    println!(
        "now and two later (callers of the leaky buckets have 4 s of patience). The others are"
    );
    println!("refused, and the first of them is told when to ask again.\n");
    print!("{:<20}", "");
    MOMENTS.iter().for_each(|second| print!("{:<17}", format!("at {second} s")));
    println!();
    for row in rows() {
        let clock = ManualClock::default();
        // One second before a boundary of aligned windows.
        clock.advance(Duration::from_secs(9));
        let store = EmbeddedStore::builder().with_clock(clock.clone());
        let limit = Limit::new(row.algorithm, "5 per 10s".parse()?)?;
        print!("{:<20}", row.name);
        let mut second = 0;
        for (moment, expected) in MOMENTS.into_iter().zip(row.answers) {
            clock.advance(Duration::from_secs(moment.saturating_sub(second)));
            second = moment;
            let shown = burst(&store, &limit, row.patience, moment)?;
            assert_eq!(shown, expected, "{} at {moment} s", row.name);
            print!("{shown:<17}");
        }
        println!();
    }
    Ok(())
}

/// Charges a burst, and tells what became of it.
fn burst(
    store: &EmbeddedStore<ManualClock>,
    limit: &Limit,
    patience: Duration,
    moment: u64,
) -> Outcome<String> {
    let (mut now, mut later, mut retry) = (0_u64, 0_u64, None);
    for number in 0..BURST {
        let holder = Holder(u128::from(moment) << 64 | u128::from(number));
        let op = match limit.algorithm() {
            Algorithm::Concurrency(_) => Op::Acquire { holder, lease: limit.quota().period() },
            _ => Op::Take(1),
        };
        let charge = Charge::new(Key::new("tour")?, limit, op)?.with_patience(patience);
        match store.charge_one(&charge).verdict {
            Verdict::Allow => now = now.saturating_add(1),
            Verdict::Wait(_) => later = later.saturating_add(1),
            Verdict::Deny(Retry::After(after)) => retry = retry.or(Some(after)),
            Verdict::Deny(Retry::Never) => return Err("a cost of 1 is within every limit".into()),
        }
    }
    let later = if later > 0 { format!("+{later}") } else { String::new() };
    let retry = retry.map_or(String::new(), |after| format!(", retry {after:?}"));
    Ok(format!("{now}{later}{retry}"))
}

/// All or none: what the first two limits would allow is not charged when the third refuses.
fn three_limits_one_request() -> Outcome {
    let store = EmbeddedStore::builder().with_clock(ManualClock::default());
    let everyone = Limit::new(TokenBucket, "1000 per 1s".parse()?)?;
    let address = Limit::new(SlidingLog, "20 per 1m".parse()?)?;
    let user = Limit::new(TokenBucket, "1 per 10s burst 2".parse()?)?;
    let charges = [
        Charge::take(Key::new("everyone")?, &everyone, 1)?,
        Charge::take(Key::new("address:192.0.2.7")?, &address, 1)?,
        Charge::take(Key::new("user:42")?, &user, 1)?,
    ];
    let request = Request::new(&charges)?;

    println!("\nOne request under three limits: everyone {everyone},");
    println!("address {address}, user {user}.\n");
    for number in 1..=3_u64 {
        let answer = store.charge_request(&request);
        let left: Vec<u64> = answer.decisions.iter().map(|decision| decision.remaining).collect();
        println!("request {number}: {}; left {left:?}", tell(answer.verdict));

        let spent = number.min(2);
        let expected = [1000, 20, 2].map(|full: u64| full.saturating_sub(spent));
        assert_eq!(left, expected, "two passed, and the third charged nobody");
        assert_eq!(answer.refused_by, (number == 3).then_some(2), "the user's limit refuses");
    }
    println!("The user's limit refused the third, so neither of the others was charged for it.");
    Ok(())
}

/// A higher revision converts what was used; a lower one is judged by the newer limit.
fn a_limit_raised_in_use() -> Outcome {
    let store = EmbeddedStore::builder().with_clock(ManualClock::default());
    let old = Limit::new(TokenBucket, "5 per 1h".parse()?)?.with_revision(Revision(1));
    let new = Limit::new(TokenBucket, "10 per 1h".parse()?)?
        .with_revision(Revision(2))
        .with_on_change(OnChange::Keep);
    let take = |limit, cost| -> Outcome<Decision> {
        Ok(store.charge_one(&Charge::take(Key::new("user:42")?, limit, cost)?))
    };

    println!("\nA limit raised while in use, keeping what was used.\n");
    for (limit, cost, left) in [(&old, 4, 1), (&new, 1, 5), (&old, 1, 4)] {
        let decision = take(limit, cost)?;
        let revision = limit.revision().0;
        println!(
            "revision {revision}, {limit}: take {cost}: {}; left {}",
            tell(decision.verdict),
            decision.remaining
        );
        assert_eq!((decision.verdict, decision.remaining), (Verdict::Allow, left));
    }
    println!("The old revision, still in use elsewhere, is judged by the new limit and refills");
    println!("nothing.");
    Ok(())
}

fn tell(verdict: Verdict) -> String {
    match verdict {
        Verdict::Allow => "allowed".to_owned(),
        Verdict::Wait(wait) => format!("allowed in {wait:?}"),
        Verdict::Deny(Retry::After(after)) => format!("refused, retry after {after:?}"),
        Verdict::Deny(Retry::Never) => "refused for good".to_owned(),
    }
}
