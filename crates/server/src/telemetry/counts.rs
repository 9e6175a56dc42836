//! What became of every request, counted once, exactly.
//!
//! A request at a door ends in one of four ways, and is counted when it ends: what was offered is the
//! sum, at every moment. The same per rule, for as many rules as a monitoring system can bear.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use tollgate::core::rule::RuleSet;
use tollgate::{Admission, Ruling};

/// Where a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// A check, reservation or batch over HTTP.
    Http,
    /// Forward-auth.
    Auth,
    /// `CL.THROTTLE`.
    Throttle,
    /// `TG.CHECK`.
    Resp,
}

impl Door {
    /// All of them, in the order of their places.
    pub const ALL: [Self; 4] = [Self::Http, Self::Auth, Self::Throttle, Self::Resp];

    /// Its name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Auth => "forward-auth",
            Self::Throttle => "cl.throttle",
            Self::Resp => "resp",
        }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passes, by the store's word or without limits.
    Allowed,
    /// It does not.
    Refused,
    /// It was answered without the store.
    Degraded,
    /// It could not be judged: malformed, or its client left.
    Error,
}

impl Outcome {
    /// All of them, in the order of their places.
    pub const ALL: [Self; 4] = [Self::Allowed, Self::Refused, Self::Degraded, Self::Error];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
            Self::Degraded => "degraded",
            Self::Error => "error",
        }
    }

    /// What an admission is counted as.
    pub fn of(admission: &Admission) -> Self {
        match admission.outage() {
            Some(_) => Self::Degraded,
            None if admission.passes() => Self::Allowed,
            None => Self::Refused,
        }
    }
}

/// On cache lines of its own, so that doors do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Tally([AtomicU64; 4]);

impl Tally {
    fn add(&self, outcome: Outcome, count: u64) {
        let place = match outcome {
            Outcome::Allowed => &self.0[0],
            Outcome::Refused => &self.0[1],
            Outcome::Degraded => &self.0[2],
            Outcome::Error => &self.0[3],
        };
        place.fetch_add(count, Ordering::Relaxed);
    }

    fn read(&self) -> [u64; 4] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

/// All counts of a server.
#[derive(Debug, Default)]
pub struct Counts {
    doors: [Tally; 4],
    rules: Rules,
}

impl Counts {
    /// Counts `count` requests at a door.
    #[inline]
    pub fn add(&self, door: Door, outcome: Outcome, count: u64) {
        let tally = match door {
            Door::Http => &self.doors[0],
            Door::Auth => &self.doors[1],
            Door::Throttle => &self.doors[2],
            Door::Resp => &self.doors[3],
        };
        tally.add(outcome, count);
    }

    /// Counts a request that was judged, at its door and for each rule that had a say.
    pub fn judged(
        &self,
        door: Door,
        ruling: &Ruling,
        outcome: Outcome,
        rules: impl FnOnce() -> Arc<RuleSet>,
    ) {
        self.add(door, outcome, 1);
        self.rules.count(ruling, outcome, rules);
    }

    /// What was counted at each door, by outcome in the order of [`Outcome::ALL`].
    pub fn doors(&self) -> [(Door, [u64; 4]); 4] {
        let mut tallies = self.doors.iter().map(Tally::read);
        Door::ALL.map(|door| (door, tallies.next().unwrap_or_default()))
    }

    /// The same for each rule: allowed, refused by it, degraded, refused by another.
    pub fn rules(&self) -> Vec<(Arc<str>, Arc<str>, [u64; 4])> {
        self.rules.read()
    }
}

/// A request that is under way. Dropped before it ends, as when its client leaves, it is an error.
#[derive(Debug)]
pub struct UnderWay<'c> {
    counts: &'c Counts,
    door: Door,
    ended: bool,
}

impl<'c> UnderWay<'c> {
    /// One more at this door.
    pub const fn new(counts: &'c Counts, door: Door) -> Self {
        Self { counts, door, ended: false }
    }

    /// It ended, and is counted.
    pub fn end(mut self) -> &'c Counts {
        self.ended = true;
        self.counts
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.counts.add(self.door, Outcome::Error, 1);
        }
    }
}

/// The most rules that have counts of their own: each makes four series. The rest share one name.
pub const MAX_RULES: usize = 1_000;

/// A domain and a rule.
type Name = (Arc<str>, Arc<str>);

/// Counts by rule.
#[derive(Debug)]
struct Rules {
    table: ArcSwap<Table>,
    named: Mutex<HashMap<Name, Arc<Tally>>>,
    others: Arc<Tally>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            table: ArcSwap::from_pointee(Table::default()),
            named: Mutex::default(),
            others: Arc::default(),
        }
    }
}

/// The tallies of one version's rules, by their index.
#[derive(Debug, Default)]
struct Table {
    version: u64,
    tallies: Vec<Arc<Tally>>,
}

impl Rules {
    fn count(&self, ruling: &Ruling, outcome: Outcome, rules: impl FnOnce() -> Arc<RuleSet>) {
        let mut findings =
            ruling.findings().filter_map(|finding| Some((finding.rule?, finding.decision)));
        let Some((first, decision)) = findings.next() else { return };
        let table = self.table(ruling.version(), rules);
        let mut last = (first, decision.passes());
        let add = |(rule, passes): (&tollgate::core::rule::ActiveRule, bool)| {
            let tally = table.tallies.get(rule.index()).unwrap_or(&self.others);
            let place = match outcome {
                Outcome::Degraded => &tally.0[2],
                Outcome::Allowed => &tally.0[0],
                Outcome::Refused | Outcome::Error if passes => &tally.0[3],
                Outcome::Refused | Outcome::Error => &tally.0[1],
            };
            place.fetch_add(1, Ordering::Relaxed);
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

    fn table(&self, version: u64, rules: impl FnOnce() -> Arc<RuleSet>) -> Guard<Arc<Table>> {
        let table = self.table.load();
        if table.version == version {
            return table;
        }
        let rules = rules();
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tally = |rule: &tollgate::core::rule::ActiveRule| {
            let name = (Arc::from(rule.domain()), Arc::from(rule.name()));
            if named.len() >= MAX_RULES && !named.contains_key(&name) {
                return Arc::clone(&self.others);
            }
            Arc::clone(named.entry(name).or_default())
        };
        let tallies = rules.rules().map(&mut tally).collect();
        let table = Arc::new(Table { version: rules.version(), tallies });
        self.table.store(Arc::clone(&table));
        // A request that was judged by a version that is gone already: its rules have other places.
        Guard::from_inner(if rules.version() == version { table } else { Arc::default() })
    }

    fn read(&self) -> Vec<(Arc<str>, Arc<str>, [u64; 4])> {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
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
