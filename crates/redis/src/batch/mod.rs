//! A batch: requests on their way through one run of the script.
//!
//! [`Batch::call`] writes the script's arguments, [`Batch::answer`] reads its reply. Lua says who
//! passed and what each counter held before; what each caller is told follows from that by the
//! core's own decisions, made once more over the same states at the same moment. The two can only
//! disagree if a twin is wrong, and that is counted.
//!
//! What is not decided in one run (a counter that was counted under another limit) is decided in
//! the next: [`Batch::answer`] leaves those requests in the batch, in order, with the conversions
//! that make them decidable.

mod answer;
mod call;
mod owned;

pub(crate) use owned::Owned;

use crate::keys::Name;
use crate::link::Call;

/// Requests that are sent together, in order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    requests: Vec<Pending>,
    conversions: Vec<Conversion>,
    sent: Sent,
}

/// How the last call numbered things, from 1 on: for each charge, in order, its key and the limit
/// that judges it; how many keys there are; and the tag of each limit.
#[derive(Debug, Default)]
struct Sent {
    charges: Vec<(u16, u16)>,
    keys: usize,
    tags: Vec<Box<[u8]>>,
}

/// A request that is not answered yet, and its place among those that were sent.
#[derive(Debug)]
struct Pending {
    place: usize,
    request: Owned,
}

/// What a counter means under another limit than it was counted under.
#[derive(Debug)]
struct Conversion {
    name: Name,
    /// What must still be there.
    expected: Vec<u8>,
    /// What takes its place; empty if nothing does.
    new: Vec<u8>,
}

/// What a run of the script says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Stored values that were not ours, each repaired.
    pub(crate) poisoned: u64,
    /// Requests about which Lua and Rust disagreed.
    pub(crate) mismatches: u64,
    /// Counters carried over to another limit.
    pub(crate) converted: u64,
}

/// Why a reply cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbled;

impl Batch {
    pub(crate) fn new(requests: impl IntoIterator<Item = Owned>) -> Self {
        let pending = |(place, request)| Pending { place, request };
        Self {
            requests: requests.into_iter().enumerate().map(pending).collect(),
            ..Self::default()
        }
    }

    /// Whether every request was answered.
    pub(crate) const fn is_done(&self) -> bool {
        self.requests.is_empty()
    }

    /// The arguments of the script's next run.
    pub(crate) fn call(&mut self) -> Call {
        let (call, sent) = call::Writer::default().write(self);
        self.sent = sent;
        call
    }
}
