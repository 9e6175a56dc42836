//! The names of choices and fields, for the reader and the writer.

use tollgate_core::algorithm::{
    Anchor, Concurrency, Estimate, FixedWindow, LeakyMeter, LeakyQueue, Payment, SlidingLog,
    SlidingWindow, Smooth, TokenBucket,
};
use tollgate_core::rule::declaration::{Mode, OnMissing, OnOutage, PathCase, Scenario};
use tollgate_core::{Algorithm, OnChange, OnFull};

/// Values of a choice with their names. The default comes first, if there is one.
pub(super) type Choices<T> = &'static [(&'static str, T)];

/// The name of a choice.
pub(super) fn name_of<T: PartialEq>(names: Choices<T>, value: &T) -> &'static str {
    names.iter().find(|(_, other)| other == value).map_or("", |(name, _)| name)
}

pub(super) const MODE: Choices<Mode> =
    &[("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)];

pub(super) const ON_OUTAGE: Choices<OnOutage> =
    &[("local", OnOutage::Local), ("admit", OnOutage::Admit), ("refuse", OnOutage::Refuse)];

pub(super) const ON_CHANGE: Choices<OnChange> =
    &[("keep", OnChange::Keep), ("scale", OnChange::Scale), ("reset", OnChange::Reset)];

pub(super) const ON_FULL: Choices<OnFull> =
    &[("share", OnFull::Share), ("admit", OnFull::Admit), ("refuse", OnFull::Refuse)];

pub(super) const ON_MISSING: Choices<OnMissing> =
    &[("skip", OnMissing::Skip), ("share", OnMissing::Share), ("refuse", OnMissing::Refuse)];

pub(super) const PATH_CASE: Choices<PathCase> =
    &[("insensitive", PathCase::Insensitive), ("sensitive", PathCase::Sensitive)];

pub(super) const SCENARIO: Choices<Scenario> = &[
    ("global", Scenario::Global),
    ("service", Scenario::Service),
    ("interface", Scenario::Interface),
    ("ip", Scenario::Ip),
    ("user", Scenario::User),
    ("login", Scenario::Login),
    ("payment", Scenario::Payment),
];

pub(super) const ANCHOR: Choices<Anchor> =
    &[("first-hit", Anchor::FirstHit), ("epoch", Anchor::Epoch)];

pub(super) const ESTIMATE: Choices<Estimate> =
    &[("conservative", Estimate::Conservative), ("weighted", Estimate::Weighted)];

pub(super) const PAYMENT: Choices<Payment> = &[("next", Payment::Next), ("own", Payment::Own)];

pub(super) const ALGORITHM: Choices<Algorithm> = &[
    ("token-bucket", Algorithm::TokenBucket(TokenBucket)),
    ("sliding-log", Algorithm::SlidingLog(SlidingLog)),
    ("sliding-window", Algorithm::SlidingWindow(SlidingWindow::conservative())),
    ("fixed-window", Algorithm::FixedWindow(FixedWindow { anchor: Anchor::FirstHit })),
    ("leaky-meter", Algorithm::LeakyMeter(LeakyMeter)),
    ("leaky-queue", Algorithm::LeakyQueue(LeakyQueue)),
    ("smooth", Algorithm::Smooth(Smooth::bursty())),
    ("concurrency", Algorithm::Concurrency(Concurrency)),
];

/// The fields of a file and of each of its domains.
pub(super) const FILE: &[&str] = &["$schema", "version", "domains"];
pub(super) const DOMAIN: &[&str] =
    &["domain", "partition", "ipv6-prefix", "path-case", "rules", "lists"];
pub(super) const LISTS: &[&str] = &["exempt", "block"];
pub(super) const RULE: &[&str] = &[
    "name",
    "match",
    "by",
    "limits",
    "block",
    "scenario",
    "mode",
    "on-outage",
    "on-change",
    "on-full",
    "on-missing",
    "replaces",
    "ban",
    "cost",
    "local-guard",
];
pub(super) const LIMIT: &[&str] = &[
    "name",
    "count",
    "per",
    "burst",
    "algorithm",
    "anchor",
    "panes",
    "estimate",
    "warm-up",
    "cold-factor",
    "payment",
    "max-debt",
    "concurrent",
    "lease",
];
pub(super) const BAN: &[&str] = &["after", "within", "for"];
pub(super) const COST: &[&str] = &["from", "default", "max"];
pub(super) const PATTERN: &[&str] = &["text", "prefix", "present", "absent"];

/// The algorithm that a field of a limit belongs to; `None` for fields that all algorithms have.
pub(super) fn owner_of(field: &str) -> Option<&'static str> {
    match field {
        "anchor" => Some("fixed-window"),
        "panes" | "estimate" => Some("sliding-window"),
        "warm-up" | "cold-factor" | "payment" | "max-debt" => Some("smooth"),
        "lease" => Some("concurrency"),
        _ => None,
    }
}
