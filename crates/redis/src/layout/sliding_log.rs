//! Sliding logs: `lua/sliding_log.lua`. A log lives in a sorted set and is sent as a view
//! for one decision, as an excerpt for several, or, if it is short, as a dump.

use tollgate_core::Timestamp;
use tollgate_core::state::{Log, LogEntry, LogView, SlidingLogPlan};

use super::{double, take_exact};

pub(super) fn pack_plan(plan: &SlidingLogPlan, out: &mut Vec<u8>) {
    double(plan.capacity, out);
    double(plan.window_us, out);
}

/// Takes a view off the front: three numbers, of which zero means none.
pub(crate) fn read_view(bytes: &mut &[u8]) -> Option<LogView> {
    let used = take_exact(bytes)?;
    let mut moment = || {
        let micros = take_exact(bytes)?;
        Some((micros > 0).then(|| Timestamp::from_micros(micros)))
    };
    Some(LogView { used, newest: moment()?, blocking: moment()? })
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
        entries.push(LogEntry { at, total: take_exact(&mut bytes)? });
    }
    Log::from_entries(base, entries)
}

/// Reads an excerpt of a log: some of its entries, and their places among all. The decisions that Lua
/// made it for see it as the whole log, but for the number of entries.
pub(crate) fn read_excerpt(mut bytes: &[u8]) -> Option<(Log, Vec<usize>)> {
    let base = take_exact(&mut bytes)?;
    let (mut entries, mut places) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        places.push(usize::try_from(take_exact(&mut bytes)?).ok()?);
        let at = Timestamp::from_micros(take_exact(&mut bytes)?);
        entries.push(LogEntry { at, total: take_exact(&mut bytes)? });
    }
    Some((Log::from_entries(base, entries)?, places))
}

/// The conversion of a log that was counted under another limit: `log.convert` in Lua.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogConversion {
    /// The log is dropped.
    Drop,
    /// Its entries stay.
    Keep,
    /// Its entries are scaled to the new count.
    Scale,
    /// The log is dropped if it is idle; else it stays unchanged.
    DropIfIdle,
}

impl LogConversion {
    /// Writes it with the numbers of both limits; the new one's tag shall follow.
    pub(crate) fn write(self, from: &SlidingLogPlan, to: &SlidingLogPlan, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Drop => 0,
            Self::Keep => 1,
            Self::Scale => 2,
            Self::DropIfIdle => 3,
        });
        for number in [from.window_us, from.capacity, to.window_us, to.capacity] {
            double(number, out);
        }
    }
}
