//! Smooth limiters: the bits of the stored permits, when the next one is free, and when this was
//! written.
//!
//! `lua/smooth.lua` is the same in Lua: change them together.

use tollgate_core::algorithm::Payment;
use tollgate_core::state::{SmoothPlan, SmoothState};

use super::{moment, u64s};

/// Stable interval, most permits, threshold, slope and cooldown (doubles), 1 if stored permits
/// cost and 1 if the caller itself waits (a byte each), and the most permits taken in advance.
pub(crate) fn pack_plan(plan: &SmoothPlan, out: &mut Vec<u8>) {
    let numbers = [plan.stable, plan.max_permits, plan.threshold, plan.slope, plan.cooldown];
    u64s(numbers.map(f64::to_bits), out);
    let is_own = u8::from(plan.payment == Payment::Own);
    out.extend_from_slice(&[u8::from(plan.warming), is_own]);
    u64s([plan.max_debt], out);
}

/// Appends the state.
pub(crate) fn encode(state: &SmoothState, out: &mut Vec<u8>) {
    let (free_at, written_at) = (state.free_at.as_micros(), state.written_at.as_micros());
    u64s([state.stored.to_bits(), free_at, written_at], out);
}

/// Reads the state, unless its permits are not between zero and the most, or a moment is inexact.
pub(crate) fn decode(plan: &SmoothPlan, bytes: &[u8]) -> Option<SmoothState> {
    let ([stored, free_at, written_at], []) = bytes.as_chunks::<8>() else { return None };
    let stored = f64::from_le_bytes(*stored);
    // A range never contains NaN.
    let possible = (0.0..=plan.max_permits).contains(&stored);
    let [free_at, written_at] = [moment(*free_at)?, moment(*written_at)?];
    possible.then_some(SmoothState { stored, free_at, written_at })
}
