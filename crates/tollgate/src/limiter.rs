//! The limiter: from an ask to an admission.
//!
//! [`Limiter::admit`] judges an ask by the rules of one version, charges what they say, all or
//! none, and answers whatever the store does. Rules are swapped without anybody waiting: whoever
//! is being judged keeps the version that it began with.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::rule::{Ask, Charges, Due, Judgement, KeySecret, LimitKind, RuleSet};
use tollgate_core::{
    Algorithm, Cost, Holder, Key, KeyError, Limit, Op, Retry, Store, Timestamp, Verdict,
};
use tollgate_embedded::EmbeddedStore;

use crate::admission::{Admission, Blocked, Found, Made, Of, Outage, Reason, Ruling};
use crate::builder::Builder;
use crate::engine::{Engine, Keeper, Outcome, OwnedToll, Source, Toll, keys};
use crate::envoy::EnvoyRules;
use crate::observer::{Event, Observers};
use crate::permits::Permits;
use crate::stats::{Counts, Stats};
use crate::wait::{Gate, GateError};

/// Decides who may pass. Clones share everything.
///
/// ```
/// use tollgate::{EmbeddedStore, Limiter, rules};
/// use tollgate::core::rule::Ask;
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
/// assert_eq!(third.ruling().refused_by().and_then(|finding| finding.rule).map(|rule| rule.name()), Some("login-per-ip"));
/// # Ok(()) }
/// ```
pub struct Limiter<S = EmbeddedStore> {
    pub(crate) shared: Arc<Shared<S>>,
}

pub(crate) struct Shared<S> {
    pub(crate) engine: Arc<Engine<S>>,
    pub(crate) keeper: Keeper,
    pub(crate) rules: ArcSwap<RuleSet>,
    /// Rises after the rules have changed, so that whoever keeps something of them need only look
    /// here. Begins at 1.
    pub(crate) edition: AtomicU64,
    pub(crate) envoy: ArcSwap<EnvoyRules>,
    pub(crate) secret: KeySecret,
    pub(crate) mac: [u8; 16],
    pub(crate) observers: Observers,
    pub(crate) counts: Counts,
}

impl<S: Store + 'static> Limiter<S> {
    /// A limiter on this store, without rules: everything passes until [`Limiter::set_rules`].
    pub fn new(store: S) -> Self {
        Self::builder(store).build()
    }

    /// A limiter that begins with rules, or has a fleet's secret, or observers.
    pub fn builder(store: S) -> Builder<S> {
        Builder::new(store)
    }

    /// Judges an ask by the rules, and charges what it costs, all or none.
    ///
    /// A request that one limit refuses is charged by none. It always has an answer: where the
    /// store gives none in time, the rules say what holds meanwhile, and the admission is
    /// [`Admission::Degraded`]. Nobody waits here: what cannot pass now is refused, with the time
    /// after which asking again helps.
    ///
    /// Keep the admission while the work lasts where a rule counts who is at work: its permits go
    /// back when it is dropped, so `admit(&ask).await.passes()` holds none.
    ///
    /// Dropping the future before it ends may leave the charge, as a question to a remote store
    /// cannot be called back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{EmbeddedStore, Limiter, Reason, rules, core::rule::Ask};
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
        self.rule_on(ask, Manner::CHARGE, self.rules(), |_, _| {}).await
    }

    /// The same for a caller that can wait: up to `patience` for a place in the future, which
    /// [`Admission::wait`] then says. Only limits that keep a time line grant one (leaky queue and
    /// meter, token bucket, smooth), and of several limits one waits; the others must pass now.
    /// Whoever gives up while waiting has been charged all the same: a [`Gate`] gives places back.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{EmbeddedStore, Limiter, rules, core::rule::Ask};
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
        self.rule_on(ask, Manner::Charge { patience }, self.rules(), |_, _| {}).await
    }

    /// What [`Limiter::admit`] would say, without charging anything. Neither counted in
    /// [`Limiter::stats`] as a request nor told to observers.
    ///
    /// ```
    /// # use tollgate::{EmbeddedStore, Limiter, rules, core::rule::Ask};
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
        self.peek_under(ask, self.rules()).await
    }

    /// The same under given rules.
    pub(crate) async fn peek_under(&self, ask: &Ask<'_>, rules: Arc<RuleSet>) -> Admission {
        self.rule_on(ask, Manner::Peek, rules, |_, _| {}).await
    }

    /// Charges one counter of the caller's choice, without rules.
    ///
    /// The key has up to 1023 bytes and never meets a rule's. One key under two limits of one
    /// algorithm is one counter. In an outage this process's share of the limit answers.
    ///
    /// ```
    /// use tollgate::{EmbeddedStore, Limiter, core::{Limit, algorithm::TokenBucket}};
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
    /// When the key cannot be one, or the limit counts holders.
    pub async fn check(
        &self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        cost: Cost,
    ) -> Result<Admission, GateError> {
        self.check_key(&chosen(key.as_ref())?, limit, cost).await
    }

    /// A counter of the caller's choice at which callers wait: see [`Gate`].
    ///
    /// Its key is that of [`Limiter::check`], so a check and a gate of one key and limit share one
    /// counter. Two gates of one key do not share a line: clone one instead.
    ///
    /// ```
    /// use tollgate::{EmbeddedStore, GateError, Limiter, core::{Limit, algorithm::{Concurrency, TokenBucket}}};
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
    /// When the key cannot be one, or the limit counts holders.
    pub fn gate(&self, key: impl AsRef<[u8]>, limit: Limit) -> Result<Gate<S>, GateError> {
        let key = chosen(key.as_ref())?.into_boxed_slice();
        let counter = OwnedToll { key, limit, partition: None };
        let shared = &self.shared;
        Gate::new(Arc::clone(&shared.engine), shared.keeper.clone(), counter)
    }

    /// The rules that apply now: of version 0 and empty before the first.
    pub fn rules(&self) -> Arc<RuleSet> {
        self.shared.rules.load_full()
    }

    /// Applies other rules from now on. Whoever is being judged keeps those it began with, and
    /// nobody waits.
    ///
    /// What was used of a limit stays used, as its rule's `on-change` says. While processes have
    /// different versions, the newer one's limit judges all.
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
    /// When their version is not above the present one.
    pub fn set_rules(&self, rules: RuleSet) -> Result<(), StaleRules> {
        let to = rules.version();
        let rules = Arc::new(rules);
        let mut stale = None;
        let before = self.shared.rules.rcu(|present| {
            stale = (present.version() >= to).then(|| present.version());
            match stale {
                Some(_) => Arc::clone(present),
                None => Arc::new(RuleSet::clone(&rules).following(present)),
            }
        });
        if let Some(present) = stale {
            return Err(StaleRules { present, offered: to });
        }
        self.shared.edition.fetch_add(1, Ordering::Release);
        let from = before.version();
        self.shared.observers.tell(|| Event::RulesChanged { from, to });
        Ok(())
    }

    /// What was counted since the start, by this limiter and its clones.
    pub fn stats(&self) -> Stats {
        self.shared.counts.stats(&self.shared)
    }

    /// The store it decides on, for its own statistics and warnings.
    pub fn store(&self) -> &S {
        &self.shared.engine.store
    }

    /// Tells this limiter and its clones apart from all others.
    #[cfg(any(feature = "tower", feature = "macros"))]
    pub(crate) fn identity(&self) -> u128 {
        self.shared.engine.names.process()
    }

    /// Judges an ask under given rules. What is charged is noted, with its partition.
    pub(crate) fn rule_on(
        &self,
        ask: &Ask<'_>,
        manner: Manner,
        rules: Arc<RuleSet>,
        note: impl FnMut(&Toll<'_>, Option<&[u8]>) + Send,
    ) -> impl Future<Output = Admission> + Send {
        self.rule_with(ask, manner, rules, note)
    }

    /// The same, and makes of the ruling what the caller wants.
    pub(crate) async fn rule_with<R: Made>(
        &self,
        ask: &Ask<'_>,
        manner: Manner,
        rules: Arc<RuleSet>,
        mut note: impl FnMut(&Toll<'_>, Option<&[u8]>),
    ) -> R {
        let mut judgement = Judgement::UnknownDomain;
        rules.judge_into(ask, &self.shared.secret, &mut judgement);
        let charges = match &judgement {
            Judgement::Charges(charges) => charges,
            other => {
                let (reason, blocked_by) = reason(other);
                drop(judgement);
                let ruling = Ruling { blocked_by, ..uncounted(reason, rules) };
                return self.conclude(ruling, Permits::none(), None, manner);
            }
        };
        let has_shadow = !charges.shadow().is_empty() || charges.shadow_block().is_some();
        if charges.enforced().is_empty() {
            let mut permits = Permits::none();
            if has_shadow && manner != Manner::Peek {
                permits = self.shadow(charges, &rules).await;
            }
            drop(judgement);
            let ruling = uncounted(Reason::NoRule, rules);
            return self.conclude(ruling, permits, None, manner);
        }
        let names = &self.shared.engine.names;
        let mut tolls: SmallVec<[Toll<'_>; 4]> = SmallVec::new();
        for due in charges.enforced() {
            tolls.push(toll(charges, due, manner, || names.draw()));
        }
        if let Manner::Charge { patience } = manner
            && !patience.is_zero()
        {
            be_patient(&mut tolls, patience);
        }
        let mut permits = self.permits(&tolls, charges.partition());
        let (engine, mut decided) = (&self.shared.engine, Outcome::none());
        if !engine.decide_at_once(&tolls, charges.partition(), &mut decided.answer) {
            decided = engine.decide(&tolls, charges.partition()).await;
        }
        if manner != Manner::Peek {
            if decided.answer.passes() {
                permits.granted();
                tolls.iter().for_each(|toll| note(toll, charges.partition()));
                if has_shadow {
                    permits.join(self.shadow(charges, &rules).await);
                }
            } else {
                permits.refused();
                self.count_refusals(charges, &decided);
            }
        }
        let outage = outage(&decided, &tolls);
        let mut places: SmallVec<[(usize, usize); 4]> = SmallVec::new();
        for due in charges.enforced() {
            places.push((due.rule.index(), limit_at(due)));
        }
        drop(tolls);
        drop(judgement);
        let mut made = R::new(ruling(Reason::Limits, &decided, rules), permits, outage);
        let ruling = made.ruling_mut();
        for ((rule, limit), decision) in places.into_iter().zip(&decided.answer.decisions) {
            ruling.findings.push(Found { of: Of::Rules, rule, limit, decision: *decision });
        }
        self.count(ruling, outage, manner);
        made
    }

    /// Counts, tells, and answers. What is only asked about is not counted. Inlined, as a ruling is
    /// too large to be moved about for every request.
    #[inline(always)]
    pub(crate) fn conclude<R: Made>(
        &self,
        ruling: Ruling,
        permits: Permits,
        outage: Option<Outage>,
        manner: Manner,
    ) -> R {
        self.count(&ruling, outage, manner);
        R::new(ruling, permits, outage)
    }

    pub(crate) fn count(&self, ruling: &Ruling, outage: Option<Outage>, manner: Manner) {
        if manner == Manner::Peek {
            return;
        }
        self.shared.counts.add(ruling, outage);
        self.shared.observers.tell_request(|| {
            let ruling = ruling.clone();
            match outage {
                Some(outage) => Event::Degraded { ruling, outage },
                None if ruling.verdict.passes() => Event::Admitted { ruling },
                None => Event::Refused { ruling },
            }
        });
    }

    /// The permits that these tolls ask for.
    pub(crate) fn permits(&self, tolls: &[Toll<'_>], partition: Option<&[u8]>) -> Permits {
        if tolls.iter().all(|toll| !matches!(toll.op, Op::Acquire { .. })) {
            return Permits::none();
        }
        let asked = tolls.iter().filter_map(|toll| match toll.op {
            Op::Acquire { holder, lease } => Some((OwnedToll::new(toll, partition), holder, lease)),
            _ => None,
        });
        Permits::asked(asked, &self.shared.keeper, &self.shared.engine)
    }
}

/// What is said where nothing is counted.
pub(crate) fn uncounted(reason: Reason, rules: Arc<RuleSet>) -> Ruling {
    let verdict = match reason {
        Reason::Blocked | Reason::TooManyLimits => Verdict::Deny(Retry::Never),
        _ => Verdict::Allow,
    };
    Ruling {
        verdict,
        reason,
        at: Timestamp::EPOCH,
        source: Source::Store,
        rules,
        beside: None,
        envoy: None,
        refused_by: None,
        findings: SmallVec::new(),
        blocked_by: None,
    }
}

#[inline(always)]
pub(crate) fn ruling(reason: Reason, outcome: &Outcome, rules: Arc<RuleSet>) -> Ruling {
    Ruling {
        verdict: outcome.answer.verdict,
        reason,
        at: outcome.answer.at,
        source: outcome.source,
        rules,
        beside: None,
        envoy: None,
        refused_by: outcome.answer.refused_by,
        findings: SmallVec::new(),
        blocked_by: None,
    }
}

/// Whether an ask is charged or only asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Charged, with this patience.
    Charge {
        patience: Duration,
    },
    Peek,
}

impl Manner {
    /// Charged, now or not at all.
    pub(crate) const CHARGE: Self = Self::Charge { patience: Duration::ZERO };
}

/// Lets one of the tolls wait for a place in the future: only one can, as two places cannot be
/// promised for one moment. The queue first, as it passes nobody else; then what keeps a time line.
fn be_patient(tolls: &mut [Toll<'_>], patience: Duration) {
    let rank = |toll: &&mut Toll<'_>| match toll.limit.algorithm() {
        Algorithm::LeakyQueue(_) => Some(3),
        Algorithm::LeakyMeter(_) => Some(2),
        Algorithm::Smooth(_) | Algorithm::TokenBucket(_) => Some(1),
        _ => None,
    };
    let waits = tolls.iter_mut().filter(|toll| toll.spent() > 0 && rank(toll).is_some());
    if let Some(toll) = waits.max_by_key(rank) {
        toll.patience = patience;
    }
}

/// The toll of a due.
pub(crate) fn toll<'c, 's: 'c>(
    charges: &'c Charges<'s>,
    due: &Due<'s>,
    manner: Manner,
    draw: impl FnOnce() -> u128,
) -> Toll<'c> {
    let limit = due.limit.limit();
    let holders = matches!(limit.algorithm(), Algorithm::Concurrency(_));
    let op = match (manner, due.limit.kind()) {
        // Who costs nothing asks, and holds nothing.
        (_, LimitKind::Limit) if holders && due.cost == 0 => Op::Peek(0),
        (Manner::Charge { .. }, LimitKind::Limit) if holders => {
            Op::Acquire { holder: Holder(draw()), lease: limit.quota().period() }
        }
        (Manner::Charge { .. }, LimitKind::Limit) => Op::Take(due.cost),
        (Manner::Peek, LimitKind::Limit) if holders => Op::Peek(1),
        (_, _) => Op::Peek(due.cost),
    };
    let mut toll = Toll::new(charges.key(due), limit, op);
    toll.on_outage = match (due.rule.on_outage(), due.limit.kind()) {
        // Whom the store last called banned stays banned; all others pass.
        (OnOutage::Admit, LimitKind::Ban) => OnOutage::Local,
        (on_outage, _) => on_outage,
    };
    toll.bans = due.rule.ban().is_some() && due.limit.kind() == LimitKind::Limit;
    toll.measured = due.rule.declaration().cost.attribute.is_some();
    toll.guard = due.limit.guard();
    toll
}

/// Where the limit of a due stands in its rule; behind all of them for a ban.
fn limit_at(due: &Due<'_>) -> usize {
    let limits = due.rule.limits().iter();
    limits.take_while(|limit| !std::ptr::eq(*limit, due.limit)).count()
}

/// Where a due stands in its rules; what it says comes later.
#[inline]
pub(crate) fn place(due: &Due<'_>) -> Found {
    let decision = tollgate_core::Decision::overflow(Verdict::Allow);
    Found { of: Of::Rules, rule: due.rule.index(), limit: limit_at(due), decision }
}

#[cfg(feature = "macros")]
pub(crate) fn found(dues: &[Due<'_>], outcome: &Outcome) -> SmallVec<[Found; 4]> {
    let mut findings = SmallVec::new();
    for (due, decision) in dues.iter().zip(&outcome.answer.decisions) {
        findings.push(Found { decision: *decision, ..place(due) });
    }
    findings
}

pub(crate) fn reason(judgement: &Judgement<'_>) -> (Reason, Option<Box<Blocked>>) {
    match judgement {
        Judgement::UnknownDomain => (Reason::UnknownDomain, None),
        Judgement::Blocked(by) => (Reason::Blocked, Some(Blocked::new(by))),
        Judgement::Exempt(_) => (Reason::Exempt, None),
        Judgement::TooMany { .. } => (Reason::TooManyLimits, None),
        Judgement::Charges(_) => (Reason::NoRule, None),
    }
}

pub(crate) fn outage(outcome: &Outcome, tolls: &[Toll<'_>]) -> Option<Outage> {
    let Source::Outage(cause) = outcome.source else { return None };
    let refuses = |by: usize| tolls.get(by).map(|toll| toll.on_outage);
    let by = outcome.answer.refused_by.and_then(refuses);
    let unavailable = by == Some(OnOutage::Refuse);
    Some(Outage { cause, unavailable })
}

/// A key that a caller chose, told apart from all others.
pub(crate) fn chosen(key: &[u8]) -> Result<Vec<u8>, KeyError> {
    Key::new(key)?;
    keys::tagged(keys::CHOSEN, key)
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.shared.rules.load().version();
        f.debug_struct("Limiter").field("version", &version).finish_non_exhaustive()
    }
}

/// Rules whose version does not rise. Those that applied before still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleRules {
    /// The version that applies.
    pub present: u64,
    /// The version that was offered.
    pub offered: u64,
}

impl fmt::Display for StaleRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { present, offered } = self;
        write!(f, "rules of version {offered} offered where {present} applies: raise `version`")
    }
}

impl std::error::Error for StaleRules {}
