//! A toll: one counter that a request is charged on, and what answers for it in an outage.
//!
//! What [`Charge`] is to a store, a toll is to the engine: the charge, and what to do when it
//! cannot be made.

use std::time::Duration;

use tollgate_core::rule::declaration::OnOutage;
use tollgate_core::{Algorithm, Charge, Cost, Key, Limit, Need, Op};

/// One counter, and what is to happen to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Toll<'a> {
    pub(crate) key: Key<'a>,
    pub(crate) limit: &'a Limit,
    pub(crate) op: Op,
    pub(crate) patience: Duration,
    /// Whether the request needs it, or any one of several.
    pub(crate) need: Need,
    pub(crate) on_outage: OnOutage,
    /// A local limiter in front of the store, at a multiple of the limit.
    pub(crate) guard: Option<&'a Limit>,
    /// Whether its refusals lead to a ban.
    pub(crate) bans: bool,
    /// Whether its cost was measured by an attribute of the request.
    pub(crate) measured: bool,
}

impl<'a> Toll<'a> {
    pub(crate) const fn new(key: Key<'a>, limit: &'a Limit, op: Op) -> Self {
        Self {
            key,
            limit,
            op,
            patience: Duration::ZERO,
            need: Need::Must,
            on_outage: OnOutage::Local,
            guard: None,
            bans: false,
            measured: false,
        }
    }

    pub(crate) const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The charge for a store; `None` if the operation does not fit the limit.
    #[inline]
    pub(crate) fn charge(&self) -> Option<Charge<'a>> {
        let charge = Charge::new(self.key, self.limit, self.op).ok()?;
        let charge = if self.need == Need::AnyOf { charge.any_of() } else { charge };
        Some(if self.patience.is_zero() { charge } else { charge.with_patience(self.patience) })
    }

    /// What is asked for, if a refusal of it says something about the next: with patience, who
    /// waits longer may still pass.
    pub(crate) const fn asked(&self) -> Option<Cost> {
        match self.op {
            Op::Take(cost) | Op::Peek(cost) if cost > 0 && self.patience.is_zero() => Some(cost),
            _ => None,
        }
    }

    /// What is spent if it passes.
    pub(crate) const fn spent(&self) -> Cost {
        match self.op {
            Op::Take(cost) => cost,
            _ => 0,
        }
    }

    pub(crate) const fn counts_holders(&self) -> bool {
        matches!(self.limit.algorithm(), Algorithm::Concurrency(_))
    }
}

/// A toll that outlives its request.
#[derive(Clone, Debug)]
pub(crate) struct OwnedToll {
    pub(crate) key: Box<[u8]>,
    pub(crate) limit: Limit,
    pub(crate) partition: Option<Box<[u8]>>,
}

impl OwnedToll {
    pub(crate) fn new(toll: &Toll<'_>, partition: Option<&[u8]>) -> Self {
        Self {
            key: toll.key.as_bytes().into(),
            limit: *toll.limit,
            partition: partition.map(Into::into),
        }
    }

    /// The key, which was one when this was made.
    pub(crate) fn key(&self) -> Option<Key<'_>> {
        Key::new(&self.key).ok()
    }

    /// This operation on its counter.
    pub(crate) fn toll(&self, op: Op) -> Option<Toll<'_>> {
        Some(Toll::new(self.key()?, &self.limit, op))
    }
}
