//! Resets counters, as if they had never been charged.
//!
//! A reset credits the use, by the same store operation that refunds a reservation. It deletes
//! nothing, so it races with nothing. Permits in use and granted places stay.

use tollgate_core::algorithm::TokenBucket;
use tollgate_core::rule::{Ask, Judgement, LimitKind};
use tollgate_core::{
    Answer, Charge, Cost, Key, Limit, Op, Quota, Request, RequestError, Span, Store, StoreError,
    StoreErrorKind,
};

use crate::decision::{counts_holders, keys};
use crate::limiter::Limiter;
use crate::wait::GateError;

/// Longer than a bucket can be in debt, and still exact in the doubles of a Redis script.
const THIRTY_YEARS: Span = Span { whole: 1_000_000_000_000_000, part: 0 };

impl<S: Store + 'static> Limiter<S> {
    /// Resets every counter that an ask would charge, bans included. Returns the number of counters
    /// that had any use to give back.
    ///
    /// ```
    /// use tollgate::{Ask, EmbeddedStore, Limiter, rules};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(EmbeddedStore::new());
    /// limiter.set_rules(rules::load(
    ///     "{ version: 1, domain: shop, rules: [{ name: all, limits: [1 per 1h] }] }",
    ///     rules::Format::Yaml,
    /// )?)?;
    /// let ask = Ask::new("shop");
    ///
    /// assert!(limiter.admit(&ask).await.passes());
    /// assert!(!limiter.admit(&ask).await.passes());
    /// assert_eq!(limiter.reset(&ask).await?, 1);
    /// assert!(limiter.admit(&ask).await.passes());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store did not answer. You can try again.
    pub async fn reset(&self, ask: &Ask<'_>) -> Result<usize, StoreError> {
        let rules = self.rules();
        let judgement = rules.judge(ask, &self.shared.secret);
        let Judgement::Charges(charges) = &judgement else { return Ok(0) };
        let mut used = 0_usize;
        for due in charges.enforced().iter().chain(charges.shadow()) {
            let limit = due.limit.limit();
            if counts_holders(limit) {
                continue;
            }
            let key = charges.key(due);
            used = used.saturating_add(self.give_back(key, limit, charges.partition()).await?);
            let refusals = due.rule.ban().filter(|_| due.limit.kind() == LimitKind::Ban);
            if let (Some(ban), Some(key)) = (refusals, charges.refusals_key(due)) {
                self.give_back(key, ban.refusals().limit(), charges.partition()).await?;
            }
        }
        Ok(used)
    }

    /// Resets a counter of [`Limiter::throttle`], whatever quota it was charged under. Returns true
    /// if any of it was used.
    ///
    /// # Errors
    ///
    /// When the key is too long, or the store did not answer.
    pub async fn reset_throttle(&self, key: &[u8]) -> Result<bool, ResetError> {
        let mut bytes = keys::TaggedKey::new();
        let key = keys::tagged(keys::THROTTLE, key, &mut bytes).map_err(GateError::from)?;
        let quota = Quota::new(1, std::time::Duration::from_secs(1));
        let limit = quota.ok().and_then(|quota| Limit::new(TokenBucket, quota).ok());
        let Some(limit) = limit else { return Ok(false) };
        Ok(self.give_back(key, &limit, None).await? > 0)
    }

    /// Credits all use of one counter. Returns 1 if there was any, else 0.
    async fn give_back(
        &self,
        key: Key<'_>,
        limit: &Limit,
        partition: Option<&[u8]>,
    ) -> Result<usize, StoreError> {
        let runner = &self.shared.runner;
        // Windows take back only what was charged in them, so the store is asked what time it is.
        let peek = charge(key, limit, Op::Peek(0))?;
        let looked = ask(&runner.store, &[peek], partition).await?;
        let credit = charge(key, limit, Op::Credit { cost: most(limit), at: looked.at })?;
        let answer = ask(&runner.store, &[peek, credit], partition).await?;
        runner.forget_refusals([&credit]);
        let used = answer.decisions.first().is_some_and(|was| !was.reset_after.is_zero());
        Ok(usize::from(used))
    }
}

/// More than a counter under this limit can have used, within the numbers that a store can handle.
fn most(limit: &Limit) -> Cost {
    match limit.bucket_plan() {
        Some(plan) => plan.rate.permits(THIRTY_YEARS).max(plan.capacity),
        None => limit.quota().count().get().max(limit.quota().burst().get()).saturating_mul(2),
    }
}

fn charge<'a>(key: Key<'a>, limit: &'a Limit, op: Op) -> Result<Charge<'a>, StoreError> {
    Charge::new(key, limit, op).map_err(|_| StoreError::new(StoreErrorKind::Unavailable))
}

async fn ask<S: Store>(
    store: &S,
    charges: &[Charge<'_>],
    partition: Option<&[u8]>,
) -> Result<Answer, StoreError> {
    let unheard = |_: RequestError| StoreError::new(StoreErrorKind::Unavailable);
    let request = Request::new(charges).map_err(unheard)?;
    let request = partition.map_or(request, |partition| request.within(partition));
    store.decide(&request).await
}

/// The reason why a counter was not reset.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ResetError {
    /// The key is too long.
    Key(GateError),
    /// The store did not answer. You can try again.
    Store(StoreError),
}

error_messages! {
    ResetError {
        Self::Key(error) => "{error}";
        Self::Store(_) => "the counter could not be reset; try again";
    }
    source { Self::Store(error) => error; }
    from { GateError => Key; StoreError => Store; }
}
