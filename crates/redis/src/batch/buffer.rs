//! The batch buffer: the requests of a batch as data, written by the callers before they wait.
//!
//! Every name, limit and set of terms is stored once; a charge is four numbers. So a request costs a
//! few bytes in memory that exists already, not an allocation that one thread makes and another frees.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::slice;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tollgate_core::{Charge, Key, Limit, Need, Op, Plan, Request};

use super::name_table::{HashedName, NameParts, NameTable};
use crate::{keys, layout};

/// Requests in order, with everything they refer to.
#[derive(Debug, Default)]
pub(crate) struct BatchBuffer {
    pub(super) strings: NameTable,
    pub(super) logs: NameTable,
    limits: Interner<Limit>,
    /// The limits that are sent: one for each distinct tag.
    pub(super) kinds: Interner<LimitByTag>,
    pub(super) terms: Interner<Terms>,
    pub(super) items: Vec<PackedCharge>,
    /// The end of each request's charges in `items`.
    ends: Vec<usize>,
    pub(super) shape: BatchShape,
}

/// The properties of a batch that allow a shorter way to decide it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchShape {
    /// Every request has one charge.
    pub(super) one_charge_each: bool,
    /// Every charge takes from a bucket, without patience.
    pub(super) bucket_takes: bool,
    /// Every charge is one that `lua/takes.lua` decides.
    pub(super) takes: bool,
}

impl Default for BatchShape {
    fn default() -> Self {
        Self { one_charge_each: true, bucket_takes: true, takes: true }
    }
}

/// Interns values: keeps the distinct ones, each with its number from 1 on, in the order they came.
#[derive(Debug)]
pub(super) struct Interner<T> {
    pub(super) values: Vec<T>,
    numbers: HashMap<T, u16, RandomState>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: HashMap::default() }
    }
}

impl<T: Copy + Eq + Hash> Interner<T> {
    /// Returns the number of a value, and whether it is new.
    fn number(&mut self, value: T) -> (u16, bool) {
        let next = u16::try_from(self.values.len() + 1).unwrap_or(u16::MAX);
        let number = *self.numbers.entry(value).or_insert(next);
        if number == next {
            self.values.push(value);
        }
        (number, number == next)
    }

    pub(super) fn get(&self, number: u16) -> &T {
        &self.values[usize::from(number) - 1]
    }

    fn clear(&mut self) {
        self.values.clear();
        self.numbers.clear();
    }
}

/// A limit that equals every limit with the same tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitByTag(pub(super) Limit);

impl PartialEq for LimitByTag {
    fn eq(&self, other: &Self) -> bool {
        self.0.counts_like(&other.0)
    }
}

impl Eq for LimitByTag {}

impl Hash for LimitByTag {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// The terms of a charge: operation, patience, and the limit that judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Terms {
    /// The number of the limit that judges.
    judge: u16,
    pub(super) kind: u16,
    pub(super) op: Op,
    pub(super) patience_us: u64,
    /// The limit that judges is not the charge's own.
    pub(super) borrowed: bool,
}

/// A charge as numbers, each from 1 on: its name among strings or logs, its terms, its own limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedCharge {
    key: u16,
    pub(super) term: u16,
    limit: u16,
    pub(super) need: Need,
}

/// A charge reference: a charge with the values its numbers stand for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeRef<'c> {
    /// The counter's name in Redis.
    pub(super) name: NameParts<'c>,
    /// The charge's own limit.
    pub(super) limit: &'c Limit,
    /// The limit that judges it.
    pub(super) judge: &'c Limit,
    pub(super) op: Op,
    pub(super) patience_us: u64,
    pub(super) need: Need,
    /// A newer limit, which the counter was found under, judges.
    pub(super) borrowed: bool,
}

impl BatchBuffer {
    /// Empties the buffer and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.strings.clear();
        self.logs.clear();
        self.limits.clear();
        self.kinds.clear();
        self.terms.clear();
        self.items.clear();
        self.ends.clear();
        self.shape = BatchShape::default();
    }

    /// Returns the number of requests.
    pub(crate) const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Adds a request whose charges have the next of these names.
    pub(crate) fn push(&mut self, request: &Request<'_>, names: &mut slice::Iter<'_, HashedName>) {
        for (charge, named) in request.charges().iter().zip(names) {
            let patience_us = u64::try_from(charge.patience().as_micros()).unwrap_or(u64::MAX);
            let limit = charge.limit();
            self.add(ChargeRef {
                name: named.parts(charge.key()),
                limit,
                judge: limit,
                op: charge.op(),
                patience_us,
                need: charge.need(),
                borrowed: false,
            });
        }
        self.end();
    }

    /// Adds a charge to the request that comes next.
    pub(super) fn add(&mut self, charge_ref: ChargeRef<'_>) {
        let names = if charge_ref.is_log() { &mut self.logs } else { &mut self.strings };
        let key = names.number(charge_ref.name);
        let (limit, term) = self.term(&charge_ref);
        if charge_ref.is_log() || charge_ref.need != Need::Must {
            (self.shape.bucket_takes, self.shape.takes) = (false, false);
        }
        self.items.push(PackedCharge { key, term, limit, need: charge_ref.need });
    }

    /// Ends the request that was added charge by charge.
    pub(super) fn end(&mut self) {
        let before = self.ends.last().copied().unwrap_or(0);
        self.shape.one_charge_each &= self.items.len() - before == 1;
        self.ends.push(self.items.len());
    }

    /// Returns the numbers of the charge's limit and terms, nearly always those of the charge
    /// before.
    #[inline]
    fn term(&mut self, charge_ref: &ChargeRef<'_>) -> (u16, u16) {
        if let Some(last) = self.items.last() {
            let terms = self.terms.get(last.term);
            if !terms.borrowed
                && !charge_ref.borrowed
                && (terms.op, terms.patience_us) == (charge_ref.op, charge_ref.patience_us)
                && terms.judge == last.limit
                && self.limits.get(last.limit) == charge_ref.limit
            {
                return (last.limit, last.term);
            }
        }
        self.new_term(charge_ref)
    }

    #[cold]
    fn new_term(&mut self, charge_ref: &ChargeRef<'_>) -> (u16, u16) {
        let ChargeRef { op, patience_us, borrowed, .. } = *charge_ref;
        let (limit, _) = self.limits.number(*charge_ref.limit);
        let (judge, _) = self.limits.number(*charge_ref.judge);
        let (kind, _) = self.kinds.number(LimitByTag(*charge_ref.judge));
        let (term, is_new) = self.terms.number(Terms { judge, kind, op, patience_us, borrowed });
        if is_new {
            self.shape.bucket_takes &= charge_ref.takes_from(layout::takes_from_bucket);
            self.shape.takes &= charge_ref.takes_from(layout::takes_from_bucket_or_window);
        }
        (limit, term)
    }

    /// Returns the number of a charge's key: logs come after all strings.
    pub(super) fn key(&self, item: &PackedCharge) -> u16 {
        if self.logs.len() > 0 && self.is_log(item) {
            item.key + u16::try_from(self.strings.len()).unwrap_or(u16::MAX)
        } else {
            item.key
        }
    }

    fn is_log(&self, item: &PackedCharge) -> bool {
        is_log(self.limits.get(item.limit))
    }

    /// Returns the charges of a request.
    pub(super) fn items(&self, request: usize) -> &[PackedCharge] {
        let first = request.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items[first..self.ends[request]]
    }

    pub(super) fn charge_refs(&self, request: usize) -> impl Iterator<Item = ChargeRef<'_>> {
        self.items(request).iter().map(|item| self.charge_ref(item))
    }

    pub(super) fn charge_ref(&self, item: &PackedCharge) -> ChargeRef<'_> {
        let Terms { judge, op, patience_us, borrowed, .. } = *self.terms.get(item.term);
        let limit = self.limits.get(item.limit);
        let names = if is_log(limit) { &self.logs } else { &self.strings };
        let (head, key) = keys::split(names.get(item.key), limit);
        let name = NameParts { head, key, hash: names.hash(item.key) };
        let (judge, need) = (self.limits.get(judge), item.need);
        ChargeRef { name, limit, judge, op, patience_us, need, borrowed }
    }

    /// Keeps the requests for which `keep` holds.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let mut kept = Self::default();
        for request in (0..self.len()).filter(|request| keep(*request)) {
            self.charge_refs(request).for_each(|charge_ref| kept.add(charge_ref));
            kept.end();
        }
        *self = kept;
    }

    /// Returns whether two charges of a request meet on one log, so that a view of it is not
    /// enough.
    pub(super) fn shares_a_log(&self, request: usize) -> bool {
        let items = self.items(request);
        self.logs.len() > 0
            && items.iter().enumerate().any(|(i, item)| {
                let same = |other: &PackedCharge| other.key == item.key && self.is_log(other);
                self.is_log(item) && items.iter().take(i).any(same)
            })
    }

    /// Returns the charges of a request as core's type. Each was one before.
    pub(super) fn as_charges(&self, request: usize) -> SmallVec<[Charge<'_>; 4]> {
        self.charge_refs(request).filter_map(|charge_ref| charge_ref.charge()).collect()
    }
}

fn is_log(limit: &Limit) -> bool {
    matches!(limit.plan(), Plan::SlidingLog(_))
}

impl<'c> ChargeRef<'c> {
    pub(super) fn is_log(&self) -> bool {
        is_log(self.limit)
    }

    /// Returns the charge, judged by another limit.
    pub(super) fn judged_by(self, judge: Option<&'c Limit>) -> Self {
        Self { judge: judge.unwrap_or(self.limit), borrowed: judge.is_some(), ..self }
    }

    /// Returns whether this is a take without patience, under its own limit, of a cost accepted by
    /// `is`.
    fn takes_from(&self, is: impl Fn(&Limit, u64) -> bool) -> bool {
        match self.op {
            Op::Take(cost) => self.patience_us == 0 && !self.borrowed && is(self.limit, cost),
            _ => false,
        }
    }

    pub(super) fn charge(&self) -> Option<Charge<'c>> {
        let key = Key::new(self.name.key).ok()?;
        let charge = Charge::new(key, self.limit, self.op).ok()?;
        let charge = charge.with_patience(std::time::Duration::from_micros(self.patience_us));
        Some(if self.need == Need::AnyOf { charge.any_of() } else { charge })
    }
}
