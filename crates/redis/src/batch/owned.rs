//! A request that outlives its caller's borrow.

use smallvec::SmallVec;
use tollgate_core::{Charge, Key, Limit, Need, Op, Request};

use crate::keys::{self, Name};

/// A request with everything it refers to.
#[derive(Debug)]
pub(crate) struct Owned {
    /// Boxed, as a request changes hands several times on its way.
    pub(super) charges: Box<[OwnedCharge]>,
}

/// A charge with its key and limit.
#[derive(Debug)]
pub(super) struct OwnedCharge {
    /// The counter's name in Redis, of which the key is the end.
    pub(super) name: Name,
    key_at: usize,
    limit: Limit,
    pub(super) op: Op,
    pub(super) patience_us: u64,
    pub(super) need: Need,
    /// A newer limit that the counter was found under, and that judges instead.
    pub(super) judged_by: Option<Box<Limit>>,
}

impl Owned {
    pub(crate) fn new(request: &Request<'_>) -> Self {
        let own = |charge: &Charge<'_>| {
            let name = keys::name(request.partition(), charge.key(), charge.limit());
            OwnedCharge {
                key_at: name.len().saturating_sub(charge.key().as_bytes().len()),
                name,
                limit: *charge.limit(),
                op: charge.op(),
                patience_us: u64::try_from(charge.patience().as_micros()).unwrap_or(u64::MAX),
                need: charge.need(),
                judged_by: None,
            }
        };
        let charges: Box<[OwnedCharge]> = match request.charges() {
            [charge] => Box::new([own(charge)]),
            charges => charges.iter().map(own).collect(),
        };
        Self { charges }
    }

    /// How many charges, the measure of a batch.
    pub(crate) fn len(&self) -> usize {
        self.charges.len()
    }

    /// The charges as the core knows them.
    pub(super) fn charges(&self) -> SmallVec<[Charge<'_>; 4]> {
        self.charges.iter().filter_map(OwnedCharge::charge).collect()
    }

    /// Whether two charges meet on one log: a view of it is not enough then.
    pub(super) fn shares_a_log(&self) -> bool {
        self.charges.iter().enumerate().any(|(i, charge)| {
            charge.is_log() && self.charges.iter().take(i).any(|other| other.name == charge.name)
        })
    }
}

impl OwnedCharge {
    /// The limit it names.
    pub(super) const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The limit that judges it.
    pub(super) fn judge(&self) -> &Limit {
        self.judged_by.as_deref().unwrap_or(&self.limit)
    }

    pub(super) fn is_log(&self) -> bool {
        matches!(self.limit.plan(), tollgate_core::Plan::SlidingLog(_))
    }

    /// The charge as the core knows it. What was a charge once is one still.
    pub(super) fn charge(&self) -> Option<Charge<'_>> {
        let key = Key::new(self.name.get(self.key_at..)?).ok()?;
        let charge = Charge::new(key, &self.limit, self.op).ok()?;
        let charge = charge.with_patience(std::time::Duration::from_micros(self.patience_us));
        Some(if self.need == Need::AnyOf { charge.any_of() } else { charge })
    }
}
