//! The counts behind the metrics: outcomes of requests, each counted exactly once.
//!
//! A request ends in one of four ways, and is counted when it ends, so that their sum is the number of
//! requests at every moment. Rules have the same counts, up to [`MAX_RULES`] of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};
use tokio::time::Instant;
use tollgate::RuleSet;
use tollgate::envoy::{Code, EnvoyAnswer, EnvoyRules};
use tollgate::{Admission, Reason, Ruling};

use super::latency::{LatencyHistogram, LatencySnapshot};

use crate::enum_text::text_enum;
use crate::sync::lock;

text_enum! {
    /// The protocol of a request: the `protocol` label of the metrics.
    pub enum Protocol {
        /// A check, reservation or batch over HTTP.
        Http = "http",
        /// Forward-auth.
        Auth = "forward-auth",
        /// `CL.THROTTLE`.
        Throttle = "cl.throttle",
        /// `TG.CHECK`.
        Resp = "resp",
        /// A call of Envoy's over gRPC.
        Grpc = "grpc",
        /// The same as JSON, at `/json`.
        Json = "json",
    }
}

text_enum! {
    /// Result of a request, as it is counted.
    pub enum Outcome {
        /// It passes, by a decision of the store or without limits.
        Allowed = "allowed",
        /// It does not.
        Refused = "refused",
        /// It was answered without the store.
        Degraded = "degraded",
        /// It could not be judged: malformed, or its client left.
        Error = "error",
    }
}

impl Outcome {
    /// Outcome of an admission.
    pub fn of(admission: &Admission) -> Self {
        match admission.outage() {
            Some(_) => Self::Degraded,
            None if admission.passes() => Self::Allowed,
            None => Self::Refused,
        }
    }
}

/// On cache lines of its own, so that protocols do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Tally([AtomicU64; 4]);

impl Tally {
    #[expect(clippy::as_conversions, reason = "the number of a variant without fields")]
    fn add(&self, outcome: Outcome, count: u64) {
        self.0[outcome as usize].fetch_add(count, Ordering::Relaxed);
    }

    fn read(&self) -> [u64; 4] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

/// Outcomes and latencies of one protocol.
#[derive(Debug, Default)]
struct ProtocolCounts {
    outcomes: Tally,
    latency: LatencyHistogram,
}

/// All counts of a server.
#[derive(Debug, Default)]
pub struct Counts {
    protocols: [ProtocolCounts; Protocol::ALL.len()],
    rules: RuleCounts,
    /// Requests of a domain that the rules do not have.
    pub unknown_domain: AtomicU64,
}

impl Counts {
    #[expect(clippy::as_conversions, reason = "the number of a variant without fields")]
    const fn of(&self, protocol: Protocol) -> &ProtocolCounts {
        &self.protocols[protocol as usize]
    }

    /// Counts `count` requests of a protocol.
    #[inline]
    pub fn add(&self, protocol: Protocol, outcome: Outcome, count: u64) {
        self.of(protocol).outcomes.add(outcome, count);
    }

    /// Records the time since `began` for `count` requests of a protocol.
    #[inline]
    pub fn record_latency(&self, protocol: Protocol, began: Instant, count: u64) {
        self.of(protocol).latency.add(began.elapsed(), count);
    }

    /// Latencies by protocol.
    pub fn latencies(&self) -> [(Protocol, LatencySnapshot); Protocol::ALL.len()] {
        Protocol::ALL.map(|protocol| (protocol, self.of(protocol).latency.read()))
    }

    /// Counts a decided request, for its protocol and for each rule that applied.
    pub fn count_decision(
        &self,
        protocol: Protocol,
        ruling: &Ruling,
        outcome: Outcome,
        rules: impl FnOnce() -> Arc<RuleSet>,
    ) {
        self.add(protocol, outcome, 1);
        if ruling.reason() == Reason::UnknownDomain {
            self.unknown_domain.fetch_add(1, Ordering::Relaxed);
        }
        self.rules.count(ruling, outcome, rules);
    }

    /// Counts an answered call of Envoy's, for its protocol and for each rule that applied.
    pub fn count_envoy_answer(&self, protocol: Protocol, answer: &EnvoyAnswer) {
        let outcome = match answer.code() {
            _ if answer.outage().is_some() => Outcome::Degraded,
            Code::Ok => Outcome::Allowed,
            Code::OverLimit => Outcome::Refused,
        };
        self.add(protocol, outcome, 1);
        self.rules.count_envoy(answer, outcome);
    }

    /// Counts by protocol, with outcomes in the order of [`Outcome::ALL`].
    pub fn protocols(&self) -> [(Protocol, [u64; 4]); Protocol::ALL.len()] {
        Protocol::ALL.map(|protocol| (protocol, self.of(protocol).outcomes.read()))
    }

    /// The same for each rule: allowed, refused by it, degraded, refused by another.
    pub fn rules(&self) -> Vec<(Arc<str>, Arc<str>, [u64; 4])> {
        self.rules.read()
    }
}

/// A request that is under way. Dropped before it ends, as when its client leaves, it is an error.
#[derive(Debug)]
pub struct InFlightRequest<'c> {
    counts: &'c Counts,
    protocol: Protocol,
    began: Instant,
    ended: bool,
}

impl<'c> InFlightRequest<'c> {
    /// Begins a request of this protocol.
    pub fn new(counts: &'c Counts, protocol: Protocol) -> Self {
        Self { counts, protocol, began: Instant::now(), ended: false }
    }

    /// Ends it; the caller counts the outcome.
    pub fn end(mut self) -> &'c Counts {
        self.ended = true;
        self.counts.record_latency(self.protocol, self.began, 1);
        self.counts
    }

    /// Ends it uncounted, because it consists of several requests with tokens of their own.
    pub fn divide(mut self) {
        self.ended = true;
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.counts.record_latency(self.protocol, self.began, 1);
            self.counts.add(self.protocol, Outcome::Error, 1);
        }
    }
}

/// The most rules that have counts of their own: each makes four series. The rest share one name.
pub const MAX_RULES: usize = 1_000;

/// A domain and a rule.
type RuleName = (Arc<str>, Arc<str>);

/// Counts by rule.
#[derive(Debug, Default)]
struct RuleCounts {
    table: ArcSwap<RuleTallies>,
    /// The same for Envoy's rules, which have versions of their own.
    envoy: ArcSwap<RuleTallies>,
    named: Mutex<HashMap<RuleName, Arc<Tally>>>,
    others: Arc<Tally>,
}

/// The tallies of one version's rules, by their index.
#[derive(Debug, Default)]
struct RuleTallies {
    version: u64,
    tallies: Vec<Arc<Tally>>,
}

impl RuleCounts {
    fn count(&self, ruling: &Ruling, outcome: Outcome, rules: impl FnOnce() -> Arc<RuleSet>) {
        let mut findings =
            ruling.findings().filter_map(|finding| Some((finding.rule?, finding.decision)));
        let Some((first, decision)) = findings.next() else { return };
        let table = self.table(ruling.version(), rules);
        let mut last = (first, decision.passes());
        let add = |(rule, passes): (&tollgate::rules::ActiveRule, bool)| {
            let tally = table.tallies.get(rule.index()).unwrap_or(&self.others);
            tally.add(of_rule(outcome, passes), 1);
        };
        // The limits of a rule follow each other, and one request counts once.
        for (rule, decision) in findings {
            if rule.index() == last.0.index() {
                last.1 &= decision.passes();
            } else {
                add(last);
                last = (rule, decision.passes());
            }
        }
        add(last);
    }

    fn table(&self, version: u64, rules: impl FnOnce() -> Arc<RuleSet>) -> Guard<Arc<RuleTallies>> {
        let table = self.table.load();
        if table.version == version {
            return table;
        }
        let rules = rules();
        let tallies = self.tallies(rules.rules().map(|rule| (rule.domain(), rule.name())));
        let table = Arc::new(RuleTallies { version: rules.version(), tallies });
        self.table.store(Arc::clone(&table));
        // A request decided by an older version: its rules have other places.
        Guard::from_inner(if rules.version() == version { table } else { Arc::default() })
    }

    /// Counts each rule of a call once, however many of its descriptors lead to it.
    fn count_envoy(&self, answer: &EnvoyAnswer, outcome: Outcome) {
        let statuses = answer.statuses();
        let rule = |status| answer.rule_index(status);
        if !statuses.iter().any(|status| rule(status).is_some()) {
            return;
        }
        let table = self.envoy_table(answer.rules());
        for (at, status) in statuses.iter().enumerate() {
            let Some(index) = rule(status) else { continue };
            let (before, rest) = statuses.split_at_checked(at).unwrap_or_default();
            if before.iter().any(|other| rule(other) == Some(index)) {
                continue;
            }
            let mut own = rest.iter().filter(|other| rule(other) == Some(index));
            let tally = table.tallies.get(index).unwrap_or(&self.others);
            let passes = !own.any(|status| status.code == Code::OverLimit);
            tally.add(of_rule(outcome, passes), 1);
        }
    }

    fn envoy_table(&self, rules: &EnvoyRules) -> Guard<Arc<RuleTallies>> {
        let table = self.envoy.load();
        if table.version == rules.version() {
            return table;
        }
        let tallies = self.tallies(rules.rules().iter().map(|rule| (rule.domain(), rule.path())));
        let made = Arc::new(RuleTallies { version: rules.version(), tallies });
        // An answer by an older version must not bring that version back.
        if table.version < rules.version() {
            self.envoy.store(Arc::clone(&made));
        }
        Guard::from_inner(made)
    }

    /// A tally for each of these domains and names; above the bound they share one.
    fn tallies<'n>(&self, names: impl Iterator<Item = (&'n str, &'n str)>) -> Vec<Arc<Tally>> {
        let mut named = lock(&self.named);
        let tally = |(domain, name): (&str, &str)| {
            let name = (Arc::from(domain), Arc::from(name));
            if named.len() >= MAX_RULES && !named.contains_key(&name) {
                return Arc::clone(&self.others);
            }
            Arc::clone(named.entry(name).or_default())
        };
        names.map(tally).collect()
    }

    fn read(&self) -> Vec<(Arc<str>, Arc<str>, [u64; 4])> {
        let named = lock(&self.named);
        let mut rows: Vec<_> = named
            .iter()
            .map(|((domain, rule), tally)| (Arc::clone(domain), Arc::clone(rule), tally.read()))
            .collect();
        rows.sort();
        let others = self.others.read();
        if others != [0; 4] {
            rows.push(("".into(), "(others)".into(), others));
        }
        rows
    }
}

/// Outcome of a request for one of its rules: in place of an error, a refusal by another rule.
const fn of_rule(outcome: Outcome, passes: bool) -> Outcome {
    match outcome {
        Outcome::Refused | Outcome::Error if passes => Outcome::Error,
        Outcome::Refused | Outcome::Error => Outcome::Refused,
        Outcome::Allowed | Outcome::Degraded => outcome,
    }
}
