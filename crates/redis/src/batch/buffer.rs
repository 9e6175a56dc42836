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
#[derive(Debug)]
pub(crate) struct BatchBuffer {
    pub(super) strings: NameTable,
    pub(super) logs: NameTable,
    limits: Vec<LimitEntry>,
    /// Numbers of the limits that are sent: one for each distinct tag.
    pub(super) kinds: Vec<u16>,
    limit_numbers: HashMap<Limit, u16, RandomState>,
    kind_numbers: HashMap<LimitByTag, u16, RandomState>,
    pub(super) terms: Vec<Terms>,
    term_numbers: HashMap<Terms, u16, RandomState>,
    pub(super) items: Vec<PackedCharge>,
    /// The end of each request's charges in `items`.
    ends: Vec<u32>,
    /// Every request has one charge.
    pub(super) one_charge_each: bool,
    /// Every charge takes from a bucket, without patience.
    pub(super) bucket_takes: bool,
    /// Every charge is one that `lua/takes.lua` decides.
    pub(super) takes: bool,
}

/// A limit, and the number, from 1 on, of its kind.
#[derive(Clone, Copy, Debug)]
struct LimitEntry {
    limit: Limit,
    kind: u16,
}

/// A limit that equals every limit with the same tag.
#[derive(Clone, Copy, Debug)]
struct LimitByTag(Limit);

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
    pub(super) label: NameParts<'c>,
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

impl Default for BatchBuffer {
    fn default() -> Self {
        Self {
            strings: NameTable::default(),
            logs: NameTable::default(),
            limits: Vec::new(),
            kinds: Vec::new(),
            limit_numbers: HashMap::default(),
            kind_numbers: HashMap::default(),
            terms: Vec::new(),
            term_numbers: HashMap::default(),
            items: Vec::new(),
            ends: Vec::new(),
            one_charge_each: true,
            bucket_takes: true,
            takes: true,
        }
    }
}

impl BatchBuffer {
    /// Empties the buffer and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.strings.clear();
        self.logs.clear();
        self.limits.clear();
        self.kinds.clear();
        self.limit_numbers.clear();
        self.kind_numbers.clear();
        self.terms.clear();
        self.term_numbers.clear();
        self.items.clear();
        self.ends.clear();
        (self.one_charge_each, self.bucket_takes, self.takes) = (true, true, true);
    }

    /// Returns the number of requests.
    pub(crate) const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the number of charges, the measure of a batch.
    pub(crate) const fn charges(&self) -> usize {
        self.items.len()
    }

    /// Adds a request whose charges have the next of these names.
    pub(crate) fn push(&mut self, request: &Request<'_>, names: &mut slice::Iter<'_, HashedName>) {
        for (charge, named) in request.charges().iter().zip(names) {
            let patience_us = u64::try_from(charge.patience().as_micros()).unwrap_or(u64::MAX);
            let limit = charge.limit();
            self.add(ChargeRef {
                label: named.label(charge.key()),
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
        let key = if charge_ref.is_log() {
            (self.bucket_takes, self.takes) = (false, false);
            self.logs.number(charge_ref.label)
        } else {
            self.strings.number(charge_ref.label)
        };
        let (limit, term) = self.term(&charge_ref);
        if charge_ref.need != Need::Must {
            (self.bucket_takes, self.takes) = (false, false);
        }
        self.items.push(PackedCharge { key, term, limit, need: charge_ref.need });
    }

    /// Ends the request that was added charge by charge.
    pub(super) fn end(&mut self) {
        let end = u32::try_from(self.items.len()).unwrap_or(u32::MAX);
        let before = self.ends.last().copied().unwrap_or(0);
        self.one_charge_each &= end.saturating_sub(before) == 1;
        self.ends.push(end);
    }

    /// Returns the numbers of the charge's limit and terms, nearly always those of the charge
    /// before.
    fn term(&mut self, charge_ref: &ChargeRef<'_>) -> (u16, u16) {
        if let Some(last) = self.items.last()
            && let Some(terms) = self.terms.get(usize::from(last.term).wrapping_sub(1))
            && !terms.borrowed
            && !charge_ref.borrowed
            && (terms.op, terms.patience_us) == (charge_ref.op, charge_ref.patience_us)
            && terms.judge == last.limit
            && let Some(known) = self.limits.get(usize::from(last.limit).wrapping_sub(1))
            && known.limit == *charge_ref.limit
        {
            return (last.limit, last.term);
        }
        self.new_term(charge_ref)
    }

    fn new_term(&mut self, charge_ref: &ChargeRef<'_>) -> (u16, u16) {
        let limit = self.limit(charge_ref.limit);
        let judge = if charge_ref.borrowed { self.limit(charge_ref.judge) } else { limit };
        let kind = self.limits.get(usize::from(judge).wrapping_sub(1)).map_or(0, |k| k.kind);
        let (op, patience_us, borrowed) =
            (charge_ref.op, charge_ref.patience_us, charge_ref.borrowed);
        let terms = Terms { judge, kind, op, patience_us, borrowed };
        let next = u16::try_from(self.terms.len().saturating_add(1)).unwrap_or(u16::MAX);
        let term = *self.term_numbers.entry(terms).or_insert(next);
        if term == next {
            self.terms.push(terms);
            self.bucket_takes &= charge_ref.takes_from(layout::takes_from_bucket);
            self.takes &= charge_ref.takes_from(layout::takes_from_bucket_or_window);
        }
        (limit, term)
    }

    fn limit(&mut self, limit: &Limit) -> u16 {
        if let Some(number) = self.limit_numbers.get(limit) {
            return *number;
        }
        let number = u16::try_from(self.limits.len().saturating_add(1)).unwrap_or(u16::MAX);
        let next = u16::try_from(self.kinds.len().saturating_add(1)).unwrap_or(u16::MAX);
        let kind = *self.kind_numbers.entry(LimitByTag(*limit)).or_insert(next);
        if kind == next {
            self.kinds.push(number);
        }
        self.limits.push(LimitEntry { limit: *limit, kind });
        self.limit_numbers.insert(*limit, number);
        number
    }

    /// Returns the limit that stands for a kind.
    pub(super) fn of_kind(&self, number: u16) -> Option<&Limit> {
        let known = self.limits.get(usize::from(number).wrapping_sub(1))?;
        Some(&known.limit)
    }

    /// Returns the number of a charge's key: logs come after all strings.
    pub(super) fn key(&self, item: &PackedCharge) -> u16 {
        if self.logs.len() > 0 && self.is_log(item) {
            let before = u16::try_from(self.strings.len()).unwrap_or(u16::MAX);
            item.key.saturating_add(before)
        } else {
            item.key
        }
    }

    fn is_log(&self, item: &PackedCharge) -> bool {
        let known = self.limits.get(usize::from(item.limit).wrapping_sub(1));
        known.is_some_and(|known| is_log(&known.limit))
    }

    pub(super) fn terms_of(&self, item: &PackedCharge) -> Option<&Terms> {
        self.terms.get(usize::from(item.term).wrapping_sub(1))
    }

    /// Returns the charges of a request.
    pub(super) fn items(&self, request: usize) -> &[PackedCharge] {
        let at = |end: &u32| usize::try_from(*end).unwrap_or(usize::MAX);
        let first = request.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, at);
        let end = self.ends.get(request).map_or(0, at);
        self.items.get(first..end).unwrap_or(&[])
    }

    pub(super) fn charge_refs(&self, request: usize) -> impl Iterator<Item = ChargeRef<'_>> {
        self.items(request).iter().filter_map(|item| self.charge_ref(item))
    }

    pub(super) fn charge_ref(&self, item: &PackedCharge) -> Option<ChargeRef<'_>> {
        let terms = self.terms_of(item)?;
        let limit = &self.limits.get(usize::from(item.limit).wrapping_sub(1))?.limit;
        let judge = &self.limits.get(usize::from(terms.judge).wrapping_sub(1))?.limit;
        let names = if is_log(limit) { &self.logs } else { &self.strings };
        let (head, key) = keys::split(names.get(item.key), limit);
        Some(ChargeRef {
            label: NameParts { head, key, hash: names.hash(item.key) },
            limit,
            judge,
            op: terms.op,
            patience_us: terms.patience_us,
            need: item.need,
            borrowed: terms.borrowed,
        })
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
        let key = Key::new(self.label.key).ok()?;
        let charge = Charge::new(key, self.limit, self.op).ok()?;
        let charge = charge.with_patience(std::time::Duration::from_micros(self.patience_us));
        Some(if self.need == Need::AnyOf { charge.any_of() } else { charge })
    }
}
