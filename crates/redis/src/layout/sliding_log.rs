//! Sliding logs: `lua/sliding_log.lua`. A log lives in a sorted set and crosses the wire as a view
//! of what one decision needs, or as a dump of all its entries.

use tollgate_core::Timestamp;
use tollgate_core::algorithm::sliding_log::{Entry, Log, Plan, View};

use super::{double, take_exact};

pub(super) fn pack_plan(plan: &Plan, out: &mut Vec<u8>) {
    double(plan.capacity, out);
    double(plan.window_us, out);
}

/// Takes a view off the front: three numbers, of which zero means none.
pub(crate) fn read_view(bytes: &mut &[u8]) -> Option<View> {
    let used = take_exact(bytes)?;
    let mut moment = || {
        let micros = take_exact(bytes)?;
        Some((micros > 0).then(|| Timestamp::from_micros(micros)))
    };
    Some(View { used, newest: moment()?, blocking: moment()? })
}

/// The log that was dumped; empty bytes are an empty log.
pub(crate) fn read_dump(mut bytes: &[u8]) -> Option<Log> {
    if bytes.is_empty() {
        return Some(Log::default());
    }
    let base = take_exact(&mut bytes)?;
    let mut entries = Vec::with_capacity(bytes.len() / 16);
    while !bytes.is_empty() {
        let at = Timestamp::from_micros(take_exact(&mut bytes)?);
        entries.push(Entry { at, total: take_exact(&mut bytes)? });
    }
    Log::from_entries(base, entries)
}

/// Writes a log as a dump.
pub(crate) fn dump(log: &Log, out: &mut Vec<u8>) {
    out.extend_from_slice(&log.base().to_le_bytes());
    for entry in log.entries() {
        out.extend_from_slice(&entry.at.as_micros().to_le_bytes());
        out.extend_from_slice(&entry.total.to_le_bytes());
    }
}
