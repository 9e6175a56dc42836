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
use crate::link::{Call, ScriptId};
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
    pub(crate) driver: Driver,
    pub(crate) locks: LockContext,
    config: Config,
}

/// Declares [`RedisStats`]: fields that are counted, each with an atomic counter, and then the others.
macro_rules! stats {
    (
        $(#[$attribute:meta])*
        counted { $($(#[$doc:meta])* $counter:ident,)+ }
        $($(#[$other_doc:meta])* $field:ident: $type:ty,)+
    ) => {
        $(#[$attribute])*
        pub struct RedisStats {
            $($(#[$doc])* pub $counter: u64,)+
            $($(#[$other_doc])* pub $field: $type,)+
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $counter: AtomicU64,)+
        }

        impl Counters {
            pub(crate) fn read(&self) -> RedisStats {
                RedisStats { $($counter: self.$counter.load(Ordering::Relaxed),)+ ..RedisStats::default() }
            }
        }
    };
}

stats! {
    /// Counters and health of a store. Counts run since it was made.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    counted {
        /// Runs of the script.
        runs,
        /// Requests sent in those runs.
        requests,
        /// Stored values that were not Tollgate's, each repaired.
        poisoned,
        /// Requests that the script and this crate decided differently: always zero, or there is a
        /// bug.
        twin_mismatches,
        /// Counters converted to another edit of their rule.
        converted,
        /// Connections made after the first of each.
        reconnects,
        /// Calls that were sent and not answered in time.
        timeouts,
        /// Calls whose connection ended before the reply.
        lost,
        /// Calls sent again after that, see [`RetryPolicy`](crate::RetryPolicy).
        retried,
        /// Calls that had to send the script's text.
        noscript,
        /// Calls that reached Redis too late and were dropped there, uncharged.
        dropped_late,
        /// Calls refused because too many were waiting or in flight.
        rejected,
    }
    /// Open connections.
    connected: usize,
    /// The breaker is open: calls fail at once because Redis does not answer.
    breaker_open: bool,
    /// Number of times the breaker opened.
    breaker_opens: u64,
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
        let driver = Driver::start(&config).await?;
        let locks = LockContext::new(&config, driver::max_batches_in_flight(&config));
        Ok(Self { driver, locks, config })
    }

    /// Returns the findings of the checks at the first connection; empty before it.
    pub fn warnings(&self) -> &[Warning] {
        self.driver.link.warnings()
    }

    /// Returns counters and health.
    pub fn stats(&self) -> RedisStats {
        self.driver.link.health()
    }

    /// Submits requests, each of which has charges, and passes their answers to `take`.
    async fn submit<T>(
        &self,
        requests: &[Request<'_>],
        take: impl Fn(&mut [PendingAnswer]) -> T,
    ) -> Result<T, StoreError> {
        let mut handle: Option<WaiterHandle> = None;
        let taken = poll_fn(|context| {
            if let Some(handle) = &mut handle {
                return handle.poll(context, &take);
            }
            let waker = context.waker().clone();
            handle = Some(self.driver.submit(requests, self.deadline(), waker)?);
            Poll::Pending
        })
        .await;
        if handle.is_none() {
            // A caller that retries at once must not keep its thread from everything else.
            consume_budget().await;
        }
        taken
    }

    async fn charge_part(&self, part: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        let is_charging = |request: &Request<'_>| !request.charges().is_empty();
        let charging: Vec<_> = part.iter().copied().filter(is_charging).collect();
        let mut pending = match charging.as_slice() {
            [] => Vec::new(),
            charging => self.submit(charging, all).await?,
        }
        .into_iter();
        let answer = |request: &Request<'_>| match is_charging(request) {
            true => pending.next().and_then(|pending| pending.answer(request)),
            false => Some(passes()),
        };
        part.iter().map(answer).collect::<Option<_>>().ok_or_else(unanswered)
    }

    async fn value(
        &self,
        name: Key<'_>,
        args: Vec<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let name = keys::value_name(name);
        let keys = std::iter::once(&name[..]).collect();
        let call = Call { script: ScriptId::Values, keys, args };
        let deadline = self.deadline();
        let link = Arc::clone(&self.driver.link);
        let reply = self.driver.run(async move { link.run(call, deadline).await }).await?;
        Ok(reply.values.into_iter().next().flatten())
    }

    fn deadline(&self) -> Instant {
        clock::ahead(self.config.deadline)
    }
}

impl Store for RedisStore {
    async fn charge(&self, batch: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        let mut answers = Vec::new();
        let mut rest = batch;
        while !rest.is_empty() {
            let (part, later) = rest.split_at(fitting(rest));
            answers.extend(self.charge_part(part).await.map_err(|error| {
                if answers.is_empty() { error } else { error.after_a_charge() }
            })?);
            rest = later;
        }
        Ok(answers)
    }

    async fn decide(&self, request: &Request<'_>) -> Result<Answer, StoreError> {
        if request.charges().is_empty() {
            return Ok(passes());
        }
        let first = |answers: &mut [PendingAnswer]| answers.first_mut().map(mem::take);
        let pending = self.submit(slice::from_ref(request), first).await?;
        pending.and_then(|pending| pending.answer(request)).ok_or_else(unanswered)
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

fn all(answers: &mut [PendingAnswer]) -> Vec<PendingAnswer> {
    answers.iter_mut().map(mem::take).collect()
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
fn unanswered() -> StoreError {
    StoreError::new(StoreErrorKind::Timeout)
}
