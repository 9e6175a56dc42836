//! Answers to callers, from the reply of the script.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::state::{BucketPlan, ImmediateTake, SlidingLogPlan};
use tollgate_core::{
    Answer, Counter, Limit, OnChange, Op, Plan, Request, Retry, Span, State, Timestamp, Verdict,
};

use super::buffer::{BatchBuffer, ChargeRef};
use super::decision_replay::{DecisionReplay, PriorValues};
use super::{Batch, BatchCounts, Conversion, MalformedReply};
use crate::layout::{self, LogConversion};
use crate::link::Reply;

/// The answer to one request, as small as possible. The caller works out the rest on its own thread.
#[derive(Debug, Default)]
pub(crate) enum PendingAnswer {
    /// Not decided yet.
    #[default]
    Undecided,
    /// A take from a bucket without patience: its result and time.
    BucketTake(ImmediateTake, Timestamp),
    /// The whole answer.
    Complete(Box<Answer>),
}

impl PendingAnswer {
    pub(crate) const fn is_undecided(&self) -> bool {
        matches!(self, Self::Undecided)
    }

    /// Returns the answer to this request, if it was decided.
    pub(crate) fn answer(self, request: &Request<'_>) -> Option<Answer> {
        match (self, request.charges()) {
            (Self::Complete(answer), _) => Some(*answer),
            (Self::BucketTake(taken, at), [charge]) => {
                let (plan, cost) = (charge.limit().bucket_plan()?, charge.immediate_cost()?);
                Some(bucket_answer(plan, taken, cost, at))
            }
            _ => None,
        }
    }
}

fn bucket_answer(plan: &BucketPlan, taken: ImmediateTake, cost: u64, at: Timestamp) -> Answer {
    let decision = plan.answer(taken, cost);
    let refused_by = (!decision.passes()).then_some(0);
    let mut decisions = SmallVec::new();
    decisions.push(decision);
    Answer { verdict: decision.verdict, at, refused_by, decisions }
}

impl Batch {
    /// Stores the answers of decided requests at their places. The others stay in the batch, to be
    /// sent again.
    pub(crate) fn answer(
        &mut self,
        reply: &Reply,
        answers: &mut [PendingAnswer],
    ) -> Result<BatchCounts, MalformedReply> {
        let [Some(said)] = reply.values.as_slice() else { return Err(MalformedReply) };
        let (counts, mut rest) = said.split_first_chunk::<16>().ok_or(MalformedReply)?;
        let [poisoned, outcomes, views, lengths] = counts.as_chunks().0 else {
            return Err(MalformedReply);
        };
        let mut next = |length: &[u8; 4]| {
            let length =
                usize::try_from(u32::from_le_bytes(*length)).map_err(|_| MalformedReply)?;
            let (part, others) = rest.split_at_checked(length).ok_or(MalformedReply)?;
            rest = others;
            Ok(part)
        };
        let (outcomes, views, lengths) = (next(outcomes)?, next(views)?, next(lengths)?);
        let keys = self.buffer.strings.len() + self.buffer.logs.len();
        let prior = PriorValues::read(lengths, rest, keys)?;
        let poisoned = u64::from(u32::from_le_bytes(*poisoned));
        let mut counts = BatchCounts { poisoned, ..BatchCounts::default() };
        if outcomes.len() != self.buffer.len() {
            return Err(MalformedReply);
        }
        let now = Timestamp::from_micros(reply.now);
        if let Some(mismatches) = self.answer_bucket_takes(outcomes, &prior, now, answers) {
            counts.mismatches = mismatches;
            self.buffer.clear();
            return Ok(counts);
        }
        let mut replay = DecisionReplay::new(self, prior, views, now)?;
        let mut left = Vec::new();
        for (request, outcome) in outcomes.iter().enumerate() {
            match outcome {
                b'p' | b'd' => {
                    let answer = replay.judge(&self.buffer, request).ok_or(MalformedReply)?;
                    let passed = *outcome == b'p';
                    counts.mismatches += u64::from(answer.passes() != passed);
                    answers[self.place(request)] =
                        PendingAnswer::Complete(Box::new(as_charged(answer, passed)));
                }
                b'u' => left.push(request),
                _ => return Err(MalformedReply),
            }
        }
        self.keep(&left, &replay, &mut counts);
        Ok(counts)
    }

    /// Answers a batch of takes from buckets, one charge a request. This needs only the
    /// arithmetic of core, no counters. Returns the number of disagreements between Lua and Rust,
    /// or `None` if something else is in play: fall back, partial answers will be overwritten.
    fn answer_bucket_takes(
        &self,
        outcomes: &[u8],
        prior: &PriorValues<'_>,
        now: Timestamp,
        answers: &mut [PendingAnswer],
    ) -> Option<u64> {
        let buffer = &self.buffer;
        let shape = buffer.shape;
        if !shape.bucket_takes || !shape.one_charge_each || !self.conversions.is_empty() {
            return None;
        }
        let mut mismatches = 0_u64;
        // Of each key that was looked at: the kind of its limit, and its arrival time.
        let mut arrivals = vec![(0, Span::ZERO); buffer.strings.len()];
        let mut known = None;
        for (request, (item, outcome)) in buffer.items.iter().zip(outcomes).enumerate() {
            let (kind, plan, cost, tag) = match known {
                Some((term, known)) if term == item.term => known,
                _ => {
                    let charge_ref = buffer.charge_ref(item);
                    let Op::Take(cost) = charge_ref.op else { return None };
                    let (kind, tag) = (buffer.terms.get(item.term).kind, self.tag(item));
                    let new = (kind, charge_ref.judge.bucket_plan()?, cost, tag);
                    known = Some((item.term, new));
                    new
                }
            };
            let key = buffer.key(item);
            let (under, arrival) = &mut arrivals[usize::from(key) - 1];
            if *under == 0 {
                // An absent bucket has been full since the epoch.
                if let Some(value) = prior.of(key) {
                    *arrival = layout::read_arrival(plan, value.strip_prefix(tag)?)?;
                }
                *under = kind;
            } else if *under != kind {
                return None;
            }
            let taken = plan.take_immediately(arrival, cost, now)?;
            let passed = match outcome {
                b'p' => true,
                b'd' => false,
                _ => return None,
            };
            answers[self.place(request)] = if matches!(taken, ImmediateTake::Pass(_)) == passed {
                PendingAnswer::BucketTake(taken, now)
            } else {
                mismatches += 1;
                let answer = bucket_answer(plan, taken, cost, now);
                PendingAnswer::Complete(Box::new(as_charged(answer, passed)))
            };
        }
        Some(mismatches)
    }

    /// Keeps only these requests, each made decidable.
    fn keep(&mut self, left: &[usize], replay: &DecisionReplay<'_>, counts: &mut BatchCounts) {
        self.conversions.clear();
        let places = left.iter().map(|request| self.place(*request)).collect();
        let buffer = std::mem::take(&mut self.buffer);
        let mut under = HashMap::new();
        for request in left {
            self.prepare(&buffer, *request, replay, &mut under, counts);
        }
        self.places = places;
    }

    /// Makes an undecided request decidable: under the newer limit of its counter, or by converting
    /// the counter. Only the first request on a counter may convert it. `under` holds the limit
    /// that each counter is under then, by the number of its name.
    fn prepare(
        &mut self,
        buffer: &BatchBuffer,
        request: usize,
        replay: &DecisionReplay<'_>,
        under: &mut HashMap<u16, Limit>,
        counts: &mut BatchCounts,
    ) {
        for item in buffer.items(request) {
            let (key, charge_ref) = (buffer.key(item), buffer.charge_ref(item));
            if let Entry::Vacant(unknown) = under.entry(key) {
                let found = replay.prior.of(key);
                let Some(found) = found.filter(|found| !found.is_empty()) else {
                    // Lua sends nothing of a log under the limit that judges this charge: keep
                    // that limit.
                    let stays = charge_ref.is_log() && found.is_none();
                    self.buffer.add(if stays { charge_ref } else { charge_ref.judged_by(None) });
                    continue;
                };
                let limit = self.adapt(&charge_ref, found, replay.now, counts);
                unknown.insert(limit);
            }
            let newer = |under: &&Limit| under.revision() > charge_ref.limit.revision();
            self.buffer.add(charge_ref.judged_by(under.get(&key).filter(newer)));
        }
        self.buffer.end();
    }

    /// Converts the value found for this charge, unless it is under a newer limit. Returns the
    /// limit that the counter is under then.
    fn adapt(
        &mut self,
        charge_ref: &ChargeRef<'_>,
        found: &[u8],
        now: Timestamp,
        counts: &mut BatchCounts,
    ) -> Limit {
        if let Plan::SlidingLog(plan) = charge_ref.limit.plan() {
            return self.adapt_log(charge_ref, plan, found, now, counts);
        }
        let limit = *charge_ref.limit;
        let mut new = Vec::new();
        if let Some(counter) = read(&limit, found) {
            let under = *counter.under();
            // An idle counter counts as absent, and an absent one comes under any limit.
            let idle = under.idle_at(counter.state()).is_some_and(|idle| idle <= now);
            if !idle && stays(&under, &limit) {
                return under;
            }
            counts.converted += 1;
            new = converted(counter, &limit, now);
        } else {
            counts.poisoned += 1;
        }
        self.convert(charge_ref, found, new);
        limit
    }

    fn convert(&mut self, charge_ref: &ChargeRef<'_>, expected: &[u8], new: Vec<u8>) {
        let (name, hash) = (charge_ref.name.to_name(), charge_ref.name.hash);
        self.conversions.push(Conversion { name, hash, expected: expected.to_vec(), new });
    }

    /// Converts a log, of which only the tag and the newest moment are known. Lua does the work,
    /// as it may be too long to send.
    fn adapt_log(
        &mut self,
        charge_ref: &ChargeRef<'_>,
        plan: &SlidingLogPlan,
        found: &[u8],
        now: Timestamp,
        counts: &mut BatchCounts,
    ) -> Limit {
        let limit = *charge_ref.limit;
        let (tag, newest) = split_log(found);
        let known = layout::read_tag(tag).filter(|(_, rest)| rest.is_empty());
        let known = known.zip(newest).and_then(|((under, _), newest)| match under.plan() {
            Plan::SlidingLog(from) => Some((under, *from, newest)),
            _ => None,
        });
        let (mut conversion, mut from) = (LogConversion::Drop, *plan);
        if let Some((under, old, newest)) = known {
            let idle = now.micros_since(newest) >= old.window_us;
            if !idle && stays(&under, &limit) {
                return under;
            }
            counts.converted += 1;
            from = old;
            conversion = match limit.change_from(&under) {
                _ if under.revision() > limit.revision() => LogConversion::DropIfIdle,
                _ if under.revision() == limit.revision() => LogConversion::Keep,
                OnChange::Keep => LogConversion::Keep,
                OnChange::Scale => LogConversion::Scale,
                OnChange::Reset => LogConversion::Drop,
            };
        } else {
            counts.poisoned += 1;
        }
        let mut new = Vec::new();
        conversion.write(&from, plan, &mut new);
        layout::write_tag(&limit, &mut new);
        self.convert(charge_ref, tag, new);
        limit
    }
}

/// Returns whether a counter keeps its limit, instead of being converted, for a charge under another.
fn stays(under: &Limit, limit: &Limit) -> bool {
    under.revision() > limit.revision() || under.counts_like(limit)
}

/// Corrects the answer to what was charged, should Lua and Rust ever disagree.
fn as_charged(answer: Answer, passed: bool) -> Answer {
    if answer.passes() == passed {
        return answer;
    }
    let deny = Verdict::Deny(Retry::After(Duration::from_millis(1)));
    let verdict = if passed { Verdict::Allow } else { deny };
    Answer { verdict, refused_by: (!passed).then_some(0), ..answer }
}

/// Reads a counter under another limit of the same algorithm.
fn read(limit: &Limit, found: &[u8]) -> Option<Counter> {
    let (under, state) = layout::read_tag(found)?;
    let state = layout::decode(&under, state)?;
    (under.code() == limit.code()).then(|| Counter::new(state, &under))
}

/// Splits the excerpt of a log under another limit into its tag and its newest moment.
fn split_log(found: &[u8]) -> (&[u8], Option<Timestamp>) {
    let (length, rest) =
        found.split_first().map_or((0, found), |(n, rest)| (usize::from(*n), rest));
    let (tag, newest) = rest.split_at_checked(length).unwrap_or((rest, &[]));
    let newest = newest.try_into().ok().map(u64::from_le_bytes);
    (tag, newest.map(Timestamp::from_micros))
}

/// Converts a counter to this limit, as it is stored; empty if it is absent then.
fn converted(mut counter: Counter, limit: &Limit, now: Timestamp) -> Vec<u8> {
    counter.settle(limit, now);
    let mut out = Vec::new();
    if !matches!(counter.state(), State::Absent) {
        layout::write_tag(limit, &mut out);
        layout::encode(counter.state(), &mut out);
    }
    out
}
