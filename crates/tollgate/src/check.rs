//! Counters without rules: the planner of [`Limiter::check`] and [`Limiter::throttle`].
//!
//! `CL.THROTTLE` brings its quota with every command. Its keys have a kind of their own, so that
//! they never meet those of a rule or a check.

use tollgate_core::{Cost, Key, KeyError, Limit, Need, Op, Store};

use crate::admission::Admission;
use crate::decision::{
    ChargePolicy, DecidingRules, Intent, Origin, Plan, Reason, Ruling, counts_holders, keys,
};
use crate::limiter::Limiter;
use crate::wait::GateError;

/// Writes the name of the counter of a `CL.THROTTLE` key, for programs that charge a store
/// directly.
///
/// The key may be empty, as in Redis.
///
/// # Errors
///
/// When the key is longer than 1023 bytes.
pub fn throttle_key(key: &[u8], buffer: &mut Vec<u8>) -> Result<(), KeyError> {
    buffer.clear();
    buffer.push(keys::THROTTLE);
    buffer.extend_from_slice(key);
    Key::new(buffer.as_slice()).map(|_| ())
}

impl<S: Store + 'static> Limiter<S> {
    /// Charges a counter of `CL.THROTTLE`. Works as [`Limiter::check`], in a name space of its own,
    /// with any key of up to 1023 bytes.
    ///
    /// # Errors
    ///
    /// When the key is too long, or the limit counts holders.
    pub async fn throttle(
        &self,
        key: &[u8],
        limit: &Limit,
        cost: Cost,
    ) -> Result<Admission, GateError> {
        self.check_key(&keys::tagged(keys::THROTTLE, key)?, limit, cost).await
    }

    /// Charges one counter, by its full name.
    pub(crate) async fn check_key(
        &self,
        key: &[u8],
        limit: &Limit,
        cost: Cost,
    ) -> Result<Admission, GateError> {
        if counts_holders(limit) {
            return Err(GateError::CountsHolders);
        }
        let rules = DecidingRules::Rules(self.rules());
        let mut plan = Plan::empty(&rules, Intent::CHARGE, Reason::NoRule);
        let policy = ChargePolicy::new(Origin::Key);
        plan.push(Key::new(key)?, limit, Op::Take(cost), Need::Must, policy);
        let mut ruling = Ruling::of(&plan);
        let permits = self.run(&plan, None, &mut ruling).await;
        Ok(Admission { ruling, permits })
    }
}
