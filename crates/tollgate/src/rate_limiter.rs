//! A named limiter, like Redisson's `RRateLimiter`. The store keeps its rate, so every process that
//! knows the name limits by the same rate, and a change applies to all.
//!
//! The rate is a value of the store, with an edit number that only rises. A process reads it again
//! after [`REFRESH`]. Until then it may charge under an older edit; the counter judges by the
//! newest edit that it has seen. Used permits stay used when the rate changes. Unlike
//! `RRateLimiter` it counts by the store's clock, gives no permit back twice, and wakes one waiter
//! at a time.

use std::sync::Mutex;
use std::time::Duration;

use tollgate_core::algorithm::{SlidingLog, SlidingWindow};
use tollgate_core::{
    Cost, Key, KeyError, Limit, LimitError, ParseQuotaError, Quota, Revision, Store, StoreError,
    lock_mutex,
};
use tollgate_embedded::EmbeddedStore;

use crate::Limiter;
use crate::clock::{self, Instant};
use crate::decision::{OwnedCounter, keys};
use crate::wait::{Gate, GateError, NotAdmitted};

/// The time for which a rate is used before it is read again.
const REFRESH: Duration = Duration::from_secs(1);

/// The number of attempts to set a rate while others set it too.
const TRIES: usize = 32;

/// Limits by a rate that the store keeps under a name.
///
/// ```
/// use tollgate::{EmbeddedStore, Limiter, RateLimiter, RateType};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(EmbeddedStore::new());
/// let mail = RateLimiter::new(&limiter, "mail")?;
///
/// assert!(mail.try_set_rate(RateType::Overall, "2 per 1h".parse()?).await?);
/// assert!(!mail.try_set_rate(RateType::Overall, "9 per 1h".parse()?).await?, "the first wins");
///
/// mail.acquire(1).await?;
/// assert!(mail.try_acquire(1).await?);
/// assert!(!mail.try_acquire(1).await?);
/// # Ok(()) }
/// ```
pub struct RateLimiter<S = EmbeddedStore> {
    limiter: Limiter<S>,
    name: Box<str>,
    known: Mutex<Option<KnownRate<S>>>,
}

struct KnownRate<S> {
    rate: Rate,
    gate: Gate<S>,
    since: Instant,
}

/// The processes that share a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RateType {
    /// All processes together (`OVERALL`).
    Overall,
    /// Each [`Limiter`] has the whole rate to itself (`PER_CLIENT`).
    PerClient,
}

/// A rate that the store keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The processes that share it.
    pub kind: RateType,
    /// The permits per period.
    pub quota: Quota,
    /// The number of times that the rate was set.
    pub edit: u64,
    /// A random number of the setter, which makes equal rates differ.
    setter: u128,
}

impl<S: Store + 'static> RateLimiter<S> {
    /// Creates a limiter of this name. Any process may have set its rate before.
    ///
    /// # Errors
    ///
    /// When the name is empty or too long.
    pub fn new(limiter: &Limiter<S>, name: &str) -> Result<Self, RateError> {
        let this = Self { limiter: limiter.clone(), name: name.into(), known: Mutex::default() };
        Key::new(name).map_err(RateError::Name)?;
        this.counter_key(RateType::PerClient)?;
        Ok(this)
    }

    /// Sets the rate if there is none. Returns true if it did.
    ///
    /// # Errors
    ///
    /// When the quota cannot be a rate, or the store does not answer.
    pub async fn try_set_rate(&self, kind: RateType, quota: Quota) -> Result<bool, RateError> {
        limit_of(quota, 1)?;
        let rate = self.edited(kind, quota, 1);
        self.set(None, &rate).await
    }

    /// Sets the rate, replacing any earlier one. Used permits stay used. A caller that waits
    /// already keeps its moment. A change from at most 100 000 permits to more, or back, starts a
    /// new count, because larger rates are counted by another algorithm.
    ///
    /// ```
    /// use tollgate::{EmbeddedStore, Limiter, RateLimiter, RateType};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mail = RateLimiter::new(&Limiter::new(EmbeddedStore::new()), "mail")?;
    /// mail.set_rate(RateType::Overall, "3 per 1h".parse()?).await?;
    /// assert!(mail.try_acquire(2).await?);
    ///
    /// mail.set_rate(RateType::Overall, "5 per 1h".parse()?).await?;
    /// assert_eq!(mail.available().await?, 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When the quota cannot be a rate, or the store does not answer.
    pub async fn set_rate(&self, kind: RateType, quota: Quota) -> Result<(), RateError> {
        limit_of(quota, 1)?;
        for _ in 0..TRIES {
            let before = self.look_up().await?;
            let edit = before.as_ref().map_or(1, |(rate, _)| rate.edit.saturating_add(1));
            let rate = self.edited(kind, quota, edit);
            if self.set(before.as_ref().map(|(_, text)| text.as_slice()), &rate).await? {
                return Ok(());
            }
        }
        Err(RateError::Contended)
    }

    /// Reads the rate from the store.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or the value under the name is not a rate.
    pub async fn rate(&self) -> Result<Option<Rate>, RateError> {
        Ok(self.look_up().await?.map(|(rate, _)| rate))
    }

    /// Waits for `permits`, however long it takes.
    ///
    /// # Errors
    ///
    /// When no rate is set, the store does not answer, or the rate never allows that many.
    pub async fn acquire(&self, permits: Cost) -> Result<(), RateError> {
        let gate = self.gate().await?;
        gate.acquire(permits).await.map_err(RateError::NotAdmitted)
    }

    /// Takes `permits` if they are available. Returns true if it did.
    ///
    /// # Errors
    ///
    /// As [`RateLimiter::acquire`].
    pub async fn try_acquire(&self, permits: Cost) -> Result<bool, RateError> {
        self.try_acquire_timeout(permits, Duration::ZERO).await
    }

    /// Waits for `permits`, but not longer than `patience`. Returns true if it got them, and false
    /// at once if they are not available in time.
    ///
    /// # Errors
    ///
    /// As [`RateLimiter::acquire`].
    pub async fn try_acquire_timeout(
        &self,
        permits: Cost,
        patience: Duration,
    ) -> Result<bool, RateError> {
        let gate = self.gate().await?;
        match gate.acquire_timeout(permits, patience).await {
            Ok(()) => Ok(true),
            Err(NotAdmitted::Late { .. }) => Ok(false),
            Err(never) => Err(RateError::NotAdmitted(never)),
        }
    }

    /// The number of permits that could be taken now.
    ///
    /// # Errors
    ///
    /// When no rate is set.
    pub async fn available(&self) -> Result<u64, RateError> {
        Ok(self.gate().await?.available().await)
    }

    /// The gate of the current rate, which is read again if it is old.
    async fn gate(&self) -> Result<Gate<S>, RateError> {
        let fresh =
            |known: &KnownRate<S>| clock::now().saturating_duration_since(known.since) < REFRESH;
        let stale = {
            let known = self.lock();
            match known.as_ref() {
                Some(known) if fresh(known) => return Ok(known.gate.clone()),
                known => known.map(|known| known.gate.clone()),
            }
        };
        match (self.look_up().await, stale) {
            (Ok(Some((rate, _))), _) => self.learn(rate),
            (Ok(None), _) => Err(RateError::NotSet),
            // A rate that was known still is, while the store does not answer.
            (Err(RateError::Store(_)), Some(gate)) => Ok(gate),
            (Err(error), _) => Err(error),
        }
    }

    fn learn(&self, rate: Rate) -> Result<Gate<S>, RateError> {
        let mut known = self.lock();
        let since = clock::now();
        if let Some(known) = known.as_mut().filter(|known| known.rate == rate) {
            known.since = since;
            return Ok(known.gate.clone());
        }
        let shared = &self.limiter.shared;
        let key = self.counter_key(rate.kind)?;
        let limit = limit_of(rate.quota, rate.edit)?;
        let counter = OwnedCounter { key, limit, partition: None };
        let gate = Gate::new(shared.runner.clone(), shared.background.clone(), counter)?;
        *known = Some(KnownRate { rate, gate: gate.clone(), since });
        Ok(gate)
    }

    async fn look_up(&self) -> Result<Option<(Rate, Vec<u8>)>, RateError> {
        let name = self.value_name();
        let name = Key::new(&name).map_err(RateError::Name)?;
        let Some(text) = self.limiter.store().read(name).await? else { return Ok(None) };
        let rate = Rate::parse(&text).ok_or(RateError::Foreign)?;
        Ok(Some((rate, text)))
    }

    async fn set(&self, expected: Option<&[u8]>, rate: &Rate) -> Result<bool, RateError> {
        let (name, text) = (self.value_name(), rate.to_text());
        let name = Key::new(&name).map_err(RateError::Name)?;
        let store = self.limiter.store();
        let found = store.compare_and_set(name, expected, text.as_bytes()).await?;
        let is_set = found.as_deref() == Some(text.as_bytes());
        if is_set {
            self.learn(rate.clone())?;
        }
        Ok(is_set)
    }

    fn edited(&self, kind: RateType, quota: Quota, edit: u64) -> Rate {
        Rate { kind, quota, edit, setter: self.limiter.shared.runner.names.draw() }
    }

    fn value_name(&self) -> Vec<u8> {
        [&[keys::RATE], self.name.as_bytes()].concat()
    }

    fn counter_key(&self, kind: RateType) -> Result<Box<[u8]>, RateError> {
        let client = self.limiter.shared.runner.names.process().to_le_bytes();
        let key = match kind {
            RateType::Overall => [&[keys::RATE, b'o'], self.name.as_bytes()].concat(),
            RateType::PerClient => {
                [&[keys::RATE, b'p'], &client[..], self.name.as_bytes()].concat()
            }
        };
        Key::new(&key).map_err(RateError::Name)?;
        Ok(key.into())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<KnownRate<S>>> {
        // Replaced whole, so what a poisoned lock guards is whole.
        lock_mutex(&self.known)
    }
}

/// Counts exactly if the quota is small enough, as `RRateLimiter` does; larger quotas use
/// sub-windows, which never admit more.
fn limit_of(quota: Quota, edit: u64) -> Result<Limit, RateError> {
    let limit = Limit::new(SlidingLog, quota)
        .or_else(|_| Limit::new(SlidingWindow::conservative(), quota))
        .map_err(RateError::Limit)?;
    Ok(limit.with_revision(Revision(edit)))
}

impl Rate {
    fn to_text(&self) -> String {
        let kind = match self.kind {
            RateType::Overall => "overall",
            RateType::PerClient => "per-client",
        };
        format!("1 {} {:032x} {kind} {}", self.edit, self.setter, self.quota)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?.strip_prefix("1 ")?;
        let (edit, text) = text.split_once(' ')?;
        let (setter, text) = text.split_once(' ')?;
        let (kind, quota) = text.split_once(' ')?;
        let kind = match kind {
            "overall" => RateType::Overall,
            "per-client" => RateType::PerClient,
            _ => return None,
        };
        let quota: Result<Quota, ParseQuotaError> = quota.parse();
        let setter = u128::from_str_radix(setter, 16).ok()?;
        Some(Self { kind, quota: quota.ok()?, edit: edit.parse().ok()?, setter })
    }
}

opaque_debug!(RateLimiter<S>: |it| name = it.name);

/// The reason why there is no permit, or no rate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RateError {
    /// No rate was set under this name; [`RateLimiter::try_set_rate`] sets one.
    NotSet,
    /// The permits are not available in time, or more than the rate ever allows.
    NotAdmitted(NotAdmitted),
    /// The quota cannot be a rate.
    Limit(LimitError),
    /// The name is empty or too long.
    Name(KeyError),
    /// The value under this name is not a rate.
    Foreign,
    /// Others kept setting the rate at the same time.
    Contended,
    /// The store did not answer.
    Store(StoreError),
}

error_messages! {
    RateError {
        Self::NotSet => "no rate is set under this name: set one first";
        Self::NotAdmitted(error) => "{error}";
        Self::Limit(error) => "{error}";
        Self::Name(error) => "{error}";
        Self::Foreign => "the value stored under this name is not a rate";
        Self::Contended => "others set the rate at the same time: try again";
        Self::Store(error) => "{error}";
    }
    source { Self::Store(error) => error.source()?; }
    from { StoreError => Store; }
}

impl From<GateError> for RateError {
    fn from(error: GateError) -> Self {
        match error {
            GateError::Key(error) => Self::Name(error),
            // No limit of a rate counts holders.
            GateError::CountsHolders => Self::Foreign,
        }
    }
}
