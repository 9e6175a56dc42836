//! A batch of requests that Redis decides together, usually in one run of the script.
//!
//! [`BatchBuffer`] holds the requests as data. [`Batch::call`] writes the script's arguments,
//! [`Batch::answer`] reads its reply. Lua says which requests pass and what each counter held before.
//! Rust then decides the requests again by core's own functions, over the same states at the same
//! moment: that yields the answers, and checks Lua. A disagreement is a bug, and is counted.
//!
//! A request on a counter that was counted under another limit stays undecided in one run and is
//! decided in the next: [`Batch::answer`] leaves it in the batch, in order, with the conversion that
//! makes it decidable.
#![allow(clippy::arithmetic_side_effects, reason = "numbers and counts of one batch")]

mod answer;
mod buffer;
mod call;
mod decision_replay;
mod name_table;

use std::borrow::Cow;

pub(crate) use self::answer::PendingAnswer;
pub(crate) use self::buffer::BatchBuffer;
pub(crate) use self::name_table::HashedName;

use self::buffer::PackedCharge;
use crate::keys::Name;
use crate::link::{Call, Keys, ScriptId};

/// Requests that are sent together, in order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    buffer: BatchBuffer,
    /// The place of each request among those that the batch began with; empty as long as all are
    /// there.
    places: Vec<usize>,
    conversions: Vec<Conversion>,
    /// The tag of each kind of limit, as it was sent.
    tags: Vec<Box<[u8]>>,
}

/// A counter and its value under another limit.
#[derive(Debug)]
struct Conversion {
    name: Name,
    hash: u32,
    /// The value that must still be stored.
    expected: Vec<u8>,
    /// The value that replaces it; empty to delete.
    new: Vec<u8>,
}

/// Counts of one run of the script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchCounts {
    /// Stored values that were not Tollgate's, each repaired.
    pub(crate) poisoned: u64,
    /// Requests that Lua and Rust decided differently.
    pub(crate) mismatches: u64,
    /// Counters converted to another limit.
    pub(crate) converted: u64,
}

/// The reply cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedReply;

impl Batch {
    /// Makes a batch of these requests. `places` gives the place of each, unless it is its own.
    pub(crate) fn new(buffer: BatchBuffer, places: Vec<usize>) -> Self {
        Self { buffer, places, ..Self::default() }
    }

    /// Returns whether every request was answered.
    pub(crate) const fn is_done(&self) -> bool {
        self.buffer.len() == 0
    }

    fn place(&self, request: usize) -> usize {
        self.places.get(request).copied().unwrap_or(request)
    }

    /// Returns the tag of the limit that judges a charge.
    fn tag(&self, item: &PackedCharge) -> &[u8] {
        &self.tags[usize::from(self.buffer.terms.get(item.term).kind) - 1]
    }

    /// Writes the arguments of the next run.
    pub(crate) fn call(&mut self) -> Call<'_> {
        let (args, tags) = call::write(&self.buffer, &self.conversions);
        self.tags = tags;
        let names = [&self.buffer.strings, &self.buffer.logs];
        let keys = Keys(names.map(|names| Cow::Borrowed(names.strings())));
        Call { script: ScriptId::Batch, keys, args }
    }

    /// Returns the buffer, for its memory.
    pub(crate) fn into_buffer(self) -> BatchBuffer {
        self.buffer
    }
}
