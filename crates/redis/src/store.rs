//! The store, the crate's main type.

use std::future::poll_fn;
use std::mem;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use smallvec::SmallVec;
use tokio::task::coop::consume_budget;
use tollgate_core::{
    Answer, Key, MAX_VALUE, Request, Store, StoreError, StoreErrorKind, Timestamp, Verdict,
};

use crate::batch::PendingAnswer;
use crate::clock::Instant;
use crate::driver::{self, Driver, MAX_CHARGES};
use crate::link::{Call, Link, ScriptId};
use crate::lock::LockContext;
use crate::waiters::WaiterHandle;
use crate::{Config, ConnectError, Warning, clock, keys};

/// A store that keeps counters in Redis or Valkey, exact across every process that uses the same
/// server.
///
/// Redis decides each request atomically, by its own clock. Requests of many tasks share round trips.
/// `docs/bounds.md` says what happens when Redis does not answer.
///
/// ```no_run
/// use tollgate_redis::{Config, RedisStore};
/// use tollgate_redis::core::{Charge, Key, Limit, Request, Store, algorithm::TokenBucket};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect(Config::new("redis://127.0.0.1:6379")?).await?;
/// let limit = Limit::new(TokenBucket, "100 per 1m burst 20".parse()?)?;
/// let charges = [Charge::take(Key::new("user:42")?, &limit, 1)?];
///
/// let answers = store.charge(&[Request::new(&charges)?]).await?;
///
/// println!("{} left", answers[0].decisions[0].remaining);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisStore {
    pub(crate) link: Arc<Link>,
    pub(crate) driver: Driver,
    pub(crate) locks: LockContext,
    config: Config,
}

/// Counters and health of a store. Counts run since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Runs of the script.
    pub runs: u64,
    /// Requests sent in those runs.
    pub requests: u64,
    /// Stored values that were not Tollgate's, each repaired.
    pub poisoned: u64,
    /// Requests that the script and this crate decided differently: always zero, or there is a bug.
    pub twin_mismatches: u64,
    /// Counters converted to another edit of their rule.
    pub converted: u64,
    /// Open connections.
    pub connected: usize,
    /// Connections made after the first of each.
    pub reconnects: u64,
    /// The breaker is open: calls fail at once because Redis does not answer.
    pub breaker_open: bool,
    /// Number of times the breaker opened.
    pub breaker_opens: u64,
    /// Calls that were sent and not answered in time.
    pub timeouts: u64,
    /// Calls whose connection ended before the reply.
    pub lost: u64,
    /// Calls sent again after that, see [`RetryPolicy`](crate::RetryPolicy).
    pub retried: u64,
    /// Calls that had to send the script's text.
    pub noscript: u64,
    /// Calls that reached Redis too late and were dropped there, uncharged.
    pub dropped_late: u64,
    /// Calls refused because too many were waiting or in flight.
    pub rejected: u64,
}

impl RedisStore {
    /// Connects to Redis. A server that cannot be reached is not an error: the store keeps trying,
    /// and every call fails with [`StoreErrorKind::Unavailable`] until it succeeds.
    ///
    /// The store runs on a thread of its own until it is dropped. Call it from any runtime, of
    /// tokio or not.
    ///
    /// # Errors
    ///
    /// When someone has to change something: the URL, the credentials, the server's version.
    pub async fn connect(config: Config) -> Result<Self, ConnectError> {
        let (driver, link) = Driver::start(&config).await?;
        let locks = LockContext::new(&config, driver::max_batches_in_flight(&config));
        Ok(Self { link, driver, locks, config })
    }

    /// Returns the findings of the checks at the first connection; empty before it.
    pub fn warnings(&self) -> &[Warning] {
        self.link.warnings()
    }

    /// Returns counters and health.
    pub fn stats(&self) -> Stats {
        let (health, counts) = (self.link.health(), self.driver.counters());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            runs: count(&counts.runs),
            requests: count(&counts.requests),
            poisoned: count(&counts.poisoned),
            twin_mismatches: count(&counts.mismatches),
            converted: count(&counts.converted),
            rejected: health.rejected.saturating_add(count(&counts.turned_away)),
            ..health
        }
    }

    /// Submits requests, each of which has charges, and passes their answers to `take`.
    async fn submit<T>(
        &self,
        requests: &[Request<'_>],
        take: impl Fn(&mut [PendingAnswer]) -> T,
    ) -> Result<T, StoreError> {
        let mut handle: Option<WaiterHandle> = None;
        let told = poll_fn(|context| {
            if let Some(handle) = &mut handle {
                return handle.poll(context, &take);
            }
            let joined = self.driver.submit(requests, self.deadline(), context.waker().clone());
            match joined {
                Ok(joined) => {
                    handle = Some(joined);
                    Poll::Pending
                }
                Err(error) => Poll::Ready(Err(error)),
            }
        });
        let told = told.await;
        if handle.is_none() {
            // A caller that retries at once must not keep its thread from everything else.
            consume_budget().await;
        }
        told
    }

    fn deadline(&self) -> Instant {
        let now = clock::now();
        now.checked_add(self.config.deadline).unwrap_or(now)
    }
}

impl Store for RedisStore {
    async fn charge(&self, batch: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        let mut answers = Vec::new();
        let mut rest = batch;
        while !rest.is_empty() {
            let (part, later) = rest.split_at(fitting(rest));
            let told = match self.charge_part(part).await {
                Ok(told) => told,
                Err(error) if answers.is_empty() => return Err(error),
                Err(error) => return Err(error.after_a_charge()),
            };
            rest = later;
            if answers.is_empty() {
                answers = told;
            } else {
                answers.extend(told);
            }
        }
        Ok(answers)
    }

    async fn decide(&self, request: &Request<'_>) -> Result<Answer, StoreError> {
        if request.charges().is_empty() {
            return Ok(passes());
        }
        let first = |answers: &mut [PendingAnswer]| answers.first_mut().map(mem::take);
        let told = self.submit(slice::from_ref(request), first).await?;
        told.and_then(|told| told.answer(request)).ok_or_else(unsaid)
    }

    async fn read(&self, name: Key<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        self.value(name, Vec::new()).await
    }

    async fn compare_and_set(
        &self,
        name: Key<'_>,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        if new.len() > MAX_VALUE {
            let error = StoreError::new(StoreErrorKind::Unavailable);
            return Err(error.with_source("the value is longer than 64 KiB"));
        }
        let known = expected.map_or_else(|| b"-".to_vec(), |value| [b"=", value].concat());
        self.value(name, vec![known, new.to_vec()]).await
    }
}

impl RedisStore {
    async fn value(
        &self,
        name: Key<'_>,
        args: Vec<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let name = keys::value_name(name);
        let keys = std::iter::once(&name[..]).collect();
        let call = Call { script: ScriptId::Values, keys, args };
        let deadline = self.deadline();
        let link = Arc::clone(&self.link);
        let ran = self.driver.run(async move { link.run(call, deadline).await }).await;
        let reply = ran.unwrap_or_else(|| Err(StoreError::new(StoreErrorKind::Timeout)))?;
        Ok(reply.values.into_iter().next().flatten())
    }
}

/// Returns how many of these requests fit into one batch. Larger calls go in parts, one after the
/// other, to keep their order.
fn fitting(requests: &[Request<'_>]) -> usize {
    let mut charges = 0_usize;
    let fits = |request: &&Request<'_>| {
        charges = charges.saturating_add(request.charges().len());
        charges <= MAX_CHARGES
    };
    requests.iter().take_while(fits).count().clamp(1, requests.len().max(1))
}

impl RedisStore {
    async fn charge_part(&self, part: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        if part.iter().all(|request| !request.charges().is_empty()) {
            return answers(part, self.submit(part, all).await?);
        }
        let charging = part.iter().filter(|request| !request.charges().is_empty());
        let charging: Vec<Request<'_>> = charging.copied().collect();
        let told = if charging.is_empty() {
            Vec::new()
        } else {
            answers(&charging, self.submit(&charging, all).await?)?
        };
        let mut told = told.into_iter();
        Ok(part
            .iter()
            .filter_map(|r| if r.charges().is_empty() { Some(passes()) } else { told.next() })
            .collect())
    }
}

fn all(answers: &mut [PendingAnswer]) -> Vec<PendingAnswer> {
    answers.iter_mut().map(mem::take).collect()
}

fn answers(requests: &[Request<'_>], told: Vec<PendingAnswer>) -> Result<Vec<Answer>, StoreError> {
    let mut answers = Vec::with_capacity(requests.len());
    for (request, told) in requests.iter().zip(told) {
        answers.push(told.answer(request).ok_or_else(unsaid)?);
    }
    Ok(answers)
}

/// The answer to a request without charges: it passes.
fn passes() -> Answer {
    Answer {
        verdict: Verdict::Allow,
        at: Timestamp::EPOCH,
        refused_by: None,
        decisions: SmallVec::new(),
    }
}

/// The error for a missing answer. The driver answers every request, or says why not.
fn unsaid() -> StoreError {
    StoreError::new(StoreErrorKind::Timeout)
}
