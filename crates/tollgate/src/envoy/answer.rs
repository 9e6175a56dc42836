//! The answers to Envoy's calls.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::Timestamp;

use super::rule::{EnvoyMode, EnvoyRule, RateLimit};
use super::{EnvoyRules, Metadata};
use crate::decision::Outage;

/// The verdict on a call or a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Within the limit.
    Ok,
    /// Over the limit.
    OverLimit,
}

/// The answer to a call.
#[derive(Clone, Debug)]
#[must_use = "an unchecked answer limits no request"]
pub struct EnvoyAnswer {
    pub(super) code: Code,
    pub(super) statuses: SmallVec<[Status; 4]>,
    pub(super) rules: Arc<EnvoyRules>,
    pub(super) knows_domain: bool,
    pub(super) outage: Option<Outage>,
    pub(super) at: Timestamp,
}

/// The answer to one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// `OverLimit` if the descriptor is over its own limit; never under `shadow_mode`.
    pub code: Code,
    /// The limit that applies; `None` without a rule, and under an unlimited rule.
    pub limit: Option<RateLimit>,
    /// The hits that are left in this window. It is [`u32::MAX`] if unlimited, and 0 if the
    /// descriptor is over its limit, has no rule, or the store was not asked.
    pub remaining: u32,
    /// The time until the window ends, in whole seconds, rounded up.
    pub reset_after: Option<Duration>,
    pub(super) rule: Option<usize>,
    pub(super) mode: EnvoyMode,
}

impl Status {
    /// Without a rule.
    pub(super) const NO_RULE: Self = Self {
        code: Code::Ok,
        limit: None,
        remaining: 0,
        reset_after: None,
        rule: None,
        mode: EnvoyMode::Enforce,
    };
}

impl EnvoyAnswer {
    /// `Ok` if the call may pass.
    pub const fn code(&self) -> Code {
        self.code
    }

    /// The status of each descriptor, in the order of the call.
    pub fn statuses(&self) -> &[Status] {
        &self.statuses
    }

    /// The rule of a status; `None` without a rule, and under a limit that came with the call.
    pub fn rule(&self, status: &Status) -> Option<&EnvoyRule> {
        self.rules.rules().get(status.rule?)
    }

    /// The index of that rule in [`EnvoyRules::rules`].
    pub const fn rule_index(&self, status: &Status) -> Option<usize> {
        status.rule
    }

    /// The rules that decided.
    pub const fn rules(&self) -> &Arc<EnvoyRules> {
        &self.rules
    }

    /// The time of the decision by the store's clock; the epoch if the store was not asked.
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// True if there are rules for the call's domain.
    pub const fn knows_domain(&self) -> bool {
        self.knows_domain
    }

    /// The version of the rules that decided.
    pub fn version(&self) -> u64 {
        self.rules.version()
    }

    /// The reason why the store did not decide; `None` if it did.
    pub const fn outage(&self) -> Option<Outage> {
        self.outage
    }

    /// The status that is closest to its limit: one that refuses, else the one with the fewest hits
    /// left. Statuses without a limit are ignored.
    pub fn tightest(&self) -> Option<&Status> {
        let refuses =
            |status: &Status| status.code == Code::OverLimit && status.mode == EnvoyMode::Enforce;
        let limited = self.statuses.iter().filter(|status| status.limit.is_some());
        limited.min_by_key(|status| (!refuses(status), status.remaining))
    }

    /// The metadata of all rules that pass, merged into one map; `None` if no rule has any.
    pub fn metadata(&self) -> Option<Metadata> {
        let mut merged: Option<Metadata> = None;
        for status in self.statuses.iter().filter(|status| status.code == Code::Ok) {
            let Some(metadata) = self.rule(status).and_then(EnvoyRule::metadata) else { continue };
            match &mut merged {
                Some(merged) => merged.merge(metadata),
                None => merged = Some(metadata.clone()),
            }
        }
        merged
    }
}

/// The verdict on a call. It is over the limit if one rule refuses, or if all rules in `quota_mode`
/// do.
pub(super) fn overall(statuses: &[Status]) -> Code {
    let mut quotas = statuses.iter().filter(|s| s.limit.is_some() && s.mode == EnvoyMode::Quota);
    let mut others = statuses.iter().filter(|s| s.mode == EnvoyMode::Enforce);
    let over = |status: &Status| status.code == Code::OverLimit;
    let all_quotas = quotas.clone().next().is_some() && quotas.all(over);
    if others.any(over) || all_quotas { Code::OverLimit } else { Code::Ok }
}
