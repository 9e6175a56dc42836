//! Stores and rules for tests: an embedded store on tokio's clock, so that hours pass at once, and
//! a connection to it that can fail.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    reason = "tests; each uses a part"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::SlidingLog;
use tollgate::rules::declaration::{Declaration, Domain, Limitation, Pattern, Rule, Value};
use tollgate::store::{Answer, Clock, Key, Request};
use tollgate::{Algorithm, Store, StoreError, StoreErrorKind, Timestamp};
use tollgate::{Ask, RuleSet};
use tollgate::{EmbeddedStore, Limiter};

/// Tokio's clock, which tests can pause.
#[derive(Clone, Debug)]
pub(crate) struct TokioClock {
    origin: Instant,
    ahead_us: Arc<AtomicU64>,
}

impl TokioClock {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), ahead_us: Arc::default() }
    }

    /// Shows so much more from now on, though no time has passed.
    pub(crate) fn jump(&self, forth: Duration) {
        let micros = u64::try_from(forth.as_micros()).unwrap();
        self.ahead_us.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for TokioClock {
    const MONOTONIC: bool = true;

    fn now(&self) -> Timestamp {
        let micros = u64::try_from(self.origin.elapsed().as_micros()).unwrap();
        let ahead = self.ahead_us.load(Ordering::SeqCst);
        Timestamp::from_micros(1_700_000_000_000_000 + micros + ahead)
    }
}

/// A store that several nodes share, each by a connection of its own.
pub(crate) type Backend = Arc<EmbeddedStore<TokioClock>>;

pub(crate) fn backend() -> Backend {
    backend_on(TokioClock::new())
}

pub(crate) fn backend_on(clock: TokioClock) -> Backend {
    Arc::new(EmbeddedStore::builder().with_clock(clock))
}

/// The connection of one node to the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreConnection {
    pub(crate) backend: Backend,
    state: Arc<AtomicU8>,
    /// Milliseconds to the store and back.
    there: Arc<AtomicU64>,
    back: Arc<AtomicU64>,
    /// Requests that reached the store.
    pub(crate) reached: Arc<AtomicU64>,
    /// Round trips that they took.
    pub(crate) trips: Arc<AtomicU64>,
}

/// The state of a connection to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnectionState {
    Open = 0,
    /// Fails at once; nothing is charged.
    Closed = 1,
    /// Executes, and the reply is lost.
    LosesReplies = 2,
    /// Nothing arrives, and the caller waits for its deadline.
    Hangs = 3,
}

impl StoreConnection {
    pub(crate) fn to(backend: &Backend) -> Self {
        Self {
            backend: Arc::clone(backend),
            state: Arc::default(),
            there: Arc::default(),
            back: Arc::default(),
            reached: Arc::default(),
            trips: Arc::default(),
        }
    }

    /// Every trip from now on takes so many milliseconds there, and so many back.
    pub(crate) fn takes(&self, there: u64, back: u64) {
        self.there.store(there, Ordering::SeqCst);
        self.back.store(back, Ordering::SeqCst);
    }

    pub(crate) fn set(&self, state: ConnectionState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }
}

impl StoreConnection {
    fn reachable(&self) -> Result<(), StoreError> {
        match self.state.load(Ordering::SeqCst) {
            0 => Ok(()),
            1 => Err(StoreError::new(StoreErrorKind::Unavailable)),
            _ => Err(StoreError::new(StoreErrorKind::Timeout)),
        }
    }
}

impl Store for StoreConnection {
    async fn read(&self, name: Key<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        self.reachable()?;
        self.backend.read(name).await
    }

    async fn compare_and_set(
        &self,
        name: Key<'_>,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.reachable()?;
        self.backend.compare_and_set(name, expected, new).await
    }

    async fn charge(&self, batch: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        let state = self.state.load(Ordering::SeqCst);
        // Every trip takes a moment, so that others may come in between.
        tokio::task::yield_now().await;
        match state {
            1 => Err(StoreError::new(StoreErrorKind::Unavailable)),
            3 => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err(StoreError::new(StoreErrorKind::Timeout))
            }
            state => {
                let (there, back) = (&self.there, &self.back);
                travel(there.load(Ordering::SeqCst)).await;
                self.trips.fetch_add(1, Ordering::SeqCst);
                self.reached.fetch_add(batch.len() as u64, Ordering::SeqCst);
                let answers = self.backend.charge(batch).await;
                tokio::task::yield_now().await;
                travel(back.load(Ordering::SeqCst)).await;
                if state == 2 { Err(StoreError::new(StoreErrorKind::Timeout)) } else { answers }
            }
        }
    }
}

async fn travel(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

/// A node on this connection, which has counted itself and the others.
pub(crate) async fn node(
    connection: &StoreConnection,
    declared: impl IntoIterator<Item = Rule>,
) -> Limiter<StoreConnection> {
    let limiter = Limiter::builder(connection.clone()).rules(rules(1, declared)).build();
    settle().await;
    // The first to come have not seen the last, until the next heartbeat.
    tokio::time::sleep(Duration::from_secs(6)).await;
    limiter
}

/// The rest of this user's first counter, as the store says.
pub(crate) async fn left<S: Store + 'static>(limiter: &Limiter<S>, who: &str) -> u64 {
    let explained = limiter.explain(&user(who)).await;
    assert_eq!(explained.outage, None, "the store is asked");
    explained.counters[0].remaining
}

/// A rule by these attributes with these limits.
pub(crate) fn rule(name: &str, by: &[&str], limits: &[&str]) -> Rule {
    let mut rule = Rule::new(name);
    rule.by = by.iter().map(|name| (*name).to_owned()).collect();
    rule.limits = limits
        .iter()
        .map(|quota| Limitation { name: None, quota: quota.parse().unwrap(), algorithm: None })
        .collect();
    rule
}

/// The same rule, whose limits mean this.
pub(crate) fn with(mut rule: Rule, algorithm: impl Into<Algorithm>) -> Rule {
    let algorithm = algorithm.into();
    for limit in &mut rule.limits {
        limit.algorithm = Some(algorithm);
    }
    rule
}

/// The same rule, whose limits are sliding logs: the easiest to count by.
pub(crate) fn log(rule: Rule) -> Rule {
    with(rule, SlidingLog)
}

/// The same rule, for asks with this value of this attribute.
pub(crate) fn on(mut rule: Rule, attribute: &str, value: &str) -> Rule {
    let value = Pattern::Any(vec![Value::Text(value.to_owned())]);
    rule.matches.push((attribute.to_owned(), value));
    rule
}

/// A set of one domain, `shop`.
pub(crate) fn rules(version: u64, rules: impl IntoIterator<Item = Rule>) -> RuleSet {
    let mut domain = Domain::new("shop");
    domain.rules = rules.into_iter().collect();
    RuleSet::new(Declaration { version, domains: vec![domain] }).unwrap()
}

/// An ask of this user.
pub(crate) fn user(name: &str) -> Ask<'_> {
    Ask::new("shop").with("user", name).unwrap()
}

/// Lets the tasks that are ready run.
pub(crate) async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}
