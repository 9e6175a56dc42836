//! Sliding window: the number of the newest pane, then n + 1 counts, newest first.
//!
//! `lua/sliding_window.lua` is the same in Lua: change them together.

use tollgate_core::algorithm::Estimate;
use tollgate_core::state::{MAX_USED, Panes, SlidingWindowPlan};

use super::{MAX_EXACT, u64s};

/// Capacity, length of a pane, panes (a byte), and 1 for the weighted estimate (a byte).
pub(crate) fn pack_plan(plan: &SlidingWindowPlan, out: &mut Vec<u8>) {
    u64s([plan.capacity, plan.pane_us], out);
    out.extend_from_slice(&[plan.panes, u8::from(plan.estimate == Estimate::Weighted)]);
}

/// Appends the state.
pub(crate) fn encode(state: &Panes, out: &mut Vec<u8>) {
    u64s(std::iter::once(state.newest).chain(state.counts.iter().copied()), out);
}

/// Reads the state, unless it has another number of panes, begins at an inexact moment or counts more
/// than debits can.
pub(crate) fn decode(plan: &SlidingWindowPlan, bytes: &[u8]) -> Option<Panes> {
    let (values, rest) = bytes.as_chunks::<8>();
    let mut values = values.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let newest = values.next()?;
    let counts: Box<[u64]> = values.collect();
    let begins = newest.checked_mul(plan.pane_us)?;
    let whole = rest.is_empty() && counts.len() == usize::from(plan.panes).checked_add(1)?;
    let possible = begins < MAX_EXACT && counts.iter().all(|count| *count <= MAX_USED);
    (whole && possible).then_some(Panes { newest, counts })
}
