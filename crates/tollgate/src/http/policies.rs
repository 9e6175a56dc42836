//! Limits as policies: the parts of the `RateLimit` fields that are the same for every request.
//!
//! Requests meet the same limits together over and over, and names and quotas change only with the
//! rules. So [`PolicyCache`] keeps their text; `fields.rs` adds each limit's decision. A cache belongs
//! to one version of the rules.

use std::ops::Deref;
use std::sync::OnceLock;

use http::header::HeaderValue;
use smallvec::SmallVec;
use tollgate_core::Algorithm;

use super::fields::{put_parameter, value};
use super::grpc::percent_encoded;
use crate::decision::Origin;
use crate::{Finding, Ruling};

/// The slots of a cache: more than most services have combinations of limits. Policies that find
/// their slots taken are written anew for every ruling.
const CACHE_SLOTS: usize = 256;

/// The slots that are tried for one list of policies.
const PROBES: usize = 8;

/// The policies of limits that apply together.
#[derive(Debug, Default)]
pub(super) struct Policies {
    /// In the order of the ruling's findings.
    limits: SmallVec<[(Origin, Option<Policy>); 4]>,
    /// The value of `RateLimit-Policy`.
    pub(super) value: Option<HeaderValue>,
}

/// The policy of one limit.
#[derive(Debug)]
pub(super) struct Policy {
    /// The name as a structured string, and the beginning of what remains: `"name";r=`.
    pub(super) beginning: Box<[u8]>,
    pub(super) is_concurrency: bool,
}

impl Policies {
    /// The policies of a ruling's findings.
    pub(super) fn of(ruling: &Ruling) -> Self {
        let mut limits = SmallVec::new();
        let value = value(|text| {
            for (origin, finding) in ruling.origins.iter().zip(ruling.findings()) {
                limits.push((*origin, write_policy(&finding, text)));
            }
        });
        Self { limits, value }
    }

    /// The policy of each finding. A ban has none: clients do not learn of it.
    pub(super) fn each(&self) -> impl Iterator<Item = Option<&Policy>> {
        self.limits.iter().map(|(_, policy)| policy.as_ref())
    }

    fn are_of(&self, origins: &[Origin]) -> bool {
        let same = |(origin, (own, _)): (&Origin, &(Origin, _))| origin == own;
        self.limits.len() == origins.len() && origins.iter().zip(&self.limits).all(same)
    }
}

/// Policies written under one version of the rules. An entry is never replaced, so a lookup takes
/// neither a lock nor a reference count.
#[derive(Debug)]
pub(super) struct PolicyCache(Box<[OnceLock<Box<Policies>>; CACHE_SLOTS]>);

/// The policies of a ruling, from the cache or written for it.
#[derive(Debug)]
pub(super) enum PolicyList<'w> {
    Cached(&'w Policies),
    New(Box<Policies>),
}

impl Deref for PolicyList<'_> {
    type Target = Policies;

    fn deref(&self) -> &Policies {
        match self {
            Self::Cached(policies) => policies,
            Self::New(policies) => policies,
        }
    }
}

impl PolicyCache {
    pub(super) fn new() -> Self {
        Self(Box::new([const { OnceLock::new() }; CACHE_SLOTS]))
    }

    /// The policies of a ruling by the cache's rules; `None` if it has no findings.
    #[inline]
    pub(super) fn of(&self, ruling: &Ruling) -> Option<PolicyList<'_>> {
        let origins = ruling.origins.as_slice();
        if origins.is_empty() {
            return None;
        }
        let mix = |sum: u32, origin: &Origin| match origin {
            Origin::Rule { rule, limit, .. } => {
                sum.wrapping_mul(31).wrapping_add(*rule).wrapping_mul(31).wrapping_add(*limit)
            }
            Origin::Envoy(_) | Origin::Key => sum,
        };
        let first = usize::try_from(origins.iter().fold(0, mix)).unwrap_or(0);
        for step in 0..PROBES {
            let slot = &self.0[first.wrapping_add(step) % CACHE_SLOTS];
            let policies = slot.get_or_init(|| Box::new(Policies::of(ruling)));
            if policies.are_of(origins) {
                return Some(PolicyList::Cached(policies));
            }
        }
        Some(PolicyList::New(Box::new(Policies::of(ruling))))
    }
}

/// The name of a limit's policy: the rule's, followed by the limit's if the rule has several. A
/// structured string holds printable ASCII only, so everything else is percent-encoded.
pub(super) fn policy_name(finding: &Finding<'_>) -> Option<String> {
    let rule = finding.rule?;
    let mut name = percent_encoded(rule.name());
    match finding.limit {
        // A ban is not among the limits.
        None => name.push_str("/ban"),
        Some(limit) if rule.limits().len() > 1 => {
            name.push('/');
            name.push_str(&percent_encoded(limit.name()));
        }
        Some(_) => {}
    }
    Some(name)
}

/// A structured string.
fn quoted(name: &str) -> Vec<u8> {
    let mut string = vec![b'"'];
    for byte in name.bytes() {
        if b"\"\\".contains(&byte) {
            string.push(b'\\');
        }
        string.push(byte);
    }
    string.push(b'"');
    string
}

/// Writes the policy of a finding.
fn write_policy(finding: &Finding<'_>, out: &mut Vec<u8>) -> Option<Policy> {
    let limit = finding.limit?.limit();
    let mut name = quoted(&policy_name(finding)?);
    let is_concurrency = matches!(limit.algorithm(), Algorithm::Concurrency(_));
    let quota = limit.quota();
    if !out.is_empty() {
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(&name);
    put_parameter(out, b";q=", quota.count().get());
    if is_concurrency {
        out.extend_from_slice(b";qu=\"concurrent-requests\"");
    } else if quota.period().subsec_nanos() == 0 {
        put_parameter(out, b";w=", quota.period().as_secs());
    }
    name.extend_from_slice(b";r=");
    Some(Policy { beginning: name.into(), is_concurrency })
}
