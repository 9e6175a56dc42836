//! Limits as policies: what clients are told of them whatever they decide.
//!
//! The same limits are looked at together over and over, and their names and quotas change only
//! with the rules. So [`PolicyCache`] keeps what was written of them; `fields.rs` adds what each of them
//! said. Its places belong to one set of rules: a `Plan` makes a new one for each version.

use std::ops::Deref;
use std::sync::OnceLock;

use http::header::HeaderValue;
use smallvec::SmallVec;
use tollgate_core::Algorithm;

use super::fields::FieldText;
use crate::decision::Origin;
use crate::{Finding, Ruling};

/// How many lists of limits are kept: more than the routes of most services are limited by. A list
/// that finds its places taken is written anew for every ruling.
const KEPT: usize = 256;

/// How many places a list may be kept at.
const PLACES: usize = 8;

/// Policies of limits that are looked at together.
#[derive(Debug, Default)]
pub(super) struct Policies {
    /// In the order of the ruling's findings.
    limits: SmallVec<[(Origin, Option<Policy>); 4]>,
    /// `RateLimit-Policy`.
    pub(super) value: Option<HeaderValue>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Policy {
    /// Its name, as a structured string.
    pub(super) name: Box<[u8]>,
    pub(super) is_concurrency: bool,
}

impl Policies {
    /// Those of a ruling's findings.
    pub(super) fn of(ruling: &Ruling) -> Self {
        let mut text = FieldText::new();
        let mut limits = SmallVec::new();
        for (origin, finding) in ruling.origins.iter().zip(ruling.findings()) {
            limits.push((*origin, write_policy(&finding, &mut text)));
        }
        Self { limits, value: text.value() }
    }

    /// The policy of each finding; none of a ban, which clients are not told of.
    pub(super) fn each(&self) -> impl Iterator<Item = Option<&Policy>> {
        self.limits.iter().map(|(_, policy)| policy.as_ref())
    }

    fn are_of(&self, origins: &[Origin]) -> bool {
        let same = |(origin, (own, _)): (&Origin, &(Origin, _))| origin == own;
        self.limits.len() == origins.len() && origins.iter().zip(&self.limits).all(same)
    }
}

/// Policies that were written before, under one version of the rules. Once they are there they stay,
/// so that looking them up takes neither a lock nor a count.
#[derive(Debug)]
pub(super) struct PolicyCache(Box<[OnceLock<Box<Policies>>]>);

/// Policies that were written before, or for one ruling.
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
        Self((0..KEPT).map(|_| OnceLock::new()).collect())
    }

    /// The policies of a ruling by these rules; `None` if it has no findings.
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
        let first = usize::try_from(origins.iter().fold(0, mix)).unwrap_or(0) % KEPT;
        let (before, from) = self.0.split_at_checked(first).unwrap_or_default();
        for kept in from.iter().chain(before).take(PLACES) {
            let policies = kept.get_or_init(|| Box::new(Policies::of(ruling)));
            if policies.are_of(origins) {
                return Some(PolicyList::Cached(policies));
            }
        }
        Some(PolicyList::New(Box::new(Policies::of(ruling))))
    }
}

/// The name of a limit's policy: that of the rule, and that of the limit if it has several. What
/// is not ASCII is escaped as in a path, because a structured string holds nothing else.
pub(super) fn policy_name(finding: &Finding<'_>) -> Option<String> {
    let rule = finding.rule?;
    let mut name = String::new();
    escape(rule.name(), &mut name);
    match finding.limit {
        // A ban, which is not among the limits.
        None => name.push_str("/ban"),
        Some(limit) if rule.limits().len() > 1 => {
            name.push('/');
            escape(limit.name(), &mut name);
        }
        Some(_) => {}
    }
    Some(name)
}

fn escape(name: &str, out: &mut String) {
    for byte in name.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
            out.push('%');
            out.push(digit(byte >> 4).to_ascii_uppercase());
            out.push(digit(byte & 0xf).to_ascii_uppercase());
        }
    }
}

/// A structured string.
fn quoted(name: &str) -> Box<[u8]> {
    let mut string = vec![b'"'];
    for byte in name.bytes() {
        if b"\"\\".contains(&byte) {
            string.push(b'\\');
        }
        string.push(byte);
    }
    string.push(b'"');
    string.into()
}

/// Adds a policy to the list of them.
fn write_policy(finding: &Finding<'_>, out: &mut FieldText) -> Option<Policy> {
    let limit = finding.limit?.limit();
    let name = quoted(&policy_name(finding)?);
    let is_concurrency = matches!(limit.algorithm(), Algorithm::Concurrency(_));
    let quota = limit.quota();
    if !out.is_empty() {
        out.put(b", ");
    }
    out.put(&name);
    out.parameter(b";q=", quota.count().get());
    if is_concurrency {
        out.put(b";qu=\"concurrent-requests\"");
    } else if quota.period().subsec_nanos() == 0 {
        out.parameter(b";w=", quota.period().as_secs());
    }
    Some(Policy { name, is_concurrency })
}
