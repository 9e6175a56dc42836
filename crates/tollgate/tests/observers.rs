//! Observers: the events that they get, and that nobody waits for them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::{StoreConnection, backend, log, rule, rules, user, with};
use tollgate::TokenBucket;
use tollgate::rules::declaration::{Ban, Mode};
use tollgate::{DenyCacheMode, Event, Limiter, Observer};

#[derive(Default)]
struct EventLog(Mutex<Vec<String>>);

impl Observer for EventLog {
    fn observe(&self, event: &Event) {
        let line = match event {
            Event::Admitted { ruling } => format!("admitted v{}", ruling.version()),
            Event::Refused { ruling } => {
                format!("refused by {}", ruling.refusing().unwrap().rule.unwrap().name())
            }
            Event::Degraded { outage, .. } => format!("degraded {:?}", outage.cause),
            Event::ShadowRefused { ruling } => {
                format!("shadow {}", ruling.refusing().unwrap().rule.unwrap().name())
            }
            Event::Banned { rule, .. } => format!("banned by {rule}"),
            Event::RulesChanged { from, to } => format!("rules {from} to {to}"),
            _ => "?".into(),
        };
        self.0.lock().unwrap().push(line);
    }
}

#[tokio::test]
async fn observers_are_told_everything_in_order() {
    let mut shadow = log(rule("shadow", &[], &["1 per 1h"]));
    shadow.mode = Mode::Shadow;
    let mut banning = log(rule("login", &["user"], &["2 per 1h"]));
    let hour = Duration::from_secs(3600);
    banning.ban = Some(Ban { after: 1, within: hour, lasts: hour });
    let (seen, connection) = (Arc::new(EventLog::default()), StoreConnection::to(&backend()));
    let limiter = Limiter::builder(connection.clone())
        .deny_cache(DenyCacheMode::Off)
        .observer(Arc::clone(&seen))
        .build();

    limiter.set_rules(rules(1, [banning, shadow])).unwrap();
    for _ in 0..3 {
        let _ = limiter.admit(&user("alice")).await;
        // The background jobs are another task.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    connection.set(crate::common::ConnectionState::Closed);
    let _ = limiter.admit(&user("bob")).await;

    // The observers' thread is told later; wait for the last word.
    let expected = [
        "rules 0 to 1",
        "admitted v1",
        "admitted v1",
        "shadow shadow",
        "refused by login",
        "banned by login",
        "degraded Unavailable",
    ];
    for _ in 0..500 {
        if seen.0.lock().unwrap().len() >= expected.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(*seen.0.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_slow_observer_delays_nobody_and_what_it_misses_is_counted() {
    let (release, stuck) = mpsc::channel::<()>();
    struct BlockingObserver(Mutex<mpsc::Receiver<()>>);
    impl Observer for BlockingObserver {
        fn observe(&self, _: &Event) {
            let _ = self.0.lock().unwrap().recv();
        }
    }
    let limiter = Limiter::builder(backend())
        .rules(rules(1, [with(rule("all", &[], &["1000000 per 1s"]), TokenBucket)]))
        .observer(BlockingObserver(Mutex::new(stuck)))
        .build();

    // With an observer that never returns this ends only if nobody waits for it.
    for _ in 0..10_000 {
        assert!(limiter.admit(&user("alice")).await.passes());
    }

    let dropped = limiter.stats().dropped_events;
    assert!((10_000 - 8_192 - 1..=10_000 - 8_192).contains(&dropped), "{dropped}");
    drop(release);
}

#[tokio::test]
async fn an_observer_that_panics_is_told_of_the_next_event_and_silences_no_other() {
    struct PanickingObserver(mpsc::Sender<&'static str>, &'static str);
    impl Observer for PanickingObserver {
        fn observe(&self, _: &Event) {
            self.0.send(self.1).unwrap();
            panic!("on purpose");
        }
    }
    let (tell, told) = mpsc::channel();
    let limiter = Limiter::builder(backend())
        .rules(rules(1, [with(rule("all", &[], &["1000 per 1s"]), TokenBucket)]))
        .observer(PanickingObserver(tell.clone(), "first"))
        .observer(PanickingObserver(tell, "second"))
        .build();

    for _ in 0..3 {
        assert!(limiter.admit(&user("alice")).await.passes());
    }
    // Their thread ends with the limiter, and then nobody can tell any more.
    drop(limiter);

    assert_eq!(told.iter().collect::<Vec<_>>(), ["first", "second"].repeat(3));
}
