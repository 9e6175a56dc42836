//! A charge: an operation on one counter, as data.
//!
//! It is the seam between decisions and stores. An embedded table executes a charge by calling the
//! algorithm; another store may execute the algorithm's twin elsewhere. You cannot build an invalid
//! charge: an operation that does not fit the limit's algorithm is refused here.

use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::errors::messages;
use crate::time::micros;
use crate::{Key, Limit, Timestamp};

/// The permits of an operation. A cost of zero asks without spending.
pub type Cost = u64;

/// The holder of a permit of a concurrency limit. Unique for each permit; the caller draws it at
/// random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u128);

/// An operation on a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Spend `cost` if it is available. A cost of 0 only asks.
    Take(Cost),
    /// Ask if `cost` would pass. Charges nothing.
    Peek(Cost),
    /// Spend `cost` even if it is not available, for use that already happened at `at`: a commit
    /// above its reservation, or a request that was let through in an outage. May leave debt.
    /// Counts in full, unless a charge made at `at` would have left the counter by now.
    Debit {
        /// The permits to spend.
        cost: Cost,
        /// The moment it happened.
        at: Timestamp,
    },
    /// Give back the current value of a charge. The rest came back with time.
    Credit {
        /// The permits that were charged.
        cost: Cost,
        /// The moment of the decision, or of the grant if the charge had to wait.
        at: Timestamp,
    },
    /// Hold one permit for `lease`. Idempotent: a holder that has it already renews it.
    Acquire {
        /// The holder.
        holder: Holder,
        /// The lease, unless renewed.
        lease: Duration,
    },
    /// Hold the permit for `lease` from now. Refused for good once the lease has ended.
    Renew {
        /// The holder.
        holder: Holder,
        /// The lease from now on.
        lease: Duration,
    },
    /// Give the permit back. Idempotent.
    Release {
        /// The holder.
        holder: Holder,
    },
}

impl Op {
    /// The question in place of this operation if it may not charge.
    pub(crate) const fn peeked(self) -> Self {
        match self {
            Self::Take(cost) | Self::Peek(cost) => Self::Peek(cost),
            Self::Acquire { .. } => Self::Peek(1),
            Self::Debit { .. }
            | Self::Credit { .. }
            | Self::Renew { .. }
            | Self::Release { .. } => Self::Peek(0),
        }
    }
}

/// The part of a charge in the verdict over its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Need {
    /// The request passes only if this charge does.
    #[default]
    Must,
    /// The request passes if any one of its `AnyOf` charges does. Those that refuse are not
    /// charged.
    AnyOf,
}

/// One operation on one counter under one limit.
///
/// ```
/// use tollgate_core::{Charge, Key, Limit, Op, algorithm::TokenBucket};
///
/// let limit = Limit::new(TokenBucket, "100 per 1m burst 20".parse()?)?;
/// let key = Key::new("user:42")?;
///
/// let charge = Charge::new(key, &limit, Op::Take(1))?;
///
/// assert_eq!(charge.op(), Op::Take(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    key: Key<'a>,
    limit: &'a Limit,
    op: Op,
    patience_us: u64,
    need: Need,
}

impl<'a> Charge<'a> {
    /// The longest that a charge may wait for its grant: the longest period.
    pub const MAX_PATIENCE: Duration = crate::Quota::MAX_PERIOD;

    /// Applies `op` to the counter of `key` under `limit`.
    ///
    /// # Errors
    ///
    /// When the operation does not fit the limit's algorithm (holders and leases belong to
    /// concurrency limits, costs to all others), or the lease is zero or above the limit's
    /// longest.
    #[inline]
    pub fn new(key: Key<'a>, limit: &'a Limit, op: Op) -> Result<Self, ChargeError> {
        let concurrency = matches!(limit.algorithm(), Algorithm::Concurrency(_));
        match op {
            Op::Peek(_) => {}
            Op::Take(_) | Op::Debit { .. } | Op::Credit { .. } if concurrency => {
                return Err(ChargeError::NeedsHolder);
            }
            Op::Take(_) | Op::Debit { .. } | Op::Credit { .. } => {}
            Op::Acquire { .. } | Op::Renew { .. } | Op::Release { .. } if !concurrency => {
                return Err(ChargeError::NotConcurrency);
            }
            Op::Acquire { lease, .. } | Op::Renew { lease, .. } => {
                let longest = limit.quota().period();
                if lease < Duration::from_micros(1) || lease > longest {
                    return Err(ChargeError::Lease { lease, longest });
                }
            }
            Op::Release { .. } => {}
        }
        Ok(Self { key, limit, op, patience_us: 0, need: Need::Must })
    }

    /// Takes `cost` permits.
    ///
    /// # Errors
    ///
    /// As [`Charge::new`]: when the limit counts holders.
    pub fn take(key: Key<'a>, limit: &'a Limit, cost: Cost) -> Result<Self, ChargeError> {
        Self::new(key, limit, Op::Take(cost))
    }

    /// Accepts a grant up to `patience` from now, at most [`Charge::MAX_PATIENCE`].
    ///
    /// Only limits that keep a time line can grant a place in the future: token bucket, leaky
    /// bucket and smooth limiters. Windows, logs and concurrency refuse with the exact delay
    /// instead, whatever the patience.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience_us = micros(patience.min(Self::MAX_PATIENCE));
        self
    }

    /// Lets the request pass when another of its [`Need::AnyOf`] charges does.
    pub const fn any_of(mut self) -> Self {
        self.need = Need::AnyOf;
        self
    }

    /// The name of the counter.
    pub const fn key(&self) -> Key<'a> {
        self.key
    }

    /// The limit that judges.
    pub const fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// The operation.
    pub const fn op(&self) -> Op {
        self.op
    }

    /// The longest wait for a grant.
    pub const fn patience(&self) -> Duration {
        Duration::from_micros(self.patience_us)
    }

    /// Its part in the verdict over the request.
    pub const fn need(&self) -> Need {
        self.need
    }

    /// The cost of a take without patience; `None` for any other charge.
    #[cfg_attr(not(feature = "store"), doc(hidden))]
    #[inline]
    pub const fn immediate_cost(&self) -> Option<Cost> {
        match self.op {
            Op::Take(cost) if self.patience_us == 0 => Some(cost),
            _ => None,
        }
    }

    pub(crate) const fn terms(&self, now: Timestamp) -> Terms {
        Terms { op: self.op, patience_us: self.patience_us, now }
    }
}

/// The part of a charge that an algorithm decides on, and the moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) op: Op,
    pub(crate) patience_us: u64,
    pub(crate) now: Timestamp,
}

/// The reason why a charge cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChargeError {
    /// A concurrency limit is acquired, renewed and released by a holder; it is not spent.
    NeedsHolder,
    /// Only a concurrency limit has holders.
    NotConcurrency,
    /// The lease is below 1 µs or above the limit's longest.
    Lease {
        /// The lease asked for.
        lease: Duration,
        /// The limit's longest.
        longest: Duration,
    },
}

messages! { ChargeError:
    Self::NeedsHolder => "a concurrency limit cannot be spent: acquire it with a holder and a lease";
    Self::NotConcurrency => "only a concurrency limit has holders: take a cost instead";
    Self::Lease { lease, longest } => "the lease {lease:?} is not between 1µs and the limit's {longest:?}";
}
