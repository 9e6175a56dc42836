//! Reservations: charge an estimate now; commit or refund it later.
//!
//! [`Limiter::reserve`] charges as [`Limiter::admit`] does. Later, [`Limiter::commit`] debits use
//! beyond the estimate or credits the unused rest, and [`Limiter::refund`] gives back all that is
//! still worth something. Each reservation is settled once, whichever node does it: the store
//! records that in the same atomic step, so you can repeat a settling that timed out. A reservation
//! that expires stays charged.
//!
//! A [`Reservation`] can leave the process as a token (`token.rs`). Any node that has the fleet's
//! secret can settle it.

mod token;

use std::time::Duration;

use tollgate_core::rule::{Ask, RuleSet};
use tollgate_core::{
    Basis, Charge, Cost, Limit, Op, Request, RequestError, Revision, Store, StoreError, Timestamp,
};

use crate::admission::Admission;
use crate::clock;
use crate::decision::{DecidingRules, Intent, OwnedCounter, Plan, Ruling, keys, once_within};
use crate::limiter::Limiter;
use crate::permits::Permits;
pub use token::TokenError;

/// An estimate that was charged and waits to be settled. If you drop it, it stays charged.
#[must_use = "a reservation that is not settled stays charged in full"]
pub struct Reservation {
    id: u128,
    at: Timestamp,
    expires: Timestamp,
    spent: Vec<SpentCharge>,
    permits: Permits,
}

/// The charge on one counter.
#[derive(Clone, Debug)]
struct SpentCharge {
    counter: OwnedCounter,
    cost: Cost,
    /// The version of the rules that charged it.
    charged: Revision,
    /// True if the cost came from an attribute of the request.
    measured: bool,
    /// The local guard of the counter.
    guard: Option<Limit>,
}

impl SpentCharge {
    /// True if the counter still holds the charge unchanged. After an edit has scaled or reset the
    /// counter, a credit would give away permits that others used.
    fn still_counts(&self, rules: &RuleSet) -> bool {
        if self.charged.0 >= rules.version() {
            return true;
        }
        let limit = rules.limit_of_key(&self.counter.key);
        // Where no rule or another algorithm counts by the key, nothing was done to the counter.
        limit.is_none_or(|active| {
            active.limit().code() != self.counter.limit.code() || self.charged >= active.since()
        })
    }
}

/// The longest time that a reservation may wait to be settled.
pub const MAX_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);

/// The extra time for which a used reservation is remembered, so that it cannot be used again if
/// clocks disagree.
const SLACK: Duration = Duration::from_secs(60);

impl Reservation {
    /// The time until which it can be settled, by the store's clock.
    pub const fn expires(&self) -> Timestamp {
        self.expires
    }

    /// The charges that settle it for an actual cost, or give everything back, each with its guard.
    fn settlement(
        &self,
        actual: Option<Cost>,
        rules: &RuleSet,
    ) -> Vec<(Charge<'_>, Option<&Limit>)> {
        let (at, any_measured) = (self.at, self.spent.iter().any(|spent| spent.measured));
        let mut charges = Vec::with_capacity(self.spent.len());
        for spent in &self.spent {
            // A refund gives everything back.
            let actual = match actual {
                Some(_) if any_measured && !spent.measured => continue,
                Some(actual) => actual,
                None => 0,
            };
            let op = match actual.checked_sub(spent.cost) {
                Some(more) => Op::Debit { cost: more, at },
                None if !spent.still_counts(rules) => continue,
                None => Op::Credit { cost: spent.cost.saturating_sub(actual), at },
            };
            charges.extend(spent.counter.charge(op).map(|charge| (charge, spent.guard.as_ref())));
        }
        charges
    }

    /// The permits under concurrency limits, held until the reservation is dropped.
    pub const fn permits(&self) -> &Permits {
        &self.permits
    }
}

opaque_debug!(Reservation: |it| charges = it.spent.len(), expires = it.expires);

impl<S: Store + 'static> Limiter<S> {
    /// Charges the ask's cost as an estimate, to be settled within `lifetime`, at most
    /// [`MAX_LIFETIME`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Ask, EmbeddedStore, Limiter, rules};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(EmbeddedStore::new());
    /// limiter.set_rules(rules::load(
    ///     "{ version: 1, domain: llm, rules: [{ name: tokens, scenario: payment, limits: [100 per 1h] }] }",
    ///     rules::Format::Yaml,
    /// )?)?;
    /// let ask = Ask::new("llm").cost(60);
    ///
    /// let reserved = limiter.reserve(&ask, Duration::from_secs(60)).await.map_err(|_| "refused")?;
    /// assert!(limiter.reserve(&ask, Duration::from_secs(60)).await.is_err(), "40 are left");
    ///
    /// limiter.commit(&reserved, 10).await?;
    /// assert_eq!(limiter.explain(&ask).await.counters[0].remaining, 90);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The admission, if it refuses, or if it was made without the store. A request that was let
    /// through in an outage keeps its charge.
    pub async fn reserve(
        &self,
        ask: &Ask<'_>,
        lifetime: Duration,
    ) -> Result<Reservation, Admission> {
        self.reserve_telling(ask, lifetime, |_| {}).await
    }

    /// Reserves as [`Limiter::reserve`] does. `tell` gets the admission, also if it passes.
    ///
    /// # Errors
    ///
    /// As [`Limiter::reserve`].
    pub async fn reserve_telling(
        &self,
        ask: &Ask<'_>,
        lifetime: Duration,
        tell: impl FnOnce(&Admission),
    ) -> Result<Reservation, Admission> {
        let (admission, spent) = self.admit_and_note(ask).await;
        tell(&admission);
        if !admission.passes() || admission.outage().is_some() {
            return Err(admission);
        }
        let at = admission.ruling().at();
        let expires = at.checked_add(lifetime.min(MAX_LIFETIME)).unwrap_or(Timestamp::MAX);
        let id = self.shared.runner.names.draw();
        Ok(Reservation { id, at, expires, spent, permits: admission.into_permits() })
    }

    /// Settles a reservation for its actual cost, on the counters whose rules take their cost from
    /// an attribute of the request; if there are none, on all. So a rule that counts requests is
    /// unaffected by the cost of a rule that counts tokens.
    ///
    /// Use beyond the estimate is debited, even if nothing is left. The unused rest is credited,
    /// unless time has given it back already. If an edit of the rules has scaled or reset the
    /// counter since (`on-change`), it stays charged, because the charge cannot be told apart from
    /// the use of others.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Ask, EmbeddedStore, Limiter, ReservationError, rules};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::new(EmbeddedStore::new());
    /// # limiter.set_rules(rules::load(
    /// #     "{ version: 1, domain: llm, rules: [{ name: tokens, scenario: payment, limits: [100 per 1h] }] }",
    /// #     rules::Format::Yaml,
    /// # )?)?;
    /// # let ask = Ask::new("llm").cost(60);
    /// let reserved = limiter.reserve(&ask, Duration::from_secs(60)).await.map_err(|_| "refused")?;
    ///
    /// limiter.commit(&reserved, 75).await?;
    /// assert_eq!(limiter.explain(&ask).await.counters[0].remaining, 25);
    ///
    /// let again = limiter.commit(&reserved, 75).await;
    /// assert!(matches!(again, Err(ReservationError::AlreadyUsed)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When it was settled before, has expired, or the store did not answer. After a missing answer
    /// you can try again: then [`ReservationError::AlreadyUsed`] means that the first attempt
    /// succeeded.
    pub async fn commit(
        &self,
        reservation: &Reservation,
        actual: Cost,
    ) -> Result<(), ReservationError> {
        self.settle(reservation, Some(actual)).await
    }

    /// Gives back all that a reservation is still worth, on every counter.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Ask, EmbeddedStore, Limiter, rules};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::new(EmbeddedStore::new());
    /// # limiter.set_rules(rules::load(
    /// #     "{ version: 1, domain: llm, rules: [{ name: tokens, scenario: payment, limits: [100 per 1h] }] }",
    /// #     rules::Format::Yaml,
    /// # )?)?;
    /// # let ask = Ask::new("llm").cost(60);
    /// let reserved = limiter.reserve(&ask, Duration::from_secs(60)).await.map_err(|_| "refused")?;
    /// assert_eq!(limiter.explain(&ask).await.counters[0].remaining, 40);
    ///
    /// limiter.refund(&reserved).await?;
    /// assert_eq!(limiter.explain(&ask).await.counters[0].remaining, 100);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Limiter::commit`].
    pub async fn refund(&self, reservation: &Reservation) -> Result<(), ReservationError> {
        self.settle(reservation, None).await
    }

    async fn settle(
        &self,
        reservation: &Reservation,
        actual: Option<Cost>,
    ) -> Result<(), ReservationError> {
        if reservation.spent.is_empty() {
            // Nothing was counted, so there is nothing to settle.
            return Ok(());
        }
        let mut bytes = keys::OnceKey::default();
        let guarded = reservation.spent.first().map_or(&[][..], |spent| &spent.counter.key);
        let once = bytes.write(keys::RESERVATION, reservation.id, guarded);
        let once = once.ok_or(ReservationError::AlreadyUsed)?;
        let limit = once_within(reservation.expires.since(reservation.at).saturating_add(SLACK));
        let runner = &self.shared.runner;
        let now = match runner.fallback.store_time(clock::now()) {
            Some(now) => now,
            None => {
                let peek = Charge::new(once, &limit, Op::Peek(1));
                let charges = [peek.map_err(|_| ReservationError::AlreadyUsed)?];
                runner.store.decide(&Request::new(&charges)?).await?.at
            }
        };
        if now > reservation.expires {
            return Err(ReservationError::Expired);
        }
        let once = Charge::take(once, &limit, 1).map_err(|_| ReservationError::AlreadyUsed)?;
        let settled = reservation.settlement(actual, &self.rules());
        let charges: Vec<Charge<'_>> =
            std::iter::once(once).chain(settled.iter().map(|(charge, _)| *charge)).collect();
        let partition = reservation.spent.first().and_then(|s| s.counter.partition.as_deref());
        let request = Request::new(&charges)?;
        let request = partition.map_or(request, |partition| request.within(partition));
        let answer = runner.store.decide(&request).await?;
        runner.forget_refusals(settled.iter().map(|(charge, _)| charge));
        match answer.decisions.first() {
            _ if answer.passes() => {
                for (charge, guard) in &settled {
                    if let (Op::Credit { at, .. }, Some(guard)) = (charge.op(), guard) {
                        runner.credited(charge, guard, now.since(at));
                    }
                }
                Ok(())
            }
            Some(used) if used.basis == Basis::Overflow => Err(ReservationError::NoRoom),
            _ => Err(ReservationError::AlreadyUsed),
        }
    }

    /// Writes the reservation as text that any node of the fleet can settle. Permits stay with this
    /// process. The text is not encrypted: it shows the keys of its counters, with the attributes
    /// of clients in them.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Ask, EmbeddedStore, Limiter, rules};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::new(EmbeddedStore::new());
    /// # limiter.set_rules(rules::load(
    /// #     "{ version: 1, domain: llm, rules: [{ name: tokens, scenario: payment, limits: [100 per 1h] }] }",
    /// #     rules::Format::Yaml,
    /// # )?)?;
    /// # let ask = Ask::new("llm").cost(60);
    /// let reserved = limiter.reserve(&ask, Duration::from_secs(60)).await.map_err(|_| "refused")?;
    ///
    /// let token = limiter.token(&reserved);
    /// assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)));
    /// limiter.commit(&limiter.redeem(&token)?, 10).await?;
    /// assert_eq!(limiter.explain(&ask).await.counters[0].remaining, 90);
    /// # Ok(()) }
    /// ```
    pub fn token(&self, reservation: &Reservation) -> String {
        token::write(reservation, &self.shared.mac)
    }

    /// Reads a reservation from its token. Settling it skips counters whose rule or algorithm is
    /// not in this node's rules.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Ask, EmbeddedStore, Limiter, TokenError, rules};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::new(EmbeddedStore::new());
    /// # limiter.set_rules(rules::load(
    /// #     "{ version: 1, domain: llm, rules: [{ name: tokens, scenario: payment, limits: [100 per 1h] }] }",
    /// #     rules::Format::Yaml,
    /// # )?)?;
    /// # let ask = Ask::new("llm").cost(60);
    /// let reserved = limiter.reserve(&ask, Duration::from_secs(60)).await.map_err(|_| "refused")?;
    /// let token = limiter.token(&reserved);
    ///
    /// assert_eq!(limiter.redeem(&token)?.expires(), reserved.expires());
    /// assert_eq!(limiter.redeem("no token").map(drop), Err(TokenError::Malformed));
    /// let stranger = Limiter::new(EmbeddedStore::new()); // which draws a secret of its own
    /// assert_eq!(stranger.redeem(&token).map(drop), Err(TokenError::NotOurs));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When the token is incomplete, or was not made by this fleet.
    pub fn redeem(&self, token: &str) -> Result<Reservation, TokenError> {
        token::read(token, &self.shared.mac, &self.rules())
    }

    async fn admit_and_note(&self, ask: &Ask<'_>) -> (Admission, Vec<SpentCharge>) {
        let rules = DecidingRules::Rules(self.rules());
        let spent = |plan: &Plan<'_>, ruling: &Ruling| {
            let spent = plan.iter().filter_map(|(charge, policy)| match charge.op() {
                Op::Take(cost) => Some(SpentCharge {
                    counter: OwnedCounter::of(charge, plan.partition),
                    cost,
                    charged: charge.limit().revision(),
                    measured: policy.measured,
                    guard: policy.guard.copied(),
                }),
                _ => None,
            });
            spent.filter(|_| ruling.passes()).collect()
        };
        self.admit_with(ask, Intent::CHARGE, &rules, spent).await
    }
}

/// The reason why a reservation was not settled.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReservationError {
    /// It was settled before, perhaps by a call whose answer was lost.
    AlreadyUsed,
    /// It has expired, and stays charged.
    Expired,
    /// The store is full, and cannot record the use. You can try again.
    NoRoom,
    /// The settling needs more charges than one request may have, its once-marker included.
    TooLarge(RequestError),
    /// The store did not answer. You can try again; it counts once.
    Store(StoreError),
}

error_messages! {
    ReservationError {
        Self::AlreadyUsed => "the reservation was settled before";
        Self::Expired => "the reservation has expired, and stays charged";
        Self::NoRoom => "the store has no room to remember that the reservation was used";
        Self::TooLarge(_) => "the reservation is charged on too many counters to be settled";
        Self::Store(_) => "the reservation could not be settled; try again";
    }
    source {
        Self::Store(error) => error;
        Self::TooLarge(error) => error;
    }
    from { StoreError => Store; RequestError => TooLarge; }
}
