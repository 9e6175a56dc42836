//! Writes the arguments of the script. `lua/batch.lua` documents them.

use tollgate_core::{Limit, Need, Op};

use super::Conversion;
use super::buffer::{BatchBuffer, LimitByTag, PackedCharge, Terms};
use super::name_table::NameParts;
use crate::layout;

/// Marks a charge of the group of which any suffices, in the number of its terms.
const ANY_OF: u16 = 1 << 15;

/// Marks requests in which charges share a log, in the number of charges.
const SHARES_LOG: u8 = 1 << 7;

/// Introduces runs of requests of one charge each.
const RUNS: u8 = 0;

/// Introduces a request of several charges that is repeated: above any number of charges.
const REPEATED: u8 = 127;

/// The first byte of a batch that `lua/takes.lua` can decide alone.
const TAKES: u8 = 1;

/// The first byte of a batch that `lua/uniform_takes.lua` tries first.
const UNIFORM_TAKES: u8 = 2;

/// The most charges that Lua unpacks at once, four numbers each: its stack holds 8000.
const MAX_AT_ONCE: usize = 1024;

/// Marks an operation that is judged by another limit than its own.
const BORROWED: u8 = 1 << 4;

/// Requests of one charge each on the same terms: several times on one key, or once on each of
/// consecutive keys.
#[derive(Clone, Copy)]
struct Run {
    first: u16,
    term: u16,
    keys: u16,
    times: u16,
}

impl Run {
    /// Extends the run by one request, if that continues it.
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

/// Writes the arguments. Returns them and the tag of each kind of limit.
pub(super) fn write(
    buffer: &BatchBuffer,
    conversions: &[Conversion],
) -> (Vec<Vec<u8>>, Vec<Box<[u8]>>) {
    let mut program = Vec::with_capacity(buffer.len() * 8 + 16);
    let mut request = 0_usize;
    while request < buffer.len() {
        let times = count_equal(buffer, request);
        if times > 1 {
            write_repeated(buffer, request, times, &mut program);
            request += times;
            continue;
        }
        let end = request + count_alike(buffer, request);
        if buffer.items(request).len() > 1 {
            write_requests(buffer, request..end, &mut program);
        } else {
            write_runs(buffer, request..end, &mut program);
        }
        request = end;
    }
    let mut header = Vec::with_capacity(512);
    let takes = buffer.shape.takes && conversions.is_empty();
    match uniform_take(buffer).filter(|_| takes) {
        Some((limit, cost)) => {
            header.push(UNIFORM_TAKES);
            layout::pack_uniform_takes(limit, cost, buffer.strings.len(), &mut header);
        }
        None => header.push(if takes { TAKES } else { 0 }),
    }
    let tags = write_header(buffer, &mut header);
    let mut args = vec![header, program];
    for conversion in conversions {
        convert(buffer, conversion, &mut args);
    }
    (args, tags)
}

/// Returns how many requests from this one on are equal, unless they are written as runs or share a
/// log.
fn count_equal(buffer: &BatchBuffer, first: usize) -> usize {
    let runs = buffer.shape.one_charge_each || buffer.items(first).len() < 2;
    if runs || buffer.shares_a_log(first) {
        return 1;
    }
    let equal = |request: &usize| buffer.items(*request) == buffer.items(first);
    (first..buffer.len()).take(MAX_AT_ONCE).take_while(equal).count().max(1)
}

/// Returns how many requests from this one on can be written together: each of one charge, or of as
/// many, and no two of several charges that are equal.
fn count_alike(buffer: &BatchBuffer, first: usize) -> usize {
    let charges = buffer.items(first).len();
    let most = MAX_AT_ONCE.checked_div(charges).unwrap_or(0);
    if buffer.shape.one_charge_each {
        return (buffer.len() - first).min(most);
    }
    let dumps = buffer.shares_a_log(first);
    let alike = |request: &usize| {
        let items = buffer.items(*request);
        let is_last = request + 1 == buffer.len();
        let differ = *request == first || dumps || is_last || items != buffer.items(request + 1);
        items.len() == charges
            && (charges == 1 || (buffer.shares_a_log(*request) == dumps && differ))
    };
    (first..buffer.len()).take(most).take_while(alike).count().max(1)
}

/// The limit and the cost of a batch that takes the same from each of its buckets, once.
fn uniform_take(buffer: &BatchBuffer) -> Option<(&Limit, u64)> {
    let [LimitByTag(limit)] = buffer.kinds.values.as_slice() else { return None };
    let [Terms { op: Op::Take(cost), .. }] = *buffer.terms.values else { return None };
    let keys = buffer.strings.len();
    let uniform = buffer.shape.bucket_takes && buffer.shape.one_charge_each && keys == buffer.len();
    (uniform && keys <= MAX_AT_ONCE && layout::is_whole(limit)).then_some((limit, cost))
}

/// Writes requests of one charge each. Equal consecutive ones are one run, and so are those that ask
/// the same of keys not named before.
fn write_runs(buffer: &BatchBuffer, requests: std::ops::Range<usize>, program: &mut Vec<u8>) {
    let mut runs = 0_u16;
    let mut last: Option<Run> = None;
    program.push(RUNS);
    let header = program.len();
    program.extend_from_slice(&[0, 0]);
    for item in requests.flat_map(|request| buffer.items(request)) {
        let (key, term) = numbers(buffer, item);
        last = match last.map(|run| (run, run.with(key, term))) {
            Some((_, Some(longer))) => Some(longer),
            found => {
                runs += 1;
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
    program[header..header + 2].copy_from_slice(&runs.to_le_bytes());
}

/// Writes requests of as many charges each as the first.
fn write_requests(buffer: &BatchBuffer, requests: std::ops::Range<usize>, program: &mut Vec<u8>) {
    let dumps = if buffer.shares_a_log(requests.start) { SHARES_LOG } else { 0 };
    let charges = buffer.items(requests.start).len();
    program.push(u8::try_from(charges).unwrap_or(0) | dumps);
    let count = u16::try_from(requests.len()).unwrap_or(u16::MAX);
    program.extend_from_slice(&count.to_le_bytes());
    write_items(buffer, requests.flat_map(|request| buffer.items(request)), program);
}

/// Writes one request of several charges, to be repeated.
fn write_repeated(buffer: &BatchBuffer, request: usize, times: usize, program: &mut Vec<u8>) {
    let times = u16::try_from(times).unwrap_or(u16::MAX);
    program.push(REPEATED);
    program.extend_from_slice(&times.to_le_bytes());
    let items = buffer.items(request);
    program.push(u8::try_from(items.len()).unwrap_or(0));
    write_items(buffer, items.iter(), program);
}

fn write_items<'c>(
    buffer: &BatchBuffer,
    items: impl Iterator<Item = &'c PackedCharge>,
    program: &mut Vec<u8>,
) {
    for item in items {
        let (key, term) = numbers(buffer, item);
        program.extend_from_slice(&key.to_le_bytes());
        program.extend_from_slice(&term.to_le_bytes());
    }
}

/// Returns the numbers of a charge's key and of its terms.
fn numbers(buffer: &BatchBuffer, item: &PackedCharge) -> (u16, u16) {
    let group = if item.need == Need::AnyOf { ANY_OF } else { 0 };
    (buffer.key(item), item.term | group)
}

fn write_header(buffer: &BatchBuffer, out: &mut Vec<u8>) -> Vec<Box<[u8]>> {
    for count in [buffer.strings.len(), buffer.kinds.values.len(), buffer.terms.values.len()] {
        out.extend_from_slice(&u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
    }
    let mut tags = Vec::with_capacity(buffer.kinds.values.len());
    for LimitByTag(limit) in &buffer.kinds.values {
        out.push(limit.code());
        let tag = write_sized(out, |out| layout::write_tag(limit, out));
        tags.push(tag.into());
        write_sized(out, |out| layout::pack_plan(limit.plan(), out));
    }
    for terms in &buffer.terms.values {
        out.extend_from_slice(&terms.kind.to_le_bytes());
        let flag = if terms.borrowed { BORROWED } else { 0 };
        let LimitByTag(limit) = buffer.kinds.get(terms.kind);
        layout::pack_terms(limit, terms.op, terms.patience_us, flag, out);
    }
    tags
}

/// Writes some bytes after their length. Returns them.
fn write_sized(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> &[u8] {
    let start = out.len();
    out.push(0);
    write(out);
    out[start] = u8::try_from(out.len() - start - 1).unwrap_or(u8::MAX);
    &out[start + 1..]
}

fn convert(buffer: &BatchBuffer, conversion: &Conversion, args: &mut Vec<Vec<u8>>) {
    let name = NameParts { head: &conversion.name, key: &[], hash: conversion.hash };
    let string = buffer.strings.find(name).map(usize::from);
    let log = || Some(buffer.strings.len() + usize::from(buffer.logs.find(name)?));
    if let Some(number) = string.or_else(log) {
        args.push(number.to_string().into_bytes());
        args.push(conversion.expected.clone());
        args.push(conversion.new.clone());
    }
}
