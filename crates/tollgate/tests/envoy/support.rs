//! Short ways to ask.

use tollgate::Store;
use tollgate::Timestamp;
use tollgate::envoy::{
    Call, CallError, CallPolicy, Code, Descriptor, Entry, EnvoyAnswer, EnvoyRules, Override, Unit,
};
use tollgate::{EmbeddedStore, Limiter};
use tollgate_core::testing::ManualClock;

/// 2023-11-14T22:13:20Z: 20 s into a minute, 800 s into an hour.
pub(crate) const NOW: u64 = 1_700_000_000;

/// The rules of one file.
pub(crate) fn rules(file: &str) -> EnvoyRules {
    EnvoyRules::load(1, [("file.yaml", file)]).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The problems of a file.
pub(crate) fn problems(file: &str) -> String {
    let problems = EnvoyRules::load(1, [("f", file)]).expect_err("a file with a problem");
    problems.to_string()
}

/// A limiter at [`NOW`] whose time the clock sets.
pub(crate) fn limiter(file: &str) -> (Limiter<EmbeddedStore<ManualClock>>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(NOW * 1_000_000));
    let store = EmbeddedStore::builder().with_clock(clock.clone());
    (Limiter::builder(store).envoy_rules(rules(file)).build(), clock)
}

/// A descriptor as a test writes it: `path=/login user=alice`, and how it is asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TestDescriptor<'a> {
    pub(crate) entries: &'a str,
    pub(crate) hits: Option<u64>,
    pub(crate) gives_back: bool,
    pub(crate) limit: Option<Override>,
}

pub(crate) const fn d(entries: &str) -> TestDescriptor<'_> {
    TestDescriptor { entries, hits: None, gives_back: false, limit: None }
}

impl TestDescriptor<'_> {
    pub(crate) const fn hits(mut self, hits: u64) -> Self {
        self.hits = Some(hits);
        self
    }

    pub(crate) const fn back(mut self) -> Self {
        self.gives_back = true;
        self
    }

    pub(crate) const fn limit(mut self, requests_per_unit: u32, unit: Option<Unit>) -> Self {
        self.limit = Some(Override { requests_per_unit, unit });
        self
    }
}

pub(crate) fn entries(text: &str) -> Vec<Entry<'_>> {
    text.split_whitespace()
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Entry { key, value }
        })
        .collect()
}

/// Asks about these in the domain `shop`.
pub(crate) async fn ask_as<S: Store + 'static>(
    limiter: &Limiter<S>,
    asked: &[TestDescriptor<'_>],
    hits: u32,
    policy: CallPolicy,
) -> Result<EnvoyAnswer, CallError> {
    let entries: Vec<Vec<Entry<'_>>> = asked.iter().map(|asked| entries(asked.entries)).collect();
    let descriptors: Vec<Descriptor<'_>> = asked
        .iter()
        .zip(&entries)
        .map(|(asked, entries)| Descriptor {
            entries,
            limit: asked.limit,
            hits: asked.hits,
            gives_back: asked.gives_back,
        })
        .collect();
    limiter.should_rate_limit(&Call::new("shop", &descriptors).with_hits(hits), policy).await
}

pub(crate) async fn ask<S: Store + 'static>(
    limiter: &Limiter<S>,
    asked: &[TestDescriptor<'_>],
) -> EnvoyAnswer {
    ask_as(limiter, asked, 0, CallPolicy::default()).await.unwrap()
}

/// The code of all, and `code remaining` of each: `OVER: OK 3, OVER 0`.
pub(crate) fn told(answer: &EnvoyAnswer) -> String {
    let code = |code| if code == Code::Ok { "OK" } else { "OVER" };
    let each: Vec<String> = answer
        .statuses()
        .iter()
        .map(|status| format!("{} {}", code(status.code), status.remaining))
        .collect();
    format!("{}: {}", code(answer.code()), each.join(", "))
}
