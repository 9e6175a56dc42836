//! Counters without rules: the planner of [`Limiter::check`] and [`Limiter::throttle`].
//!
//! `CL.THROTTLE` brings its quota with every command. Its keys have a kind of their own, so that
//! they never meet those of a rule or a check.

use tollgate_core::{Cost, Key, Limit, Need, Op, Store};

use crate::admission::Admission;
use crate::decision::{
    ChargePolicy, DecidingRules, Intent, Origin, Plan, Reason, Ruling, counts_holders, keys,
};
use crate::limiter::Limiter;
use crate::wait::GateError;

impl<S: Store + 'static> Limiter<S> {
    /// Charges a counter of `CL.THROTTLE`. Works as [`Limiter::check`], in a name space of its own,
    /// with any key of up to 1023 bytes; it may be empty, as in Redis.
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

    /// Decides as [`Limiter::throttle`] does, within the call, on a store in this process. `None`,
    /// with nothing charged, if the store takes a round trip.
    ///
    /// # Errors
    ///
    /// As [`Limiter::throttle`].
    pub fn throttle_now(
        &self,
        key: &[u8],
        limit: &Limit,
        cost: Cost,
    ) -> Result<Option<Admission>, GateError> {
        let key = keys::tagged(keys::THROTTLE, key)?;
        let rules = DecidingRules::Rules(self.rules());
        let plan = plan_key(&rules, &key, limit, cost)?;
        let mut ruling = Ruling::of(&plan);
        let permits = self.run_now(&plan, None, &mut ruling);
        Ok(permits.map(|permits| Admission { ruling, permits }))
    }

    /// Charges one counter, by its full name.
    pub(crate) async fn check_key(
        &self,
        key: &[u8],
        limit: &Limit,
        cost: Cost,
    ) -> Result<Admission, GateError> {
        let rules = DecidingRules::Rules(self.rules());
        let plan = plan_key(&rules, key, limit, cost)?;
        let mut ruling = Ruling::of(&plan);
        let permits = self.run(&plan, None, &mut ruling).await;
        Ok(Admission { ruling, permits })
    }
}

/// The plan of one charge on a counter without rules.
fn plan_key<'p>(
    rules: &'p DecidingRules,
    key: &'p [u8],
    limit: &'p Limit,
    cost: Cost,
) -> Result<Plan<'p>, GateError> {
    if counts_holders(limit) {
        return Err(GateError::CountsHolders);
    }
    let mut plan = Plan::empty(rules, Intent::CHARGE, Reason::NoRule);
    let policy = ChargePolicy::new(Origin::Key);
    plan.push(Key::new(key)?, limit, Op::Take(cost), Need::Must, policy);
    Ok(plan)
}
