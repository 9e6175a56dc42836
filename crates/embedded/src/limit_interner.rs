//! The limits that a shard's keys were counted under, each kept once.
//!
//! A slot names its limit by number. Limits are counted, so that one nobody uses any more makes
//! room: a client that brings its own quotas cannot fill the memory with them beyond one a key.

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
    /// The one asked for last, which is nearly always the one asked for next.
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

    /// The same, to be kept.
    #[inline]
    pub(crate) fn shared(&self, id: LimitId) -> Option<&Arc<Limit>> {
        self.limits.get(id.index()).map(|interned| &interned.limit)
    }

    /// The number of this limit, which one more slot uses.
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

    /// One slot less uses this limit.
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
