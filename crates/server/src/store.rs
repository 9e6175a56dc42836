//! The store behind all listeners: in this process, or in Redis.
//!
//! An enum rather than a `dyn`: a protocol that finds the embedded one decides without leaving its
//! thread, and nothing is boxed for it.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt as _;
use tokio::time::Instant;
use tollgate::EmbeddedStore;
use tollgate::redis::{Config, ConnectError, RedisStore};
use tollgate::store::{Answer, Key, Request};
use tollgate::{Store, StoreError, Timestamp};

use crate::settings::Settings;

/// One of the two stores.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a process has one, and it stays where it is")]
pub enum AnyStore {
    /// In this process.
    Embedded(EmbeddedStore),
    /// In Redis or Valkey, and what time it is there.
    Redis(RedisStore, StoreTime),
}

impl AnyStore {
    /// Opens the store of the settings. A Redis that cannot be reached is no error: the store retries.
    ///
    /// # Errors
    ///
    /// When a person has to change something: the URL, the password, the version of the server.
    pub async fn open(settings: &Settings) -> Result<Self, ConnectError> {
        if settings.is_embedded() {
            let store = EmbeddedStore::builder().max_keys(settings.max_keys).build();
            return Ok(Self::Embedded(store));
        }
        let mut config = Config::new(settings.store.expose())?.deadline(settings.store_deadline);
        if let Some(password) = &settings.store_password {
            config = config.password(password.expose());
        }
        let store = RedisStore::connect(config).await?;
        Ok(Self::Redis(store, StoreTime::default()))
    }

    /// Name of the store.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "embedded",
            Self::Redis(..) => "redis",
        }
    }

    /// True if the store answers, as far as is known.
    pub fn is_up(&self) -> bool {
        match self {
            Self::Embedded(_) => true,
            Self::Redis(store, _) => {
                let stats = store.stats();
                stats.connected > 0 && !stats.breaker_open
            }
        }
    }

    /// Current time by the store's clock, for requests that did not reach it. Of Redis, as far as its
    /// last answer tells; the epoch if there was none.
    pub fn now(&self) -> Timestamp {
        match self {
            // The answer to a request without charges has only the time.
            Self::Embedded(store) => Request::new(&[])
                .map_or(Timestamp::EPOCH, |nothing| store.charge_request(&nothing).at),
            Self::Redis(_, time) => time.now(),
        }
    }
}

/// The clock of a remote store, as its answers show it.
#[derive(Debug)]
pub struct StoreTime {
    origin: Instant,
    /// The store's microseconds at `origin`; 0 while there was no answer.
    ahead: AtomicU64,
}

impl Default for StoreTime {
    fn default() -> Self {
        Self { origin: Instant::now(), ahead: AtomicU64::new(0) }
    }
}

impl StoreTime {
    fn since(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Learns from an answer that was decided at this moment and has just come.
    fn learn(&self, at: Timestamp) {
        if at > Timestamp::EPOCH {
            self.ahead.store(at.as_micros().saturating_sub(self.since()), Ordering::Relaxed);
        }
    }

    fn now(&self) -> Timestamp {
        match self.ahead.load(Ordering::Relaxed) {
            0 => Timestamp::EPOCH,
            ahead => Timestamp::from_micros(ahead.saturating_add(self.since())),
        }
    }
}

impl Store for AnyStore {
    fn is_remote(&self) -> bool {
        matches!(self, Self::Redis(..))
    }

    async fn charge(&self, batch: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        match self {
            Self::Embedded(store) => store.charge(batch).await,
            Self::Redis(store, time) => {
                let answers = store.charge(batch).await?;
                if let Some(answer) = answers.last() {
                    time.learn(answer.at);
                }
                Ok(answers)
            }
        }
    }

    async fn decide(&self, request: &Request<'_>) -> Result<Answer, StoreError> {
        match self {
            Self::Embedded(store) => store.decide(request).await,
            Self::Redis(store, time) => {
                store.decide(request).await.inspect(|answer| time.learn(answer.at))
            }
        }
    }

    fn decide_at_once(&self, request: &Request<'_>, answer: &mut Answer) -> bool {
        match self {
            Self::Embedded(store) => store.decide_at_once(request, answer),
            Self::Redis(..) => false,
        }
    }

    async fn read(&self, name: Key<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Embedded(store) => store.read(name).await,
            Self::Redis(store, _) => store.read(name).await,
        }
    }

    async fn compare_and_set(
        &self,
        name: Key<'_>,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Embedded(store) => store.compare_and_set(name, expected, new).await,
            Self::Redis(store, _) => store.compare_and_set(name, expected, new).await,
        }
    }
}

/// The output of a future of the embedded store, which is always ready.
#[inline]
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().unwrap_or_else(|| unreachable!("the embedded store never waits"))
}
