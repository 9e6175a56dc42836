//! What a domain can see of an ask: the attributes that some rule looks at, by slot.

use std::net::IpAddr;

use smallvec::SmallVec;

use super::active::Slot;
use super::ask::{Ask, Attribute};
use super::domain::ActiveDomain;
use super::template::Route;
use crate::Cost;

/// What a domain can see of an ask.
pub(super) struct View<'v> {
    values: SmallVec<[(Slot, Attribute<'v>); 8]>,
    pub(super) route: Option<Route>,
    pub(super) cost: Cost,
}

impl<'v> View<'v> {
    pub(super) fn new(domain: &ActiveDomain, ask: &'v Ask<'_>) -> Self {
        let mut view = Self { values: SmallVec::new(), route: None, cost: ask.own_cost() };
        for (name, value) in ask.named() {
            let Some(slot) = domain.slots.of(name) else { continue };
            if let (Slot::PATH, Attribute::Text(path)) = (slot, value) {
                // Filled in place: a route is too large to be moved about for every ask.
                view.route.insert(Route::default()).read(path, domain.path_case);
            }
            view.values.push((slot, value));
        }
        view
    }

    pub(super) fn values(&self) -> &[(Slot, Attribute<'v>)] {
        &self.values
    }

    pub(super) fn value(&self, slot: Slot) -> Option<Attribute<'v>> {
        self.values.iter().find(|(known, _)| *known == slot).map(|(_, value)| *value)
    }

    pub(super) fn text(&self, slot: Slot) -> Option<&'v [u8]> {
        match self.value(slot) {
            Some(Attribute::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.value(Slot::IP) {
            Some(Attribute::Address(address)) => Some(address),
            _ => None,
        }
    }
}
