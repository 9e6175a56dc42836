//! What each caller is told, from the reply of the script.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use smallvec::SmallVec;
use tollgate_core::state::{BucketPlan, ImmediateTake, SlidingLogPlan};
use tollgate_core::{
    Answer, Counter, Limit, OnChange, Op, Plan, Request, Retry, Span, State, Timestamp, Verdict,
};

use super::bench::{Bench, Prior};
use super::cargo::{Cargo, Lot};
use super::{Batch, Conversion, Garbled, Tally};
use crate::layout::{self, Carry};
use crate::link::Reply;

/// What a caller is told of one request, in as few words as will do: what follows from them it works
/// out itself, on its own thread.
#[derive(Debug, Default)]
pub(crate) enum Told {
    /// Nothing yet.
    #[default]
    Open,
    /// What became of a plain take from a bucket, and when.
    Plain(ImmediateTake, Timestamp),
    /// All of it.
    Whole(Box<Answer>),
}

impl Told {
    pub(crate) const fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    /// The answer to this request, if there is one.
    pub(crate) fn answer(self, request: &Request<'_>) -> Option<Answer> {
        match (self, request.charges()) {
            (Self::Whole(answer), _) => Some(*answer),
            (Self::Plain(plain, at), [charge]) => {
                let (plan, cost) = (charge.limit().bucket_plan()?, charge.immediate_cost()?);
                Some(plainly(plan, plain, cost, at))
            }
            _ => None,
        }
    }
}

fn plainly(plan: &BucketPlan, plain: ImmediateTake, cost: u64, at: Timestamp) -> Answer {
    let decision = plan.answer(plain, cost);
    let refused_by = (!decision.passes()).then_some(0);
    let mut decisions = SmallVec::new();
    decisions.push(decision);
    Answer { verdict: decision.verdict, at, refused_by, decisions }
}

impl Batch {
    /// Answers what the script decided, at the place of each request; the rest stays in the batch, to
    /// be sent again.
    pub(crate) fn answer(&mut self, reply: &Reply, told: &mut [Told]) -> Result<Tally, Garbled> {
        let [Some(said)] = reply.values.as_slice() else { return Err(Garbled) };
        let (counts, mut rest) = said.split_first_chunk::<16>().ok_or(Garbled)?;
        let [poisoned, letters, views, lengths] = counts.as_chunks().0 else { return Err(Garbled) };
        let mut next = |length: &[u8; 4]| {
            let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Garbled)?;
            let (part, others) = rest.split_at_checked(length).ok_or(Garbled)?;
            rest = others;
            Ok(part)
        };
        let (letters, views, lengths) = (next(letters)?, next(views)?, next(lengths)?);
        let keys = self.cargo.strings.len().saturating_add(self.cargo.logs.len());
        let prior = Prior::read(lengths, rest, keys)?;
        let poisoned = u64::from(u32::from_le_bytes(*poisoned));
        let mut tally = Tally { poisoned, ..Tally::default() };
        if letters.len() != self.cargo.len() {
            return Err(Garbled);
        }
        let now = Timestamp::from_micros(reply.now);
        if let Some(mismatches) = self.answer_plainly(letters, &prior, now, told) {
            tally.mismatches = mismatches;
            self.cargo.clear();
            return Ok(tally);
        }
        let mut bench = Bench::new(self, prior, views, now)?;
        let mut left = Vec::new();
        for (request, letter) in letters.iter().enumerate() {
            match letter {
                b'p' | b'd' => {
                    let answer = bench.judge(&self.cargo, request).ok_or(Garbled)?;
                    let passed = *letter == b'p';
                    let mismatch = u64::from(answer.passes() != passed);
                    tally.mismatches = tally.mismatches.saturating_add(mismatch);
                    let told = told.get_mut(self.place(request)).ok_or(Garbled)?;
                    *told = Told::Whole(Box::new(as_charged(answer, passed)));
                }
                b'u' => left.push(request),
                _ => return Err(Garbled),
            }
        }
        self.keep(&left, &bench, &mut tally);
        Ok(tally)
    }

    /// The same for takes from buckets of one charge each, where nothing else is in play: they need no
    /// counters of the core, only its arithmetic. Returns how often Lua and Rust disagreed; `None`, and
    /// nothing told that will not be told again, if something else is in play.
    fn answer_plainly(
        &self,
        letters: &[u8],
        prior: &Prior<'_>,
        now: Timestamp,
        told: &mut [Told],
    ) -> Option<u64> {
        let cargo = &self.cargo;
        if !cargo.plain || !cargo.single || !self.conversions.is_empty() {
            return None;
        }
        let mut mismatches = 0_u64;
        // Of each key, once it was looked at: the kind of its limit, and its arrival time.
        let mut arrivals = vec![(0, Span::ZERO); cargo.strings.len()];
        let mut known = None;
        for (request, (item, letter)) in cargo.items.iter().zip(letters).enumerate() {
            let (kind, plan, cost, tag) = match known {
                Some((term, known)) if term == item.term => known,
                _ => {
                    let (lot, terms) = (cargo.lot(item)?, cargo.terms_of(item)?);
                    let Op::Take(cost) = terms.op else { return None };
                    let tag = self.tags.get(usize::from(terms.kind).wrapping_sub(1))?;
                    let new = (terms.kind, lot.judge.bucket_plan()?, cost, tag);
                    known = Some((item.term, new));
                    new
                }
            };
            let key = cargo.key(item);
            let (under, arrival) = arrivals.get_mut(usize::from(key).wrapping_sub(1))?;
            if *under == 0 {
                // What is absent has been full since the epoch.
                if let Some(value) = prior.of(key) {
                    *arrival = layout::read_plain(plan, value.strip_prefix(&**tag)?)?;
                }
                *under = kind;
            } else if *under != kind {
                return None;
            }
            let plain = plan.take_immediately(arrival, cost, now)?;
            let passed = match letter {
                b'p' => true,
                b'd' => false,
                _ => return None,
            };
            *told.get_mut(self.place(request))? =
                if matches!(plain, ImmediateTake::Pass(_)) == passed {
                    Told::Plain(plain, now)
                } else {
                    mismatches = mismatches.saturating_add(1);
                    let answer = plainly(plan, plain, cost, now);
                    Told::Whole(Box::new(as_charged(answer, passed)))
                };
        }
        Some(mismatches)
    }

    /// Keeps these requests alone, each made decidable.
    fn keep(&mut self, left: &[usize], bench: &Bench<'_>, tally: &mut Tally) {
        self.conversions.clear();
        let places = left.iter().map(|request| self.place(*request)).collect();
        let cargo = std::mem::take(&mut self.cargo);
        let mut under = HashMap::new();
        for request in left {
            self.prepare(&cargo, *request, bench, &mut under, tally);
        }
        self.places = places;
    }

    /// Makes an undecided request decidable: under a newer limit that its counter is under, or by
    /// converting the counter. Only the first request on a counter may convert it; `under` tells
    /// the limit that it is under then, by its name.
    fn prepare(
        &mut self,
        cargo: &Cargo,
        request: usize,
        bench: &Bench<'_>,
        under: &mut HashMap<u16, Limit>,
        tally: &mut Tally,
    ) {
        for item in cargo.items(request) {
            let Some(lot) = cargo.lot(item) else { continue };
            let key = cargo.key(item);
            if let Entry::Vacant(unknown) = under.entry(key) {
                let found = bench.prior.of(key);
                let Some(found) = found.filter(|found| !found.is_empty()) else {
                    // Of a log under the limit that judges this charge nothing is said: stay.
                    let stays = lot.is_log() && found.is_none();
                    self.cargo.add(if stays { lot } else { lot.judged_by(None) });
                    continue;
                };
                let limit = self.adapt(&lot, found, bench.now, tally);
                unknown.insert(limit);
            }
            let newer = |under: &&Limit| under.revision() > lot.limit.revision();
            self.cargo.add(lot.judged_by(under.get(&key).filter(newer)));
        }
        self.cargo.end();
    }

    /// Converts what was found for this charge, unless it is under a newer limit; the limit that
    /// it is under then.
    fn adapt(&mut self, lot: &Lot<'_>, found: &[u8], now: Timestamp, tally: &mut Tally) -> Limit {
        if let Plan::SlidingLog(plan) = lot.limit.plan() {
            return self.adapt_log(lot, plan, found, now, tally);
        }
        let limit = *lot.limit;
        let new = match read(&limit, found) {
            Some(counter) => {
                let under = *counter.under();
                // What is idle is absent, and absent counters come under any limit.
                let idle = under.idle_at(counter.state()).is_some_and(|idle| idle <= now);
                if !idle && stays(&under, &limit) {
                    return under;
                }
                tally.converted = tally.converted.saturating_add(1);
                converted(counter, &limit, now)
            }
            None => {
                tally.poisoned = tally.poisoned.saturating_add(1);
                Vec::new()
            }
        };
        let (name, expected) = (lot.label.name(), found.to_vec());
        self.conversions.push(Conversion { name, hash: lot.label.hash, expected, new });
        limit
    }

    /// The same for a log, of which only its tag and its newest moment are known. Lua carries it
    /// over, as it may be too long to be sent.
    fn adapt_log(
        &mut self,
        lot: &Lot<'_>,
        plan: &SlidingLogPlan,
        found: &[u8],
        now: Timestamp,
        tally: &mut Tally,
    ) -> Limit {
        let limit = *lot.limit;
        let (tag, newest) = split_log(found);
        let known = layout::read_tag(tag).filter(|(_, rest)| rest.is_empty());
        let known = known.zip(newest).and_then(|((under, _), newest)| match under.plan() {
            Plan::SlidingLog(from) => Some((under, *from, newest)),
            _ => None,
        });
        let (carry, from) = match known {
            Some((under, from, newest)) => {
                let idle = now.micros_since(newest) >= from.window_us;
                if !idle && stays(&under, &limit) {
                    return under;
                }
                tally.converted = tally.converted.saturating_add(1);
                let carry = match limit.change_from(&under) {
                    _ if under.revision() > limit.revision() => Carry::DropIfIdle,
                    _ if under.revision() == limit.revision() => Carry::Keep,
                    OnChange::Keep => Carry::Keep,
                    OnChange::Scale => Carry::Scale,
                    OnChange::Reset => Carry::Drop,
                };
                (carry, from)
            }
            None => {
                tally.poisoned = tally.poisoned.saturating_add(1);
                (Carry::Drop, *plan)
            }
        };
        let mut new = Vec::new();
        carry.write(&from, plan, &mut new);
        layout::write_tag(&limit, &mut new);
        let (name, expected) = (lot.label.name(), tag.to_vec());
        self.conversions.push(Conversion { name, hash: lot.label.hash, expected, new });
        limit
    }
}

/// Whether a counter under one limit is judged by that, and not converted, for a charge of another.
fn stays(under: &Limit, limit: &Limit) -> bool {
    under.revision() > limit.revision() || under.counts_like(limit)
}

/// The answer, corrected to what was charged should Lua and Rust ever disagree.
fn as_charged(answer: Answer, passed: bool) -> Answer {
    if answer.passes() == passed {
        return answer;
    }
    let verdict = if passed {
        Verdict::Allow
    } else {
        Verdict::Deny(Retry::After(std::time::Duration::from_millis(1)))
    };
    Answer { verdict, refused_by: (!passed).then_some(0), ..answer }
}

/// A counter under another limit of the same algorithm.
fn read(limit: &Limit, found: &[u8]) -> Option<Counter> {
    let (under, state) = layout::read_tag(found)?;
    let state = layout::decode(&under, state)?;
    (under.code() == limit.code()).then(|| Counter::new(state, &under))
}

/// The tag and the newest moment of a log that was found under another limit.
fn split_log(found: &[u8]) -> (&[u8], Option<Timestamp>) {
    let (length, rest) =
        found.split_first().map_or((0, found), |(n, rest)| (usize::from(*n), rest));
    let (tag, newest) = rest.split_at_checked(length).unwrap_or((rest, &[]));
    let newest = newest.try_into().ok().map(u64::from_le_bytes);
    (tag, newest.map(Timestamp::from_micros))
}

/// What a counter means under this limit, as it is stored; nothing if it is absent then.
fn converted(mut counter: Counter, limit: &Limit, now: Timestamp) -> Vec<u8> {
    counter.settle(limit, now);
    let mut out = Vec::new();
    if !matches!(counter.state(), State::Absent) {
        layout::write_tag(limit, &mut out);
        layout::encode(counter.state(), &mut out);
    }
    out
}
