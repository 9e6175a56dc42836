//! Sliding window: the number of the newest pane, then n + 1 counts, newest first.
//!
//! `lua/sliding_window.lua` is the same in Lua: change them together.

use tollgate_core::algorithm::Estimate;
use tollgate_core::state::MAX_USED;
use tollgate_core::state::{Panes, SlidingWindowPlan};

use super::MAX_EXACT;

/// Capacity, length of a pane, panes (a byte), and 1 for the weighted estimate (a byte).
pub(crate) fn pack_plan(plan: &SlidingWindowPlan, out: &mut Vec<u8>) {
    let weighted = match plan.estimate {
        Estimate::Conservative => 0,
        Estimate::Weighted => 1,
    };
    out.extend_from_slice(&plan.capacity.to_le_bytes());
    out.extend_from_slice(&plan.pane_us.to_le_bytes());
    out.extend_from_slice(&[plan.panes, weighted]);
}

/// Appends the state.
pub(crate) fn encode(state: &Panes, out: &mut Vec<u8>) {
    out.extend_from_slice(&state.newest.to_le_bytes());
    for count in &state.counts {
        out.extend_from_slice(&count.to_le_bytes());
    }
}

/// The state, unless it has another number of panes, begins at an inexact moment or counts more
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
