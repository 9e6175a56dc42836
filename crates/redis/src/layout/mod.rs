//! The stored form of counters: a tag that identifies the limit, then the state, both in bytes.
//!
//! Lua reads and writes states and compares tags; it never looks into one. Rust reads and writes
//! both: states to answer callers, tags when a counter was counted under another limit. So a state
//! has two writers that must agree byte for byte, `encode` here and the step of the same name in
//! `lua/`; the replay test compares them.
//!
//! The layout is described in `docs/keys.md`; changing it needs another version in `keys.rs`.

mod bucket;
mod concurrency;
mod fixed_window;
#[cfg(test)]
mod lua_equivalence;
mod sliding_log;
mod sliding_window;
mod smooth;
mod tag;

use tollgate_core::{Holder, Limit, Op, Plan, Span, State, Timestamp};

use crate::clock::micros;

pub(crate) use bucket::read_arrival;
pub(crate) use sliding_log::{LogConversion, read_dump, read_excerpt, read_view};
pub(crate) use tag::{read_tag, write_tag};

/// Doubles are exact up to here; nothing that is sent lies above, and nothing that is stored comes
/// so far.
pub(crate) const MAX_EXACT: u64 = 1 << 53;

/// Reads a state under this limit.
pub(crate) fn decode(limit: &Limit, bytes: &[u8]) -> Option<State> {
    match limit.plan() {
        Plan::FixedWindow(_) => fixed_window::decode(bytes).map(State::FixedWindow),
        Plan::SlidingLog(_) => None,
        Plan::SlidingWindow(plan) => sliding_window::decode(plan, bytes).map(State::SlidingWindow),
        Plan::TokenBucket(plan) => bucket::decode(plan, bytes).map(State::TokenBucket),
        Plan::LeakyMeter(plan) => bucket::decode(plan, bytes).map(State::LeakyMeter),
        Plan::LeakyQueue(plan) => bucket::decode(plan, bytes).map(State::LeakyQueue),
        Plan::Smooth(plan) => smooth::decode(plan, bytes).map(State::Smooth),
        Plan::Concurrency(plan) => concurrency::decode(plan, bytes).map(State::Concurrency),
    }
}

/// Writes a state as Lua would; nothing for one that is absent, or a log.
pub(crate) fn encode(state: &State, out: &mut Vec<u8>) {
    match state {
        State::Absent | State::SlidingLog(_) => {}
        State::FixedWindow(window) => fixed_window::encode(window, out),
        State::SlidingWindow(panes) => sliding_window::encode(panes, out),
        State::TokenBucket(state) | State::LeakyMeter(state) | State::LeakyQueue(state) => {
            bucket::encode(state, out);
        }
        State::Smooth(tickets) => smooth::encode(tickets, out),
        State::Concurrency(holders) => concurrency::encode(holders, out),
    }
}

/// Writes the numbers that the algorithm's Lua computes with.
pub(crate) fn pack_plan(plan: &Plan, out: &mut Vec<u8>) {
    match plan {
        Plan::FixedWindow(plan) => fixed_window::pack_plan(plan, out),
        Plan::SlidingLog(plan) => sliding_log::pack_plan(plan, out),
        Plan::SlidingWindow(plan) => sliding_window::pack_plan(plan, out),
        Plan::TokenBucket(plan) | Plan::LeakyMeter(plan) | Plan::LeakyQueue(plan) => {
            bucket::pack_plan(plan, out);
        }
        Plan::Smooth(plan) => smooth::pack_plan(plan, out),
        Plan::Concurrency(plan) => concurrency::pack_plan(plan, out),
    }
}

/// Returns whether takes of this cost from this limit need only a bucket's arrival time.
pub(crate) fn takes_from_bucket(limit: &Limit, cost: u64) -> bool {
    limit.bucket_plan().is_some_and(|plan| cost > 0 && cost <= plan.capacity)
}

/// Returns whether `lua/takes.lua` decides takes of this cost from this limit.
pub(crate) fn takes_from_bucket_or_window(limit: &Limit, cost: u64) -> bool {
    match limit.plan() {
        Plan::FixedWindow(plan) => cost > 0 && cost <= plan.capacity,
        _ => takes_from_bucket(limit, cost),
    }
}

/// Returns whether the permits of a bucket take whole microseconds.
pub(crate) fn is_whole(limit: &Limit) -> bool {
    limit.bucket_plan().is_some_and(|plan| plan.rate.denominator().get() == 1)
}

/// Writes what `lua/uniform_takes.lua` needs to know.
pub(crate) fn pack_uniform_takes(limit: &Limit, cost: u64, keys: usize, out: &mut Vec<u8>) {
    let Some(plan) = limit.bucket_plan() else { return };
    let mut tag = Vec::new();
    write_tag(limit, &mut tag);
    out.extend_from_slice(&u16::try_from(keys).unwrap_or(u16::MAX).to_le_bytes());
    let value = format!("<c{}I16", tag.len());
    let piece = format!("I8c{}", tag.len().saturating_add(8));
    for part in [tag.as_slice(), value.as_bytes(), piece.as_bytes()] {
        out.push(u8::try_from(part.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(part);
    }
    double(plan.full.whole, out);
    double(plan.rate.span(cost).whole, out);
}

/// No holder.
const NOBODY: Holder = Holder(0);

/// Writes the terms of a charge: the operation, and every number that an operation may have. What
/// a double cannot hold is cut to [`MAX_EXACT`], which every step treats as it would treat more.
pub(crate) fn pack_terms(limit: &Limit, op: Op, patience_us: u64, flag: u8, out: &mut Vec<u8>) {
    let (code, cost, at, lease, holder) = match op {
        Op::Take(cost) => (1, cost, 0, 0, NOBODY),
        Op::Peek(cost) => (2, cost, 0, 0, NOBODY),
        Op::Debit { cost, at } => (3, cost, at.as_micros(), 0, NOBODY),
        Op::Credit { cost, at } => (4, cost, at.as_micros(), 0, NOBODY),
        Op::Acquire { holder, lease } => (5_u8, 1, 0, micros(lease), holder),
        Op::Renew { holder, lease } => (6, 1, 0, micros(lease), holder),
        Op::Release { holder } => (7, 1, 0, 0, holder),
    };
    let span = match limit.plan() {
        Plan::TokenBucket(plan) | Plan::LeakyMeter(plan) | Plan::LeakyQueue(plan) => {
            plan.rate.span(cost)
        }
        _ => Span::ZERO,
    };
    out.push(code | flag);
    for number in [cost, span.whole, span.part, patience_us, at, lease] {
        double(number, out);
    }
    out.extend_from_slice(&concurrency::holder(holder));
}

/// Writes numbers of eight bytes, little-endian.
fn u64s(numbers: impl IntoIterator<Item = u64>, out: &mut Vec<u8>) {
    numbers.into_iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

/// Writes a whole number as a double.
#[expect(clippy::as_conversions, reason = "exact up to 2^53, and cut there")]
fn double(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&(number.min(MAX_EXACT) as f64).to_le_bytes());
}

/// A little-endian number, if Lua could have written it.
fn exact(bytes: [u8; 8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes);
    (number < MAX_EXACT).then_some(number)
}

/// A moment, if Lua could have written it.
fn moment(bytes: [u8; 8]) -> Option<Timestamp> {
    exact(bytes).map(Timestamp::from_micros)
}

/// Takes such a number off the front.
fn take_exact(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    exact(*first)
}
