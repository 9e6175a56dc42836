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
    /// Which edit this is, from 1 on. Versions only rise; a version never has two contents.
    pub version: u64,
    /// Each with rules of its own; an ask names one.
    pub domains: Vec<Domain>,
}

/// The rules of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// What asks call it.
    pub name: String,
    /// Attributes whose values put all keys of a request into one lane of a Redis Cluster. Every
    /// counter of the domain is told apart by them, besides its rule's `by`; asks that lack one
    /// share counters of their own.
    pub partition: Vec<String>,
    /// How many leading bits of an IPv6 address are one client: 64, the least a client gets.
    pub ipv6_prefix: u8,
    /// Whether `/Login` is `/login`.
    pub path_case: PathCase,
    /// All that match are charged, all or none.
    pub rules: Vec<Rule>,
    /// Who is never limited.
    pub exempt: Vec<Subject>,
    /// Who never passes. Stronger than `exempt`.
    pub block: Vec<Subject>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique within its domain; part of its counters' keys.
    pub name: String,
    /// Conditions on attributes, each attribute at most once. All must hold.
    pub matches: Vec<(String, Pattern)>,
    /// Attributes whose values tell counters apart; none means one counter for all. `path` is the
    /// template that matched, if the rule has one, and `path.id` what it captured as `{id}`.
    pub by: Vec<String>,
    /// What is allowed. All must pass.
    pub limits: Vec<Limitation>,
    /// Refuses whatever matches; then there are no limits.
    pub block: bool,
    /// What kind of rule it is, for the algorithm of limits that name none.
    pub scenario: Option<Scenario>,
    /// Whether it refuses.
    pub mode: Mode,
    /// What answers while the store does not.
    pub on_outage: OnOutage,
    /// What becomes of what was used when a limit is edited.
    pub on_change: OnChange,
    /// What answers for new keys when the store is full.
    pub on_full: OnFull,
    /// What happens to an ask that lacks an attribute of `by`.
    pub on_missing: OnMissing,
    /// Rules that are not charged where this one matches and applies. The only way in which a
    /// rule more lets something more through. One in shadow mode replaces nobody.
    pub replaces: Vec<String>,
    /// A ban after repeated refusals.
    pub ban: Option<Ban>,
    /// What a request costs.
    pub cost: CostFrom,
    /// A limiter in this process in front of the store, at so many thousandths of the limit.
    pub local_guard: Option<u32>,
}

/// One limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limitation {
    /// Its name within the rule; unless said, its period.
    pub name: Option<String>,
    /// How much in how much time. Of concurrency: how many at once, each for how long at most.
    pub quota: Quota,
    /// What the quota means; unless said, by scenario.
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
    /// How many leading bits count.
    pub prefix: u8,
}

/// An entry of a list: who it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Everyone at these addresses.
    Network(Network),
    /// Whoever has this value of this attribute.
    Attribute {
        /// The attribute.
        name: String,
        /// Its value.
        value: Value,
    },
}

/// Whether the case of letters in a path matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PathCase {
    /// `/Login` is `/login`: nobody gets around a rule by capitals. What a path captures is
    /// counted in small letters as well. Letters beyond ASCII keep their case.
    #[default]
    Insensitive,
    /// They are two paths, and the application must treat them so as well.
    Sensitive,
}

/// What kind of rule it is. The table of row 19 in words: what guards capacity lets bursts
/// through, what guards something precious counts exactly.
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

/// Whether a rule refuses.
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

/// What answers for a rule while the store does not.
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

/// What happens to an ask that lacks an attribute of a rule's `by`.
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
    /// How many refusals.
    pub after: u64,
    /// Within how long.
    pub within: Duration,
    /// For how long.
    pub lasts: Duration,
}

/// What a request costs under a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostFrom {
    /// The attribute that says so; unless said, the ask does.
    pub attribute: Option<String>,
    /// What is taken when that attribute is missing or no number.
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
        Self {
            name: name.into(),
            matches: Vec::new(),
            by: Vec::new(),
            limits: Vec::new(),
            block: false,
            scenario: None,
            mode: Mode::default(),
            on_outage: OnOutage::default(),
            on_change: OnChange::default(),
            on_full: OnFull::default(),
            on_missing: OnMissing::default(),
            replaces: Vec::new(),
            ban: None,
            cost: CostFrom::default(),
            local_guard: None,
        }
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
