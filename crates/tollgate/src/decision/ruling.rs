//! The ruling on a request: one decision for each limit, the limit that refuses, and who answered.
//!
//! A ruling is made once for each request and filled in place, because it is too large to be moved
//! often. Protocols render it into HTTP fields, statuses or integers.

use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::Subject;
use tollgate_core::rule::{ActiveLimit, ActiveRule, BlockedBy};
use tollgate_core::{Answer, Decision, Retry, StoreErrorKind, Timestamp, Verdict};

use super::plan::{DecidingRules, Origin, Plan};
use crate::envoy;

/// The decision about a request, limit by limit. Names are those of the rule version that decided.
#[derive(Clone)]
pub struct Ruling {
    pub(crate) answer: Answer,
    /// One for each decision of the answer.
    pub(crate) origins: SmallVec<[Origin; 4]>,
    pub(crate) rules: DecidingRules,
    pub(crate) reason: Reason,
    pub(crate) source: Source,
    /// True if the request is refused only because the store is away.
    pub(crate) unavailable: bool,
    /// Boxed, because few rulings have one.
    pub(crate) blocked_by: Option<Box<Blocked>>,
}

/// The part of the system that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// This process, which knew that the store would refuse.
    DenyCache,
    /// The local guard in front of the store.
    Guard,
    /// The outage fallback: the store did not answer, for this reason.
    Outage(StoreErrorKind),
}

/// The reason why the store did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The store's failure. After a [`StoreErrorKind::Timeout`] the store may have charged the
    /// request as well.
    pub cause: StoreErrorKind,
    /// True if the request is refused only because the store is away (503, not 429).
    pub unavailable: bool,
}

/// The list entry or rule that refuses without counting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocked {
    /// An entry of the domain's `block` list.
    List {
        /// The entry, in words.
        entry: String,
    },
    /// A rule that blocks.
    Rule {
        /// The rule's name.
        rule: String,
    },
    /// A rule that refuses requests without an attribute that it counts by.
    Missing {
        /// The rule's name.
        rule: String,
        /// The attribute.
        attribute: String,
    },
}

impl Blocked {
    pub(crate) fn new(by: &BlockedBy<'_>) -> Box<Self> {
        Box::new(match by {
            BlockedBy::List(Subject::Network(network)) => Self::List { entry: network.to_string() },
            BlockedBy::List(Subject::Attribute { name, value }) => {
                Self::List { entry: format!("{name}: {value:?}") }
            }
            BlockedBy::Rule(rule) => Self::Rule { rule: rule.name().to_owned() },
            BlockedBy::Missing { rule, attribute } => {
                Self::Missing { rule: rule.name().to_owned(), attribute: (*attribute).to_owned() }
            }
        })
    }
}

/// The reason of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The limits of the rules that match.
    Limits,
    /// No rule matches.
    NoRule,
    /// The request names a domain that has no rules. It passes, as at Envoy.
    UnknownDomain,
    /// The domain's `exempt` list names the client.
    Exempt,
    /// The domain's `block` list names the client, or a rule blocks.
    Blocked,
    /// More limits apply than one request may be charged on. The request is refused, because some
    /// limits would be left out.
    TooManyLimits,
}

/// The cause of a refusal, for the protocols.
#[cfg(any(feature = "tower", feature = "macros"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Limited,
    Banned,
    Unavailable,
    Blocked,
    TooManyLimits,
}

/// The decision of one limit.
#[derive(Clone, Copy, Debug)]
pub struct Finding<'r> {
    /// The rule; `None` for a counter without rules
    /// ([`Limiter::check`](crate::Limiter::check)) and for Envoy's calls.
    pub rule: Option<&'r ActiveRule>,
    /// The rule's limit; `None` for the rule's ban, and without rules.
    pub limit: Option<&'r ActiveLimit>,
    /// The rule of an Envoy call; `None` if the limit came with the call, and for all other requests.
    pub envoy: Option<&'r envoy::EnvoyRule>,
    /// The verdict of this limit alone, and what remains.
    pub decision: Decision,
}

impl Ruling {
    /// The ruling on a plan before anything is charged.
    #[inline(always)]
    pub(crate) fn of(plan: &Plan<'_>) -> Self {
        let mut origins = SmallVec::new();
        for policy in &plan.policies {
            origins.push(policy.origin);
        }
        let reason = if plan.policies.is_empty() { plan.uncharged } else { Reason::Limits };
        let verdict = match reason {
            Reason::Blocked | Reason::TooManyLimits => Verdict::Deny(Retry::Never),
            _ => Verdict::Allow,
        };
        let at = Timestamp::EPOCH;
        Self {
            answer: Answer { verdict, at, refused_by: None, decisions: SmallVec::new() },
            origins,
            rules: plan.rules.clone(),
            reason,
            source: Source::Store,
            unavailable: false,
            blocked_by: plan.blocked_by.clone(),
        }
    }

    /// The verdict over all limits.
    pub const fn verdict(&self) -> Verdict {
        self.answer.verdict
    }

    /// True if the request may pass, now or later.
    pub const fn passes(&self) -> bool {
        self.answer.verdict.passes()
    }

    /// The time to wait before passing. Zero unless a place in the future was granted.
    pub const fn wait(&self) -> Duration {
        match self.answer.verdict {
            Verdict::Wait(wait) => wait,
            Verdict::Allow | Verdict::Deny(_) => Duration::ZERO,
        }
    }

    /// The time after which asking again can help, never zero. `None` if the request passes, or never
    /// will. Of several limits that refuse, the longest time.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.answer.verdict {
            Verdict::Deny(Retry::After(retry)) => Some(retry),
            _ => None,
        }
    }

    /// The reason of the verdict.
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The part of the system that answered.
    pub const fn source(&self) -> Source {
        self.source
    }

    /// The reason why the store did not decide, if it did not.
    pub const fn outage(&self) -> Option<Outage> {
        match self.source {
            Source::Outage(cause) => Some(Outage { cause, unavailable: self.unavailable }),
            _ => None,
        }
    }

    /// The moment of the decision by the store's clock; the epoch if the store was not asked.
    pub const fn at(&self) -> Timestamp {
        self.answer.at
    }

    /// The version of the rules that decided; 0 for a counter without rules
    /// ([`Limiter::check`](crate::Limiter::check)).
    pub fn version(&self) -> u64 {
        self.rules.version()
    }

    /// The decision of each limit, bans included, the most specific rule first. Where the store was
    /// not asked, only refusals are known: see [`Ruling::source`].
    pub fn findings(&self) -> impl Iterator<Item = Finding<'_>> {
        let rows = self.origins.iter().zip(&self.answer.decisions);
        rows.map(|(origin, decision)| self.finding(*origin, *decision))
    }

    /// The list entry or rule that blocks, where the reason is [`Reason::Blocked`].
    pub fn blocked_by(&self) -> Option<&Blocked> {
        self.blocked_by.as_deref()
    }

    /// The limit that refuses: of several, the one with the longest retry.
    pub fn refusing(&self) -> Option<Finding<'_>> {
        let by = self.answer.refused_by?;
        Some(self.finding(*self.origins.get(by)?, *self.answer.decisions.get(by)?))
    }

    /// The name of the rule that refuses or blocks. `None` if the request passes, if a list blocks
    /// it, and for a counter without rules. Envoy's rules have their path as a name.
    pub fn refused_by(&self) -> Option<&str> {
        match self.blocked_by() {
            Some(Blocked::Rule { rule } | Blocked::Missing { rule, .. }) => return Some(rule),
            Some(Blocked::List { .. }) => return None,
            None => {}
        }
        let refusing = self.refusing()?;
        let rule = refusing.rule.map(ActiveRule::name);
        rule.or_else(|| refusing.envoy.map(envoy::EnvoyRule::path))
    }

    /// The cause of a refusal, in an outage or not.
    #[cfg(any(feature = "tower", feature = "macros"))]
    pub(crate) fn cause(&self) -> Cause {
        let by_ban = |finding: Finding<'_>| finding.rule.is_some() && finding.limit.is_none();
        match self.reason {
            Reason::Blocked => Cause::Blocked,
            Reason::TooManyLimits => Cause::TooManyLimits,
            _ if self.outage().is_some_and(|outage| outage.unavailable) => Cause::Unavailable,
            _ if self.refusing().is_some_and(by_ban) => Cause::Banned,
            _ => Cause::Limited,
        }
    }

    fn finding(&self, origin: Origin, decision: Decision) -> Finding<'_> {
        let index = |at: u32| usize::try_from(at).unwrap_or(usize::MAX);
        let rule = self.rules.rule(origin);
        let limit = match origin {
            Origin::Rule { limit, .. } => rule.and_then(|rule| rule.limits().get(index(limit))),
            _ => None,
        };
        let envoy = match (origin, &self.rules) {
            (Origin::Envoy(Some(at)), DecidingRules::Envoy(rules)) => rules.rules().get(index(at)),
            _ => None,
        };
        Finding { rule, limit, envoy, decision }
    }
}

impl fmt::Debug for Ruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ruling")
            .field("verdict", &self.verdict())
            .field("reason", &self.reason)
            .field("source", &self.source)
            .field("version", &self.version())
            .field("refused_by", &self.refused_by())
            .finish_non_exhaustive()
    }
}
