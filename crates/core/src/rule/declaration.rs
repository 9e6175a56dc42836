//! Rules as people declare them: plain data, before anything is checked.
//!
//! A format (YAML, TOML, JSON) reads into a [`Declaration`] and writes one out; `RuleSet::new`
//! checks it whole and compiles it. What a field means is said here; what is wrong with one is
//! said by `check.rs`.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::{Algorithm, OnChange, OnFull, Quota};

/// A whole set of rules, as one edit of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The number of this edit, from 1 on. Versions only rise; a version never has two contents.
    pub version: u64,
    /// Each with rules of its own; an ask names one.
    pub domains: Vec<Domain>,
}

/// The rules of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The name that asks use.
    pub name: String,
    /// Attributes whose values put all keys of a request into one slot of a Redis Cluster. Every
    /// counter of the domain is told apart by them, besides its rule's `by`; asks that lack one
    /// share counters of their own.
    pub partition: Vec<String>,
    /// Leading bits of an IPv6 address that are one client: 64, the least a client gets.
    pub ipv6_prefix: u8,
    /// The treatment of case in paths.
    pub path_case: PathCase,
    /// All that match are charged, all or none.
    pub rules: Vec<Rule>,
    /// Subjects that are never limited.
    pub exempt: Vec<Subject>,
    /// Subjects that never pass. Stronger than `exempt`.
    pub block: Vec<Subject>,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Unique within its domain; part of its counters' keys.
    pub name: String,
    /// Conditions on attributes, each attribute at most once. All must hold.
    pub matches: Vec<(String, Pattern)>,
    /// Attributes whose values tell counters apart; none means one counter for all. `path` is the
    /// template that matched, if the rule has one, and `path.id` what it captured as `{id}`.
    pub by: Vec<String>,
    /// The limits. All must pass.
    pub limits: Vec<Limitation>,
    /// Refuses whatever matches; then there are no limits.
    pub block: bool,
    /// The scenario, which chooses the algorithm of limits that name none.
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
    /// Rules that are not charged where this one matches and applies. The only way in which a
    /// rule more lets something more through. One in shadow mode replaces nobody.
    pub replaces: Vec<String>,
    /// A ban after repeated refusals.
    pub ban: Option<Ban>,
    /// The cost of a request.
    pub cost: CostFrom,
    /// A limiter in this process in front of the store, at so many thousandths of the limit.
    pub local_guard: Option<u32>,
}

/// One limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limitation {
    /// Its name within the rule; unless said, its period.
    pub name: Option<String>,
    /// The count per period. Of concurrency: the holders at once, and the longest lease.
    pub quota: Quota,
    /// The algorithm; by scenario if `None`.
    pub algorithm: Option<Algorithm>,
}

/// A condition on the value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One of these. For `path` they are templates, for `ip` networks.
    Any(Vec<Value>),
    /// Any value, but there must be one.
    Present,
    /// There must be none.
    Absent,
}

/// One value that a condition accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Exactly this text. For `path`: a template such as `/orders/{id}` or `/static/{*rest}`.
    Text(String),
    /// Anything that begins with this; written with a `*` at its end. For `path` it must end in a
    /// slash and means `{*rest}`: all below it, and itself.
    Prefix(String),
    /// An address of this network; for `ip` only, where a text that is a network does as well.
    Network(Network),
}

/// An address range: `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// Its first address; the bits behind the prefix are zero.
    pub address: IpAddr,
    /// The number of leading bits that count.
    pub prefix: u8,
}

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Everyone at these addresses.
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
    /// `/Login` is `/login`: nobody gets around a rule by capitals. What a path captures is
    /// counted in small letters as well. Letters beyond ASCII keep their case.
    #[default]
    Insensitive,
    /// They are two paths, and the application must treat them so as well.
    Sensitive,
}

/// The kind of a rule, which chooses its default algorithm: a rule that guards capacity lets bursts
/// through, a rule that guards something precious counts exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// Everything together: token bucket.
    Global,
    /// One service: token bucket.
    Service,
    /// One interface, that is, a path: sliding log.
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
    /// It does.
    #[default]
    Enforce,
    /// It counts and reports what it would refuse, and refuses nothing.
    Shadow,
    /// It is not there.
    Off,
}

/// The answer of a rule while the store is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnOutage {
    /// This process, with its share of the limit.
    #[default]
    Local,
    /// Everything passes.
    Admit,
    /// Nothing passes; told apart from a refusal by the limit.
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

/// A temporary ban: after so many refusals within a time, nothing passes for a time.
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
    /// The attribute that says so; unless said, the ask does.
    pub attribute: Option<String>,
    /// The cost when that attribute is missing or no number.
    pub default: u64,
    /// The most that is believed; `None` for any.
    pub max: Option<u64>,
}

impl Default for CostFrom {
    fn default() -> Self {
        Self { attribute: None, default: 1, max: None }
    }
}

impl Rule {
    /// A rule with this name, and everything else as it is unless said.
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
