//! The limits of a shard's keys, each stored once.
//!
//! A slot names its limit by number. Limits are reference-counted, so an unused limit makes room. A
//! client that brings its own quotas can therefore fill the memory with at most one limit for each
//! key.

#![allow(
    clippy::arithmetic_side_effects,
    reason = "uses are at most the slots of a shard, and each is released once"
)]

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::Limit;

use crate::slot::LimitId;

/// Limits by number.
#[derive(Debug, Default)]
pub(crate) struct LimitInterner {
    limits: Vec<InternedLimit>,
    free: Vec<LimitId>,
    ids: HashMap<Limit, LimitId>,
    /// The limit asked for last, which is nearly always the next one, too.
    last: LimitId,
}

#[derive(Debug)]
struct InternedLimit {
    limit: Arc<Limit>,
    uses: u32,
}

impl LimitInterner {
    #[inline]
    pub(crate) fn limit(&self, id: LimitId) -> Option<&Limit> {
        self.shared(id).map(|limit| &**limit)
    }

    /// The limit with shared ownership.
    #[inline]
    pub(crate) fn shared(&self, id: LimitId) -> Option<&Arc<Limit>> {
        self.limits.get(id.index()).map(|interned| &interned.limit)
    }

    /// Returns the number of this limit, and counts one more slot that uses it.
    pub(crate) fn acquire(&mut self, limit: &Limit) -> LimitId {
        let last = self.limits.get(self.last.index());
        if last.is_none_or(|last| last.uses == 0 || *last.limit != *limit) {
            self.last = self.ids.get(limit).copied().unwrap_or_else(|| self.add(limit));
        }
        self.limits[self.last.index()].uses += 1;
        self.last
    }

    fn add(&mut self, limit: &Limit) -> LimitId {
        let interned = InternedLimit { limit: Arc::new(*limit), uses: 0 };
        let id = match self.free.pop() {
            Some(id) => {
                self.limits[id.index()] = interned;
                id
            }
            None => {
                self.limits.push(interned);
                // One limit a slot at most, and a shard has far fewer than 2^31 slots.
                LimitId(u32::try_from(self.limits.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.ids.insert(*limit, id);
        id
    }

    /// Counts one slot less that uses this limit.
    pub(crate) fn release(&mut self, id: LimitId) {
        let interned = &mut self.limits[id.index()];
        interned.uses -= 1;
        if interned.uses == 0 {
            self.ids.remove(&*interned.limit);
            self.free.push(id);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}
