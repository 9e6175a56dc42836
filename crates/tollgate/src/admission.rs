//! What a request is told: decided, or answered without the store.
//!
//! This is the one place where an outage becomes an answer. Doors turn an [`Admission`] into
//! bytes and need nothing else.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::rule::declaration::Subject;
use tollgate_core::rule::{ActiveLimit, ActiveRule, BlockedBy, RuleSet};
use tollgate_core::{Decision, Retry, StoreErrorKind, Timestamp, Verdict};

use crate::engine::Source;
use crate::envoy::{self, EnvoyRules};
use crate::permits::Permits;

/// Whether a request may pass, and on what that rests.
///
/// Keep it, or its [`Permits`], for as long as the work takes: permits of concurrency limits go
/// back when it is dropped.
///
/// ```
/// use tollgate::{Admission, EmbeddedStore, Limiter, core::{Limit, algorithm::SlidingLog}};
///
/// /// What a web server would answer.
/// fn status(admission: &Admission) -> u16 {
///     match admission.outage() {
///         _ if admission.passes() => 200,
///         Some(outage) if outage.unavailable => 503,
///         _ => 429,
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// let limit = Limit::new(SlidingLog, "1 per 1m".parse()?)?;
/// assert_eq!(status(&limiter.check("k", &limit, 1).await?), 200);
/// assert_eq!(status(&limiter.check("k", &limit, 1).await?), 429);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "an admission that is not looked at admits everybody"]
pub enum Admission {
    /// By the store, or by what it is known to say.
    Decided {
        /// What was decided.
        ruling: Ruling,
        /// What is held under concurrency limits, until this is dropped.
        permits: Permits,
    },
    /// Without the store, as the rules say for that case.
    Degraded {
        /// What was decided.
        ruling: Ruling,
        /// What is held under concurrency limits, until this is dropped.
        permits: Permits,
        /// Why.
        outage: Outage,
    },
}

/// Why the answer is not the store's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// What became of the question: after a [`StoreErrorKind::Timeout`] the store may have charged
    /// it as well.
    pub cause: StoreErrorKind,
    /// Whether the request is refused only because the store is away (503, not 429).
    pub unavailable: bool,
}

impl Admission {
    /// Whether the request may pass, now or after [`Admission::wait`]. In an outage as well.
    pub fn passes(&self) -> bool {
        self.verdict().passes()
    }

    /// The verdict over all rules.
    pub fn verdict(&self) -> Verdict {
        self.ruling().verdict
    }

    /// How long to wait before passing; zero unless the request was granted a place in the future,
    /// which needs patience: [`Limiter::admit`](crate::Limiter::admit) and
    /// [`Limiter::check`](crate::Limiter::check) have none.
    pub fn wait(&self) -> Duration {
        match self.verdict() {
            Verdict::Wait(wait) => wait,
            Verdict::Allow | Verdict::Deny(_) => Duration::ZERO,
        }
    }

    /// After how long asking again can help, never zero; `None` if the request passes, or never
    /// will. Of several limits that refuse, the longest.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.verdict() {
            Verdict::Deny(Retry::After(retry)) => Some(retry),
            _ => None,
        }
    }

    /// What was decided, rule by rule.
    pub const fn ruling(&self) -> &Ruling {
        match self {
            Self::Decided { ruling, .. } | Self::Degraded { ruling, .. } => ruling,
        }
    }

    /// Why the store did not decide, if it did not.
    pub const fn outage(&self) -> Option<Outage> {
        match self {
            Self::Decided { .. } => None,
            Self::Degraded { outage, .. } => Some(*outage),
        }
    }

    /// What is held under concurrency limits, to be dropped when the work is done.
    pub fn into_permits(self) -> Permits {
        match self {
            Self::Decided { permits, .. } | Self::Degraded { permits, .. } => permits,
        }
    }
}

/// What is made of a ruling. It is made first, and filled where it is then: with its findings a ruling
/// is too large to be moved about for every request.
pub(crate) trait Made {
    fn new(ruling: Ruling, permits: Permits, outage: Option<Outage>) -> Self;

    fn ruling_mut(&mut self) -> &mut Ruling;
}

impl Made for Admission {
    #[inline(always)]
    fn new(ruling: Ruling, permits: Permits, outage: Option<Outage>) -> Self {
        match outage {
            None => Self::Decided { ruling, permits },
            Some(outage) => Self::Degraded { ruling, permits, outage },
        }
    }

    #[inline(always)]
    fn ruling_mut(&mut self) -> &mut Ruling {
        match self {
            Self::Decided { ruling, .. } | Self::Degraded { ruling, .. } => ruling,
        }
    }
}

/// An admission whose ruling several may look at.
#[cfg(feature = "tower")]
pub(crate) struct Ruled {
    pub(crate) ruling: Arc<Ruling>,
    pub(crate) permits: Permits,
    pub(crate) outage: Option<Outage>,
}

#[cfg(feature = "tower")]
impl Made for Ruled {
    #[inline(always)]
    fn new(ruling: Ruling, permits: Permits, outage: Option<Outage>) -> Self {
        Self { ruling: Arc::new(ruling), permits, outage }
    }

    #[inline(always)]
    fn ruling_mut(&mut self) -> &mut Ruling {
        Arc::make_mut(&mut self.ruling)
    }
}

#[cfg(feature = "tower")]
impl From<Admission> for Ruled {
    fn from(admission: Admission) -> Self {
        match admission {
            Admission::Decided { ruling, permits } => Self::new(ruling, permits, None),
            Admission::Degraded { ruling, permits, outage } => {
                Self::new(ruling, permits, Some(outage))
            }
        }
    }
}

/// What was decided about a request, rule by rule. Names are those of the version that decided.
#[derive(Clone)]
pub struct Ruling {
    pub(crate) verdict: Verdict,
    pub(crate) reason: Reason,
    pub(crate) at: Timestamp,
    pub(crate) source: Source,
    pub(crate) rules: Arc<RuleSet>,
    /// Rules that stand in the code and were asked in the same request.
    pub(crate) beside: Option<Arc<RuleSet>>,
    /// The rules of a call of Envoy's, which then judged it.
    pub(crate) envoy: Option<Arc<EnvoyRules>>,
    pub(crate) refused_by: Option<usize>,
    pub(crate) findings: SmallVec<[Found; 4]>,
    /// Boxed, as a ruling is moved often and seldom has one.
    pub(crate) blocked_by: Option<Box<Blocked>>,
}

/// Who refuses without counting.
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
        /// Its name.
        rule: String,
    },
    /// A rule that refuses what lacks an attribute that it counts by.
    Missing {
        /// Its name.
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

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The limits of the rules that match.
    Limits,
    /// No rule matches.
    NoRule,
    /// The request names a domain that has no rules. It passes, as at Envoy.
    UnknownDomain,
    /// On the list of those who are never limited.
    Exempt,
    /// On the list of those who never pass, or a rule blocks.
    Blocked,
    /// More limits apply than one request may be charged on. Refused, as some would be left out.
    TooManyLimits,
}

/// Which rules a limit belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// Those of the ruling.
    Rules,
    /// Those beside them.
    #[cfg_attr(not(feature = "macros"), expect(dead_code, reason = "only functions have some"))]
    Beside,
}

/// What one limit says, by its place in the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) of: Of,
    pub(crate) rule: usize,
    pub(crate) limit: usize,
    pub(crate) decision: Decision,
}

/// Where a limit stands.
#[cfg(feature = "tower")]
pub(crate) type Place = (Of, usize, usize);

#[cfg(feature = "tower")]
impl Found {
    pub(crate) const fn place(&self) -> Place {
        (self.of, self.rule, self.limit)
    }
}

/// Why a request is refused, for those who tell it.
#[cfg(any(feature = "tower", feature = "macros"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Limited,
    Banned,
    Unavailable,
    Blocked,
    TooManyLimits,
}

/// What one limit of one rule says.
#[derive(Clone, Copy, Debug)]
pub struct Finding<'r> {
    /// The rule; `None` for a question without rules
    /// ([`Limiter::check`](crate::Limiter::check)).
    pub rule: Option<&'r ActiveRule>,
    /// Its limit; `None` for its ban, and without rules.
    pub limit: Option<&'r ActiveLimit>,
    /// The rule of a call of Envoy's; `None` if its limit came with the call, and for all others.
    pub envoy: Option<&'r envoy::Rule>,
    /// Its verdict alone, and what remains.
    pub decision: Decision,
}

impl Ruling {
    /// The verdict over all rules.
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What it rests on.
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Who answered.
    pub const fn source(&self) -> Source {
        self.source
    }

    /// When, by the store's clock; the epoch if it was not asked.
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Which version of the rules decided.
    pub fn version(&self) -> u64 {
        self.envoy.as_ref().map_or_else(|| self.rules.version(), |rules| rules.version())
    }

    /// What each limit says, bans included, the most specific rule first. Where the store was not
    /// asked, only what refuses is known of: see [`Ruling::source`].
    pub fn findings(&self) -> impl Iterator<Item = Finding<'_>> {
        self.findings.iter().map(|found| self.finding(found))
    }

    /// Who refuses without counting, where the reason is [`Reason::Blocked`].
    pub fn blocked_by(&self) -> Option<&Blocked> {
        self.blocked_by.as_deref()
    }

    /// The limit that refuses: of several, the one with the longest retry.
    pub fn refused_by(&self) -> Option<Finding<'_>> {
        self.refused_by.and_then(|by| self.findings.get(by)).map(|found| self.finding(found))
    }

    /// What a refusal is to be called, in an outage or not.
    #[cfg(any(feature = "tower", feature = "macros"))]
    pub(crate) fn cause(&self, outage: Option<Outage>) -> Cause {
        let by_ban = |finding: Finding<'_>| finding.rule.is_some() && finding.limit.is_none();
        match self.reason {
            Reason::Blocked => Cause::Blocked,
            Reason::TooManyLimits => Cause::TooManyLimits,
            _ if outage.is_some_and(|outage| outage.unavailable) => Cause::Unavailable,
            _ if self.refused_by().is_some_and(by_ban) => Cause::Banned,
            _ => Cause::Limited,
        }
    }

    fn finding(&self, found: &Found) -> Finding<'_> {
        if let Some(rules) = &self.envoy {
            let envoy = rules.rules().get(found.limit);
            return Finding { rule: None, limit: None, envoy, decision: found.decision };
        }
        let rules = match found.of {
            Of::Rules => Some(&self.rules),
            Of::Beside => self.beside.as_ref(),
        };
        let rule = rules.and_then(|rules| rules.rule(found.rule));
        let limit = rule.and_then(|rule| rule.limits().get(found.limit));
        Finding { rule, limit, envoy: None, decision: found.decision }
    }
}

impl fmt::Debug for Ruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused_by = self.refused_by().and_then(|finding| finding.rule).map(ActiveRule::name);
        f.debug_struct("Ruling")
            .field("verdict", &self.verdict)
            .field("reason", &self.reason)
            .field("source", &self.source)
            .field("version", &self.version())
            .field("refused_by", &refused_by)
            .finish_non_exhaustive()
    }
}
