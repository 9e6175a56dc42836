//! An oracle whose limit may change under way.

use std::time::Duration;

use super::{ExpectedDecision, LimitChange, Oracle};
use crate::algorithm::State;
use crate::{Limit, OnChange, Op, Timestamp};

/// The oracle of one key, charged under whatever limit each charge names.
///
/// A higher revision converts what is remembered, once; a lower one is judged by the newer
/// limit; another quota at the same revision is adopted; a key that remembers nothing has no
/// limit of its own.
#[derive(Clone, Debug)]
pub struct Ledger {
    under: Limit,
    oracle: Oracle,
}

impl Ledger {
    /// A key that nothing was charged to yet.
    pub fn new(limit: &Limit) -> Self {
        Self { under: *limit, oracle: Oracle::new(limit) }
    }

    /// The limit that judged last.
    pub const fn under(&self) -> &Limit {
        &self.under
    }

    /// The decision that `op` under `limit` must get at `now`; carried out unless refused.
    pub fn charge(
        &mut self,
        limit: &Limit,
        op: Op,
        patience: Duration,
        now: Timestamp,
    ) -> ExpectedDecision {
        self.oracle.observe(now);
        if self.oracle.is_absent() {
            *self = Self::new(limit);
        } else if limit.revision() > self.under.revision() {
            // An edit of something else is no change of this.
            let same =
                limit.quota() == self.under.quota() && limit.algorithm() == self.under.algorithm();
            let how = if same { OnChange::Keep } else { limit.on_change() };
            self.oracle.change(limit, LimitChange::Revise(how), now);
            self.under = *limit;
        } else if limit.revision() == self.under.revision()
            && (limit.quota() != self.under.quota() || limit.algorithm() != self.under.algorithm())
        {
            self.oracle.change(limit, LimitChange::Adopt, now);
            self.under = *limit;
        }
        self.oracle.charge_observed(op, patience, now)
    }

    /// Shows the implementation's state to an oracle that judges step by step.
    pub fn shown(&mut self, state: &State) {
        self.oracle.shown(state);
    }
}
