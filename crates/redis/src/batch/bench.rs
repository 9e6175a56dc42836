//! The counters of a batch, as the core knows them: what Lua decided is decided there once more.

use smallvec::SmallVec;
use tollgate_core::state::Log;
use tollgate_core::{Answer, ChargeTarget, Counter, Need, Op, Plan, Request, State, Timestamp};

use super::cargo::{Cargo, Lot};
use super::{Batch, Garbled};
use crate::layout;

/// The bit of a length that tells a sketch of a log from a dump.
const SKETCH: u32 = 1 << 31;

/// What each key held before, in the order of the call.
pub(super) struct Prior<'r>(Vec<Option<&'r [u8]>>);

impl<'r> Prior<'r> {
    /// One length stands for all, if there are more keys.
    pub(super) fn read(lengths: &[u8], mut values: &'r [u8], keys: usize) -> Result<Self, Garbled> {
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
    pub(super) fn of(&self, number: u16) -> Option<&'r [u8]> {
        self.0.get(usize::from(number).checked_sub(1)?).copied().flatten()
    }
}

/// The counters of a batch, as its requests change them one after the other.
pub(super) struct Bench<'r> {
    pub(super) prior: Prior<'r>,
    counters: Vec<Counter>,
    views: &'r [u8],
    pub(super) now: Timestamp,
}

impl<'r> Bench<'r> {
    pub(super) fn new(
        batch: &Batch,
        prior: Prior<'r>,
        views: &'r [u8],
        now: Timestamp,
    ) -> Result<Self, Garbled> {
        let cargo = &batch.cargo;
        let keys = cargo.strings.len().saturating_add(cargo.logs.len());
        let mut counters: Vec<Option<Counter>> = vec![None; keys];
        for item in &cargo.items {
            let key = cargo.key(item);
            let counter = usize::from(key).checked_sub(1).and_then(|i| counters.get_mut(i));
            let counter = counter.ok_or(Garbled)?;
            if counter.is_some() {
                continue;
            }
            let lot = cargo.lot(item).ok_or(Garbled)?;
            let mut found = prior.of(key);
            let mut conversions = batch.conversions.iter();
            let conversion = conversions.find(|c| lot.label.is(&c.name));
            if let Some(conversion) = conversion.filter(|c| found == Some(&c.expected)) {
                found = Some(conversion.new.as_slice());
            }
            let kind = cargo.terms_of(item).map_or(0, |terms| terms.kind);
            let tag = batch.tags.get(usize::from(kind).wrapping_sub(1)).ok_or(Garbled)?;
            let state = found
                .and_then(|value| value.strip_prefix(&**tag))
                .and_then(|state| layout::decode(lot.judge, state));
            *counter = Some(Counter::new(state.unwrap_or_default(), lot.judge));
        }
        let counters = counters.into_iter().collect::<Option<Vec<_>>>().ok_or(Garbled)?;
        Ok(Self { prior, counters, views, now })
    }

    /// Decides a request once more, as Lua did.
    pub(super) fn judge(&mut self, cargo: &Cargo, request: usize) -> Option<Answer> {
        let items = cargo.items(request);
        if let [item] = items
            && item.need == Need::Must
        {
            let index = usize::from(cargo.key(item)).checked_sub(1)?;
            let lot = cargo.lot(item)?;
            if lot.is_log() {
                self.see(index, &lot)?;
            }
            let decision = self.counters.get_mut(index)?.charge(&lot.charge()?, self.now);
            let refused_by = (!decision.passes()).then_some(0);
            let decisions = SmallVec::from_slice(&[decision]);
            let (verdict, at) = (decision.verdict, self.now);
            return Some(Answer { verdict, at, refused_by, decisions });
        }
        let shared = cargo.shares_a_log(request);
        let mut targets: SmallVec<[ChargeTarget; 4]> = SmallVec::new();
        for item in items {
            let (index, lot) = (usize::from(cargo.key(item)).checked_sub(1)?, cargo.lot(item)?);
            if lot.is_log() && !shared {
                self.see(index, &lot)?;
            } else if lot.is_log() && !targets.contains(&ChargeTarget::Counter(index)) {
                self.see_all(index, &lot, cargo, request)?;
            }
            targets.push(ChargeTarget::Counter(index));
        }
        let charges = cargo.as_charges(request);
        let request = Request::new(&charges).ok()?;
        Some(request.judge(&mut self.counters, &targets, self.now))
    }

    /// Takes what was seen of a log for this charge as the log.
    fn see(&mut self, number: usize, lot: &Lot<'_>) -> Option<()> {
        let Plan::SlidingLog(plan) = lot.judge.plan() else { return None };
        let view = layout::read_view(&mut self.views)?;
        let cost = match lot.op {
            Op::Take(cost) | Op::Peek(cost) => cost,
            _ => 0,
        };
        self.put(number, lot, Log::as_seen(plan, view, cost))
    }

    /// Takes what was seen of a log for all charges of a request, of which this is the first on the
    /// log, as the log; the core makes of it what the others see.
    fn see_all(
        &mut self,
        number: usize,
        lot: &Lot<'_>,
        cargo: &Cargo,
        request: usize,
    ) -> Option<()> {
        let (length, rest) = self.views.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length);
        let (seen, rest) = rest.split_at_checked(usize::try_from(length & !SKETCH).ok()?)?;
        self.views = rest;
        if length & SKETCH == 0 {
            return self.put(number, lot, layout::read_dump(seen)?);
        }
        let (log, places) = layout::read_sketch(seen)?;
        // Only debits may find more entries than the count, and so have to know how many there are.
        let counts = cargo.lots(request).any(|lot| matches!(lot.op, Op::Debit { .. }));
        self.put(number, lot, if counts { log.padded(&places) } else { log })
    }

    fn put(&mut self, number: usize, lot: &Lot<'_>, log: Log) -> Option<()> {
        let empty = log.entries().next().is_none();
        let state = if empty { State::Absent } else { State::SlidingLog(log) };
        *self.counters.get_mut(number)? = Counter::new(state, lot.judge);
        Some(())
    }
}
