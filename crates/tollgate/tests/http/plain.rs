//! Rules that do nothing but take go a shorter way: what it says is what the long way says.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::routing::any;
use axum::{Extension, Router};
use http::{HeaderMap, Request, StatusCode};
use tollgate::core::algorithm::{FixedWindow, SlidingLog, TokenBucket};
use tollgate::core::rule::declaration::{Mode, Rule};
use tollgate::core::testing::{ManualClock, Rng};
use tollgate::http::{Judged, Legacy, LimitLayer, Peer};
use tollgate::{EmbeddedStore, Limiter};
use tower::ServiceExt;

use crate::common::{on, rule, rules, with};
use crate::wire::Still;

/// One limiter, its clock, and an application behind it that tells what was judged.
struct Side {
    limiter: Limiter<Still>,
    clock: ManualClock,
    app: Router,
}

impl Side {
    fn new(set: Vec<Rule>) -> Self {
        let clock = ManualClock::default();
        let store = EmbeddedStore::builder().with_clock(clock.clone());
        let limiter = Limiter::builder(store).rules(rules(1, set)).build();
        let layer = LimitLayer::new(limiter.clone(), "shop").legacy_fields(Legacy::Epoch);
        let app = Router::new().fallback(any(told)).layer(layer);
        Self { limiter, clock, app }
    }

    async fn ask(
        &self,
        path: &str,
        peer: u8,
        user: Option<&str>,
    ) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut request =
            Request::builder().uri(path).extension(Peer::from(([10, 0, 0, peer], 4711)));
        if let Some(user) = user {
            request = request.header("x-user", user);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, to_bytes(body, 10_000).await.unwrap().to_vec())
    }
}

async fn told(Extension(judged): Extension<Judged>) -> String {
    let mut told = String::new();
    for ruling in judged.rulings() {
        told += &format!("{ruling:?} {:?} {:?}\n", ruling.at(), ruling.blocked_by());
        for finding in ruling.findings() {
            told +=
                &format!("{:?} {:?}\n", finding.limit.map(|limit| limit.name()), finding.decision);
        }
    }
    told
}

/// Rules of every kind that only takes; which of them are there is drawn.
fn some(rng: &mut Rng) -> Vec<Rule> {
    let bucket = |rule| with(rule, TokenBucket);
    let all = [
        bucket(rule("all", &[], &["9 per 1s burst 5"])),
        bucket(rule("per-ip", &["ip"], &["3 per 1s", "20 per 1m"])),
        bucket(rule("per-path", &["path", "ip"], &["2 per 3s"])),
        with(rule("window", &["header.x-user"], &["4 per 2s"]), FixedWindow::default()),
        with(rule("log", &["ip"], &["5 per 4s"]), SlidingLog),
        on(bucket(rule("a", &["ip"], &["1 per 2s"])), "path", "/a"),
        on(bucket(rule("free", &[], &["1 per 9s"])), "path", "/never"),
    ];
    all.into_iter().filter(|_| rng.below(2) == 0).collect()
}

#[tokio::test]
async fn the_short_way_says_what_the_long_way_says() {
    let (mut rng, mut refusals) = (Rng::new(77), 0);
    for _ in 0..150 {
        let set = some(&mut rng);
        // It counts nothing, as nobody sends the field, but a rule in shadow is more than a take.
        let mut shadow = on(rule("shadow", &[], &["1 per 1h"]), "header.x-never", "sent");
        shadow.mode = Mode::Shadow;
        let long = Side::new(set.iter().cloned().chain([shadow]).collect());
        let short = Side::new(set);
        for _ in 0..40 {
            let path = rng.pick(&["/", "/a", "/b/7"]);
            let peer = u8::try_from(rng.below(3)).unwrap();
            let user = rng.pick(&[None, Some("alice"), Some("bob")]);

            let said = short.ask(path, peer, user).await;

            assert_eq!(said, long.ask(path, peer, user).await);
            refusals += u64::from(said.0 == StatusCode::TOO_MANY_REQUESTS);
            let passed = Duration::from_micros(rng.below(600_000));
            short.clock.advance(passed);
            long.clock.advance(passed);
        }
        assert_eq!(short.limiter.stats(), long.limiter.stats());
    }
    assert!((100..5_900).contains(&refusals), "{refusals} of 6000 are refused");
}
