//! The judgement of rules on an ask: a block, or the counters that it charges.
//!
//! Plain values. `judge.rs` creates them and the limiter reads them.

use smallvec::SmallVec;

use super::active::{ActiveLimit, ActiveRule};
use super::declaration::Subject;
use super::key::Buffer;
use crate::{Cost, Key};

/// The judgement of a rule set on an ask.
#[derive(Clone, Debug)]
#[must_use]
#[expect(
    clippy::large_enum_variant,
    reason = "charges live on the stack: a box would allocate for every request"
)]
pub enum Judgement<'s> {
    /// The set has no such domain.
    UnknownDomain,
    /// Refused before anything is counted.
    Blocked(BlockedBy<'s>),
    /// Passes without being counted.
    Exempt(&'s Subject),
    /// Charges these counters, all or none; none at all if no rule applies.
    Charges(Charges<'s>),
    /// Needs more enforced charges than one request may have. No rule is left out silently: the ask
    /// cannot be decided, and you must fix the set.
    TooMany {
        /// The number of charges.
        charges: usize,
    },
}

/// A refusal that does not depend on any counter.
#[derive(Clone, Copy, Debug)]
pub enum BlockedBy<'s> {
    /// An entry of the domain's list.
    List(&'s Subject),
    /// A rule that blocks.
    Rule(&'s ActiveRule),
    /// A rule that refuses asks without an attribute of its `by`.
    Missing {
        /// The rule.
        rule: &'s ActiveRule,
        /// The attribute, as declared.
        attribute: &'s str,
    },
}

/// The counters that an ask charges, with their keys.
#[derive(Clone, Debug)]
pub struct Charges<'s> {
    pub(super) bytes: Buffer,
    /// The enforced charges, followed by those of shadow rules.
    pub(super) list: SmallVec<[RuleCharge<'s>; 8]>,
    pub(super) enforced: usize,
    pub(super) partition: Option<ByteRange>,
    pub(super) shadow_block: Option<BlockedBy<'s>>,
    pub(super) shadow_left_out: usize,
}

impl<'s> Charges<'s> {
    /// No charges yet. Inlined, because otherwise its empty room is copied to its destination.
    #[inline(always)]
    pub(super) fn none() -> Self {
        Self {
            bytes: Buffer::new(),
            list: SmallVec::new(),
            enforced: 0,
            partition: None,
            shadow_block: None,
            shadow_left_out: 0,
        }
    }

    /// The enforced charges: for each rule that applies its limits and, if it has one, its ban. The
    /// most specific rule comes first, whatever the order of declaration.
    pub fn enforced(&self) -> &[RuleCharge<'s>] {
        self.list.get(..self.enforced).unwrap_or_default()
    }

    /// The charges of shadow rules, which never refuse.
    pub fn shadow(&self) -> &[RuleCharge<'s>] {
        self.list.get(self.enforced..).unwrap_or_default()
    }

    /// True if a shadow rule matches.
    pub fn has_shadow(&self) -> bool {
        self.enforced < self.list.len() || self.shadow_block.is_some()
    }

    /// True if there is nothing to charge.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The key of the counter of a charge.
    ///
    /// # Panics
    ///
    /// When the charge belongs to another value.
    pub fn key(&self, charge: &RuleCharge<'s>) -> Key<'_> {
        self.key_at(charge.key)
    }

    /// The key of the counter of refusals for a ban.
    ///
    /// # Panics
    ///
    /// When the charge belongs to another value.
    pub fn refusals_key(&self, charge: &RuleCharge<'s>) -> Option<Key<'_>> {
        charge.refusals.map(|range| self.key_at(range))
    }

    /// The bytes that all keys share, for [`Request::within`](crate::Request::within); `None` if
    /// the domain declares no partition.
    pub fn partition(&self) -> Option<&[u8]> {
        self.partition.and_then(|range| self.bytes.get(range.range()))
    }

    /// The shadow rule that would have refused before anything is counted.
    pub const fn shadow_block(&self) -> Option<BlockedBy<'s>> {
        self.shadow_block
    }

    /// The number of shadow charges left out because one request cannot hold them.
    pub const fn shadow_left_out(&self) -> usize {
        self.shadow_left_out
    }

    #[expect(clippy::expect_used, reason = "keys are built to fit, from names that are checked")]
    fn key_at(&self, range: ByteRange) -> Key<'_> {
        let bytes = self.bytes.get(range.range()).expect("one of these charges");
        Key::new(bytes).expect("a key has a head, and its tokens are bounded")
    }
}

/// One counter that an ask charges.
#[derive(Clone, Copy, Debug)]
pub struct RuleCharge<'s> {
    /// The rule.
    pub rule: &'s ActiveRule,
    /// Its limit, or its ban: see [`ActiveLimit::kind`].
    pub limit: &'s ActiveLimit,
    /// The cost of the ask there; 1 for a ban.
    pub cost: Cost,
    pub(super) key: ByteRange,
    pub(super) refusals: Option<ByteRange>,
}

/// A range of the bytes of [`Charges`]: at most 128 charges with two keys of 1024 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteRange {
    start: u32,
    end: u32,
}

impl ByteRange {
    /// The bytes written since the buffer had the length `start`.
    pub(super) fn since(start: usize, bytes: &Buffer) -> Self {
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Self { start: place(start), end: place(bytes.len()) }
    }

    pub(super) fn range(self) -> std::ops::Range<usize> {
        let place = |at: u32| usize::try_from(at).unwrap_or(usize::MAX);
        place(self.start)..place(self.end)
    }
}
