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
    /// A rate of this many hits in each window; zero refuses every request.
    pub(super) const fn new(requests_per_unit: u32, unit: Unit) -> Self {
        Self { requests_per_unit, unit }
    }

    /// The limit that is charged; `None` for a rate of zero, which is a block and not a quota.
    ///
    /// Its revision stays 0. As in the reference service, a count does not depend on the threshold
    /// it was counted under, so nodes with different files never convert each other's counts.
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

    /// The hits in each window. Zero refuses every request.
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

/// A rate above the largest that can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFast {
    /// The hits in each window.
    pub requests_per_unit: u32,
    /// The length of a window.
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
pub enum EnvoyMode {
    /// Refuses it.
    Enforce,
    /// `quota_mode`: refuses it, unless another such rule of the same request lets it pass.
    Quota,
    /// `shadow_mode`: lets it pass, and counts it as one that would have been refused.
    Shadow,
}

/// A descriptor with a rate limit.
#[derive(Clone, Debug)]
pub struct EnvoyRule {
    pub(super) domain: Arc<str>,
    pub(super) path: Box<str>,
    pub(super) name: Box<str>,
    /// The rate; `None` if unlimited.
    pub(super) rate: Option<RateLimit>,
    /// The limit that is charged; `None` if unlimited, and if nothing passes.
    pub(super) limit: Option<Limit>,
    pub(super) mode: EnvoyMode,
    pub(super) replaces: Box<[Box<str>]>,
    pub(super) metadata: Option<Metadata>,
}

impl EnvoyRule {
    /// The domain of the rule.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The keys and values that lead to the rule, in the form of the reference's statistics, for
    /// example `path_/login.remote_address`. It is meant for people: unlike a counter's key, it is
    /// ambiguous.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The `name` of the rule. It may be empty, and need not be unique.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rate; `None` if the rule is `unlimited`.
    pub const fn rate_limit(&self) -> Option<RateLimit> {
        self.rate
    }

    /// The treatment of a request that is over the limit.
    pub const fn mode(&self) -> EnvoyMode {
        self.mode
    }

    /// True if the rule replaces rules of this name within a request.
    pub fn replaces(&self, name: &str) -> bool {
        self.replaces.iter().any(|replaced| **replaced == *name)
    }

    /// The metadata that is returned if the rule lets a request pass.
    pub const fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }
}
