//! Counters without rules: [`Limiter::check`] and [`Limiter::throttle`] by one path.
//!
//! The key decides whose they are. `CL.THROTTLE` brings its quota with every command, under keys of
//! its own, so that nothing it does meets a rule or a check.

use tollgate_core::{Algorithm, Cost, Key, KeyError, Limit, Op, Store};

use crate::admission::{Admission, Found, Of, Reason, Ruling};
use crate::engine::{Toll, keys};
use crate::limiter::{Limiter, Manner, outage, ruling};
use crate::permits::Permits;
use crate::wait::GateError;

/// The counter's name of a `CL.THROTTLE` key, for whoever charges a store directly.
///
/// # Errors
///
/// When the key is longer than 1023 bytes. It may be empty, as Redis's keys may.
pub fn throttle_key(key: &[u8], buffer: &mut Vec<u8>) -> Result<(), KeyError> {
    buffer.clear();
    buffer.push(keys::THROTTLE);
    buffer.extend_from_slice(key);
    Key::new(buffer.as_slice()).map(|_| ())
}

impl<S: Store + 'static> Limiter<S> {
    /// Charges a counter of `CL.THROTTLE`: as [`Limiter::check`], in a name space of its own, with any
    /// key of up to 1023 bytes.
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

    /// Charges one counter by its whole name.
    pub(crate) async fn check_key(
        &self,
        key: &[u8],
        limit: &Limit,
        cost: Cost,
    ) -> Result<Admission, GateError> {
        if matches!(limit.algorithm(), Algorithm::Concurrency(_)) {
            return Err(GateError::CountsHolders);
        }
        let tolls = [Toll::new(Key::new(key)?, limit, Op::Take(cost))];
        let outcome = self.shared.engine.decide(&tolls, None).await;
        let none = usize::MAX;
        let found = |decision| Found { of: Of::Rules, rule: none, limit: none, decision };
        let findings = outcome.answer.decisions.iter().copied().map(found).collect();
        let outage = outage(&outcome, &tolls);
        let ruling = Ruling { findings, ..ruling(Reason::Limits, &outcome, self.rules()) };
        Ok(self.conclude(ruling, Permits::none(), outage, Manner::CHARGE))
    }
}
