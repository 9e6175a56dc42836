//! The builder of limiters.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use tollgate_core::Store;
use tollgate_core::rule::{KeySecret, RuleSet};

use crate::decision::{Background, Fleet, Runner};
use crate::envoy::EnvoyRules;
use crate::limiter::{Limiter, Shared};
use crate::observer::{Observer, Observers};
use crate::random;
use crate::stats::Counts;

/// Settings of a limiter. [`Limiter::builder`] returns one.
///
/// ```
/// use tollgate::{DenyCacheMode, EmbeddedStore, Limiter, rules};
///
/// let limiter = Limiter::builder(EmbeddedStore::builder().max_keys(100_000).build())
///     .rules(rules::load("{ version: 3, domain: shop }", rules::Format::Yaml)?)
///     .secret(*b"sixteen bytes of")
///     .deny_cache(DenyCacheMode::Off)
///     .build();
///
/// assert_eq!(limiter.rules().version(), 3);
/// # Ok::<(), rules::Problems>(())
/// ```
pub struct LimiterBuilder<S> {
    store: S,
    rules: RuleSet,
    envoy: EnvoyRules,
    secret: Option<[u8; 16]>,
    deny_cache: DenyCacheMode,
    fleet: Fleet,
    observers: Vec<Box<dyn Observer>>,
}

/// The deny cache: repeats known refusals without asking the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DenyCacheMode {
    /// Repeats a refusal for up to 50 ms, on remote stores. Until then a credit by another process,
    /// its newer rules, or a jump of the store's clock goes unnoticed. Nothing else changes about
    /// who is admitted.
    #[default]
    On,
    /// Asks the store every time.
    Off,
}

impl<S: Store + 'static> LimiterBuilder<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            rules: RuleSet::empty(),
            envoy: EnvoyRules::empty(),
            secret: None,
            deny_cache: DenyCacheMode::default(),
            fleet: Fleet { name: "".into(), nodes: 1 },
            observers: Vec::new(),
        }
    }

    /// Sets the rules to begin with; none by default. The example of [`LimiterBuilder`] shows it,
    /// with `secret` and `deny_cache`.
    pub fn rules(mut self, rules: RuleSet) -> Self {
        self.rules = rules;
        self
    }

    /// Sets the rules for Envoy's calls to begin with; none by default.
    pub fn envoy_rules(mut self, rules: EnvoyRules) -> Self {
        self.envoy = rules;
        self
    }

    /// Sets the secret that all processes of a fleet share. Long values enter keys hashed under it,
    /// and it signs reservations. Without one, each process draws its own: then long values are
    /// counted separately in each process.
    ///
    /// Draw it at random and keep it private: it allows making reservations that were never
    /// charged.
    pub fn secret(mut self, secret: [u8; 16]) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Sets the fleet that this node belongs to. Nodes with the same fleet name on the same store
    /// divide its limits among themselves in an outage. Nodes without a name form one fleet. A name
    /// is cut at 256 bytes.
    pub fn fleet(mut self, name: &str) -> Self {
        let end = name.floor_char_boundary(256);
        self.fleet.name = name.get(..end).unwrap_or_default().into();
        self
    }

    /// Sets the number of nodes to assume until the fleet is counted for the first time; 1 by
    /// default. A node that starts in an outage has no other way to know its share.
    ///
    /// ```
    /// use tollgate::{EmbeddedStore, Limiter};
    ///
    /// let limiter = Limiter::builder(EmbeddedStore::new()).fleet("checkout").nodes(3).build();
    /// assert_eq!(limiter.stats().nodes, 3);
    /// ```
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.fleet.nodes = nodes.max(1);
        self
    }

    /// Turns the deny cache on or off; it is on by default.
    pub fn deny_cache(mut self, deny_cache: DenyCacheMode) -> Self {
        self.deny_cache = deny_cache;
        self
    }

    /// Adds an observer. All observers share one thread, which starts with the first.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Builds the limiter. Its background jobs run on the current tokio runtime. Without a runtime,
    /// or with one that has no timers, they run on a thread of their own. When that runtime ends,
    /// the jobs end: permits are no longer renewed, and refusals no longer count towards bans.
    pub fn build(self) -> Limiter<S> {
        let runner = Arc::new(Runner::new(self.store, self.deny_cache, self.fleet));
        let secret = self.secret.unwrap_or_else(random::secret);
        let shared = Shared {
            background: Background::start(&runner),
            runner,
            rules: ArcSwap::from_pointee(self.rules),
            edition: AtomicU64::new(1),
            envoy: ArcSwap::from_pointee(self.envoy),
            secret: KeySecret::new(secret),
            mac: secret,
            observers: Observers::start(self.observers),
            counts: Counts::default(),
            #[cfg(feature = "tower")]
            scopes: false.into(),
        };
        Limiter { shared: Arc::new(shared) }
    }
}

opaque_debug!(LimiterBuilder<S>: |it| deny_cache = it.deny_cache);
