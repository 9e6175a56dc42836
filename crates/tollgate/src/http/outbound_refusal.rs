//! The refusal of an outgoing call by rules.

use std::fmt;
use std::time::Duration;

use super::policies::policy_name;
use super::refusal::RefusalKind;
use crate::Admission;

/// An outgoing call that rules refused. It was not made, and nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundRefusal {
    kind: RefusalKind,
    retry_after: Option<Duration>,
    policies: Vec<String>,
}

impl OutboundRefusal {
    pub(super) const fn unjudged(kind: RefusalKind) -> Self {
        Self { kind, retry_after: None, policies: Vec::new() }
    }

    pub(super) fn judged(admission: &Admission) -> Self {
        let ruling = admission.ruling();
        let refusing = ruling.findings().filter(|finding| !finding.decision.passes());
        Self {
            kind: RefusalKind::of(ruling),
            retry_after: admission.retry_after(),
            policies: refusing.filter_map(|finding| policy_name(&finding)).collect(),
        }
    }

    /// The reason.
    pub const fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// The time after which asking again with the same patience can help; `None` if it never does.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The names of the limits that refuse: those of their rules, or `rule/limit` where a rule has
    /// several.
    pub fn policies(&self) -> &[String] {
        &self.policies
    }
}

impl fmt::Display for OutboundRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self.policies.join(", ");
        match self.kind {
            RefusalKind::Limited if self.retry_after.is_none() => {
                return write!(f, "the cost is above the burst of {policies}");
            }
            RefusalKind::Limited => write!(f, "over the limit of {policies}")?,
            RefusalKind::Banned => write!(f, "banned by {policies} after too many refusals")?,
            RefusalKind::Unavailable => {
                write!(f, "the store does not answer, and {policies} refuses meanwhile")?;
            }
            RefusalKind::Blocked => return f.write_str("blocked by rules"),
            RefusalKind::Malformed(what) => return what.fmt(f),
            RefusalKind::TooManyLimits => return f.write_str("too many limits apply"),
            RefusalKind::NoPeer => return f.write_str("the address of the peer is unknown"),
        }
        match self.retry_after {
            Some(retry) => write!(f, "; ask again after {retry:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OutboundRefusal {}
