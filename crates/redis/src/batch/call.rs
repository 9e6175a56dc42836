//! The arguments of the script: what `lua/batch.lua` says it reads.
//!
//! The maps here live for one batch and hold a few hundred entries at most, so a fast hash will do.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use tollgate_core::{Limit, Need, Op};

use super::owned::OwnedCharge;
use super::{Batch, Conversion, Pending, Sent};
use crate::layout;
use crate::link::{Call, Strings, Which};

/// Collects what the requests of a batch have in common, each thing once.
#[derive(Default)]
pub(super) struct Writer<'b> {
    strings: Numbered<'b>,
    logs: Numbered<'b>,
    limits: Vec<&'b Limit>,
    limit_numbers: HashMap<SameTag<'b>, u16, RandomState>,
    terms: HashMap<Terms, u16, RandomState>,
    packed_terms: Vec<u8>,
    /// The last terms asked for, which are nearly always the next.
    last: Option<(Terms, u16)>,
}

/// What distinguishes one charge's terms from another's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Terms {
    limit: u16,
    op: Op,
    patience_us: u64,
    /// Judged by another limit than its own.
    borrowed: bool,
}

/// A limit, equal to whatever has the same tag.
#[derive(Clone, Copy, Hash)]
struct SameTag<'b>(&'b Limit);

impl PartialEq for SameTag<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.counts_like(other.0)
    }
}

impl Eq for SameTag<'_> {}

/// Names in the order they came, each with its number from 1 on.
#[derive(Default)]
struct Numbered<'b> {
    names: Vec<&'b [u8]>,
    numbers: HashMap<&'b [u8], u16, RandomState>,
}

impl<'b> Numbered<'b> {
    fn reserve(&mut self, names: usize) {
        self.names.reserve(names);
        self.numbers.reserve(names);
    }

    fn number(&mut self, name: &'b [u8]) -> u16 {
        *self.numbers.entry(name).or_insert_with(|| {
            self.names.push(name);
            u16::try_from(self.names.len()).unwrap_or(u16::MAX)
        })
    }
}

/// The bit of a term's number that puts the charge into the group of which any suffices.
const ANY_OF: u16 = 1 << 15;

/// The bit of the number of charges that says that some share a log.
const DUMPS: u8 = 1 << 7;

/// Before runs of requests of one charge each.
const RUNS: u8 = 0;

/// Before what a batch of equal takes from buckets is about.
const EQUAL: u8 = 1;

/// The first byte of a batch of takes from buckets.
const PLAIN: u8 = 2;

/// The most charges that Lua unpacks at once, four numbers each: it has room for 8000.
const MAX_AT_ONCE: usize = 1024;

/// The bit of an operation that is judged by another limit than its own.
const BORROWED: u8 = 1 << 4;

/// Requests of one charge each on the same terms: on one key several times, or once on each of several
/// keys that follow each other.
#[derive(Clone, Copy)]
struct Run {
    first: u16,
    term: u16,
    keys: u16,
    times: u16,
}

impl Run {
    /// The run with one more request, if that continues it.
    fn with(self, key: u16, term: u16) -> Option<Self> {
        let next = self.first.checked_add(self.keys)?;
        if term != self.term {
            None
        } else if key == self.first && self.keys == 1 {
            Some(Self { times: self.times.checked_add(1)?, ..self })
        } else if key == next && self.times == 1 {
            Some(Self { keys: self.keys.checked_add(1)?, ..self })
        } else {
            None
        }
    }

    fn write(self, program: &mut Vec<u8>) {
        for number in [self.first, self.term, self.keys, self.times] {
            program.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// How many of these requests can be written together: each of one charge, or of as many as the first.
fn count_alike(rest: &[Pending]) -> usize {
    let Some(first) = rest.first() else { return 0 };
    let (charges, dumps) = (first.request.len(), first.request.shares_a_log());
    let most = MAX_AT_ONCE.checked_div(charges).unwrap_or(0);
    let alike = |pending: &&Pending| {
        pending.request.len() == charges
            && (charges == 1 || pending.request.shares_a_log() == dumps)
    };
    rest.iter().take(most).take_while(alike).count().max(1)
}

/// Whether `lua/plain.lua` may decide it.
fn is_plain(charge: &OwnedCharge) -> bool {
    let simple = charge.need == Need::Must && charge.patience_us == 0 && charge.judged_by.is_none();
    match charge.op {
        Op::Take(cost) => simple && layout::is_plain(charge.limit(), cost),
        _ => false,
    }
}

impl<'b> Writer<'b> {
    pub(super) fn write(mut self, batch: &'b Batch) -> (Call, Sent) {
        let charges = || batch.requests.iter().flat_map(|pending| &pending.request.charges);
        // Logs are numbered after all strings, so those must be known first, if there are logs.
        self.strings.reserve(batch.requests.len());
        if charges().any(OwnedCharge::is_log) {
            for charge in charges().filter(|charge| !charge.is_log()) {
                self.strings.number(&charge.name);
            }
        }
        let mut program = Vec::with_capacity(batch.requests.len().saturating_mul(5));
        let mut sent = Sent::default();
        sent.charges.reserve(batch.requests.len());
        let mut rest = batch.requests.as_slice();
        while !rest.is_empty() {
            let alike = count_alike(rest);
            let (these, later) = rest.split_at_checked(alike).unwrap_or((rest, &[]));
            rest = later;
            match these {
                [first, ..] if first.request.len() > 1 => {
                    self.write_requests(first, these, &mut program, &mut sent);
                }
                _ => self.write_runs(these, &mut program, &mut sent),
            }
        }
        let mut header = Vec::with_capacity(self.packed_terms.len().saturating_add(256));
        let plain =
            !batch.requests.is_empty() && batch.conversions.is_empty() && charges().all(is_plain);
        match self.equal(batch) {
            Some((limit, cost)) if plain => {
                header.push(EQUAL);
                layout::pack_equal(limit, cost, self.strings.names.len(), &mut header);
            }
            _ if plain => header.push(PLAIN),
            _ => header.push(0),
        }
        self.header(&mut header, &mut sent);
        let mut args = vec![header, program];
        for conversion in &batch.conversions {
            self.convert(conversion, &mut args);
        }
        let names = self.strings.names.iter().chain(&self.logs.names);
        let keys: Strings = names.copied().collect();
        sent.keys = keys.len();
        (Call { which: Which::Batch, keys, args }, sent)
    }

    /// What a batch is about that takes the same from each of its keys, once, of those that take from
    /// buckets only.
    fn equal(&self, batch: &'b Batch) -> Option<(&'b Limit, u64)> {
        let [limit] = *self.limits.as_slice() else { return None };
        let keys = self.strings.names.len();
        let Op::Take(cost) = batch.requests.first()?.request.charges.first()?.op else {
            return None;
        };
        let equal = keys == batch.requests.len()
            && keys <= MAX_AT_ONCE
            && self.terms.len() == 1
            && layout::is_whole(limit)
            && batch.requests.iter().all(|pending| pending.request.len() == 1);
        equal.then_some((limit, cost))
    }

    /// Requests of one charge each. Equal ones that follow each other are one run, and so are those
    /// that ask the same of keys that were not named before.
    fn write_runs(&mut self, these: &'b [Pending], program: &mut Vec<u8>, sent: &mut Sent) {
        let mut runs = 0_u16;
        let mut last: Option<Run> = None;
        program.push(RUNS);
        let header = program.len();
        program.extend_from_slice(&[0, 0]);
        for charge in these.iter().flat_map(|pending| &pending.request.charges) {
            let (key, term) = self.number(charge, sent);
            last = match last.map(|run| (run, run.with(key, term))) {
                Some((_, Some(longer))) => Some(longer),
                found => {
                    runs = runs.saturating_add(1);
                    if let Some((ended, None)) = found {
                        ended.write(program);
                    }
                    Some(Run { first: key, term, keys: 1, times: 1 })
                }
            };
        }
        if let Some(run) = last {
            run.write(program);
        }
        if let Some(count) = program.get_mut(header..).and_then(<[u8]>::first_chunk_mut::<2>) {
            *count = runs.to_le_bytes();
        }
    }

    /// Requests of as many charges each as the first.
    fn write_requests(
        &mut self,
        first: &Pending,
        these: &'b [Pending],
        program: &mut Vec<u8>,
        sent: &mut Sent,
    ) {
        let dumps = if first.request.shares_a_log() { DUMPS } else { 0 };
        program.push(u8::try_from(first.request.len()).unwrap_or(0) | dumps);
        let count = u16::try_from(these.len()).unwrap_or(u16::MAX);
        program.extend_from_slice(&count.to_le_bytes());
        for charge in these.iter().flat_map(|pending| &pending.request.charges) {
            let (key, term) = self.number(charge, sent);
            program.extend_from_slice(&key.to_le_bytes());
            program.extend_from_slice(&term.to_le_bytes());
        }
    }

    /// The numbers of its key and of its terms.
    fn number(&mut self, charge: &'b OwnedCharge, sent: &mut Sent) -> (u16, u16) {
        let key = self.key(&charge.name, charge.is_log());
        let (term, limit) = self.term(charge);
        sent.charges.push((key, limit));
        let group = if charge.need == Need::AnyOf { ANY_OF } else { 0 };
        (key, term | group)
    }

    /// The number of a key: logs come after all strings.
    fn key(&mut self, name: &'b [u8], is_log: bool) -> u16 {
        if is_log {
            let before = u16::try_from(self.strings.names.len()).unwrap_or(u16::MAX);
            self.logs.number(name).saturating_add(before)
        } else {
            self.strings.number(name)
        }
    }

    fn limit(&mut self, limit: &'b Limit) -> u16 {
        if let Some(number) = self.limit_numbers.get(&SameTag(limit)) {
            return *number;
        }
        self.limits.push(limit);
        let number = u16::try_from(self.limits.len()).unwrap_or(u16::MAX);
        self.limit_numbers.insert(SameTag(limit), number);
        number
    }

    /// The number of its terms, and of the limit that judges it.
    fn term(&mut self, charge: &'b OwnedCharge) -> (u16, u16) {
        let (limit, op, patience_us) = (charge.judge(), charge.op, charge.patience_us);
        let borrowed = charge.judged_by.is_some();
        if let Some((last, term)) = self.last
            && (last.op, last.patience_us, last.borrowed) == (op, patience_us, borrowed)
            && let Some(known) = self.limits.get(usize::from(last.limit).saturating_sub(1))
            && known.counts_like(limit)
        {
            return (term, last.limit);
        }
        let terms = Terms { limit: self.limit(limit), op, patience_us, borrowed };
        let next = u16::try_from(self.terms.len().saturating_add(1)).unwrap_or(u16::MAX);
        let term = *self.terms.entry(terms).or_insert_with(|| {
            self.packed_terms.extend_from_slice(&terms.limit.to_le_bytes());
            let flag = if borrowed { BORROWED } else { 0 };
            layout::pack_terms(limit, op, patience_us, flag, &mut self.packed_terms);
            next
        });
        self.last = Some((terms, term));
        (term, terms.limit)
    }

    fn header(&self, out: &mut Vec<u8>, sent: &mut Sent) {
        for count in [self.strings.names.len(), self.limits.len(), self.terms.len()] {
            out.extend_from_slice(&u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
        }
        for limit in &self.limits {
            let start = out.len();
            out.extend_from_slice(&[limit.code(), 0]);
            layout::write_tag(limit, out);
            let tag: Box<[u8]> = out.get(start.saturating_add(2)..).unwrap_or(&[]).into();
            if let Some(length) = out.get_mut(start.saturating_add(1)) {
                *length = u8::try_from(tag.len()).unwrap_or(u8::MAX);
            }
            sent.tags.push(tag);
            layout::pack_plan(limit.plan(), out);
        }
        out.extend_from_slice(&self.packed_terms);
    }

    fn convert(&self, conversion: &Conversion, args: &mut Vec<Vec<u8>>) {
        let log = || {
            let before = u16::try_from(self.strings.names.len()).ok()?;
            self.logs.numbers.get(&*conversion.name)?.checked_add(before)
        };
        let number = self.strings.numbers.get(&*conversion.name).copied().or_else(log);
        if let Some(number) = number {
            args.push(number.to_string().into_bytes());
            args.push(conversion.expected.clone());
            args.push(conversion.new.clone());
        }
    }
}
