//! Reset gives back what was used, under every algorithm that counts; observers that do not hear of
//! requests hear of the rest.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::sync::mpsc::{Sender, channel};

use tollgate::Ask;
use tollgate::rules::{self, Format};
use tollgate::{EmbeddedStore, Event, Limiter, Observer};

fn limiter(limit: &str) -> Limiter {
    let limiter = Limiter::new(EmbeddedStore::new());
    let text = format!(
        "{{ version: 1, domain: shop, rules: [{{ name: r, by: [user], limits: [{limit}] }}] }}"
    );
    limiter.set_rules(rules::load(&text, Format::Yaml).unwrap()).unwrap();
    limiter
}

#[tokio::test]
async fn a_reset_counter_is_as_if_nobody_had_asked() {
    for limit in [
        "{ count: 3, per: 1h, algorithm: token-bucket }",
        "{ count: 3, per: 1h, algorithm: leaky-meter }",
        "{ count: 3, per: 1h, algorithm: fixed-window }",
        "{ count: 3, per: 1h, algorithm: sliding-log }",
        "{ count: 3, per: 1h, algorithm: sliding-window }",
    ] {
        let limiter = limiter(limit);
        let alice = Ask::new("shop").with("user", "alice").unwrap();
        let bob = Ask::new("shop").with("user", "bob").unwrap();
        assert!(limiter.admit(&alice.clone().cost(3)).await.passes(), "{limit}");
        assert!(limiter.admit(&bob.clone().cost(3)).await.passes(), "{limit}");
        assert!(!limiter.admit(&alice).await.passes(), "{limit}");

        assert_eq!(limiter.reset(&alice).await.unwrap(), 1, "{limit}");

        assert!(limiter.admit(&alice.clone().cost(3)).await.passes(), "{limit}");
        assert!(!limiter.admit(&alice).await.passes(), "{limit}: and not more than that");
        assert!(!limiter.admit(&bob).await.passes(), "{limit}: another's counter is left alone");
        let nobody = Ask::new("shop").with("user", "nobody").unwrap();
        assert_eq!(limiter.reset(&nobody).await.unwrap(), 0, "{limit}");
    }
}

#[tokio::test]
async fn throttled_keys_are_a_name_space_of_their_own() {
    let limiter = Limiter::new(EmbeddedStore::new());
    let limit = tollgate::Limit::new(tollgate::TokenBucket, "1 per 1h".parse().unwrap()).unwrap();

    assert!(limiter.throttle(b"k", &limit, 1).await.unwrap().passes());
    assert!(!limiter.throttle(b"k", &limit, 1).await.unwrap().passes());
    assert!(limiter.check("k", &limit, 1).await.unwrap().passes());
    assert!(limiter.reset_throttle(b"k").await.unwrap());
    assert!(!limiter.reset_throttle(b"k").await.unwrap());
    assert!(limiter.throttle(b"k", &limit, 1).await.unwrap().passes());
    assert!(!limiter.check("k", &limit, 1).await.unwrap().passes());
    assert!(limiter.throttle(&[b'k'; 1_024], &limit, 1).await.is_err());
}

struct RulesObserver(Sender<String>);

impl Observer for RulesObserver {
    fn observe(&self, event: &Event) {
        let _ = self.0.send(format!("{event:?}"));
    }

    fn hears_requests(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn an_observer_that_does_not_hear_of_requests_hears_of_rules() {
    let (sender, events) = channel();
    let limiter = Limiter::builder(EmbeddedStore::new()).observer(RulesObserver(sender)).build();
    let set = |version: u64| {
        let text = format!(
            "{{ version: {version}, domain: shop, rules: [{{ name: r, limits: [1 per 1h] }}] }}"
        );
        rules::load(&text, Format::Yaml).unwrap()
    };

    limiter.set_rules(set(1)).unwrap();
    for _ in 0..3 {
        let _ = limiter.admit(&Ask::new("shop")).await;
    }
    limiter.set_rules(set(2)).unwrap();

    assert_eq!(events.recv().unwrap(), "RulesChanged { from: 0, to: 1 }");
    assert_eq!(events.recv().unwrap(), "RulesChanged { from: 1, to: 2 }");
}
