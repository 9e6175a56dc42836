//! A request: several charges, all or none.
//!
//! [`Request::judge`] is the one place where several decisions become one answer; every store uses
//! it. Its verdict is the worst of the charges' (refuse, wait, allow). If it refuses, nothing is
//! charged, and the answer names the charge that refuses. Charges on one counter see the state that
//! earlier charges of the request would leave.

use smallvec::SmallVec;

use crate::algorithm::Effect;
use crate::charge::{Need, Op, Terms};
use crate::counter::Counter;
use crate::decision::{Answer, Decision, Retry, Verdict};
use crate::errors::messages;
use crate::{Charge, Timestamp};

/// Charges that are made together or not at all.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    charges: &'a [Charge<'a>],
    partition: Option<&'a [u8]>,
}

impl<'a> Request<'a> {
    /// The most charges of one request: five levels with a dozen limits each.
    pub const MAX_CHARGES: usize = 64;

    /// Makes these charges one request.
    ///
    /// # Errors
    ///
    /// When there are more than [`Request::MAX_CHARGES`]; when more than one has patience, because
    /// two places in the future cannot be promised for the same moment; or when two charge one
    /// counter under different limits.
    #[inline]
    pub fn new(charges: &'a [Charge<'a>]) -> Result<Self, RequestError> {
        if charges.len() > 1 {
            check(charges)?;
        }
        Ok(Self { charges, partition: None })
    }

    /// Returns the request within a partition: bytes that all its counters have in common, such as
    /// a tenant. A store with several machines keeps the counters of a partition on one of them,
    /// and so decides the request there in one step. In such a store the partition is part of a
    /// counter's name, so always charge a counter within the same one.
    pub const fn within(mut self, partition: &'a [u8]) -> Self {
        self.partition = Some(partition);
        self
    }

    /// The charges, in order.
    pub const fn charges(&self) -> &'a [Charge<'a>] {
        self.charges
    }

    /// The bytes that all its counters share, if any.
    pub const fn partition(&self) -> Option<&'a [u8]> {
        self.partition
    }

    /// Decides the request over its counters, and charges them unless it is refused.
    ///
    /// `targets[i]` is the counter of charge `i`; charges on one key share a counter. Counters are
    /// settled whatever the verdict.
    #[cfg_attr(not(feature = "store"), doc(hidden))]
    pub fn judge(
        &self,
        counters: &mut [Counter],
        targets: &[ChargeTarget],
        now: Timestamp,
    ) -> Answer {
        for (charge, target) in self.charges.iter().zip(targets) {
            if let Some(counter) = counters.get_mut(target.index()) {
                counter.settle(charge.limit(), now);
            }
        }
        let (decisions, effects) = self.decide(counters, targets, now);
        let ruling = RequestVerdict::over(self.charges, &decisions);
        let refused = !ruling.verdict.passes();
        let (verdict, refused_by) = (ruling.verdict, ruling.refused_by);
        let mut answer = Answer { verdict, at: now, refused_by, decisions };
        let rows = self.charges.iter().zip(targets).zip(answer.decisions.iter_mut().zip(effects));
        for ((charge, target), (decision, effect)) in rows {
            let Some(counter) = counters.get_mut(target.index()) else { continue };
            if !refused && ruling.charges(charge, decision) {
                // What an earlier charge of a group would have left is not what is there.
                let effect = if ruling.has_group { counter.decide(charge, now).1 } else { effect };
                counter.apply(effect);
            } else if decision.passes() {
                *decision = counter.peek(charge, now);
            }
        }
        answer
    }

    /// Returns the verdict over these decisions, one for each charge, and the charge that refuses:
    /// the one with the longest retry.
    #[cfg_attr(not(feature = "store"), doc(hidden))]
    pub fn rule(&self, decisions: &[Decision]) -> (Verdict, Option<usize>) {
        let ruling = RequestVerdict::over(self.charges, decisions);
        (ruling.verdict, ruling.refused_by)
    }

    /// Gives refused takes of one counter the retry after which they pass together.
    fn together(
        &self,
        i: usize,
        targets: &[ChargeTarget],
        counter: &Counter,
        alone: (Decision, Effect),
        now: Timestamp,
    ) -> (Decision, Effect) {
        let Some(charge) = self.charges.get(i).filter(|_| !alone.0.passes()) else { return alone };
        let mates = self.charges.iter().zip(targets).take(i.saturating_add(1));
        let costs = mates
            .filter(|(_, target)| Some(*target) == targets.get(i))
            .map(|(c, _)| c.immediate_cost());
        let Some(sum) = costs.reduce(|a, b| a?.checked_add(b?)).flatten() else { return alone };
        let terms = Terms { op: Op::Peek(sum), ..charge.terms(now) };
        let (together, _) = counter.under().decide_terms(counter.state(), terms);
        // In a queue one large task may pass where two small ones have to wait.
        if together.verdict > alone.0.verdict { (together, Effect::None) } else { alone }
    }

    fn decide(
        &self,
        counters: &[Counter],
        targets: &[ChargeTarget],
        now: Timestamp,
    ) -> (SmallVec<[Decision; 4]>, SmallVec<[Effect; 4]>) {
        let mut decisions = SmallVec::new();
        let mut effects: SmallVec<[Effect; 4]> = SmallVec::new();
        for (i, (charge, target)) in self.charges.iter().zip(targets).enumerate() {
            let (decision, effect) = match (target, counters.get(target.index())) {
                (_, Some(counter)) if !targets.iter().take(i).any(|other| other == target) => {
                    counter.decide(charge, now)
                }
                (_, Some(counter)) => {
                    // Rare, so a copy is fine: the counter as the charges before would leave it.
                    let mut copy = counter.clone();
                    for (_, effect) in
                        targets.iter().zip(&effects).filter(|(other, _)| *other == target)
                    {
                        copy.apply(effect.clone());
                    }
                    self.together(i, targets, counter, copy.decide(charge, now), now)
                }
                (ChargeTarget::Fixed(verdict), None) => {
                    (Decision::overflow(*verdict), Effect::None)
                }
                (ChargeTarget::Counter(_), None) => {
                    (Decision::overflow(Verdict::Deny(Retry::Never)), Effect::None)
                }
            };
            effects.push(if decision.passes() { effect } else { Effect::None });
            decisions.push(decision);
        }
        (decisions, effects)
    }
}

/// The counter of a charge, or a fixed verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeTarget {
    /// The counter with this index.
    Counter(usize),
    /// No counter: the store has no room, and the limit's `on-full` decides.
    Fixed(Verdict),
}

impl ChargeTarget {
    /// The index of its counter. A fixed verdict has an index without a counter.
    const fn index(self) -> usize {
        match self {
            Self::Counter(index) => index,
            Self::Fixed(_) => usize::MAX,
        }
    }
}

/// Checks that several charges can be one request.
fn check(charges: &[Charge<'_>]) -> Result<(), RequestError> {
    if charges.len() > Request::MAX_CHARGES {
        return Err(RequestError::TooMany { charges: charges.len() });
    }
    let waiting = charges.iter().filter(|charge| !charge.patience().is_zero()).count();
    if waiting > 1 {
        return Err(RequestError::SeveralWait { charges: waiting });
    }
    for (i, later) in charges.iter().enumerate() {
        if charges.iter().take(i).any(|earlier| conflict(earlier, later)) {
            return Err(RequestError::TwoLimits { charge: i });
        }
    }
    Ok(())
}

/// True if two charges share a counter under different limits.
fn conflict(a: &Charge<'_>, b: &Charge<'_>) -> bool {
    a.key() == b.key()
        && a.limit() != b.limit()
        && a.limit().algorithm().name() == b.limit().algorithm().name()
}

impl Counter {
    /// The decision about `charge` if nothing is charged.
    fn peek(&self, charge: &Charge<'_>, now: Timestamp) -> Decision {
        let terms = Terms { op: charge.op().peeked(), ..charge.terms(now) };
        self.under().decide_terms(self.state(), terms).0
    }
}

/// The verdict over a request, and the charge that decides it.
struct RequestVerdict {
    verdict: Verdict,
    refused_by: Option<usize>,
    /// The best verdict within the group of which any one suffices.
    any_of: Verdict,
    /// True if there is such a group.
    has_group: bool,
}

impl RequestVerdict {
    fn over(charges: &[Charge<'_>], decisions: &[Decision]) -> Self {
        let of = |need: Need| {
            let rows = charges.iter().zip(decisions).enumerate();
            rows.filter(move |(_, (charge, _))| charge.need() == need)
                .map(|(i, (_, decision))| (decision.verdict, i))
        };
        let must = of(Need::Must).max_by_key(|(verdict, i)| (*verdict, std::cmp::Reverse(*i)));
        let any_of = of(Need::AnyOf).min();
        let worst = must.into_iter().chain(any_of).max_by_key(|(verdict, _)| *verdict);
        Self {
            verdict: worst.map_or(Verdict::Allow, |(verdict, _)| verdict),
            refused_by: worst.filter(|(verdict, _)| !verdict.passes()).map(|(_, i)| i),
            any_of: any_of.map_or(Verdict::Allow, |(verdict, _)| verdict),
            has_group: any_of.is_some(),
        }
    }

    /// True if this charge is made when the request passes. Of a group, the charges are made that
    /// pass as well as the best of it.
    fn charges(&self, charge: &Charge<'_>, decision: &Decision) -> bool {
        match charge.need() {
            Need::Must => true,
            Need::AnyOf => decision.verdict <= self.any_of,
        }
    }
}

/// The reason why charges cannot be one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestError {
    /// More than [`Request::MAX_CHARGES`].
    TooMany {
        /// The number of charges.
        charges: usize,
    },
    /// More than one charge has patience.
    SeveralWait {
        /// The number of charges.
        charges: usize,
    },
    /// Two charges meet on one counter under different limits.
    TwoLimits {
        /// The later one.
        charge: usize,
    },
}

messages! { RequestError:
    Self::TooMany { charges } => "{charges} charges in one request, above {}", Request::MAX_CHARGES;
    Self::TwoLimits { charge } =>
        "charge {charge} has the key of an earlier one but another limit: name the limit in the key";
    Self::SeveralWait { charges } =>
        "{charges} charges of one request have patience: at most one may wait";
}
