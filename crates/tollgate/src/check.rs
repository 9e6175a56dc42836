//! Counters without rules: the planner of [`Limiter::check`] and [`Limiter::throttle`].
//!
//! `CL.THROTTLE` brings its quota with every command. Its keys have a kind of their own, so that
//! they never meet those of a rule or a check.

use tollgate_core::{Cost, Key, Limit, Need, Op, Store};

use crate::admission::Admission;
use crate::decision::keys::{self, TaggedKey};
use crate::decision::{
    ChargePolicy, DecidingRules, Intent, Origin, Plan, Reason, Ruling, counts_holders,
};
use crate::limiter::Limiter;
use crate::permits::Permits;
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
        self.check_key(keys::THROTTLE, key, limit, cost).await
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
        let mut bytes = TaggedKey::new();
        let mut plan = Plan::empty(&DecidingRules::None, Intent::CHARGE, Reason::NoRule);
        fill(&mut plan, keys::tagged(keys::THROTTLE, key, &mut bytes)?, limit, cost)?;
        let mut admission = Admission { ruling: Ruling::of(&plan), permits: Permits::none() };
        let Some(permits) = self.run_now(&plan, None, &mut admission.ruling) else {
            return Ok(None);
        };
        admission.permits = permits;
        Ok(Some(admission))
    }

    /// Charges one counter, by the kind and the bytes of its key.
    pub(crate) async fn check_key(
        &self,
        kind: u8,
        key: &[u8],
        limit: &Limit,
        cost: Cost,
    ) -> Result<Admission, GateError> {
        let mut bytes = TaggedKey::new();
        let mut plan = Plan::empty(&DecidingRules::None, Intent::CHARGE, Reason::NoRule);
        fill(&mut plan, keys::tagged(kind, key, &mut bytes)?, limit, cost)?;
        let mut ruling = Ruling::of(&plan);
        let permits = self.run(&plan, None, &mut ruling).await;
        Ok(Admission { ruling, permits })
    }
}

/// Adds the charge of a counter without rules.
fn fill<'p>(
    plan: &mut Plan<'p>,
    key: Key<'p>,
    limit: &'p Limit,
    cost: Cost,
) -> Result<(), GateError> {
    if counts_holders(limit) {
        return Err(GateError::CountsHolders);
    }
    plan.push(key, limit, Op::Take(cost), Need::Must, ChargePolicy::new(Origin::Key));
    Ok(())
}
