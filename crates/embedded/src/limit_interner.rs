//! The limits that a shard's keys were counted under, each kept once.
//!
//! A slot names its limit by number. Limits are counted, so that one nobody uses any more makes
//! room: a client that brings its own quotas cannot fill the memory with them beyond one a key.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::Limit;

use crate::slot::LimitId;

/// Limits by number.
#[derive(Debug, Default)]
pub(crate) struct LimitInterner {
    limits: Vec<InternedLimit>,
    free: Vec<u32>,
    numbers: HashMap<Limit, u32>,
    /// The one asked for last, which is nearly always the one asked for next.
    last: u32,
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
        let index = usize::try_from(id.0).unwrap_or(usize::MAX);
        self.limits.get(index).map(|counted| &counted.limit)
    }

    /// The number of this limit, which one more slot uses.
    pub(crate) fn acquire(&mut self, limit: &Limit) -> LimitId {
        let last = LimitId(self.last);
        if self.is_used(last) && self.limit(last) == Some(limit) {
            self.count(last, used_once_more);
            return last;
        }
        if let Some(number) = self.numbers.get(limit) {
            self.last = *number;
            let id = LimitId(*number);
            self.count(id, used_once_more);
            return id;
        }
        let counted = InternedLimit { limit: Arc::new(*limit), uses: 1 };
        let number = match self.free.pop() {
            Some(number) => {
                let index = usize::try_from(number).unwrap_or(usize::MAX);
                if let Some(place) = self.limits.get_mut(index) {
                    *place = counted;
                }
                number
            }
            None => {
                self.limits.push(counted);
                // One limit a slot at most, and a shard has far fewer than 2^31 slots.
                u32::try_from(self.limits.len().saturating_sub(1)).unwrap_or(u32::MAX)
            }
        };
        self.numbers.insert(*limit, number);
        LimitId(number)
    }

    /// One slot less uses this limit.
    pub(crate) fn release(&mut self, id: LimitId) {
        if self.count(id, |uses| uses.saturating_sub(1)) == Some(0) {
            if let Some(limit) = self.limit(id).copied() {
                self.numbers.remove(&limit);
            }
            self.free.push(id.0);
        }
    }

    fn is_used(&self, id: LimitId) -> bool {
        let index = usize::try_from(id.0).unwrap_or(usize::MAX);
        self.limits.get(index).is_some_and(|counted| counted.uses > 0)
    }

    fn count(&mut self, id: LimitId, change: fn(u32) -> u32) -> Option<u32> {
        let index = usize::try_from(id.0).unwrap_or(usize::MAX);
        let counted = self.limits.get_mut(index)?;
        counted.uses = change(counted.uses);
        Some(counted.uses)
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }
}

const fn used_once_more(uses: u32) -> u32 {
    uses.saturating_add(1)
}
