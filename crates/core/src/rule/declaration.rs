//! Rules as people declare them: plain data, before any check.
//!
//! A format (YAML, TOML, JSON) reads into a [`Declaration`] and writes one out; `RuleSet::new`
//! checks it as a whole and compiles it. The meaning of each field is documented here; `check`
//! reports errors.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::{Algorithm, OnChange, OnFull, Quota};

/// A whole set of rules, at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The version, from 1 on. Versions only rise, and a version never has two contents.
    pub version: u64,
    /// The domains, each with its own rules. An ask names one.
    pub domains: Vec<Domain>,
}

/// The rules of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The name that asks use.
    pub name: String,
    /// Attributes whose values put all keys of a request into one slot of a Redis Cluster. They are
    /// part of every key of the domain, in addition to its rule's `by`. Asks that lack one share
    /// counters of their own.
    pub partition: Vec<String>,
    /// The number of leading bits of an IPv6 address that identify a client: 64 by default, the
    /// least that a client gets.
    pub ipv6_prefix: u8,
    /// The treatment of case in paths.
    pub path_case: PathCase,
    /// The rules. Every rule that matches is charged, all or none.
    pub rules: Vec<Rule>,
    /// Subjects that are never limited.
    pub exempt: Vec<Subject>,
    /// Subjects that never pass. This list precedes `exempt`.
    pub block: Vec<Subject>,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The name, unique within its domain. It is part of its counters' keys.
    pub name: String,
    /// Conditions on attributes, at most one for each attribute. All must hold.
    pub matches: Vec<(String, Pattern)>,
    /// Attributes whose values select a counter; with none, there is one counter for all. `path` is
    /// the matching template, if the rule has one, and `path.id` the segment captured as `{id}`.
    pub by: Vec<String>,
    /// The limits. All must pass.
    pub limits: Vec<Limitation>,
    /// True to refuse every match. Such a rule has no limits.
    pub block: bool,
    /// The scenario, which chooses the default algorithm of limits.
    pub scenario: Option<Scenario>,
    /// Enforced, shadow or off.
    pub mode: Mode,
    /// The answer while the store is unreachable.
    pub on_outage: OnOutage,
    /// Treatment of recorded usage when a limit is edited.
    pub on_change: OnChange,
    /// The answer for new keys when the store is full.
    pub on_full: OnFull,
    /// Treatment of an ask that lacks an attribute of `by`.
    pub on_missing: OnMissing,
    /// Rules that are not charged if this one matches and applies. Only through this field can
    /// another rule let more requests pass. A rule in shadow mode replaces none.
    pub replaces: Vec<String>,
    /// A ban after repeated refusals.
    pub ban: Option<Ban>,
    /// The cost of a request.
    pub cost: CostFrom,
    /// The multiple of the local guard in front of the store, in thousandths of the limit.
    pub local_guard: Option<u32>,
}

/// One limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limitation {
    /// The name within the rule; the period by default.
    pub name: Option<String>,
    /// The count per period. For concurrency: the holders at once, and the longest lease.
    pub quota: Quota,
    /// The algorithm; that of the scenario if `None`.
    pub algorithm: Option<Algorithm>,
}

/// A condition on the value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One of these values. For `path` they are templates, for `ip` networks.
    Any(Vec<Value>),
    /// Any value: the attribute must be present.
    Present,
    /// No value: the attribute must be absent.
    Absent,
}

/// One value that a condition accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Exactly this text. For `path`: a template such as `/orders/{id}` or `/static/{*rest}`.
    Text(String),
    /// Any text with this prefix; written with a `*` at its end. For `path` it must end in a slash
    /// and means `{*rest}`: everything below it, and itself.
    Prefix(String),
    /// An address of this network, for `ip` only. A text that is a network works, too.
    Network(Network),
}

/// An address range: `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// The first address; the bits after the prefix are zero.
    pub address: IpAddr,
    /// The number of leading bits.
    pub prefix: u8,
}

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Every ask from these addresses.
    Network(Network),
    /// Every ask with this value of this attribute.
    Attribute {
        /// The attribute.
        name: String,
        /// Its value.
        value: Value,
    },
}

/// The treatment of case in paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PathCase {
    /// `/Login` is `/login`, so no client evades a rule by capitals. Captured values are counted in
    /// lower case as well. Letters beyond ASCII keep their case.
    #[default]
    Insensitive,
    /// They are two paths. The application must distinguish them, too.
    Sensitive,
}

/// The kind of a rule, which chooses its default algorithm: a rule that guards capacity allows
/// bursts, and a rule that guards something precious counts exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// All requests together: token bucket.
    Global,
    /// One service: token bucket.
    Service,
    /// One interface (a path): sliding log.
    Interface,
    /// Each client address: token bucket.
    Ip,
    /// Each user: token bucket.
    User,
    /// Attempts to log in: sliding log.
    Login,
    /// Payments: sliding log.
    Payment,
}

impl Scenario {
    /// The name in rules.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Service => "service",
            Self::Interface => "interface",
            Self::Ip => "ip",
            Self::User => "user",
            Self::Login => "login",
            Self::Payment => "payment",
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The effect of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The rule limits requests.
    #[default]
    Enforce,
    /// The rule counts and reports refusals, but refuses nothing.
    Shadow,
    /// The rule is ignored.
    Off,
}

/// The answer of a rule while the store is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnOutage {
    /// This process decides, by its share of the limit.
    #[default]
    Local,
    /// Everything passes.
    Admit,
    /// Nothing passes. The outcome differs from a refusal by the limit.
    Refuse,
}

/// Treatment of an ask that lacks an attribute of a rule's `by`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnMissing {
    /// The rule does not apply to it.
    #[default]
    Skip,
    /// All such asks share one counter.
    Share,
    /// It is refused.
    Refuse,
}

/// A temporary ban: after a number of refusals within a time, nothing passes for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ban {
    /// The number of refusals.
    pub after: u64,
    /// The time within which they count.
    pub within: Duration,
    /// The length of the ban.
    pub lasts: Duration,
}

/// The cost of a request under a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostFrom {
    /// The attribute with the cost; `None` for the ask's own cost.
    pub attribute: Option<String>,
    /// The cost if that attribute is missing or not a number.
    pub default: u64,
    /// The largest cost; a larger one counts as this. `None` for no bound.
    pub max: Option<u64>,
}

impl Default for CostFrom {
    fn default() -> Self {
        Self { attribute: None, default: 1, max: None }
    }
}

impl Rule {
    /// A rule with this name, and defaults for everything else.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

impl Domain {
    /// A domain with this name and no rules.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            partition: Vec::new(),
            ipv6_prefix: 64,
            path_case: PathCase::default(),
            rules: Vec::new(),
            exempt: Vec::new(),
            block: Vec::new(),
        }
    }
}
