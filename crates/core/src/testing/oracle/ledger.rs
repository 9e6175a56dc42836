//! An oracle whose limit may change.

use std::time::Duration;

use super::{ExpectedDecision, LimitChange, Oracle, oracle, us};
use crate::algorithm::State;
use crate::{Limit, OnChange, Op, Timestamp};

/// The oracle of one key, charged under the limit that each charge names.
///
/// A higher revision converts the usage, once. A lower one is judged by the newer limit. Another
/// quota at the same revision is adopted. A key without usage has no limit of its own.
#[derive(Debug)]
pub struct Ledger {
    under: Limit,
    oracle: Box<dyn Oracle>,
}

impl Ledger {
    /// A key without charges.
    pub fn new(limit: &Limit) -> Self {
        Self { under: *limit, oracle: oracle(limit) }
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
        let now = now.as_micros();
        self.oracle.observe(now);
        let same =
            limit.quota() == self.under.quota() && limit.algorithm() == self.under.algorithm();
        if self.oracle.is_absent() {
            *self = Self::new(limit);
        } else if limit.revision() > self.under.revision() {
            // An edit of something else is no change of this.
            let how = if same { OnChange::Keep } else { limit.on_change() };
            self.change(limit, LimitChange::Revise(how), now);
        } else if limit.revision() == self.under.revision() && !same {
            self.change(limit, LimitChange::Adopt, now);
        }
        self.oracle.charge(op, us(patience), now)
    }

    fn change(&mut self, limit: &Limit, how: LimitChange, now: u64) {
        self.oracle.change(limit, how, now);
        self.under = *limit;
    }

    /// Shows the implementation's state to an oracle that judges step by step.
    pub fn shown(&mut self, state: &State) {
        self.oracle.show(state);
    }
}
