//! One rule of a file: a descriptor with a rate limit.

use std::fmt;
use std::sync::Arc;

use tollgate_core::algorithm::{Anchor, FixedWindow};
use tollgate_core::{Limit, Quota};

use super::{Metadata, Unit};

/// A rate: `requests_per_unit` and `unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    requests_per_unit: u32,
    unit: Unit,
}

impl RateLimit {
    /// This many hits in each window of this unit; none at all, if zero.
    pub(super) const fn new(requests_per_unit: u32, unit: Unit) -> Self {
        Self { requests_per_unit, unit }
    }

    /// The limit that is charged; `None` for a rate of zero, which is a block and no quota.
    ///
    /// The revision stays 0: a count knows nothing of the threshold it was counted under, as in the
    /// reference, so nodes with different files never convert each other's counts.
    pub(super) fn limit(self) -> Result<Option<Limit>, TooFast> {
        let Self { requests_per_unit, unit } = self;
        if requests_per_unit == 0 {
            return Ok(None);
        }
        let too_fast = TooFast { requests_per_unit, unit };
        let quota = Quota::new(u64::from(requests_per_unit), unit.period());
        let window = FixedWindow { anchor: Anchor::Epoch };
        Limit::new(window, quota.map_err(|_| too_fast)?).map(Some).map_err(|_| too_fast)
    }

    /// Hits in each window. Zero refuses all.
    pub const fn requests_per_unit(&self) -> u32 {
        self.requests_per_unit
    }

    /// The length of a window.
    pub const fn unit(&self) -> Unit {
        self.unit
    }
}

/// `5 per minute`.
impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {}", self.requests_per_unit, self.unit.name().to_ascii_lowercase())
    }
}

/// A rate above what can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFast {
    /// The hits of each window.
    pub requests_per_unit: u32,
    /// Its length.
    pub unit: Unit,
}

error_messages! {
    TooFast {
        Self { requests_per_unit, unit } =>
            "{requests_per_unit} per {} is above 1000000000 per second", unit.name();
    }
}

/// The treatment of a request that is over the limit of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is refused.
    Enforce,
    /// `quota_mode`: it is refused unless another such rule of the same request lets it pass.
    Quota,
    /// `shadow_mode`: it passes, and is counted as one that would have been refused.
    Shadow,
}

/// A descriptor with a rate limit.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) domain: Arc<str>,
    pub(super) path: Box<str>,
    pub(super) name: Box<str>,
    /// `None` if unlimited.
    pub(super) rate: Option<RateLimit>,
    /// The limit that is charged; `None` if unlimited, or if nothing passes.
    pub(super) limit: Option<Limit>,
    pub(super) mode: Mode,
    pub(super) replaces: Box<[Box<str>]>,
    pub(super) metadata: Option<Metadata>,
}

impl Rule {
    /// The domain that it belongs to.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The keys and values that lead to it, as the reference names them in its statistics, such as
    /// `path_/login.remote_address`. For people: unlike a counter's key it is ambiguous.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its `name`, which may be empty and need not be unique.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its rate; `None` if it is `unlimited`.
    pub const fn rate_limit(&self) -> Option<RateLimit> {
        self.rate
    }

    /// The treatment of a request that is over the limit.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// True if it replaces rules of this name within a request.
    pub fn replaces(&self, name: &str) -> bool {
        self.replaces.iter().any(|replaced| **replaced == *name)
    }

    /// The metadata that is returned when it passes.
    pub const fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }
}
