//! The decision replay: core decides once more what Lua decided about a batch, for the callers' answers.
//!
//! It runs for every batch. The replay of histories in tests is in `crate::replay`.

use smallvec::SmallVec;
use tollgate_core::state::Log;
use tollgate_core::{Answer, ChargeTarget, Counter, Need, Op, Plan, Request, State, Timestamp};

use super::buffer::{BatchBuffer, ChargeRef};
use super::{Batch, MalformedReply};
use crate::layout;

/// The bit of a length that marks an excerpt of a log; without it, it is a dump.
const EXCERPT: u32 = 1 << 31;

/// The stored value of each key before the run, in the order of the call.
pub(super) struct PriorValues<'r>(Vec<Option<&'r [u8]>>);

impl<'r> PriorValues<'r> {
    /// One length stands for all, if there are more keys.
    pub(super) fn read(
        lengths: &[u8],
        mut values: &'r [u8],
        keys: usize,
    ) -> Result<Self, MalformedReply> {
        let (lengths, []) = lengths.as_chunks::<4>() else { return Err(MalformedReply) };
        let times = match lengths {
            [_] => keys,
            _ if lengths.len() == keys => 1,
            _ => return Err(MalformedReply),
        };
        let mut prior = Vec::with_capacity(keys);
        for length in lengths.iter().flat_map(|length| std::iter::repeat_n(length, times)) {
            let length = u32::from_le_bytes(*length);
            if length == u32::MAX {
                prior.push(None);
                continue;
            }
            let length = usize::try_from(length).map_err(|_| MalformedReply)?;
            let (value, rest) = values.split_at_checked(length).ok_or(MalformedReply)?;
            prior.push(Some(value));
            values = rest;
        }
        if values.is_empty() { Ok(Self(prior)) } else { Err(MalformedReply) }
    }

    /// Returns the value of the key with this number.
    pub(super) fn of(&self, number: u16) -> Option<&'r [u8]> {
        self.0[usize::from(number) - 1]
    }
}

/// The counters of a batch, changed by its requests one after the other.
pub(super) struct DecisionReplay<'r> {
    pub(super) prior: PriorValues<'r>,
    counters: Vec<Counter>,
    views: &'r [u8],
    pub(super) now: Timestamp,
}

impl<'r> DecisionReplay<'r> {
    pub(super) fn new(
        batch: &Batch,
        prior: PriorValues<'r>,
        views: &'r [u8],
        now: Timestamp,
    ) -> Result<Self, MalformedReply> {
        let buffer = &batch.buffer;
        let mut counters: Vec<Option<Counter>> = vec![None; prior.0.len()];
        for item in &buffer.items {
            let key = buffer.key(item);
            let counter = &mut counters[usize::from(key) - 1];
            if counter.is_some() {
                continue;
            }
            let charge_ref = buffer.charge_ref(item);
            let mut found = prior.of(key);
            let mut conversions = batch.conversions.iter();
            let conversion = conversions.find(|c| charge_ref.name.is(&c.name));
            if let Some(conversion) = conversion.filter(|c| found == Some(&c.expected)) {
                found = Some(conversion.new.as_slice());
            }
            let state = found
                .and_then(|value| value.strip_prefix(batch.tag(item)))
                .and_then(|state| layout::decode(charge_ref.judge, state));
            *counter = Some(Counter::new(state.unwrap_or_default(), charge_ref.judge));
        }
        let counters = counters.into_iter().collect::<Option<Vec<_>>>().ok_or(MalformedReply)?;
        Ok(Self { prior, counters, views, now })
    }

    /// Decides a request as Lua did.
    pub(super) fn judge(&mut self, buffer: &BatchBuffer, request: usize) -> Option<Answer> {
        let items = buffer.items(request);
        if let [item] = items
            && item.need == Need::Must
        {
            let (index, charge_ref) = (usize::from(buffer.key(item)) - 1, buffer.charge_ref(item));
            if charge_ref.is_log() {
                self.see(index, &charge_ref)?;
            }
            let decision = self.counters[index].charge(&charge_ref.charge()?, self.now);
            let refused_by = (!decision.passes()).then_some(0);
            let decisions = SmallVec::from_slice(&[decision]);
            let (verdict, at) = (decision.verdict, self.now);
            return Some(Answer { verdict, at, refused_by, decisions });
        }
        let shared = buffer.shares_a_log(request);
        let mut targets: SmallVec<[ChargeTarget; 4]> = SmallVec::new();
        for item in items {
            let (index, charge_ref) = (usize::from(buffer.key(item)) - 1, buffer.charge_ref(item));
            if charge_ref.is_log() && !shared {
                self.see(index, &charge_ref)?;
            } else if charge_ref.is_log() && !targets.contains(&ChargeTarget::Counter(index)) {
                self.see_all(index, &charge_ref, buffer, request)?;
            }
            targets.push(ChargeTarget::Counter(index));
        }
        let charges = buffer.as_charges(request);
        let request = Request::new(&charges).ok()?;
        Some(request.judge(&mut self.counters, &targets, self.now))
    }

    /// Uses the view of a log for this charge as the log.
    fn see(&mut self, number: usize, charge_ref: &ChargeRef<'_>) -> Option<()> {
        let Plan::SlidingLog(plan) = charge_ref.judge.plan() else { return None };
        let view = layout::read_view(&mut self.views)?;
        let cost = match charge_ref.op {
            Op::Take(cost) | Op::Peek(cost) => cost,
            _ => 0,
        };
        self.put(number, charge_ref, Log::as_seen(plan, view, cost))
    }

    /// Uses the excerpt or dump of a log for all charges of a request, of which this is the first
    /// on the log. Core derives what the others see.
    fn see_all(
        &mut self,
        number: usize,
        charge_ref: &ChargeRef<'_>,
        buffer: &BatchBuffer,
        request: usize,
    ) -> Option<()> {
        let (length, rest) = self.views.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length);
        let (seen, rest) = rest.split_at_checked(usize::try_from(length & !EXCERPT).ok()?)?;
        self.views = rest;
        if length & EXCERPT == 0 {
            return self.put(number, charge_ref, layout::read_dump(seen)?);
        }
        let (log, places) = layout::read_excerpt(seen)?;
        // Only debits may meet more entries than the count, and must know how many there are.
        let counts =
            buffer.charge_refs(request).any(|charge_ref| matches!(charge_ref.op, Op::Debit { .. }));
        self.put(number, charge_ref, if counts { log.padded(&places) } else { log })
    }

    fn put(&mut self, number: usize, charge_ref: &ChargeRef<'_>, log: Log) -> Option<()> {
        let empty = log.entries().next().is_none();
        let state = if empty { State::Absent } else { State::SlidingLog(log) };
        self.counters[number] = Counter::new(state, charge_ref.judge);
        Some(())
    }
}
