//! Envoy's calls, and the policy for answering them.

use tollgate_core::rule::KeyWriter;
use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::{Cost, Request, StoreErrorKind};

use super::rule::TooFast;
use super::unit::Unit;

/// A question of Envoy's: may a request with these descriptors pass?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The domain, which names the file that applies.
    pub domain: &'a str,
    /// The descriptors. Each leads to at most one rule.
    pub descriptors: &'a [Descriptor<'a>],
    /// The cost of each descriptor without a cost of its own; 0 means 1.
    pub hits: u32,
}

impl<'a> Call<'a> {
    /// The most descriptors of a call: as many as one all-or-none request can charge. Descriptors
    /// come from Envoy's routes and not from clients, so nobody can evade a limit by sending more.
    pub const MAX_DESCRIPTORS: usize = Request::MAX_CHARGES;

    /// A call of cost 1.
    pub const fn new(domain: &'a str, descriptors: &'a [Descriptor<'a>]) -> Self {
        Self { domain, descriptors, hits: 1 }
    }

    /// Returns the call with this cost for descriptors that have none of their own.
    pub const fn with_hits(mut self, hits: u32) -> Self {
        self.hits = hits;
        self
    }

    pub(super) fn check(&self) -> Result<(), CallError> {
        if self.domain.is_empty() {
            return Err(CallError::EmptyDomain);
        }
        match self.descriptors.len() {
            0 => return Err(CallError::NoDescriptors),
            count if count > Self::MAX_DESCRIPTORS => {
                return Err(CallError::TooManyDescriptors { count });
            }
            _ => {}
        }
        let counts = self.descriptors.iter().map(|descriptor| descriptor.entries.len());
        match counts.enumerate().find(|(_, count)| *count > MAX_ENTRIES) {
            Some((descriptor, count)) => Err(CallError::TooManyEntries { descriptor, count }),
            None => Ok(()),
        }
    }
}

/// The most entries of a descriptor: a few more than any rule can have. A counter's key still has
/// room for the domain and for the key and value of each entry.
pub const MAX_ENTRIES: usize = (KeyWriter::MAX_VALUES - 1) / 2;

/// A list of entries to which a limit applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Its entries, in order. Without entries it matches no rule.
    pub entries: &'a [Entry<'a>],
    /// The limit, in place of the one in the file.
    pub limit: Option<Override>,
    /// The cost, in place of the call's; 0 asks without charging.
    pub hits: Option<Cost>,
    /// True if the cost is given back instead of charged: `is_negative_hits`.
    pub gives_back: bool,
}

impl<'a> Descriptor<'a> {
    /// A descriptor with the cost of the call, under the limit of the file.
    pub const fn new(entries: &'a [Entry<'a>]) -> Self {
        Self { entries, limit: None, hits: None, gives_back: false }
    }

    /// Returns the descriptor with this cost.
    pub const fn with_hits(mut self, hits: Cost) -> Self {
        self.hits = Some(hits);
        self
    }

    /// Returns the descriptor with this limit.
    pub const fn with_limit(mut self, limit: Override) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Returns the descriptor with its cost given back instead of charged.
    pub const fn giving_back(mut self) -> Self {
        self.gives_back = true;
        self
    }
}

/// A key and its value. Values may be empty, and of any length: long ones are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key, for example `remote_address`.
    pub key: &'a str,
    /// The value, for example `203.0.113.9`.
    pub value: &'a str,
}

/// A limit that comes with the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Hits in each window; 0 refuses all.
    pub requests_per_unit: u32,
    /// The length of a window; `None` if the request names an unknown unit.
    pub unit: Option<Unit>,
}

/// The policy for all calls of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallPolicy {
    /// The charges of a call with a descriptor that is over its limit.
    pub charge: ChargeMode,
    /// The answer while the store does not answer.
    pub on_outage: OnOutage,
}

impl CallPolicy {
    /// Charges all or none, and answers by this process's share in an outage.
    pub const DEFAULT: Self = Self { charge: ChargeMode::AllOrNone, on_outage: OnOutage::Local };

    /// Returns the policy with these charges.
    pub const fn charging(mut self, charge: ChargeMode) -> Self {
        self.charge = charge;
        self
    }

    /// Returns the policy with this answer while the store does not answer.
    pub const fn in_outages(mut self, on_outage: OnOutage) -> Self {
        self.on_outage = on_outage;
        self
    }
}

/// The charges of a call with a descriptor that is over its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChargeMode {
    /// No charges: a call is one decision.
    #[default]
    AllOrNone,
    /// All charges, as in the reference service. Each descriptor is charged by itself, even if it
    /// is over its limit, so counts rise above the limits. A charge after the response
    /// (`apply_on_stream_done`) needs this, since it can no longer be refused.
    All,
}

/// The reason why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// The domain is empty.
    EmptyDomain,
    /// There are no descriptors.
    NoDescriptors,
    /// There are more than [`Call::MAX_DESCRIPTORS`].
    TooManyDescriptors {
        /// The number of them.
        count: usize,
    },
    /// A descriptor has more than [`MAX_ENTRIES`].
    TooManyEntries {
        /// Its index, from 0 on.
        descriptor: usize,
        /// The number of them.
        count: usize,
    },
    /// A descriptor comes with a limit that has no unit.
    UnknownUnit {
        /// Its index, from 0 on.
        descriptor: usize,
    },
    /// A descriptor comes with a limit above the largest that can be counted.
    TooFast(TooFast),
    /// The store did not answer, and the policy is to refuse then. After a
    /// [`StoreErrorKind::Timeout`] the store may have charged the call.
    Unavailable(StoreErrorKind),
}

error_messages! {
    CallError {
        Self::EmptyDomain => "rate limit domain must not be empty";
        Self::NoDescriptors => "rate limit descriptor list must not be empty";
        Self::TooManyDescriptors { count } =>
            "{count} descriptors in one request, above {}", Call::MAX_DESCRIPTORS;
        Self::TooManyEntries { descriptor, count } =>
            "descriptor {descriptor} has {count} entries, above {MAX_ENTRIES}";
        Self::UnknownUnit { descriptor } =>
            "the limit of descriptor {descriptor} has no known unit: SECOND, MINUTE, HOUR, DAY, \
             MONTH or YEAR";
        Self::TooFast(error) => "{error}";
        Self::Unavailable(_) => "the store did not answer";
    }
}
