//! Why rules did not let a call out, for whoever wanted to make it.

use std::fmt;
use std::time::Duration;

use super::policies::policy_name;
use super::refusal::RefusalKind;
use crate::Admission;

/// A call that rules did not let out. It was not made, and nothing was charged.
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

    /// Why.
    pub const fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// After how long asking again, with the same patience, can help; `None` if it never does.
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
                return write!(f, "more than {policies} ever lets pass at once");
            }
            RefusalKind::Limited => write!(f, "over the limit of {policies}")?,
            RefusalKind::Banned => write!(f, "refused too often, by {policies}")?,
            RefusalKind::Unavailable => {
                write!(f, "the store is away, and {policies} refuses until it is back")?;
            }
            RefusalKind::Blocked => return f.write_str("blocked by rules"),
            RefusalKind::Malformed(what) => return what.fmt(f),
            RefusalKind::TooManyLimits => return f.write_str("too many limits apply"),
            RefusalKind::NoPeer => return f.write_str("no peer is known"),
        }
        match self.retry_after {
            Some(retry) => write!(f, "; ask again after {retry:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OutboundRefusal {}
