//! Concurrency: when this was written, then 24 bytes a permit, the holder and until when, soonest
//! to end first.
//!
//! `lua/concurrency.lua` is the same in Lua: change them together.

use tollgate_core::algorithm::Concurrency;
use tollgate_core::state::{ConcurrencyPlan, HeldPermit, Holders};
use tollgate_core::{Holder, Timestamp};

use super::{moment, u64s};

/// Capacity and longest lease.
pub(crate) fn pack_plan(plan: &ConcurrencyPlan, out: &mut Vec<u8>) {
    u64s([plan.capacity, plan.longest_us], out);
}

/// A holder, in a permit and in the terms of a charge.
pub(crate) const fn holder(holder: Holder) -> [u8; 16] {
    holder.0.to_le_bytes()
}

/// Appends the state.
pub(crate) fn encode(state: &Holders, out: &mut Vec<u8>) {
    u64s([state.written_at().as_micros()], out);
    for hold in state.held() {
        out.extend_from_slice(&holder(hold.holder));
        u64s([hold.until.as_micros()], out);
    }
}

/// Reads the state, unless it has no holder or too many, or was written at an inexact moment.
///
/// Single permits are not checked: there may be thousands. The plan does not matter either: after its
/// count was lowered, there may be more holders than it allows.
pub(crate) fn decode(_: &ConcurrencyPlan, bytes: &[u8]) -> Option<Holders> {
    let (written_at, bytes) = bytes.split_first_chunk()?;
    let (permits, []) = bytes.as_chunks::<24>() else { return None };
    let count = u64::try_from(permits.len()).ok()?;
    if !(1..=Concurrency::MAX_COUNT).contains(&count) {
        return None;
    }
    let held = permits.iter().filter_map(permit).collect();
    Some(Holders::restored(moment(*written_at)?, held))
}

/// A permit; it has the length of one.
fn permit(bytes: &[u8; 24]) -> Option<HeldPermit> {
    let (holder, until) = bytes.split_first_chunk()?;
    let holder = Holder(u128::from_le_bytes(*holder));
    let until = u64::from_le_bytes(until.try_into().ok()?);
    Some(HeldPermit { holder, until: Timestamp::from_micros(until) })
}
