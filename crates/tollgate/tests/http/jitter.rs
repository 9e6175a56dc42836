//! Times that clients are told, spread out: never too early, never later than said.

use std::collections::BTreeSet;
use std::time::Duration;

use tollgate::FixedWindow;
use tollgate::http::{LegacyReset, LimitLayer};

use crate::common::{rule, rules, with};
use crate::wire::{ManualClockStore, limiter, serve};

fn hourly() -> LimitLayer<ManualClockStore> {
    let hourly = with(rule("hourly", &[], &["1 per 1h"]), FixedWindow::default());
    LimitLayer::new(limiter(rules(1, [hourly])), "shop").legacy_fields(LegacyReset::SecondsLeft)
}

#[tokio::test]
async fn refusals_are_spread_over_the_jitter_and_agree_with_themselves() {
    let server = serve(hourly().jitter(Duration::from_secs(10))).await;
    assert_eq!(server.get(&[]).await.status, 200);

    let mut told = BTreeSet::new();
    for _ in 0..200 {
        let refused = server.get(&[]).await;
        let after: u64 = refused.field("retry-after").unwrap().parse().unwrap();
        assert!((3_600..=3_610).contains(&after), "{after}");
        let limit = format!("\"hourly\";r=0;t={after}");
        assert_eq!(refused.field("ratelimit"), Some(limit.as_str()));
        assert_eq!(refused.field("x-ratelimit-reset"), refused.field("retry-after"));
        let detail = format!("ask again after {after} s");
        assert!(refused.body.contains(&detail), "{}", refused.body);
        told.insert(after);
    }
    assert!(told.len() > 1, "two hundred clients are not sent to one second: {told:?}");
}

#[tokio::test]
async fn without_jitter_times_are_exact() {
    let server = serve(hourly()).await;
    assert_eq!(server.get(&[]).await.status, 200);
    for _ in 0..20 {
        assert_eq!(server.get(&[]).await.field("retry-after"), Some("3600"));
    }
}
