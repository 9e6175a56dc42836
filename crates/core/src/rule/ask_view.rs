//! The attributes of an ask that some rule of a domain uses, by their ids.

use std::net::IpAddr;

use smallvec::SmallVec;

use super::active::AttributeId;
use super::ask::{Ask, Attribute};
use super::domain::ActiveDomain;
use super::template::PathSegments;
use crate::Cost;

/// The attributes of an ask that a domain uses.
pub(super) struct AskView<'v> {
    values: SmallVec<[(AttributeId, Attribute<'v>); 8]>,
    /// The path; empty if there is none. Not an `Option`, because it is too large to be moved into
    /// one for every ask.
    path: PathSegments,
    has_path: bool,
    pub(super) cost: Cost,
    /// Values of `by` that the caller gave for a named rule, in the order of that rule.
    pub(super) given: SmallVec<[Attribute<'v>; 2]>,
}

impl<'v> AskView<'v> {
    pub(super) fn new(domain: &ActiveDomain, ask: &'v Ask<'_>) -> Self {
        let mut view = Self::of_cost(ask.own_cost());
        view.read(domain, ask);
        view
    }

    /// A view with only a cost: see [`PathSegments::none`].
    #[inline(always)]
    pub(super) fn of_cost(cost: Cost) -> Self {
        Self {
            values: SmallVec::new(),
            path: PathSegments::none(),
            has_path: false,
            cost,
            given: SmallVec::new(),
        }
    }

    /// Reads an ask into this empty view.
    pub(super) fn read(&mut self, domain: &ActiveDomain, ask: &'v Ask<'_>) {
        for (name, value) in ask.named() {
            let Some(slot) = domain.slots.of(name) else { continue };
            if let (AttributeId::PATH, Attribute::Text(path)) = (slot, value) {
                self.path.read(path, domain.path_case);
                self.has_path = true;
            }
            self.values.push((slot, value));
        }
    }

    /// The path in the form that templates match.
    pub(super) fn route(&self) -> Option<&PathSegments> {
        self.has_path.then_some(&self.path)
    }

    /// Sets this value, in place of the ask's.
    pub(super) fn set(&mut self, slot: AttributeId, value: Attribute<'v>) {
        match self.values.iter_mut().find(|(known, _)| *known == slot) {
            Some((_, earlier)) => *earlier = value,
            None => self.values.push((slot, value)),
        }
    }

    pub(super) fn values(&self) -> &[(AttributeId, Attribute<'v>)] {
        &self.values
    }

    pub(super) fn value(&self, slot: AttributeId) -> Option<Attribute<'v>> {
        self.values.iter().find(|(known, _)| *known == slot).map(|(_, value)| *value)
    }

    pub(super) fn text(&self, slot: AttributeId) -> Option<&'v [u8]> {
        match self.value(slot) {
            Some(Attribute::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.value(AttributeId::IP) {
            Some(Attribute::Address(address)) => Some(address),
            _ => None,
        }
    }
}
