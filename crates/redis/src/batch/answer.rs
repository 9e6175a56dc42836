//! What each caller is told, from the reply of the script.

use std::collections::HashMap;

use smallvec::SmallVec;
use tollgate_core::algorithm::sliding_log::Log;
use tollgate_core::{
    Answer, Counter, Limit, Need, Op, Plan, Request, Retry, Seat, State, Timestamp, Verdict,
};

use super::owned::{Owned, OwnedCharge};
use super::{Batch, Conversion, Garbled, Pending, Sent, Tally};
use crate::layout;
use crate::link::Reply;

/// How long the fingerprint of a log is.
const FINGERPRINT: usize = 40;

impl Batch {
    /// Answers what the script decided, by the place of each request; the rest stays in the
    /// batch, to be sent again.
    pub(crate) fn answer(
        &mut self,
        reply: &Reply,
        mut tell: impl FnMut(usize, Answer),
    ) -> Result<Tally, Garbled> {
        let part = |i: usize| reply.values.get(i).and_then(Option::as_deref).ok_or(Garbled);
        let (letters, poisoned, views) = (part(0)?, part(1)?, part(2)?);
        let prior = Prior::read(part(3)?, part(4)?)?;
        let poisoned = std::str::from_utf8(poisoned).ok().and_then(|n| n.parse().ok());
        let mut tally = Tally { poisoned: poisoned.ok_or(Garbled)?, ..Tally::default() };
        if letters.len() != self.requests.len() {
            return Err(Garbled);
        }
        let now = Timestamp::from_micros(reply.now);
        let sent = std::mem::take(&mut self.sent);
        if prior.0.len() != sent.keys {
            return Err(Garbled);
        }
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
                    tell(pending.place, as_charged(answer, passed));
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
        let limit = *charge.limit();
        let (expected, new) = match read(charge, found) {
            Some((counter, expected)) => {
                let under = *counter.under();
                // What is idle is absent, and absent counters come under any limit.
                let idle = under.idle_at(counter.state()).is_some_and(|idle| idle <= now);
                if !idle && (under.revision() > limit.revision() || under.counts_like(&limit)) {
                    return under;
                }
                tally.converted = tally.converted.saturating_add(1);
                (expected, converted(counter, &limit, now))
            }
            None => {
                tally.poisoned = tally.poisoned.saturating_add(1);
                (if charge.is_log() { log_identity(found) } else { found }, Vec::new())
            }
        };
        let (name, expected) = (charge.name.clone(), expected.to_vec());
        self.conversions.push(Conversion { name, expected, new });
        limit
    }
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

/// A counter under another limit, and what identifies it as still the same.
fn read<'v>(charge: &OwnedCharge, found: &'v [u8]) -> Option<(Counter, &'v [u8])> {
    if charge.is_log() {
        let (length, rest) = found.split_first()?;
        let (tag, rest) = rest.split_at_checked(usize::from(*length))?;
        let (_, dump) = rest.split_at_checked(FINGERPRINT)?;
        let (limit, []) = layout::read_tag(tag)? else { return None };
        let log = layout::read_dump(dump).filter(|log| log.entries().next().is_some())?;
        let same = limit.code() == charge.limit().code();
        let counter = Counter::new(State::SlidingLog(log), &limit);
        return same.then_some((counter, log_identity(found)));
    }
    let (limit, state) = layout::read_tag(found)?;
    let state = layout::decode(&limit, state)?;
    let same = limit.code() == charge.limit().code();
    same.then_some((Counter::new(state, &limit), found))
}

/// The tag and the fingerprint of a log that was found under another limit.
fn log_identity(found: &[u8]) -> &[u8] {
    let length = found.first().map_or(0, |length| usize::from(*length));
    found.get(1..length.saturating_add(1).saturating_add(FINGERPRINT)).unwrap_or(&[])
}

/// What a counter means under this limit, as it is stored; nothing if it is absent then.
fn converted(mut counter: Counter, limit: &Limit, now: Timestamp) -> Vec<u8> {
    counter.settle(limit, now);
    let mut out = Vec::new();
    match counter.state() {
        State::Absent => {}
        State::SlidingLog(log) => {
            let mut tag = Vec::new();
            layout::write_tag(limit, &mut tag);
            let idle = limit.idle_at(counter.state()).unwrap_or(now);
            let millis = idle.micros_since(now).saturating_div(1_000).saturating_add(1);
            out.extend_from_slice(&millis.to_le_bytes());
            out.push(u8::try_from(tag.len()).unwrap_or(u8::MAX));
            out.extend_from_slice(&tag);
            layout::dump(log, &mut out);
        }
        state => {
            layout::write_tag(limit, &mut out);
            layout::encode(state, &mut out);
        }
    }
    out
}

/// What each key held before, in the order of the call.
struct Prior<'r>(Vec<Option<&'r [u8]>>);

impl<'r> Prior<'r> {
    fn read(lengths: &[u8], mut values: &'r [u8]) -> Result<Self, Garbled> {
        let (lengths, []) = lengths.as_chunks::<4>() else { return Err(Garbled) };
        let mut prior = Vec::with_capacity(lengths.len());
        for length in lengths {
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
                self.see(index, charge, false, true)?;
            }
            let decision = self.counters.get_mut(index)?.charge(&charge.charge()?, self.now);
            let refused_by = (!decision.passes()).then_some(0);
            let decisions = SmallVec::from_slice(&[decision]);
            let (verdict, at) = (decision.verdict, self.now);
            return Some(Answer { verdict, at, refused_by, decisions });
        }
        let dumps = request.shares_a_log();
        let mut seats: SmallVec<[Seat; 4]> = SmallVec::new();
        for (charge, (key, _)) in request.charges.iter().zip(numbers) {
            let index = usize::from(*key).checked_sub(1)?;
            if charge.is_log() {
                let first = !seats.contains(&Seat::Counter(index));
                self.see(index, charge, dumps, first)?;
            }
            seats.push(Seat::Counter(index));
        }
        let charges = request.charges();
        let request = Request::new(&charges).ok()?;
        Some(request.judge(&mut self.counters, &seats, self.now))
    }

    /// Takes what was seen of a log for this charge as the log.
    fn see(&mut self, number: usize, charge: &OwnedCharge, dumps: bool, first: bool) -> Option<()> {
        let Plan::SlidingLog(plan) = charge.judge().plan() else { return None };
        if dumps && !first {
            // One dump tells all; the core makes of it what further charges see.
            return Some(());
        }
        let log = if dumps {
            let (length, rest) = self.views.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (dump, rest) = rest.split_at_checked(length)?;
            self.views = rest;
            layout::read_dump(dump)?
        } else {
            let view = layout::read_view(&mut self.views)?;
            let cost = match charge.op {
                Op::Take(cost) | Op::Peek(cost) => cost,
                _ => 0,
            };
            Log::as_seen(plan, view, cost)
        };
        let empty = log.entries().next().is_none();
        let state = if empty { State::Absent } else { State::SlidingLog(log) };
        *self.counters.get_mut(number)? = Counter::new(state, charge.judge());
        Some(())
    }
}
