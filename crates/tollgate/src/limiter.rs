//! The limiter: from an ask to an admission.
//!
//! [`Limiter::admit`] judges an ask by the rules of one version, and makes all of their charges or
//! none. It answers also while the store does not. You can replace the rules at any time: a request
//! in progress keeps the version that it began with.

use std::sync::Arc;
#[cfg(feature = "tower")]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tollgate_core::rule::{Ask, Judgement, KeySecret, RuleSet};
use tollgate_core::{Cost, Key, Limit, Store};
use tollgate_embedded::EmbeddedStore;

use crate::admission::Admission;
use crate::builder::LimiterBuilder;
use crate::decision::{
    Background, DecidingRules, Intent, OwnedCounter, Plan, Reason, Ruling, Runner, keys,
};
use crate::envoy::EnvoyRules;
use crate::observer::{Event, Observers};
use crate::stats::{Counts, Stats};
use crate::wait::{Gate, GateError};

/// Admits or refuses requests by rules. Clones share all state.
///
/// ```
/// use tollgate::{EmbeddedStore, Limiter, rules};
/// use tollgate::Ask;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// limiter.set_rules(rules::load(
///     "
/// version: 1
/// domain: shop
/// rules:
///   - name: login-per-ip
///     match: { path: /login, method: POST }
///     by: [ip]
///     limits: [2 per 1m]
/// ",
///     rules::Format::Yaml,
/// )?)?;
///
/// let ask = Ask::new("shop").with("path", "/login")?.with("method", "POST")?.with("ip", "203.0.113.9")?;
///
/// assert!(limiter.admit(&ask).await.passes());
/// assert!(limiter.admit(&ask).await.passes());
/// let third = limiter.admit(&ask).await;
/// assert_eq!(third.refused_by(), Some("login-per-ip"));
/// # Ok(()) }
/// ```
pub struct Limiter<S = EmbeddedStore> {
    pub(crate) shared: Arc<Shared<S>>,
}

pub(crate) struct Shared<S> {
    pub(crate) runner: Arc<Runner<S>>,
    pub(crate) background: Background,
    pub(crate) rules: ArcSwap<RuleSet>,
    /// Rises after a change of the rules, so that caches of them only need to compare this number.
    /// Begins at 1.
    pub(crate) edition: AtomicU64,
    pub(crate) envoy: ArcSwap<EnvoyRules>,
    pub(crate) secret: KeySecret,
    pub(crate) mac: [u8; 16],
    pub(crate) observers: Observers,
    pub(crate) counts: Counts,
    /// True if a layer provides the limiter to functions.
    #[cfg(feature = "tower")]
    pub(crate) scopes: AtomicBool,
}

impl<S: Store + 'static> Limiter<S> {
    /// Creates a limiter on this store. It has no rules and admits everything until
    /// [`Limiter::set_rules`].
    pub fn new(store: S) -> Self {
        Self::builder(store).build()
    }

    /// Builds a limiter that begins with rules, or has a fleet's secret, or observers.
    pub fn builder(store: S) -> LimiterBuilder<S> {
        LimiterBuilder::new(store)
    }

    /// Judges an ask by the rules, and charges its cost, all or none.
    ///
    /// If one limit refuses a request, no limit is charged. The call never waits for its turn: a
    /// request that cannot pass now is refused, with the time after which asking again helps. It
    /// always has an answer: while the store does not answer in time, each rule's `on-outage`
    /// decides, and [`Admission::outage`] gives the reason.
    ///
    /// Keep the admission while the work lasts if a rule counts work in progress. Dropping it gives
    /// its permits back, so `admit(&ask).await.passes()` holds none.
    ///
    /// If you drop the future before it ends, the charge may remain: a question to a remote store
    /// cannot be called back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Ask, EmbeddedStore, Limiter, Reason, rules};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(EmbeddedStore::new());
    /// limiter.set_rules(rules::load(
    ///     "{ version: 1, domain: shop, rules: [{ name: pay, match: { path: /pay }, limits: [1 per 1m] }] }",
    ///     rules::Format::Yaml,
    /// )?)?;
    /// let pay = Ask::new("shop").with("path", "/pay")?;
    ///
    /// assert!(limiter.admit(&pay).await.passes());
    /// let refused = limiter.admit(&pay).await;
    /// assert!(refused.retry_after() > Some(Duration::from_secs(50)));
    /// assert_eq!(refused.ruling().reason(), Reason::Limits);
    ///
    /// let elsewhere = limiter.admit(&Ask::new("shop").with("path", "/")?).await;
    /// assert_eq!((elsewhere.passes(), elsewhere.ruling().reason()), (true, Reason::NoRule));
    /// # Ok(()) }
    /// ```
    pub async fn admit(&self, ask: &Ask<'_>) -> Admission {
        self.admit_by(ask, Intent::CHARGE, self.rules()).await
    }

    /// Decides as [`Limiter::admit_within`] does, without a future. `None`, with nothing charged,
    /// if the store is remote.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Ask, EmbeddedStore, Limiter, rules};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(EmbeddedStore::new());
    /// limiter.set_rules(rules::load(
    ///     "{ version: 1, domain: shop, rules: [{ name: all, limits: [1 per 1m] }] }",
    ///     rules::Format::Yaml,
    /// )?)?;
    ///
    /// let first = limiter.admit_now(&Ask::new("shop"), Duration::ZERO).ok_or("remote")?;
    /// assert!(first.passes());
    /// let second = limiter.admit_now(&Ask::new("shop"), Duration::ZERO).ok_or("remote")?;
    /// assert_eq!(second.refused_by(), Some("all"));
    /// # Ok(()) }
    /// ```
    pub fn admit_now(&self, ask: &Ask<'_>, patience: Duration) -> Option<Admission> {
        if self.store().is_remote() {
            return None;
        }
        let rules = DecidingRules::Rules(self.rules());
        let mut judgement = Judgement::UnknownDomain;
        self.judge(ask, &rules, &mut judgement);
        let intent = Intent::Charge { patience };
        let mut plan = Plan::empty(&rules, intent, Reason::NoRule);
        self.plan(&judgement, &mut plan);
        let mut ruling = Ruling::of(&plan);
        let permits = self.run_now(&plan, Some(ask), &mut ruling)?;
        drop(plan);
        Some(Admission { ruling, permits })
    }

    /// Decides as [`Limiter::admit`] does, for a caller that can wait up to `patience` for a place
    /// in the future; [`Admission::wait`] is the time to wait. Only limits that keep a time line
    /// grant places (leaky queue and meter, token bucket, smooth). Of several limits one may wait;
    /// the others must pass now. A caller that gives up while it waits stays charged; a [`Gate`]
    /// gives places back.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Ask, EmbeddedStore, Limiter, rules};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::new(EmbeddedStore::new());
    /// # limiter.set_rules(rules::load(
    /// #     "{ version: 1, domain: shop, rules: [{ name: all, limits: [1 per 1m] }] }",
    /// #     rules::Format::Yaml,
    /// # )?)?;
    /// let ask = Ask::new("shop"); // of which one a minute may pass
    /// assert!(limiter.admit(&ask).await.passes());
    ///
    /// assert!(!limiter.admit_within(&ask, Duration::from_secs(30)).await.passes());
    /// let granted = limiter.admit_within(&ask, Duration::from_secs(90)).await;
    /// assert!(granted.passes() && granted.wait() > Duration::from_secs(50));
    /// # Ok(()) }
    /// ```
    pub async fn admit_within(&self, ask: &Ask<'_>, patience: Duration) -> Admission {
        self.admit_by(ask, Intent::Charge { patience }, self.rules()).await
    }

    /// Returns the answer of [`Limiter::admit`], and charges nothing. [`Limiter::stats`] does not
    /// count the question, and observers do not see it.
    ///
    /// ```
    /// # use tollgate::{Ask, EmbeddedStore, Limiter, rules};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::new(EmbeddedStore::new());
    /// # limiter.set_rules(rules::load(
    /// #     "{ version: 1, domain: shop, rules: [{ name: all, limits: [1 per 1m] }] }",
    /// #     rules::Format::Yaml,
    /// # )?)?;
    /// let ask = Ask::new("shop"); // of which one a minute may pass
    /// for _ in 0..10 {
    ///     assert!(limiter.peek(&ask).await.passes());
    /// }
    /// assert!(limiter.admit(&ask).await.passes());
    /// assert!(!limiter.peek(&ask).await.passes());
    /// # Ok(()) }
    /// ```
    pub async fn peek(&self, ask: &Ask<'_>) -> Admission {
        self.admit_by(ask, Intent::Peek, self.rules()).await
    }

    /// Charges one counter with a key of your choice, without rules.
    ///
    /// The key has up to 1023 bytes, and never collides with a rule's. One key under two limits of
    /// the same algorithm is one counter. In an outage, this process's share of the limit answers.
    ///
    /// ```
    /// use tollgate::{EmbeddedStore, Limit, Limiter, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(EmbeddedStore::new());
    /// let limit = Limit::new(TokenBucket, "10 per 1h".parse()?)?;
    ///
    /// assert!(limiter.check("mail:alice", &limit, 10).await?.passes());
    /// assert!(!limiter.check("mail:alice", &limit, 1).await?.passes());
    /// assert!(limiter.check("mail:bob", &limit, 1).await?.passes());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When the key is empty or too long, or the limit counts holders.
    pub async fn check(
        &self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        cost: Cost,
    ) -> Result<Admission, GateError> {
        self.check_key(keys::CHOSEN, Key::new(&key)?.as_bytes(), limit, cost).await
    }

    /// Creates a gate: a counter with a key of your choice, at which callers wait; see [`Gate`].
    ///
    /// The key is that of [`Limiter::check`], so a check and a gate with the same key and limit
    /// share one counter. Two gates of one key do not share a queue: clone one instead.
    ///
    /// ```
    /// use tollgate::{Concurrency, EmbeddedStore, GateError, Limit, Limiter, TokenBucket};
    ///
    /// let limiter = Limiter::new(EmbeddedStore::new());
    ///
    /// let gate = limiter.gate("mail", Limit::new(TokenBucket, "10 per 1s".parse()?)?)?;
    /// assert_eq!(gate.limit().to_string(), "10 per 1s (token-bucket)");
    ///
    /// let held = limiter.gate("mail", Limit::new(Concurrency, "10 per 1s".parse()?)?);
    /// assert!(matches!(held, Err(GateError::CountsHolders)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the key is empty or too long, or the limit counts holders.
    pub fn gate(&self, key: impl AsRef<[u8]>, limit: Limit) -> Result<Gate<S>, GateError> {
        let mut bytes = keys::TaggedKey::new();
        keys::tagged(keys::CHOSEN, Key::new(&key)?.as_bytes(), &mut bytes)?;
        let key = bytes.into_boxed_slice();
        let counter = OwnedCounter { key, limit, partition: None };
        let shared = &self.shared;
        Gate::new(Arc::clone(&shared.runner), shared.background.clone(), counter)
    }

    /// The current rules. Before the first it is an empty set of version 0.
    pub fn rules(&self) -> Arc<RuleSet> {
        self.shared.rules.load_full()
    }

    /// Replaces the rules. A request in progress keeps the rules that it began with, and no caller
    /// waits.
    ///
    /// Each rule's `on-change` says whether its counts are kept, scaled or reset. While processes
    /// have different versions, the newer limit decides for all.
    ///
    /// ```
    /// use tollgate::{EmbeddedStore, Limiter, StaleRules, rules};
    ///
    /// let set = |version: u64| rules::load(&format!("{{ version: {version}, domain: shop }}"), rules::Format::Yaml);
    /// let limiter = Limiter::new(EmbeddedStore::new());
    ///
    /// limiter.set_rules(set(7)?)?;
    /// assert_eq!(limiter.set_rules(set(7)?), Err(StaleRules { present: 7, offered: 7 }));
    /// assert_eq!(limiter.rules().version(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When their version is not above the current one.
    pub fn set_rules(&self, rules: RuleSet) -> Result<(), StaleRules> {
        let to = rules.version();
        let rules = Arc::new(rules);
        let next = |present: &Arc<RuleSet>| Arc::new(RuleSet::clone(&rules).following(present));
        let from = replace_older(&self.shared.rules, to, RuleSet::version, next)?;
        self.shared.edition.fetch_add(1, Ordering::Release);
        self.shared.observers.tell(|| Event::RulesChanged { from, to });
        Ok(())
    }

    /// The counts of this limiter and its clones since the start.
    pub fn stats(&self) -> Stats {
        self.shared.counts.stats(&self.shared)
    }

    /// The store of the limiter, for its own statistics and warnings.
    pub fn store(&self) -> &S {
        &self.shared.runner.store
    }

    /// A number that only this limiter and its clones have.
    #[cfg(any(feature = "tower", feature = "macros"))]
    pub(crate) fn identity(&self) -> u128 {
        self.shared.runner.names.process()
    }

    /// Notes that functions may look at rulings of this limiter on their request.
    #[cfg(all(feature = "tower", feature = "macros"))]
    pub(crate) fn note_scopes(&self) {
        self.shared.scopes.store(true, Ordering::Relaxed);
    }

    /// True if functions may look at rulings of this limiter on their request.
    #[cfg(feature = "tower")]
    pub(crate) fn has_scopes(&self) -> bool {
        self.shared.scopes.load(Ordering::Relaxed)
    }

    /// Judges an ask. The judgement is written to a place of the caller's, since it is too large to
    /// be moved for every request.
    #[inline]
    pub(crate) fn judge<'s>(
        &self,
        ask: &Ask<'_>,
        rules: &'s DecidingRules,
        judgement: &mut Judgement<'s>,
    ) {
        if let DecidingRules::Rules(rules) = rules {
            rules.judge_into(ask, &self.shared.secret, judgement);
        }
    }

    /// Plans a judged ask.
    #[inline(always)]
    pub(crate) fn plan<'p, 's: 'p>(&self, judgement: &'p Judgement<'s>, plan: &mut Plan<'p>) {
        plan.push_judgement(judgement, &self.shared.runner.names);
    }

    /// Decides an ask by the given rules.
    pub(crate) async fn admit_by(
        &self,
        ask: &Ask<'_>,
        intent: Intent,
        rules: Arc<RuleSet>,
    ) -> Admission {
        self.admit_with(ask, intent, &DecidingRules::Rules(rules), |_, _| ()).await.0
    }

    /// Decides an ask by the given rules, and returns the result of `note` on the plan and its
    /// ruling.
    pub(crate) async fn admit_with<T>(
        &self,
        ask: &Ask<'_>,
        intent: Intent,
        rules: &DecidingRules,
        note: impl FnOnce(&Plan<'_>, &Ruling) -> T,
    ) -> (Admission, T) {
        let mut judgement = Judgement::UnknownDomain;
        self.judge(ask, rules, &mut judgement);
        let mut plan = Plan::empty(rules, intent, Reason::NoRule);
        self.plan(&judgement, &mut plan);
        let mut ruling = Ruling::of(&plan);
        let permits = self.run(&plan, Some(ask), &mut ruling).await;
        let noted = note(&plan, &ruling);
        drop(plan);
        (Admission { ruling, permits }, noted)
    }
}

impl<S> Shared<S> {
    /// Counts a request, and sends its events to observers.
    pub(crate) fn tell_request(&self, ask: Option<&Ask<'_>>, ruling: &Ruling) {
        self.counts.add(ruling);
        self.observers.tell_request(ask, ruling);
    }
}

/// Replaces rules whose version is below `offered`, and returns that version.
pub(crate) fn replace_older<T>(
    rules: &ArcSwap<T>,
    offered: u64,
    version: impl Fn(&T) -> u64,
    next: impl Fn(&Arc<T>) -> Arc<T>,
) -> Result<u64, StaleRules> {
    let is_newer = |present: &Arc<T>| version(present) < offered;
    let before = rules.rcu(|it| if is_newer(it) { next(it) } else { Arc::clone(it) });
    match version(&before) {
        present if present >= offered => Err(StaleRules { present, offered }),
        present => Ok(present),
    }
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

opaque_debug!(Limiter<S>: |it| version = it.shared.rules.load().version());

/// The error for rules whose version does not rise. The earlier rules still apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleRules {
    /// The version of the current rules.
    pub present: u64,
    /// The version of the rejected rules.
    pub offered: u64,
}

error_messages! {
    StaleRules {
        Self { present, offered } =>
            "rules of version {offered} offered where {present} applies: raise `version`";
    }
}
