//! The builder of limiters.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use tollgate_core::Store;
use tollgate_core::rule::{KeySecret, RuleSet};

use crate::chance;
use crate::decision::{Background, Fleet, Runner};
use crate::envoy::EnvoyRules;
use crate::limiter::{Limiter, Shared};
use crate::observer::{Observer, Observers};
use crate::stats::Counts;

/// Settings of a limiter. [`Limiter::builder`] returns one.
///
/// ```
/// use tollgate::{DenyCache, EmbeddedStore, Limiter, rules};
///
/// let limiter = Limiter::builder(EmbeddedStore::builder().max_keys(100_000).build())
///     .rules(rules::load("{ version: 3, domain: shop }", rules::Format::Yaml)?)
///     .secret(*b"sixteen bytes of")
///     .deny_cache(DenyCache::Off)
///     .build();
///
/// assert_eq!(limiter.rules().version(), 3);
/// # Ok::<(), rules::Problems>(())
/// ```
pub struct Builder<S> {
    store: S,
    rules: RuleSet,
    envoy: EnvoyRules,
    secret: Option<[u8; 16]>,
    deny_cache: DenyCache,
    fleet: Fleet,
    observers: Vec<Box<dyn Observer>>,
}

/// The deny cache: repeats known refusals without asking the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DenyCache {
    /// For up to 50 ms, on remote stores. Changes who is admitted only in that a credit by another
    /// process, its newer rules, or a jump of the store's clock are seen so much later.
    #[default]
    On,
    /// The store is asked every time.
    Off,
}

impl<S: Store + 'static> Builder<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            rules: RuleSet::empty(),
            envoy: EnvoyRules::empty(),
            secret: None,
            deny_cache: DenyCache::default(),
            fleet: Fleet { name: "".into(), nodes: 1 },
            observers: Vec::new(),
        }
    }

    /// Begins with these rules; with none unless said. The example of [`Builder`] shows it, with
    /// `secret` and `deny_cache`.
    pub fn rules(mut self, rules: RuleSet) -> Self {
        self.rules = rules;
        self
    }

    /// Begins with these rules for Envoy's calls; with none unless said.
    pub fn envoy_rules(mut self, rules: EnvoyRules) -> Self {
        self.envoy = rules;
        self
    }

    /// The secret that all processes of a fleet share: long values enter keys hashed under it,
    /// and reservations are signed by it. Without one this process draws its own, and long values
    /// count apart in each process. Draw it at random, and keep it from everybody else: whoever
    /// has it can make reservations that were never charged.
    pub fn secret(mut self, secret: [u8; 16]) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The fleet that this node belongs to: nodes of one name that share a store share out its
    /// limits in an outage. Without a name, all nodes without one are a fleet. Names longer than 256
    /// bytes are cut there.
    pub fn fleet(mut self, name: &str) -> Self {
        let end = name.floor_char_boundary(256);
        self.fleet.name = name.get(..end).unwrap_or_default().into();
        self
    }

    /// The number of nodes that is assumed until the fleet is counted for the first time; one unless set.
    /// A node that starts in an outage has no other way to know its share.
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

    /// Turns the deny cache on or off; on unless set.
    pub fn deny_cache(mut self, deny_cache: DenyCache) -> Self {
        self.deny_cache = deny_cache;
        self
    }

    /// Tells this observer as well. All share one thread, which starts with the first.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Makes the limiter. What it does besides requests runs on the tokio runtime it is made on,
    /// or on a thread of its own where there is none or it has no timers. It ends with that runtime: permits are not
    /// renewed and refusals not counted towards bans after that.
    pub fn build(self) -> Limiter<S> {
        let runner = Arc::new(Runner::new(self.store, self.deny_cache, self.fleet));
        let secret = self.secret.unwrap_or_else(chance::secret);
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
        };
        Limiter { shared: Arc::new(shared) }
    }
}

opaque_debug!(Builder<S>: |it| deny_cache = it.deny_cache);
