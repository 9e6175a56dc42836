//! What each caller is told, from the reply of the script.

use std::collections::HashMap;

use smallvec::SmallVec;
use tollgate_core::algorithm::sliding_log::{self, Log};
use tollgate_core::{
    Answer, Counter, Limit, Need, OnChange, Op, Plan, Request, Retry, Seat, State, Timestamp,
    Verdict,
};

use super::owned::{Owned, OwnedCharge};
use super::{Batch, Conversion, Garbled, Pending, Sent, Tally};
use crate::layout::{self, Carry};
use crate::link::Reply;

/// The bit of a length that tells a sketch of a log from a dump.
const SKETCH: u32 = 1 << 31;

impl Batch {
    /// Answers what the script decided, by the place of each request, which is given back; the rest
    /// stays in the batch, to be sent again.
    pub(crate) fn answer(
        &mut self,
        reply: &Reply,
        mut tell: impl FnMut(usize, Owned, Answer),
    ) -> Result<Tally, Garbled> {
        let part = |i: usize| reply.values.get(i).and_then(Option::as_deref).ok_or(Garbled);
        let (letters, poisoned, views) = (part(0)?, part(1)?, part(2)?);
        let sent = std::mem::take(&mut self.sent);
        let prior = Prior::read(part(3)?, part(4)?, sent.keys)?;
        let poisoned = std::str::from_utf8(poisoned).ok().and_then(|n| n.parse().ok());
        let mut tally = Tally { poisoned: poisoned.ok_or(Garbled)?, ..Tally::default() };
        if letters.len() != self.requests.len() {
            return Err(Garbled);
        }
        let now = Timestamp::from_micros(reply.now);
        let mut bench = Bench::new(self, &sent, prior, views, now)?;
        let mut numbers = sent.charges.as_slice();
        let mut left = Vec::new();
        for (pending, letter) in std::mem::take(&mut self.requests).into_iter().zip(letters) {
            let (own, rest) = numbers.split_at_checked(pending.request.len()).ok_or(Garbled)?;
            numbers = rest;
            match letter {
                b'p' | b'd' => {
                    let answer = bench.judge(&pending.request, own).ok_or(Garbled)?;
                    let passed = *letter == b'p';
                    tally.mismatches =
                        tally.mismatches.saturating_add(u64::from(answer.passes() != passed));
                    tell(pending.place, pending.request, as_charged(answer, passed));
                }
                b'u' => left.push((pending, own)),
                _ => return Err(Garbled),
            }
        }
        self.conversions.clear();
        let mut under = HashMap::new();
        for (pending, own) in left {
            self.prepare(pending, own, &bench, &mut under, &mut tally);
        }
        Ok(tally)
    }

    /// Makes an undecided request decidable: under a newer limit that its counter is under, or by
    /// converting the counter. Only the first request on a counter may convert it; `under` tells
    /// the limit that it is under then, by its name.
    fn prepare(
        &mut self,
        mut pending: Pending,
        numbers: &[(u16, u16)],
        bench: &Bench<'_>,
        under: &mut HashMap<u16, Limit>,
        tally: &mut Tally,
    ) {
        for (charge, (key, _)) in pending.request.charges.iter_mut().zip(numbers) {
            if !under.contains_key(key) {
                let found = bench.prior.of(*key);
                let Some(found) = found.filter(|found| !found.is_empty()) else {
                    // Of a log under the limit that judges this charge nothing is said: stay.
                    if !charge.is_log() || found.is_some() {
                        charge.judged_by = None;
                    }
                    continue;
                };
                let limit = self.adapt(charge, found, bench.now, tally);
                under.insert(*key, limit);
            }
            let found_under = under.get(key);
            charge.judged_by = found_under
                .filter(|under| under.revision() > charge.limit().revision())
                .map(|under| Box::new(*under));
        }
        self.requests.push(pending);
    }

    /// Converts what was found for this charge, unless it is under a newer limit; the limit that
    /// it is under then.
    fn adapt(
        &mut self,
        charge: &OwnedCharge,
        found: &[u8],
        now: Timestamp,
        tally: &mut Tally,
    ) -> Limit {
        if let Plan::SlidingLog(plan) = charge.limit().plan() {
            return self.adapt_log(charge, plan, found, now, tally);
        }
        let limit = *charge.limit();
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
        let (name, expected) = (charge.name.clone(), found.to_vec());
        self.conversions.push(Conversion { name, expected, new });
        limit
    }

    /// The same for a log, of which only its tag and its newest moment are known. Lua carries it
    /// over, as it may be too long to be sent.
    fn adapt_log(
        &mut self,
        charge: &OwnedCharge,
        plan: &sliding_log::Plan,
        found: &[u8],
        now: Timestamp,
        tally: &mut Tally,
    ) -> Limit {
        let limit = *charge.limit();
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
        let (name, expected) = (charge.name.clone(), tag.to_vec());
        self.conversions.push(Conversion { name, expected, new });
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

/// What each key held before, in the order of the call.
struct Prior<'r>(Vec<Option<&'r [u8]>>);

impl<'r> Prior<'r> {
    /// One length stands for all, if there are more keys.
    fn read(lengths: &[u8], mut values: &'r [u8], keys: usize) -> Result<Self, Garbled> {
        let (lengths, []) = lengths.as_chunks::<4>() else { return Err(Garbled) };
        let times = match lengths {
            [_] => keys,
            _ if lengths.len() == keys => 1,
            _ => return Err(Garbled),
        };
        let mut prior = Vec::with_capacity(keys);
        for length in lengths.iter().flat_map(|length| std::iter::repeat_n(length, times)) {
            let length = u32::from_le_bytes(*length);
            if length == u32::MAX {
                prior.push(None);
                continue;
            }
            let length = usize::try_from(length).map_err(|_| Garbled)?;
            let (value, rest) = values.split_at_checked(length).ok_or(Garbled)?;
            prior.push(Some(value));
            values = rest;
        }
        if values.is_empty() { Ok(Self(prior)) } else { Err(Garbled) }
    }

    /// Of the key with this number.
    fn of(&self, number: u16) -> Option<&'r [u8]> {
        self.0.get(usize::from(number).checked_sub(1)?).copied().flatten()
    }
}

/// The counters of a batch, as its requests change them one after the other.
struct Bench<'r> {
    prior: Prior<'r>,
    counters: Vec<Counter>,
    views: &'r [u8],
    now: Timestamp,
}

impl<'r> Bench<'r> {
    fn new(
        batch: &Batch,
        sent: &Sent,
        prior: Prior<'r>,
        views: &'r [u8],
        now: Timestamp,
    ) -> Result<Self, Garbled> {
        let mut counters: Vec<Option<Counter>> = vec![None; sent.keys];
        let charges = batch.requests.iter().flat_map(|pending| &pending.request.charges);
        for (charge, (key, limit)) in charges.zip(&sent.charges) {
            let index = usize::from(*key).saturating_sub(1);
            let counter = counters.get_mut(index).ok_or(Garbled)?;
            if counter.is_some() {
                continue;
            }
            let mut found = prior.of(*key);
            let mut conversions = batch.conversions.iter();
            let conversion = conversions.find(|c| c.name == charge.name);
            if let Some(conversion) = conversion.filter(|c| found == Some(&c.expected)) {
                found = Some(conversion.new.as_slice());
            }
            let tag = sent.tags.get(usize::from(*limit).saturating_sub(1)).ok_or(Garbled)?;
            let state = found
                .and_then(|value| value.strip_prefix(&**tag))
                .and_then(|state| layout::decode(charge.judge(), state));
            *counter = Some(Counter::new(state.unwrap_or_default(), charge.judge()));
        }
        let counters = counters.into_iter().collect::<Option<Vec<_>>>().ok_or(Garbled)?;
        Ok(Self { prior, counters, views, now })
    }

    /// Decides a request once more, as Lua did.
    fn judge(&mut self, request: &Owned, numbers: &[(u16, u16)]) -> Option<Answer> {
        if let ([charge], [(key, _)]) = (&request.charges[..], numbers)
            && charge.need == Need::Must
        {
            let index = usize::from(*key).checked_sub(1)?;
            if charge.is_log() {
                self.see(index, charge)?;
            }
            let decision = self.counters.get_mut(index)?.charge(&charge.charge()?, self.now);
            let refused_by = (!decision.passes()).then_some(0);
            let decisions = SmallVec::from_slice(&[decision]);
            let (verdict, at) = (decision.verdict, self.now);
            return Some(Answer { verdict, at, refused_by, decisions });
        }
        let shared = request.shares_a_log();
        let mut seats: SmallVec<[Seat; 4]> = SmallVec::new();
        for (charge, (key, _)) in request.charges.iter().zip(numbers) {
            let index = usize::from(*key).checked_sub(1)?;
            if charge.is_log() && !shared {
                self.see(index, charge)?;
            } else if charge.is_log() && !seats.contains(&Seat::Counter(index)) {
                self.see_all(index, charge, request)?;
            }
            seats.push(Seat::Counter(index));
        }
        let charges = request.charges();
        let request = Request::new(&charges).ok()?;
        Some(request.judge(&mut self.counters, &seats, self.now))
    }

    /// Takes what was seen of a log for this charge as the log.
    fn see(&mut self, number: usize, charge: &OwnedCharge) -> Option<()> {
        let Plan::SlidingLog(plan) = charge.judge().plan() else { return None };
        let view = layout::read_view(&mut self.views)?;
        let cost = match charge.op {
            Op::Take(cost) | Op::Peek(cost) => cost,
            _ => 0,
        };
        self.put(number, charge, Log::as_seen(plan, view, cost))
    }

    /// Takes what was seen of a log for all charges of a request, of which this is the first on the
    /// log, as the log; the core makes of it what the others see.
    fn see_all(&mut self, number: usize, charge: &OwnedCharge, request: &Owned) -> Option<()> {
        let (length, rest) = self.views.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length);
        let (seen, rest) = rest.split_at_checked(usize::try_from(length & !SKETCH).ok()?)?;
        self.views = rest;
        if length & SKETCH == 0 {
            return self.put(number, charge, layout::read_dump(seen)?);
        }
        let (log, places) = layout::read_sketch(seen)?;
        // Only debits may find more entries than the count, and so have to know how many there are.
        let counts = request.charges.iter().any(|charge| matches!(charge.op, Op::Debit { .. }));
        self.put(number, charge, if counts { log.padded(&places) } else { log })
    }

    fn put(&mut self, number: usize, charge: &OwnedCharge, log: Log) -> Option<()> {
        let empty = log.entries().next().is_none();
        let state = if empty { State::Absent } else { State::SlidingLog(log) };
        *self.counters.get_mut(number)? = Counter::new(state, charge.judge());
        Some(())
    }
}
