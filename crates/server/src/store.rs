//! The store behind all doors: in this process, or in Redis.
//!
//! An enum rather than a `dyn`: a door that finds the embedded one decides without leaving its
//! thread, and nothing is boxed for it.

use tollgate::EmbeddedStore;
use tollgate::core::{Answer, Key, Request, Store, StoreError};
use tollgate::redis::{Config, ConnectError, RedisStore};

use crate::settings::Settings;

/// One of the two.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a process has one, and it stays where it is")]
pub enum AnyStore {
    /// In this process.
    Embedded(EmbeddedStore),
    /// In Redis or Valkey.
    Redis(RedisStore),
}

impl AnyStore {
    /// The store that the settings name. A Redis that cannot be reached is no error: it is looked
    /// for until it is there.
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
        RedisStore::connect(config).await.map(Self::Redis)
    }

    /// What it is, in a word.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "embedded",
            Self::Redis(_) => "redis",
        }
    }

    /// Whether it answers at present, as far as is known.
    pub fn is_up(&self) -> bool {
        match self {
            Self::Embedded(_) => true,
            Self::Redis(store) => {
                let stats = store.stats();
                stats.connected > 0 && !stats.breaker_open
            }
        }
    }
}

impl Store for AnyStore {
    fn is_remote(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    async fn charge(&self, batch: &[Request<'_>]) -> Result<Vec<Answer>, StoreError> {
        match self {
            Self::Embedded(store) => store.charge(batch).await,
            Self::Redis(store) => store.charge(batch).await,
        }
    }

    async fn decide(&self, request: &Request<'_>) -> Result<Answer, StoreError> {
        match self {
            Self::Embedded(store) => store.decide(request).await,
            Self::Redis(store) => store.decide(request).await,
        }
    }

    async fn read(&self, name: Key<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Embedded(store) => store.read(name).await,
            Self::Redis(store) => store.read(name).await,
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
            Self::Redis(store) => store.compare_and_set(name, expected, new).await,
        }
    }
}
