//! A batch: requests on their way through one run of the script.
//!
//! [`BatchBuffer`] is the requests as data. [`Batch::call`] writes the script's arguments, [`Batch::answer`]
//! reads its reply. Lua says who passed and what each counter held before; what each caller is answers
//! follows from that by the core's own decisions, made once more over the same states at the same
//! moment. The two can only disagree if a twin is wrong, and that is counted.
//!
//! What is not decided in one run (a counter that was counted under another limit) is decided in
//! the next: [`Batch::answer`] leaves those requests in the batch, in order, with the conversions
//! that make them decidable.

mod answer;
mod buffer;
mod call;
mod decision_replay;
mod name_table;

pub(crate) use self::answer::PendingAnswer;
pub(crate) use self::buffer::BatchBuffer;
pub(crate) use self::name_table::HashedName;

use crate::keys::Name;
use crate::link::Call;

/// Requests that are sent together, in order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    buffer: BatchBuffer,
    /// The place of each request among those that the batch began with; empty as long as all are there.
    places: Vec<usize>,
    conversions: Vec<Conversion>,
    /// The tag of each kind of limit, as it was sent.
    tags: Vec<Box<[u8]>>,
}

/// What a counter means under another limit than it was counted under.
#[derive(Debug)]
struct Conversion {
    name: Name,
    hash: u32,
    /// What must still be there.
    expected: Vec<u8>,
    /// What takes its place; empty if nothing does.
    new: Vec<u8>,
}

/// What a run of the script says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchCounts {
    /// Stored values that were not ours, each repaired.
    pub(crate) poisoned: u64,
    /// Requests about which Lua and Rust disagreed.
    pub(crate) mismatches: u64,
    /// LinkCounters carried over to another limit.
    pub(crate) converted: u64,
}

/// Why a reply cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedReply;

impl Batch {
    /// These requests; each has the place given for it, or its own if none are given.
    pub(crate) fn new(buffer: BatchBuffer, places: Vec<usize>) -> Self {
        Self { buffer, places, ..Self::default() }
    }

    /// Whether every request was answered.
    pub(crate) const fn is_done(&self) -> bool {
        self.buffer.len() == 0
    }

    fn place(&self, request: usize) -> usize {
        self.places.get(request).copied().unwrap_or(request)
    }

    /// The arguments of the script's next run.
    pub(crate) fn call(&mut self) -> Call<'_> {
        let (args, tags) = call::write(&self.buffer, &self.conversions);
        self.tags = tags;
        call::call(&self.buffer, args)
    }

    /// The memory of the requests, for others.
    pub(crate) fn into_buffer(self) -> BatchBuffer {
        self.buffer
    }
}
